"""The simulated node: runs the workload by the clock, and applies the fault to GPUs and job."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from stallscope.lab.simulation.gpu import GpuState, SimulatedGpu
from stallscope.lab.simulation.scenarios import (
    CoolingFailure,
    Fault,
    GpuLoss,
    HardwareFault,
    LoadChange,
    Scenario,
    SharedGpu,
    Stall,
    Workload,
)
from stallscope.lab.simulation.workload import IDLE, SPINNING, PhaseTime, Step, StepGenerator, effect_of
from stallscope.node.sampling.clock import Clock

_STALL_SLICE_SECONDS = 1.0
FREE_MEMORY_SHARE = 0.005
"""Frame buffer in use on a GPU without a process, as a share of the whole."""
_FIRST_PID = 4_194_305
"""Above the kernel's highest possible pid, so that a simulated process is never taken for a real one."""


def uuid(seed: int, gpu: int) -> str:
    """The UUID of a simulated GPU."""
    return f"GPU-simulated-{seed:08x}-{gpu:04d}"


def pid(gpu: int) -> int:
    """The simulated process on a simulated GPU."""
    return _FIRST_PID + gpu


class Node:
    """Eight GPUs (or another number) under one job. Every reading first advances it to the present."""

    def __init__(self, scenario: Scenario, clock: Clock, *, seed: int, gpus: int) -> None:
        # Its own generator, so that the workload's draws do not depend on the number of constants drawn here.
        constants = random.Random(seed)  # noqa: S311 - a reproducible machine, no secret
        self.scenario = scenario
        self.seed = seed
        self.clock = clock
        self.epoch = clock.time()
        """Wall clock at the beginning of the simulation."""
        self._workloads: list[Workload] = [scenario.workload] * gpus
        self.answering = [threading.Event() for _ in range(gpus)]
        """A GPU's calls block while its event is clear: the fault of a driver that hangs."""
        for event in self.answering:
            event.set()
        self._origin = clock.monotonic()
        self._gpus = [SimulatedGpu(constants.uniform(0.95, 1.05)) for _ in range(gpus)]
        self._memory_shares = [constants.uniform(0.99, 1.01) for _ in range(gpus)]
        self._generator = StepGenerator(gpus, seed)
        self._fault: Fault | None = None
        self._end = 0.0
        self._paused = 0.0  # end of the last pause
        self._listeners: list[Callable[[Step], None]] = []
        self._lock = threading.Lock()

    @property
    def gpu_count(self) -> int:
        """GPUs of this node, lost ones included."""
        return len(self._gpus)

    def now(self) -> float:
        """Seconds since the simulation began."""
        return self.clock.monotonic() - self._origin

    def listen(self, listener: Callable[[Step], None]) -> None:
        """Subscribe to the start of each step, before the first reading."""
        self._listeners.append(listener)

    def advance(self) -> None:
        """Run the job up to the present."""
        with self._lock:
            self._advance(self.now())

    def lost(self, gpu: int) -> bool:
        """Return True if the GPU has fallen off the bus by then."""
        fault = self.scenario.fault
        return isinstance(fault, GpuLoss) and gpu in fault.gpus and self.now() >= self.scenario.onset

    def hardware_fault(self, gpu: int) -> HardwareFault | None:
        """Return the fault of the GPU that has begun."""
        fault = self.scenario.fault
        if not isinstance(fault, HardwareFault) or self.now() < self.scenario.onset:
            return None
        return fault if fault.gpus is None or gpu in fault.gpus else None

    def workload(self, rank: int) -> Workload:
        """Return the present workload of a rank."""
        return self._workloads[rank]

    def state(self, gpu: int) -> GpuState:
        """The GPU now."""
        return self.states(gpu, (self.now(),))[0]

    def states(self, gpu: int, times: tuple[float, ...]) -> list[GpuState]:
        """The GPU at moments of the last seconds."""
        with self._lock:
            self._advance(self.now())
            return [self._gpus[gpu].at(time) for time in times]

    def memory_share(self, gpu: int) -> float:
        """Frame buffer in use, as a share of the whole."""
        if self._free(gpu):
            return FREE_MEMORY_SHARE
        return self._workloads[gpu].memory_share * self._memory_shares[gpu]

    def pids(self, gpu: int) -> tuple[int, ...]:
        """The processes on the GPU: one for each job on it, with a pid above any real one."""
        fault = self.scenario.fault
        if not self.scenario.owned or self._free(gpu):
            return ()
        if isinstance(fault, SharedGpu) and gpu == fault.gpu and self._free(fault.free):
            return pid(gpu), pid(fault.free)
        return (pid(gpu),)

    def allocated(self, share: float, rank: int) -> float:
        """Return the share of the GPU's memory that a rank's allocator holds, with its growth since the onset."""
        growth = self._workloads[rank].allocator.growth_per_hour * self._hours(self.now())
        return min(share + growth, 0.99)

    def _hours(self, now: float) -> float:
        """Hours since the onset."""
        return max(now - self.scenario.onset, 0.0) / 3600.0

    def _free(self, gpu: int) -> bool:
        """Return True if the GPU's job has left it."""
        fault = self.scenario.fault
        return isinstance(fault, SharedGpu) and gpu == fault.free and self.now() >= self.scenario.onset

    def _advance(self, now: float) -> None:
        while self._end <= now:
            if self._fault is None and self.scenario.fault is not None and self._end >= self.scenario.onset:
                self._strike(self.scenario.fault)
            if isinstance(self._fault, (Stall, GpuLoss)):
                self._stand_still(self._fault)
            else:
                self._step()

    def _strike(self, fault: Fault) -> None:
        self._fault = fault
        if isinstance(fault, LoadChange):
            for rank in range(self.gpu_count) if fault.ranks is None else fault.ranks:
                self._workloads[rank] = fault.workload
        elif isinstance(fault, HardwareFault):
            for gpu in range(self.gpu_count) if fault.gpus is None else fault.gpus:
                self._gpus[gpu].limit_clock(fault.clock)
        elif isinstance(fault, CoolingFailure):
            for gpu in fault.gpus:
                self._gpus[gpu].worsen_cooling(fault.resistance)

    def _step(self) -> None:
        ratios = [gpu.clock_ratio() for gpu in self._gpus]
        hours = self._hours(self._end)
        slowdown = [
            (1.0 + workload.growth_per_hour * hours) / ratio
            for workload, ratio in zip(self._workloads, ratios, strict=True)
        ]
        step = self._generator.draw(self._workloads, self._end, slowdown, self._pause())
        collective = min(dict(phases).get("communication", 0.0) for phases in step.ranks)
        for index, (gpu, ratio, phases) in enumerate(zip(self._gpus, ratios, step.ranks, strict=True)):
            workload = self._workloads[index]
            for phase, seconds in phases:
                if isinstance(self._fault, SharedGpu) and index == self._fault.free:
                    gpu.work(IDLE, seconds, ratio)
                    continue
                working = seconds
                if phase == "communication" and seconds > collective:
                    gpu.work(SPINNING, seconds - collective, ratio)
                    working = collective
                gpu.work(effect_of(phase, workload), working, ratio)
        self._end = step.end
        for listener in self._listeners:
            listener(step)

    def _pause(self) -> PhaseTime | None:
        """Return the phase and seconds of the pause that is due, if any."""
        pause = self._workloads[0].pause
        if pause is None or self._end < self._paused + pause.every_seconds:
            return None
        self._paused = self._end + pause.seconds
        return pause.phase, pause.seconds

    def _stand_still(self, fault: Stall | GpuLoss) -> None:
        for index, gpu in enumerate(self._gpus):
            spins = fault.spinning if isinstance(fault, Stall) else index not in fault.gpus
            gpu.work(SPINNING if spins else IDLE, _STALL_SLICE_SECONDS, gpu.clock_ratio())
        self._end += _STALL_SLICE_SECONDS
