"""The counters of own work: how much of its variation other ranks wait for."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.integrations.pytorch_device import DeviceClock
from stallscope.training.shim.own_work import OwnWork
from tests.shim.conftest import Desk

SEED = 3


def trained(
    clock: ScriptedClock, desk: Desk, steps: Iterator[Mapping[str, float]], interval: float = 5.0
) -> Mapping[str, float]:
    """Train steps of these phases, after one without a known length, and return the counters."""
    run = SimulatedRun("job", clock=clock, sender=desk, interval=interval)
    run.step()
    for phases in steps:
        for phase, seconds in phases.items():
            with run.phase(phase):
                clock.advance(seconds)
        run.step()
    run.finish()
    return desk.newest.counters


def variance(counters: Mapping[str, float], steps: int) -> float:
    return (counters["uneven_work_square_seconds"] - counters["even_work_square_seconds"]) / steps


def works(steps: int, ranks: int, *, shared: bool = False) -> Iterator[tuple[float, ...]]:
    """Draw the work of each rank in each step."""
    draw = random.Random(SEED)
    for _ in range(steps):
        yield tuple([draw.uniform(0.6, 1.4)] * ranks if shared else [draw.uniform(0.6, 1.4) for _ in range(ranks)])


def with_communication(
    drawn: Iterator[tuple[float, ...]], network: tuple[float, float] = (0.1, 0.1)
) -> Iterator[Mapping[str, float]]:
    draw = random.Random(SEED + 1)
    for work in drawn:
        waits = max(work) - work[0] + draw.uniform(*network)
        yield {"data_wait": 0.2, "forward": work[0] / 3, "backward": work[0] * 2 / 3, "communication": waits}


def without_communication(drawn: Iterator[tuple[float, ...]]) -> Iterator[Mapping[str, float]]:
    for work in drawn:
        yield {"data_wait": 0.2, "forward": work[0] / 3, "backward": max(work) - work[0] / 3 + 0.1}


@pytest.mark.parametrize("hook", [True, False])
def test_own_work_is_summed_without_waiting(clock: ScriptedClock, desk: Desk, hook: bool) -> None:
    phases = with_communication if hook else without_communication
    counters = trained(clock, desk, phases(works(400, 8)))
    assert counters["own_work_seconds"] == pytest.approx(400, rel=0.03)


@pytest.mark.parametrize("hook", [True, False])
def test_a_wait_that_is_longer_than_its_step_takes_no_own_work_away(hook: bool) -> None:
    own_work = OwnWork()
    own_work.steps.extend([(1.0, 0.0, 0.0, 0.0), (1.0, 0.0, 0.2, 0.0), (1.0, 0.0, 0.4, 9.0)])
    own_work.evaluate(3, communicates=hook)
    assert own_work.seconds == pytest.approx(1.0 if hook else 0.6)


@pytest.mark.parametrize("hook", [True, False])
def test_the_difference_is_the_variance_of_work_that_ranks_do_not_share(
    clock: ScriptedClock, desk: Desk, hook: bool
) -> None:
    phases = with_communication if hook else without_communication
    counters = trained(clock, desk, phases(works(4000, 8)))
    assert variance(counters, 4000) == pytest.approx(0.8**2 / 12 * 7 / 8, rel=0.12)


@pytest.mark.parametrize("hook", [True, False])
def test_work_that_varies_for_all_ranks_at_once_counts_nothing(clock: ScriptedClock, desk: Desk, hook: bool) -> None:
    phases = with_communication if hook else without_communication
    counters = trained(clock, desk, phases(works(1000, 8, shared=True)))
    assert variance(counters, 1000) == pytest.approx(0, abs=1e-6)


def test_a_network_that_varies_counts_nothing(clock: ScriptedClock, desk: Desk) -> None:
    drawn = ((0.7,) for _ in range(1000))
    counters = trained(clock, desk, with_communication(drawn, network=(0.1, 0.9)))
    assert variance(counters, 1000) == pytest.approx(0, abs=1e-6)


def test_steps_between_reports_stand_for_those_that_are_not_kept(clock: ScriptedClock, desk: Desk) -> None:
    counters = trained(clock, desk, with_communication(works(6000, 8)), interval=900)
    assert counters["own_work_seconds"] == pytest.approx(6000, rel=0.05)
    assert variance(counters, 6000) == pytest.approx(0.8**2 / 12 * 7 / 8, rel=0.25)


def test_checkpoints_and_evaluations_are_no_own_work(clock: ScriptedClock, desk: Desk) -> None:
    def steps() -> Iterator[Mapping[str, float]]:
        for number in range(400):
            pause = {"checkpoint": 9.0} if number % 20 == 5 else {"evaluation": 9.0} if number % 20 == 15 else {}
            yield {"forward": 0.3, "backward": 0.6, "communication": 0.1, **pause}

    counters = trained(clock, desk, steps())
    assert counters["own_work_seconds"] == pytest.approx(380 * 0.9, rel=0.01)
    assert variance(counters, 400) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("phases", [{}, {"forward": 1.0}, {"data_wait": 0.1, "optimizer": 0.9}])
def test_without_phases_that_separate_own_work_it_is_absent(
    clock: ScriptedClock, desk: Desk, phases: Mapping[str, float]
) -> None:
    counters = trained(clock, desk, iter([phases or {"other": 1.0}] * 50))
    assert not {"own_work_seconds", "uneven_work_square_seconds", "even_work_square_seconds"} & set(counters)


class Gpu:
    """Stands for `torch.cuda`: an event takes the time of a clock that the work on the GPU advances."""

    time = 0.0

    def is_current_stream_capturing(self) -> bool:
        return False

    def Event(self, enable_timing: bool) -> Event:  # noqa: N802 - PyTorch's name
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.time = 0.0

    def record(self) -> None:
        self.time = self._gpu.time

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.time - self.time)


def on_gpu(clock: ScriptedClock, desk: Desk, steps: Iterator[Mapping[str, float]]) -> Mapping[str, float]:
    """Train these steps on a GPU; the host's phases take no time."""
    cuda: Any = Gpu()
    run = SimulatedRun("job", clock=clock, sender=desk)
    run.step()
    timing = DeviceClock(cuda, run)
    for phases in steps:
        for phase, seconds in phases.items():
            with run.phase(phase):
                if phase == "data_wait":
                    clock.advance(seconds)
                    continue
                span = timing.begin(phase)
                cuda.time += seconds
                timing.end(span)
        timing.read()
        clock.advance(1)
        run.step()
    run.finish()
    return desk.newest.counters


def test_the_gpu_s_clock_measures_own_work_if_there_is_one(clock: ScriptedClock, desk: Desk) -> None:
    steps = ({**phases, "optimizer": 0.05} for phases in without_communication(works(4000, 8)))
    counters = on_gpu(clock, desk, steps)
    assert counters["own_work_seconds"] == pytest.approx(4000, rel=0.03)
    assert variance(counters, 4000) == pytest.approx(0.8**2 / 12 * 7 / 8, rel=0.15)


def test_an_evaluation_on_the_gpu_is_not_compared_with_steps(clock: ScriptedClock, desk: Desk) -> None:
    def steps() -> Iterator[Mapping[str, float]]:
        for number in range(400):
            if number % 20 == 10:
                yield {"forward": 9.0}
            yield {"forward": 0.3, "backward": 0.7, "optimizer": 0.05}

    counters = on_gpu(clock, desk, steps())
    assert counters["own_work_seconds"] == pytest.approx(0.9 * (400 - 2 * 20), rel=0.01)
    assert variance(counters, 400) == pytest.approx(0, abs=1e-6)


def late_by_turns(steps: int, ranks: int, *, delay: float = 0.5, hook: bool) -> Iterator[Mapping[str, float]]:
    """The batch of another rank is late in each step; that of this rank in one of `ranks` steps."""
    draw = random.Random(SEED)
    for _ in range(steps):
        late = draw.randrange(ranks) == 0
        waits = 0.1 + (0.0 if late else delay)
        phases = {"data_wait": 0.002 + delay * late, "forward": 0.3}
        yield {**phases, "backward": 0.6, "communication": waits} if hook else {**phases, "backward": 0.6 + waits}


@pytest.mark.parametrize("hook", [True, False])
def test_the_rest_of_steps_with_a_late_batch_contains_no_wait_for_those_of_other_ranks(
    clock: ScriptedClock, desk: Desk, hook: bool
) -> None:
    counters = trained(clock, desk, late_by_turns(800, 8, hook=hook))
    assert counters["late_batch_rest_seconds"] / counters["late_batch_steps"] == pytest.approx(0.1, rel=0.01)
    assert counters["late_batch_steps"] / 800 == pytest.approx((0.5 / 1.5 / 0.1) ** 6 / 8, rel=0.3)


def test_the_gpu_s_clock_measures_that_rest_if_there_is_one(clock: ScriptedClock, desk: Desk) -> None:
    counters = on_gpu(clock, desk, ({**each, "optimizer": 0.05} for each in late_by_turns(800, 8, hook=False)))
    assert counters["late_batch_rest_seconds"] / counters["late_batch_steps"] == pytest.approx(0.15, rel=0.01)


def test_one_long_data_wait_does_not_outweigh_all_later_ones(clock: ScriptedClock, desk: Desk) -> None:
    def steps() -> Iterator[Mapping[str, float]]:
        yield from late_by_turns(100, 8, hook=True)
        yield {"data_wait": 9e5, "forward": 0.3, "backward": 0.6, "communication": 0.1}

    counters = trained(clock, desk, steps())
    assert counters["late_batch_steps"] < 2 * 30.0**6


def test_without_data_waits_no_step_has_a_weight(clock: ScriptedClock, desk: Desk) -> None:
    counters = trained(clock, desk, iter([{"forward": 0.3, "backward": 0.6, "communication": 0.1}] * 50))
    assert counters["late_batch_steps"] == counters["late_batch_rest_seconds"] == 0
