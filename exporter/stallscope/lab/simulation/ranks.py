"""Simulated ranks: the real shim, called as a training loop calls it, on a clock that follows the phase model."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping

from stallscope.lab.simulation.gpu import MEMORY_BYTES
from stallscope.lab.simulation.host import CPUS, SLURM_JOB, USER, busy_cpu_seconds
from stallscope.lab.simulation.node import Node, pid, uuid
from stallscope.lab.simulation.program import SimulatedBurst
from stallscope.lab.simulation.scenarios import GpuLoss, Stall
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.lab.simulation.workload import Step
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.stack_file import STACKS_HEADER, STANDSTILL
from stallscope.training.protocol.stacks import Stack
from stallscope.training.shim.stack_memory import memory_file
from stallscope.training.shim.stacks import STANDSTILL_SECONDS

_PROCESS_BYTES = 24 * 1024**3
_STEPS_SAVED = 50
"""Steps between two checkpoints, from which a failed job goes on."""
_QUOTA_PERIODS = 10.0
"""Periods of a CPU quota, a second."""

Deliver = Callable[[bytes], object]
"""Takes a report."""
DeliverWithFile = Callable[[bytes, int], object]
"""Takes a report and the descriptor of the file that the rank leaves its stacks in."""


class Ranks:
    """One rank on each GPU of the node."""

    def __init__(
        self, node: Node, deliver: Deliver, *, interval: float, deliver_with_file: DeliverWithFile | None = None
    ) -> None:
        """Start the ranks; each sends its first report at once, and later ones at least `interval` seconds apart.

        Args:
            node: the node that they compute on.
            deliver: takes each report.
            interval: fewest seconds between two reports of a rank.
            deliver_with_file: takes each report of a rank that is to stand still; if left out, it leaves no stack.
        """
        self._steps: deque[Step] = deque()
        self._ranks = [_Rank(node, number, deliver, interval, deliver_with_file) for number in range(node.gpu_count)]
        node.listen(self._steps.append)

    def advance(self, now: float) -> None:
        """Run every rank up to this moment, in seconds since the simulation began. Not thread-safe."""
        while self._steps:
            step = self._steps.popleft()
            for rank, phases in zip(self._ranks, step.ranks, strict=True):
                time = step.start
                for phase, seconds in phases:
                    if phase == "restart":
                        rank.pending.append((time, phase))
                    time += seconds
                    rank.pending.append((time, "initialization" if phase == "restart" else phase))
                rank.pending.append((step.end, None))
        for rank in self._ranks:
            rank.advance(now)


class _Rank:
    """One rank. Its next actions are in `pending`: phases by their end, and the end of a step as None.

    A restart is listed by its beginning.
    """

    def __init__(
        self, node: Node, number: int, deliver: Deliver, interval: float, deliver_with_file: DeliverWithFile | None
    ) -> None:
        fault = node.scenario.fault
        file: _StackFile | None = None
        if deliver_with_file is not None and isinstance(fault, (Stall, GpuLoss)):
            file = _StackFile(fault.stacks.of(number))

        def send(payload: bytes) -> None:
            if file is None or deliver_with_file is None:
                deliver(payload)
            else:
                deliver_with_file(payload, file.descriptor)

        self._node, self._number, self._file = node, number, file
        self._send, self._interval = send, interval
        self.pending: deque[tuple[float, str | None]] = deque()
        self._steps = 0
        self._clock = ScriptedClock(node.epoch)
        self._run = self._started(node.scenario.age)

    def _started(self, age: float) -> SimulatedRun:
        """Start the rank's process, or its successor, `age` seconds ago."""
        node, number, workload = self._node, self._number, self._node.workload(self._number)
        run = SimulatedRun(
            node.scenario.run,
            samples_per_step=workload.samples,
            flops_per_step=workload.flops,
            rank=number,
            local_rank=number,
            world_size=node.gpu_count,
            gpus=[{"gpu": str(number), "uuid": uuid(node.seed, number)}],
            precision="bf16",
            info={
                "framework": "simulated",
                "hostname": "simulated",
                "namespace": "",
                "pod": "",
                "slurm_job": SLURM_JOB,
                "user": USER,
                "git_commit": "",
                "job_class": "production",
            },
            interval=self._interval,
            clock=self._clock,
            sender=self._send,
            process=_Process(node, number, self._clock),
            pid=pid(number),
            head_start=age,
        )
        if workload.single_gpu_rate is not None:
            run.value("single_gpu_samples_per_second", workload.single_gpu_rate)
        run.sample(lambda timeline: SimulatedBurst(timeline, node.workload(number).lines))
        return run

    def advance(self, now: float) -> None:
        """Execute the actions that end by `now`."""
        clock, pending = self._clock, self.pending
        while pending and pending[0][0] <= now:
            run = self._run
            end, phase = pending.popleft()
            passing = max(end - clock.monotonic(), 0.0)
            if phase is None:
                clock.advance(passing)
                self._steps += 1
                loss = self._node.workload(self._number).loss
                run.report(loss=1.5 + 5.5 / (1.0 + self._steps / 500) ** 0.5 if loss is None else loss)
                run.step()
            elif phase == "restart":
                clock.advance(passing)
                run.fail()
                self._steps -= self._steps % _STEPS_SAVED
                self._run = self._started(0.0)
                self._run.report(step=self._steps)
            elif phase in ("other", "initialization"):  # a run that makes no steps yet is in initialization by itself
                clock.advance(passing)
            else:
                with run.phase(phase):
                    clock.advance(passing)
        if self._file is not None and now - clock.monotonic() >= STANDSTILL_SECONDS:
            self._file.write(self._node.epoch + now)


class _StackFile:
    """The memory file in which a rank leaves its stack at a standstill, in the format of the shim."""

    def __init__(self, stack: Stack) -> None:
        """Create the file, for a rank that will leave this stack."""
        self.descriptor = memory_file()
        self._stack: Stack = stack
        weakref.finalize(self, os.close, self.descriptor)
        os.write(self.descriptor, STACKS_HEADER % 1)

    def write(self, at: float) -> None:
        """Write the stack, once.

        Args:
            at: Unix time.
        """
        if self._stack:
            frames = [f'  File "{frame.file}", line {frame.line} in {frame.function}' for frame in self._stack]
            text = "\n".join((STANDSTILL, f"Thread 0x{1:016x} (most recent call first):", *frames, ""))
            os.write(self.descriptor, text.encode())
            os.utime(self.descriptor, (at, at))
            self._stack = ()


class _Process:
    """Return the scenario's cost of one rank's process for the host, loader workers included."""

    def __init__(self, node: Node, rank: int, clock: ScriptedClock) -> None:
        self._node = node
        self._rank = rank
        self._clock = clock
        self._read_at = 0.0
        self._main_thread_seconds = 0.0
        self._retries = 0.0
        self._throttled = 0.0
        self._killed = 0.0

    def read(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Counters and gauges of the report."""
        now = self._clock.monotonic()
        workload = self._node.workload(self._rank)
        self._main_thread_seconds += (now - self._read_at) * workload.main_thread
        self._retries += (now - self._read_at) * workload.allocator.retries / 60.0
        self._throttled += (now - self._read_at) * _QUOTA_PERIODS * workload.quota_throttled
        self._killed += (now - self._read_at) * workload.oom_kills
        self._read_at = now
        counters = {
            "process_cpu_seconds": busy_cpu_seconds(self._node.scenario, now) / self._node.gpu_count,
            "main_thread_cpu_seconds": self._main_thread_seconds,
            "allocator_retries": float(int(self._retries)),
            "cgroup_oom_kills": float(int(self._killed)),
        }
        if workload.cpu_quota is not None:
            counters["cpu_periods"] = float(int(now * _QUOTA_PERIODS))
            counters["cpu_throttled_periods"] = float(int(self._throttled))
        gauges = {
            "process_memory_bytes": float(_PROCESS_BYTES),
            "cpu_limit_cores": float(CPUS) if workload.cpu_quota is None else workload.cpu_quota,
            "dataloader_workers": float(workload.loader_workers),
            **{
                f"allocator_{name}_bytes": self._node.allocated(getattr(workload.allocator, name), self._rank)
                * MEMORY_BYTES
                for name in ("used", "peak", "reserved")
            },
        }
        return counters, gauges

    def close(self) -> None:
        """Release nothing."""
