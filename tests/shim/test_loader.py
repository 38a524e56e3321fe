from __future__ import annotations

import asyncio
import copy
import itertools
import operator
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.shim import program_end
from tests.shim.conftest import Desk


class Loader:
    """Takes half a second for each batch, and has what a PyTorch loader has."""

    batch_size = 16
    num_workers = 4

    def __init__(self, clock: ScriptedClock, batches: int = 4) -> None:
        self._clock = clock
        self._batches = batches
        self.sampler = "its sampler"

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[int]:
        for number in range(self._batches):
            self._clock.advance(0.5)
            yield number


@pytest.fixture
def run(clock: ScriptedClock, desk: Desk) -> stallscope.Run:
    return SimulatedRun("job", clock=clock, sender=desk)


def test_steps_and_waits_are_timed(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
    clock.advance(3)
    for _ in stallscope.track(Loader(clock), run):
        clock.advance(1)
    run.finish()
    report = desk.newest
    assert report.step_seconds is not None
    assert (report.step_seconds.count, report.step_seconds.sum) == (4, 6.0)
    assert {name: phase.seconds for name, phase in report.phases.items()} == {
        "initialization": 3,
        "data_wait": 2,
        "other": 4,
    }


def test_batch_size_workers_and_steps_come_from_the_loader(
    run: stallscope.Run, clock: ScriptedClock, desk: Desk
) -> None:
    for _ in stallscope.track(Loader(clock), run, epochs=3):
        pass
    run.finish()
    assert desk.newest.gauges["batch_size"] == 16
    assert desk.newest.gauges["dataloader_workers"] == 4
    assert desk.newest.gauges["steps_planned"] == 12
    assert desk.newest.counters["samples"] == 64


def test_given_values_take_precedence_over_found_ones(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
    stallscope.track(Loader(clock), run, samples_per_step=7, steps_planned=5, epochs=9)
    run.finish()
    assert (desk.newest.gauges["batch_size"], desk.newest.gauges["steps_planned"]) == (7, 5)


def test_it_looks_like_what_it_wraps(run: stallscope.Run, clock: ScriptedClock) -> None:
    tracked = stallscope.track(Loader(clock), run)
    assert len(tracked) == 4
    assert tracked
    assert tracked.sampler == "its sampler"
    assert list(tracked) == [0, 1, 2, 3]
    with pytest.raises(AttributeError):
        _ = tracked.nothing
    endless = stallscope.track(iter(()), run)
    with pytest.raises(TypeError):
        len(endless)
    assert endless
    assert list(endless) == []


def test_iterating_again_goes_on_and_counts_epochs(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
    tracked = stallscope.track(Loader(clock), run)
    for _ in range(2):
        for _ in tracked:
            clock.advance(1)
    for _ in stallscope.track(Loader(clock), run):
        clock.advance(1)
    assert not run.silent
    run.finish()
    assert desk.newest.gauges["epoch"] == 2
    assert desk.newest.gauges["step"] == 12


def test_a_look_at_the_first_batch_is_no_epoch(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
    tracked = stallscope.track(Loader(clock), run)
    assert next(iter(tracked)) == 0
    for _ in range(2):
        assert len(list(tracked)) == 4
    run.finish()
    assert (desk.newest.gauges["epoch"], desk.newest.gauges["step"]) == (1, 8)


def test_two_loaders_of_one_loop_make_one_step_and_one_epoch_of_their_batches(
    run: stallscope.Run, clock: ScriptedClock, desk: Desk
) -> None:
    for _ in range(3):
        for _ in zip(stallscope.track(Loader(clock), run), stallscope.track(Loader(clock), run), strict=True):
            clock.advance(1)
    run.finish()
    assert (desk.newest.gauges["epoch"], desk.newest.gauges["step"]) == (2, 12)


def test_a_reported_epoch_is_not_counted(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
    for epoch in range(10, 13):
        run.report(epoch=epoch)
        list(stallscope.track(Loader(clock), run))
    run.finish()
    assert desk.newest.gauges["epoch"] == 12


def test_a_name_finds_the_open_run(desk: Desk) -> None:
    run = stallscope.Run("by name", sender=desk)
    list(stallscope.track([1, 2], "by name"))
    list(stallscope.track([1, 2]))
    assert run.timeline.steps == 4
    run.finish()


def test_another_name_opens_another_run(desk: Desk) -> None:
    run = stallscope.Run("by name", sender=desk)
    list(stallscope.track([1, 2], "another"))
    assert run.timeline.steps == 0


@pytest.mark.parametrize(("worked", "steps"), [(0.0, 4), (0.4, 4), (0.6, 5), (1.0, 5), (9.0, 5)])
@pytest.mark.parametrize("kept", [False, True])
def test_a_step_left_by_break_counts_if_at_least_half_of_its_work_was_done(
    run: stallscope.Run, clock: ScriptedClock, desk: Desk, worked: float, steps: int, kept: bool
) -> None:
    def endless() -> Iterator[int]:
        for number in itertools.count():
            clock.advance(2)
            yield number

    batches = stallscope.track(endless(), run)
    for number in iter(batches) if kept else batches:
        clock.advance(worked if number == 4 else 1)
        if number == 4:
            break
    if kept:
        clock.advance(100)  # is no part of the step
    run.finish()
    assert desk.newest.step_seconds is not None
    assert desk.newest.step_seconds.count == desk.newest.gauges["step"] == steps
    assert sum(phase.seconds for phase in desk.newest.phases.values()) == clock.monotonic()


def test_a_look_at_the_first_batch_is_no_step(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
    for _ in stallscope.track(Loader(clock), run):
        break
    run.finish()
    assert desk.newest.gauges["step"] == 0


def test_after_an_exit_that_the_program_caught_a_step_left_by_break_counts(
    run: stallscope.Run, clock: ScriptedClock, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_end, "_failed", False)
    program_end.note_status(1, [run])
    for number in stallscope.track(itertools.count(), run):
        clock.advance(1)
        if number == 4:
            break
    run.finish()
    assert desk.newest.gauges["step"] == 5
    assert desk.newest.state == "finished"


@pytest.mark.parametrize("form", ["zip", "islice", "enumerate"])
def test_the_last_step_of_an_endless_loader_counts(
    run: stallscope.Run, clock: ScriptedClock, desk: Desk, form: str
) -> None:
    batches = stallscope.track(itertools.count(), run)
    if form == "zip":
        for _ in zip(range(60), batches, strict=False):
            clock.advance(1)
    elif form == "islice":
        for _ in itertools.islice(batches, 60):
            clock.advance(1)
    else:
        for step, _ in enumerate(batches, start=1):
            clock.advance(1)
            if step == 60:
                break
    run.finish()
    assert desk.newest.gauges["step"] == 60


def test_the_last_step_counts_where_the_program_requests_each_batch(
    run: stallscope.Run, clock: ScriptedClock, desk: Desk
) -> None:
    batches = iter(stallscope.track(range(100), run))
    for _ in range(10):
        next(batches)
        clock.advance(1)
    run.finish()
    assert desk.newest.gauges["step"] == 10


def test_the_loader_s_own_exception_comes_through(run: stallscope.Run, clock: ScriptedClock) -> None:
    def failing() -> Iterator[int]:
        yield 1
        clock.advance(2)
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        for _ in stallscope.track(failing(), run):
            pass
    assert run.timeline.current is run.timeline.other
    assert run.timeline.phase("data_wait").seconds == 2
    with pytest.raises(TypeError):
        list(stallscope.track(3, run))  # type: ignore[arg-type]
    assert run.timeline.current is run.timeline.other


def test_batches_accumulated_make_one_step(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
    for _ in stallscope.track(Loader(clock, 8), run, batches_per_step=4, epochs=2):
        clock.advance(1)
    run.finish()
    assert desk.newest.step_seconds is not None
    assert (desk.newest.step_seconds.count, desk.newest.step_seconds.sum) == (2, 12)
    assert desk.newest.gauges["batch_size"] == 64
    assert desk.newest.gauges["steps_planned"] == 4


@pytest.mark.parametrize("batches_per_step", [0, 1])
def test_a_step_reported_by_the_loop_is_not_counted_twice(
    batches_per_step: int, run: stallscope.Run, clock: ScriptedClock, desk: Desk
) -> None:
    for _ in stallscope.track(Loader(clock), run, batches_per_step=batches_per_step):
        clock.advance(1)
        run.step()
    run.finish()
    assert desk.newest.step_seconds is not None
    assert (desk.newest.step_seconds.count, desk.newest.step_seconds.sum) == (4, 6)
    assert desk.newest.phases["data_wait"].seconds == 2


def test_a_loader_tracked_inside_evaluation_adds_nothing(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
    for _ in stallscope.track(Loader(clock), run):
        clock.advance(1)
    with run.phase("evaluation"):
        for _ in stallscope.track(Loader(clock), run):
            clock.advance(1)
    run.finish()
    assert desk.newest.gauges["step"] == 4
    assert desk.newest.gauges["epoch"] == 0
    assert desk.newest.phases["evaluation"].seconds == 6
    assert desk.newest.phases["data_wait"].seconds == 2


def test_disabled_it_adds_nothing(clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_DISABLE", "1")
    loader = Loader(clock)
    assert type(iter(stallscope.track(loader))) is type(iter(loader))
    assert list(stallscope.track(loader, "x")) == [0, 1, 2, 3]


def test_disabled_it_reads_no_attribute_of_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_DISABLE", "1")
    read = []

    class Lazy(list[int]):
        def __getattr__(self, name: str) -> object:
            read.append(name)
            raise AttributeError(name)

    assert list(stallscope.track(Lazy([1, 2]), "x")) == [1, 2]
    assert read == []


def numbers() -> Iterator[int]:
    yield from range(5)


class Pool:
    """A loader that is used in a `with` block."""

    def __init__(self) -> None:
        self.is_open = False

    def __enter__(self) -> Pool:  # noqa: PYI034 (subclasses are not supported)
        self.is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize("is_silent", [False, True])
def test_next_works_on_a_tracked_generator(run: stallscope.Run, is_silent: bool) -> None:
    if is_silent:
        run.silence()
    tracked: Any = stallscope.track(numbers(), run)
    assert [next(tracked), next(tracked)] == [0, 1]
    assert list(tracked) == [2, 3, 4]
    assert next(tracked, "over") == "over"
    assert isinstance(tracked, Iterator)


@pytest.mark.parametrize(
    ("use", "result"),
    [
        (lambda tracked: tracked[1], 20),
        (lambda tracked: tracked[1:], [20, 30]),
        (lambda tracked: 30 in tracked, True),
        (lambda tracked: list(reversed(tracked)), [30, 20, 10]),
        (lambda tracked: operator.add(tracked, [40]), [10, 20, 30, 40]),
        (lambda tracked: len(tracked), 3),
        (lambda tracked: list(pickle.loads(pickle.dumps(tracked))), [10, 20, 30]),
        (lambda tracked: copy.deepcopy(tracked)[2], 30),
    ],
)
def test_operators_work_on_a_tracked_list(run: stallscope.Run, use: Callable[[Any], object], result: object) -> None:
    assert use(stallscope.track([10, 20, 30], run)) == result


def test_a_with_block_opens_the_loader_and_still_tracks_it(
    run: stallscope.Run, clock: ScriptedClock, desk: Desk
) -> None:
    pool = Pool()
    manager: Any = stallscope.track(pool, run)
    with manager as batches:
        was_open = pool.is_open
        for _ in batches:
            clock.advance(1)
    assert (was_open, pool.is_open) == (True, False)
    run.finish()
    assert desk.newest.gauges["step"] == 3


@pytest.mark.parametrize("is_silent", [False, True])
def test_an_asynchronous_loader_is_tracked(
    run: stallscope.Run, clock: ScriptedClock, desk: Desk, is_silent: bool
) -> None:
    async def arriving() -> AsyncIterator[int]:
        for number in range(4):
            clock.advance(2)
            await asyncio.sleep(0)
            yield number

    async def train() -> list[int]:
        found = []
        tracked: Any = stallscope.track(arriving(), run)  # type: ignore[arg-type]
        async for number in tracked:
            clock.advance(1)
            found.append(number)
        return found

    if is_silent:
        run.silence()
    assert asyncio.run(train()) == [0, 1, 2, 3]
    run.finish()
    if not is_silent:
        assert desk.newest.gauges["step"] == 4
        assert desk.newest.phases["data_wait"].seconds == 8


def test_a_wrapper_has_no_special_method_that_its_loader_lacks(run: stallscope.Run) -> None:
    tracked: Any = stallscope.track({1, 2}, run)
    assert not callable(tracked)
    assert not isinstance(tracked, Iterator)
    with pytest.raises(TypeError):
        tracked[0]
    with pytest.raises(TypeError):
        next(tracked)
    assert not hasattr(tracked, "__enter__")


def test_after_its_loop_a_run_pauses_until_the_next_one(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
    for _ in stallscope.track(Loader(clock), run):
        clock.advance(1)
    assert (desk.newest.state, desk.newest.activity) == ("running", "paused")
    clock.advance(60)
    for _ in stallscope.track(Loader(clock), run):
        assert desk.newest.activity == "training"
        clock.advance(1)
    assert desk.newest.activity == "paused"
    clock.advance(60)
    with run.phase("evaluation"):
        assert desk.newest.activity == "evaluation"


def test_between_the_epochs_of_a_plan_a_standstill_is_one_of_the_training(
    run: stallscope.Run, clock: ScriptedClock
) -> None:
    activities = []
    for _ in range(3):
        for _ in stallscope.track(Loader(clock), run, epochs=3):
            clock.advance(1)
        activities.append(run.timeline.activity)
    assert activities == ["training", "training", "paused"]


def test_a_loop_inside_of_another_does_not_pause_the_run(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
    for _ in stallscope.track(Loader(clock), run):
        for _ in stallscope.track(Loader(clock), run):
            clock.advance(1)
        assert run.timeline.activity == "training"
    assert run.timeline.activity == "paused"


@pytest.mark.parametrize(("leave", "activity"), [("break", "paused"), ("exception", "training")])
def test_a_loop_left_by_break_pauses_the_run_and_one_left_by_an_exception_does_not(
    run: stallscope.Run, clock: ScriptedClock, leave: str, activity: str
) -> None:
    try:
        for _ in stallscope.track(Loader(clock), run):
            clock.advance(1)
            if leave == "break":
                break
            raise KeyError(leave)
    except KeyError:
        pass
    assert run.timeline.activity == activity


def test_no_step_is_counted_beyond_the_plan(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
    for step, _ in enumerate(stallscope.track(itertools.count(), run, steps_planned=60)):
        clock.advance(1)
        if step == 60:
            break
    run.finish()
    assert desk.newest.gauges["step"] == 60
