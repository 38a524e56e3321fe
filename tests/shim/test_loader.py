from __future__ import annotations

from collections.abc import Iterator

import pytest

import stallscope
from stallscope.sampling.clock import ScriptedClock
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
    return stallscope.Run("job", clock=clock, sender=desk)


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


def test_the_loader_tells_batch_size_workers_and_steps(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
    for _ in stallscope.track(Loader(clock), run, epochs=3):
        pass
    run.finish()
    assert desk.newest.gauges["batch_size"] == 16
    assert desk.newest.gauges["dataloader_workers"] == 4
    assert desk.newest.gauges["steps_planned"] == 12
    assert desk.newest.counters["samples"] == 64


def test_what_is_told_goes_before_what_is_found(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
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


def test_an_epoch_that_is_told_is_not_counted(run: stallscope.Run, clock: ScriptedClock, desk: Desk) -> None:
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


def test_a_step_left_by_break_is_not_counted_and_its_time_kept(
    run: stallscope.Run, clock: ScriptedClock, desk: Desk
) -> None:
    for number in stallscope.track(Loader(clock), run):
        clock.advance(1)
        if number == 1:
            break
    run.finish()
    assert desk.newest.step_seconds is not None
    assert desk.newest.step_seconds.count == 1
    assert sum(phase.seconds for phase in desk.newest.phases.values()) == clock.monotonic() == 3


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
def test_a_step_told_by_the_loop_is_not_counted_twice(
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
