"""Whatever a program passes in: the training goes on, tensors stay untouched, and every report is acceptable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.measurements import COUNTERS, GAUGES
from stallscope.training.protocol.vocabulary import MAX_PHASES
from stallscope.training.shim import tolerance
from stallscope.training.shim.reported_values import OWN_COUNTERS
from tests.shim.conftest import Desk


class Untouchable:
    """A fake tensor on a busy GPU: a real one would block on any access, this one raises."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"{name} was read from a tensor")

    def _touched(self, *_: object) -> Any:
        raise AssertionError("a tensor was touched")

    __repr__ = __str__ = __format__ = __bytes__ = __bool__ = __float__ = __int__ = __index__ = __complex__ = _touched
    __hash__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __len__ = __iter__ = __contains__ = _touched
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __abs__ = __round__ = _touched
    __getitem__ = __array__ = __call__ = __enter__ = __exit__ = __next__ = __bool__


EVIL: tuple[Any, ...] = (
    Untouchable(),
    Untouchable,
    None,
    True,
    -1,
    0,
    10**400,
    -(10**400),
    float("nan"),
    float("inf"),
    -1e308,
    1e308,
    5e-324,
    1j,
    "",
    "\0\n",
    "x" * 1_000_000,
    "\N{GRINNING FACE}" * 128,
    '"quotes" and \\ backslashes',
    "\ud800",
    b"bytes",
    [],
    [[]],
    {},
    {"gpu": object()},
    set(),
    object(),
    lambda: 1 / 0,
    np.zeros(3),
    np.float32("nan"),
    np.datetime64("now"),
    ValueError("x"),
)

CALLS: tuple[Callable[[stallscope.Run, Any], object], ...] = (
    lambda run, evil: run.report(loss=evil),
    lambda run, evil: run.report(learning_rate=evil, gradient_norm=evil, epoch=evil),
    lambda run, evil: run.report(step=evil),
    lambda run, evil: run.report(steps_planned=evil, batch_size=evil),
    lambda run, evil: run.report(samples=evil, tokens=evil, flops=evil),
    lambda run, evil: run.report(accuracy=evil),
    lambda run, evil: run.report(**({evil: 1.0} if type(evil) is str else {})),  # type: ignore[arg-type]
    lambda run, evil: run.phase(evil).__enter__(),
    lambda run, evil: run.phase(evil).__exit__(),
    lambda run, evil: run.phase("other").__exit__(),
    lambda run, evil: run.phase("data_wait").__exit__(evil, evil, evil),
    lambda run, evil: run.plan(evil, evil, evil, evil),
    lambda run, evil: run.gauge(evil, 1.0),
    lambda run, evil: run.gauge("loss", evil),
    lambda run, evil: run.gpu_time(evil, 1.0),
    lambda run, evil: run.gpu_time("forward", evil),
    lambda run, evil: run.count(evil, 1),
    lambda run, evil: run.count("recompilations", evil),
    lambda run, evil: run.add(evil, 1),
    lambda run, evil: run.add("recompilations", evil),
    lambda run, evil: run.watch(evil),
    lambda run, evil: run.on_step(evil),
    lambda run, evil: run.describe(framework=evil),
    lambda run, evil: run.describe(precision=evil),
    lambda run, evil: run.describe(gpus=evil),
    lambda run, evil: run.describe(gpus=[{"gpu": evil, "uuid": evil}]),
    lambda run, evil: run.optimizer_step(evil),
    lambda run, evil: list(stallscope.track([1, 2], run, samples_per_step=evil, epochs=evil)),
    lambda run, evil: list(stallscope.track([1, 2], run, batches_per_step=evil)),
    lambda run, evil: list(stallscope.track([1, 2], run, tokens_per_step=evil, steps_planned=evil)),
)


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_no_call_raises_or_spoils_the_reports(
    call: Callable[[stallscope.Run, Any], object], clock: ScriptedClock, desk: Desk
) -> None:
    for evil in EVIL:
        run = SimulatedRun("job", clock=clock, sender=desk)
        run.step()
        call(run, evil)
        reported = len(desk.reports)
        for _ in range(3):
            clock.advance(1)
            run.step()
        run.finish()
        assert len(desk.reports) > reported
        assert desk.newest.state == "finished"
        assert desk.newest.dropped == {}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(CALLS) - 1), st.integers(0, len(EVIL) - 1), st.floats(0, 2)), max_size=25))
def test_no_sequence_of_calls_does_either(calls: list[tuple[int, int, float]]) -> None:
    clock, desk = ScriptedClock(), Desk()
    run = SimulatedRun("job", clock=clock, sender=desk)
    for call, evil, seconds in calls:
        CALLS[call](run, EVIL[evil])
        clock.advance(seconds)
        run.step()
    run.finish()
    assert desk.newest.state == "finished"
    assert sum(phase.seconds for phase in desk.newest.phases.values()) == pytest.approx(clock.monotonic(), abs=1e-3)


@pytest.mark.parametrize(
    "setting",
    ["name", "samples_per_step", "steps_planned", "rank", "world_size", "gpus", "precision", "info", "interval"],
)
def test_no_setting_raises(setting: str, clock: ScriptedClock, desk: Desk) -> None:
    for evil in EVIL:
        run = SimulatedRun(**{"clock": clock, "sender": desk, setting: evil})
        run.step()
        clock.advance(1)
        run.step()
        run.finish()
        assert run.silent


def test_track_gives_back_what_it_was_given(desk: Desk) -> None:
    with stallscope.Run("job", sender=desk):
        for evil in EVIL:
            assert list(stallscope.track([1, 2], evil)) == [1, 2]
            stallscope.track(evil)


def test_a_run_that_ends_with_nonsense_has_failed(clock: ScriptedClock, desk: Desk) -> None:
    for evil in EVIL:
        SimulatedRun("job", clock=clock, sender=desk).finish(evil)
        assert desk.newest.state == "failed"


def test_losses_that_are_no_numbers_are_counted_and_the_last_good_one_kept(clock: ScriptedClock, desk: Desk) -> None:
    run = SimulatedRun("job", clock=clock, sender=desk)
    for loss in (0.5, float("nan"), float("-inf"), np.float64("nan")):
        run.report(loss=loss)
    run.finish()
    assert desk.newest.counters["nonfinite_losses"] == 3
    assert desk.newest.gauges["loss"] == 0.5


def test_thousands_of_phases_cost_one_warning_and_no_time_is_lost(
    clock: ScriptedClock, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    run = SimulatedRun("job", clock=clock, sender=desk)
    run.step()
    for number in range(5000):
        with run.phase(f"layer {number}"):
            clock.advance(0.001)
    run.finish()
    assert len(desk.newest.phases) == MAX_PHASES
    assert sum(phase.seconds for phase in desk.newest.phases.values()) == pytest.approx(5)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_a_name_of_a_megabyte_is_cut(clock: ScriptedClock, desk: Desk) -> None:
    run = SimulatedRun("x" * 1_000_000, clock=clock, sender=desk)
    run.report(**{"y" * 1_000_000: 1.0})  # type: ignore[arg-type]
    run.finish()
    assert desk.newest.run == "x" * 128
    assert desk.newest.values == {}


def test_each_cause_is_warned_of_once(clock: ScriptedClock, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    run = SimulatedRun("job", clock=clock, sender=desk)
    for _ in range(3):
        for call in CALLS:
            call(run, EVIL[0])
        clock.advance(1)
        run.step()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(set(messages))
    assert any("loss is a Untouchable" in message for message in messages)


def test_a_logging_handler_that_raises_does_not_reach_the_training(clock: ScriptedClock, desk: Desk) -> None:
    class Strict(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError(record.getMessage())

    logger = logging.getLogger("stallscope")
    handler = Strict()
    logger.addHandler(handler)
    try:
        with SimulatedRun("job", clock=clock, sender=desk) as run:
            run.report(loss="low")  # type: ignore[arg-type]
            run.report(batch_size=-1)
            run.step()
    finally:
        logger.removeHandler(handler)
    assert (desk.newest.state, desk.newest.gauges["step"]) == ("finished", 1)


@pytest.mark.parametrize("call", [0, 1, 3, 7, 12, 13, 14, 15, 16, 17, 22, 23, 28])
def test_strict_raises_instead(call: int, clock: ScriptedClock, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimulatedRun("job", clock=clock, sender=desk)
    monkeypatch.setenv("STALLSCOPE_STRICT", "1")
    with pytest.raises((ValueError, AssertionError)):
        CALLS[call](run, EVIL[0])


@given(st.text() | st.integers() | st.floats())
def test_a_label_is_short_and_printable_and_stays_as_it_is(text: object) -> None:
    found = tolerance.label(text, 20)
    assert len(found) <= 20
    assert found.isprintable()
    assert tolerance.label(found, 20) == found
    assert tolerance.is_label(found, 20) == bool(found)


def test_every_gauge_and_counter_is_in_the_report(clock: ScriptedClock, desk: Desk) -> None:
    run = SimulatedRun("job", clock=clock, sender=desk)
    for key in GAUGES:
        run.gauge(key, 2)
    reported = set(COUNTERS) - set(OWN_COUNTERS)
    for key in reported:
        run.add(key, 1)
    run.finish()
    assert set(desk.newest.gauges) == set(GAUGES)
    assert {key for key, value in desk.newest.counters.items() if value == 1} == reported
