"""Contents and size of the status page's history."""

from __future__ import annotations

import sys

from stallscope.model.catalogue.metrics import FAMILIES
from stallscope.model.view.model import Recent
from stallscope.model.view.observer import node_of
from stallscope.node.intake.held import Held
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.node.web.status.exporter_state import SnapshotSamples
from stallscope.node.web.status.history import MARK_SECONDS, MAX_GPUS, POINT_SECONDS, POINTS, UNKNOWN, History
from tests.web.status_page import NOW, held, ranks

OBSERVED = FAMILIES["stallscope_gpu_utilization_samples"]


def samples(total: float, count: int, uuids: int = 1) -> list[Sample]:
    return [Sample(OBSERVED, (str(index), f"GPU-{index}"), Distribution((), total, count)) for index in range(uuids)]


def test_a_point_is_the_mean_of_what_the_driver_saw_since_the_last() -> None:
    clock = ScriptedClock()
    history = History(clock.monotonic)
    for total, count in ((100.0, 200), (102.5, 210), (103.5, 220)):
        history.note(samples(total, count))
        clock.advance(POINT_SECONDS)
    assert history.activity("GPU-0") == bytes((UNKNOWN, 25, 10))


def test_pages_in_between_change_nothing() -> None:
    clock = ScriptedClock()
    history = History(clock.monotonic)
    history.note(samples(0, 0))
    clock.advance(POINT_SECONDS / 2)
    history.note(samples(5, 10))
    assert len(history.activity("GPU-0")) == 1


def test_a_counter_that_begins_again_is_no_activity() -> None:
    clock = ScriptedClock()
    history = History(clock.monotonic)
    for total, count in ((100.0, 200), (1.0, 10)):
        history.note(samples(total, count))
        clock.advance(POINT_SECONDS)
    assert history.activity("GPU-0") == bytes((UNKNOWN, UNKNOWN))


def test_it_holds_five_minutes_and_drops_gpus_missing_for_as_long() -> None:
    clock = ScriptedClock()
    history = History(clock.monotonic)
    for number in range(2 * POINTS):
        history.note(samples(number * 5.0, number * 10))
        clock.advance(POINT_SECONDS)
    assert history.activity("GPU-0") == bytes((50,)) * POINTS
    for _ in range(POINTS):
        history.note(())
        clock.advance(POINT_SECONDS)
    assert history.activity("GPU-0") == b""


def test_eight_gpus_take_less_than_two_kilobytes_and_their_number_is_bounded() -> None:
    clock = ScriptedClock()
    history = History(clock.monotonic)
    for number in range(2 * POINTS):
        history.note(samples(number * 5.0, number * 10, uuids=8))
        clock.advance(POINT_SECONDS)
    assert sum(sys.getsizeof(history.activity(f"GPU-{index}")) for index in range(8)) < 2_000
    history.note(samples(1, 1, uuids=10 * MAX_GPUS))
    assert not history.activity(f"GPU-{9 * MAX_GPUS}")


def recent(history: History, rank: Held) -> Recent:
    """Return the values that the page shows of a rank."""
    return node_of(SnapshotSamples(ranks(rank)), before=history.before).ranks[0].recent


def test_a_new_rank_is_shown_since_its_start_and_later_since_the_older_mark() -> None:
    clock = ScriptedClock()
    history = History(clock.monotonic)
    rank = held(phases={"forward": 10.0}, steps=10, arrived=NOW - MARK_SECONDS)
    history.note(ranks(rank))
    clock.advance(MARK_SECONDS - 1)
    assert recent(history, rank).since is None
    clock.advance(1)
    history.note(ranks(rank))
    found = recent(history, held(phases={"forward": 16.0}, steps=14, arrived=NOW))
    assert (found.since, found.steps, found.phases) == (MARK_SECONDS, 4, {"forward": 6.0})


def test_an_ended_rank_is_shown_as_a_whole() -> None:
    clock = ScriptedClock()
    history = History(clock.monotonic)
    for _ in range(3):
        history.note(ranks(held(arrived=NOW - MARK_SECONDS)))
        clock.advance(MARK_SECONDS)
    assert recent(history, held(state="finished", ended=1.0)).since is None
