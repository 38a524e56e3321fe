"""Cause and effect: real PyTorch training under the real shim, with injected faults, each of which fires its alert.

Exporter, Prometheus with the bundle's rules and Alertmanager with its routes are real, and so are CPU, disk and
processes. GPUs are simulated and follow what the training reports. Time runs thirty times as fast for the rules, so
that five minutes take ten seconds. Faults that leave the machine alone happen side by side, each to a run of its own;
those that take all of its CPU or its disk follow one after the other.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from stallscope.model.catalogue.causes import CAUSES
from tests.end_to_end.cpu_quota import cpu_quota
from tests.end_to_end.direct_reads import read
from tests.end_to_end.trainers import Trainers, Training
from tests.end_to_end.training_stack import TrainingStack
from tests.free_ports import free_port

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]

PATIENCE = 90.0
"""Seconds until a verdict or an alert must be there; a calm machine needs a third of it."""
RESTARTS = 3
RESTARTED = Training("restarted")
WELL = ("healthy", "compute_bound")
DATA_BYTES = 64 << 20
MOST_COMPUTING = 0.8
"""CPU seconds in a second of reading; above this limit, reads are not bound by the disk."""
TAKEN_BY_OTHERS = """
  max_over_time(
    (
      1 - (
          sum(rate(stallscope_host_cpu_seconds_total{mode=~"idle|iowait"}[5s]))
        + (sum(rate(stallscope_training_process_cpu_seconds_total[5s])) or vector(0))
      ) / sum(rate(stallscope_host_cpu_seconds_total[5s]))
    )[1m:1s]
  )
"""
MOST_TAKEN = 0.4
"""Maximum share of CPU used by other work in the last minute; the test's servers need a third of it."""


class Workshop:
    """The servers, and the runs that train."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.why_no_quota = self.why_no_disk = ""
        self._opened = ExitStack()
        self._cgroup: Path | None = None
        try:
            self._cgroup = self._opened.enter_context(cpu_quota(0.2))
        except OSError as error:
            self.why_no_quota = f"cannot create a cgroup with a CPU quota here: {error}"
        self.stack = TrainingStack(folder)
        self._opened.callback(self.stack.close)
        self._trainers = Trainers(self.stack.address, folder / "trainers.log")
        self._opened.callback(self._trainers.close)
        self._processes: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        self._opened.close()

    def open_for_work(self) -> None:
        """Start every run, and wait until all of them train."""
        self.stack.wait_for(self.stack.ready, PATIENCE, "data does not flow")
        port = free_port()
        for rank in (0, 1):
            self.start(Training("stopped", gpu=rank, rank=rank, world_size=2, master_port=port))
        self.start(RESTARTED)
        self.start(Training("diverging", poisoned_after=20))
        self.start(Training("healthy", gpu=2, workers=1))
        self.start(Training("few-workers", gpu=3, waits=0.25))
        saving = Training("checkpoints", gpu=4, forward=0.02, backward=0.03, blocks_every=50, blocks=0.8)
        self.start(saving)
        self.start(replace(saving, run="unnamed", gpu=5, names_phase=False))
        if self._cgroup is not None:
            self.start(Training("quota", workers=1, forward=0.04, backward=0.06, burns=0.1, cgroup=str(self._cgroup)))
        # These two are in order for now. The first is to take all the cores that it may use, on any machine.
        self.start(Training("saturated", gpu=6, workers=2, burns=1.0, cpus=2, trigger=str(self.trigger("saturated"))))
        file = self.folder / "data"
        try:
            make_readable(file)
        except OSError as error:
            self.why_no_disk = f"{self.folder} is not stored on a disk whose reads block: {error}"
        else:
            self.start(
                Training("disk", gpu=7, workers=1, reads=0.75, file=str(file), trigger=str(self.trigger("disk")))
            )

    def trigger(self, run: str) -> Path:
        """The file that sets the run's fault off."""
        return self.folder / f"{run}.trigger"

    def leave_alone(self, run: str, cause: str, *keep: str) -> None:
        """Set off the run's fault once it is judged and lacks nothing of the kind; end the others but those to keep."""
        stack = self.stack
        if self.trigger(run).exists():
            return  # a second try
        without = ("", "insufficient_data", cause)
        stack.wait_for(lambda: stack.verdict(run) not in without, PATIENCE, f"run {run} is {cause} before its fault")
        self.end(*({name for name, _ in self._processes} - {run, *keep}))
        self.trigger(run).touch()

    def end(self, *runs: str) -> None:
        """End runs that have shown what they were to show, so that the others have the machine to themselves."""
        for process in [process for process in self._processes if process[0] in runs]:
            os.kill(self._processes.pop(process), signal.SIGKILL)

    def start(self, training: Training) -> None:
        self._processes[training.run, training.rank] = self._trainers.start(training)

    def signal(self, run: str, number: int, rank: int = 0) -> None:
        os.kill(self._processes[run, rank], number)

    def await_value(self, expression: str) -> None:
        """Wait until the expression has a value in Prometheus."""
        self.stack.wait_for(lambda: self.stack.values(expression, ""), PATIENCE, f"there is no {expression}")

    def await_steps(self, run: str, steps: int) -> None:
        """Wait until every rank of the run has made so many."""
        self.await_value(f'min(stallscope_training_step_seconds_count{{run="{run}"}}) >= {steps}')

    def await_outcome(self, run: str, cause: str) -> None:
        """Wait for the run's verdict in Prometheus, and for its alert from Alertmanager."""
        stack, name = self.stack, CAUSES[cause].alert
        stack.wait_for(lambda: stack.verdict(run) == cause, PATIENCE, f"run {run} is not {cause}")
        alert = stack.wait_for(lambda: stack.alert(name, run), PATIENCE, f"there is no {name} of run {run}")
        assert alert["labels"]["cause"] == cause
        assert run in alert["annotations"]["description"]
        assert "<" not in alert["annotations"]["description"], "a template that failed"

    @contextmanager
    def on_an_idle_host(self) -> Iterator[None]:
        """Skip the test if the block fails while other work takes the CPU: the result is then unknown."""
        try:
            yield
        except AssertionError:
            taken = self.stack.values(TAKEN_BY_OTHERS, "").get("", 0.0)
            if taken < MOST_TAKEN:
                raise
            pytest.skip(f"other work takes {taken:.0%} of this machine's CPU")


def make_readable(file: Path) -> None:
    """Write the data that a reader is to read from the disk.

    Raises:
        OSError: reads never block: the file system is memory or another machine's, or has no way past its cache.
    """
    with file.open("wb") as written:
        written.write(os.urandom(DATA_BYTES))
        written.flush()
        os.fsync(written.fileno())
    counted, computed = disk_reads(), time.thread_time()
    done = read(str(file), 1.0)
    if disk_reads() - counted < done / 2:
        raise OSError("the kernel counts no disk for it")
    if time.thread_time() - computed > MOST_COMPUTING:
        raise OSError("it answers at once")


def disk_reads() -> int:
    """Bytes that this machine's disks have delivered."""
    counters = psutil.disk_io_counters(nowrap=False)
    return 0 if counters is None else counters.read_bytes


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed: make frameworks")
    workshop = Workshop(tmp_path_factory.mktemp("real"))
    try:
        workshop.open_for_work()
        yield workshop
    finally:
        workshop.close()


def test_a_rank_that_is_stopped_stalls_its_run(workshop: Workshop) -> None:
    workshop.await_steps("stopped", 25)
    workshop.signal("stopped", signal.SIGSTOP, rank=1)
    workshop.await_outcome("stopped", "stalled")
    workshop.end("stopped")


def test_a_rank_that_is_killed_again_and_again_is_a_restart_loop(workshop: Workshop) -> None:
    workshop.await_steps("restarted", 5)
    before = int(workshop.stack.values('stallscope_training_restarts_total{run="restarted"}', "").get("", 0.0))
    for restarts in range(before + 1, before + RESTARTS + 1):
        workshop.signal("restarted", signal.SIGKILL)
        workshop.start(RESTARTED)
        workshop.await_value(f'stallscope_training_restarts_total{{run="restarted"}} == {restarts}')
    workshop.await_outcome("restarted", "restart_loop")
    workshop.end("restarted")


def test_a_loss_that_is_no_number(workshop: Workshop) -> None:
    workshop.await_outcome("diverging", "loss_nonfinite")
    workshop.end("diverging")


def test_a_slow_transform_without_workers(workshop: Workshop) -> None:
    with workshop.on_an_idle_host():
        workshop.await_outcome("few-workers", "input_few_workers")


def test_a_cpu_quota_on_the_loader(workshop: Workshop) -> None:
    if workshop.why_no_quota:
        pytest.skip(workshop.why_no_quota)
    with workshop.on_an_idle_host():
        workshop.await_outcome("quota", "input_cgroup_throttled")
    workshop.end("quota")


def test_a_run_beside_them_that_lacks_nothing_is_healthy_and_raises_no_alert(workshop: Workshop) -> None:
    stack = workshop.stack
    with workshop.on_an_idle_host():
        stack.wait_for(lambda: stack.verdict("healthy") in WELL, PATIENCE, "the healthy run is not healthy")
        assert [alert for alert in stack.reported() if alert["labels"].get("run") == "healthy"] == []


def test_a_reader_that_waits_for_its_disk(workshop: Workshop) -> None:
    if workshop.why_no_disk:
        pytest.skip(workshop.why_no_disk)
    if not Path("/proc/pressure/io").exists():
        pytest.skip("the kernel keeps no account of waiting for disks (/proc/pressure)")
    with workshop.on_an_idle_host():
        workshop.leave_alone("disk", "input_disk_bound", "saturated", "checkpoints", "unnamed")
        workshop.await_outcome("disk", "input_disk_bound")


def test_checkpoints_that_the_loop_waits_for(workshop: Workshop) -> None:
    workshop.await_outcome("checkpoints", "checkpoint_stall")


def test_the_period_of_the_dips_that_checkpoints_make_is_found_from_the_gpu_alone(workshop: Workshop) -> None:
    workshop.stack.wait_for(
        lambda: 45 < workshop.stack.values("gpu:dip_period:steps30m", "gpu").get("4", 0.0) < 55,
        PATIENCE,
        "the dips of GPU 4 do not come every 50 steps",
    )


def test_work_between_steps_that_no_phase_names(workshop: Workshop) -> None:
    workshop.await_outcome("unnamed", "periodic_host_work")


def test_a_transform_that_takes_all_cpus(workshop: Workshop) -> None:
    with workshop.on_an_idle_host():
        workshop.leave_alone("saturated", "input_cpu_saturated")
        workshop.await_outcome("saturated", "input_cpu_saturated")
