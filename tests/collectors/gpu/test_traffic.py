"""Bytes over a link: which of several answers is believed, and that the total never jumps when that changes."""

from __future__ import annotations

import math

from stallscope.node.collectors.gpu.traffic import Traffic

GIB = 1 << 30


def test_a_wide_counter_is_believed_and_the_total_begins_where_it_stands() -> None:
    traffic = Traffic(most_per_second=1e12, may_be_narrow=True)
    for second in range(4):
        traffic.take((8 + second) * GIB, 0.5 * GIB if second else None, second)
    assert traffic.total == 11 * GIB
    assert not traffic.by_activity


def test_a_counter_that_may_wrap_unseen_gives_way_to_activity() -> None:
    traffic = Traffic(most_per_second=1e12, may_be_narrow=True)
    moved = 21 * GIB
    for second in range(4):
        traffic.take((moved * second) % (1 << 32), moved if second else None, second)
    assert traffic.by_activity
    assert traffic.total == 3 * moved


def test_once_the_counter_shows_that_it_is_wide_it_takes_over_without_a_jump() -> None:
    traffic = Traffic(most_per_second=1e12, may_be_narrow=True)
    totals = []
    for second in range(8):
        traffic.take(second * GIB, 1.0 * GIB if second else None, second)
        totals.append(traffic.total)
    assert totals == [second * GIB for second in range(8)]
    assert not traffic.by_activity


def test_a_narrow_counter_alone_counts_over_one_wrap_between_two_readings() -> None:
    traffic = Traffic(most_per_second=1e12, may_be_narrow=True)
    for second in range(10):
        traffic.take((second * GIB) % (1 << 32), None, second)
    assert traffic.total == 9 * GIB


def test_activity_alone_adds_up_and_a_reading_without_it_loses_nothing() -> None:
    traffic = Traffic(most_per_second=1e12)
    for second, moved in enumerate((None, 10.0, None, 25.0)):
        traffic.take(None, moved, second)
    assert traffic.total == 35


def test_a_link_without_counters_has_no_total() -> None:
    traffic = Traffic(most_per_second=1e12, may_be_narrow=True)
    traffic.take(None, None, 0)
    assert traffic.total is None


def test_a_counter_that_fails_for_a_reading_catches_up_at_the_next() -> None:
    traffic = Traffic(most_per_second=1e12)
    for second, counted in enumerate((100, None, 300)):
        traffic.take(counted, None, second)
    assert traffic.total == 300


def test_a_session_that_was_merely_opened_again_leaves_no_jump() -> None:
    traffic = Traffic(most_per_second=1e12, may_be_narrow=True)
    totals = []
    for second in range(6):
        session = 1 if second < 3 else 2
        traffic.take((21 * GIB * second) % (1 << 32), 21.0 * GIB if second not in (0, 3) else None, second, session)
        totals.append(traffic.total)
    assert totals == sorted(total for total in totals if total is not None)
    assert totals[-1] == 4 * 21 * GIB


def test_activity_that_moved_more_than_the_link_can_is_rejected_and_counted() -> None:
    traffic = Traffic(most_per_second=1e9)
    for second, moved in enumerate((5e8, 4e9, math.nan, -1.0, 5e8)):
        traffic.take(None, moved, second, seconds=1.0)
    assert traffic.total == 1e9
    assert traffic.out_of_range == 3


def test_activity_over_a_long_interval_may_move_as_much_more() -> None:
    traffic = Traffic(most_per_second=1e9)
    traffic.take(None, 9e9, 60, seconds=10.0)
    assert traffic.total == 9e9
