"""Range queries in parts, halves and retries return the same as a single query."""

from __future__ import annotations

import math
from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.model.analysis.ranges import ATTEMPTS, Ranges, SplittableQuery, joined, natural_step
from stallscope.model.clients.prometheus import PrometheusError, RangeSeries
from tests.analysis.servers import LimitedServer

NODES = ("a", "b", "c", "d", "e")
START = 1_700_000_000.0
BUSY = SplittableQuery(lambda part: f"busy{{{part}}}", "instance", NODES)


def passing(message: str = "too busy") -> PrometheusError:
    return PrometheusError(message, passing=True)


def reader(server: LimitedServer, **limits: int) -> Ranges:
    return Ranges(server, sleep=server.slept.append, **limits)


def table(series: list[RangeSeries]) -> dict[str, list[tuple[float, float]]]:
    return {each.labels["instance"]: list(zip(each.times, each.values, strict=True)) for each in series}


def test_a_month_is_queried_in_parts_that_the_server_accepts() -> None:
    server = LimitedServer(NODES, points=11_000)
    found = joined(reader(server).stepped(BUSY, START, START + 30 * 86_400, 30))
    assert {each.labels["instance"] for each in found} == set(NODES)
    for each in found:
        assert len(each.times) == 30 * 2880 + 1
        assert {later - earlier for earlier, later in pairwise(each.times)} == {30.0}
    assert not server.refused


def test_a_query_that_is_too_large_is_split_by_series_and_then_by_time() -> None:
    server = LimitedServer(NODES, samples=40)
    found = joined(reader(server).stepped(BUSY, START, START + 99, 1))
    assert table(found) == table(LimitedServer(NODES).query_range(BUSY.for_values(NODES), START, START + 99, 1))
    assert any(len(values) > 1 for values, _, _ in server.refused)
    assert any(len(values) == 1 for values, _, _ in server.refused)


def test_a_rejected_size_is_not_tried_again() -> None:
    server = LimitedServer(NODES, samples=2_000)
    ranges = reader(server, max_points=1_000)
    list(ranges.stepped(BUSY, START, START + 20_000, 1))
    assert 0 < len(server.refused) < 5
    refused = len(server.refused)
    list(ranges.stepped(BUSY, START, START + 20_000, 1))
    assert len(server.refused) == refused


def test_a_query_that_can_not_be_split_by_series_is_split_by_time() -> None:
    server = LimitedServer(("a",), samples=10)
    found = joined(reader(server).stepped('busy{instance=~"a"}', START, START + 99, 1))
    assert [len(each.times) for each in found] == [100]


def test_parts_are_yielded_one_by_one() -> None:
    server = LimitedServer(NODES)
    pieces = reader(server, max_points=10).stepped(BUSY, START, START + 99, 1)
    next(pieces)
    assert len(server.requested) == 1


def test_transient_failures_are_retried_with_increasing_pauses_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    server = LimitedServer(NODES, failures=[passing(), passing(), passing()])
    found = joined(reader(server).stepped(BUSY, START, START + 9, 1))
    assert len(found) == len(NODES)
    assert server.slept == [0.5, 1.0, 2.0]
    assert caplog.messages == [f"too busy; retrying in {pause} s" for pause in ("0.5", "1", "2")]


def test_no_pause_is_longer_than_half_a_minute() -> None:
    server = LimitedServer(NODES, failures=[passing()] * 9)
    list(reader(server, attempts=10).stepped(BUSY, START, START + 9, 1))
    assert server.slept[-3:] == [30.0, 30.0, 30.0]


def test_repeated_failures_are_raised() -> None:
    server = LimitedServer(NODES, failures=[passing(f"attempt {number}") for number in range(100)])
    with pytest.raises(PrometheusError, match=f"attempt {ATTEMPTS - 1}"):
        list(reader(server).stepped(BUSY, START, START + 9, 1))
    assert len(server.requested) == ATTEMPTS


def test_timeouts_lead_to_smaller_queries_and_finally_to_an_error() -> None:
    slow = [PrometheusError("no answer within 5 s", passing=True, too_large=True) for _ in range(100)]
    server = LimitedServer(NODES, failures=slow[:2])
    assert len(joined(reader(server).stepped(BUSY, START, START + 9, 1))) == len(NODES)
    sizes = [len(values) for values, _, _ in server.requested[:3]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[2]
    assert server.slept == [0.5, 1.0]
    server = LimitedServer(NODES, failures=slow)
    with pytest.raises(PrometheusError, match="no answer within 5 s"):
        list(reader(server).stepped(BUSY, START, START + 9, 1))
    assert len(server.requested) == ATTEMPTS


def test_the_size_of_queries_recovers_after_a_slow_spell() -> None:
    slow = [PrometheusError("no answer within 5 s", passing=True, too_large=True) for _ in range(3)]
    server = LimitedServer(NODES, failures=slow)
    ranges = reader(server, max_points=10)
    found = joined(ranges.stepped(BUSY, START, START + 2_999, 1))
    assert [len(each.times) for each in found] == [3_000] * len(NODES)
    assert [len(values) for values, _, _ in server.requested[-10:]] == [len(NODES)] * 10
    # The halves succeed before the size of queries grows again.
    assert len(server.requested[3][0]) == 1


def test_an_invalid_query_is_raised_at_once() -> None:
    server = LimitedServer(NODES, failures=[PrometheusError("parse error")])
    with pytest.raises(PrometheusError, match="parse error"):
        list(reader(server).stepped(BUSY, START, START + 9, 1))
    assert (len(server.requested), server.slept) == (1, [])


def test_a_query_that_is_too_large_in_the_smallest_part_is_raised() -> None:
    server = LimitedServer(NODES, samples=0)
    with pytest.raises(PrometheusError, match="too many samples"):
        list(reader(server).stepped(BUSY, START, START + 9, 1))


@pytest.mark.parametrize("way", ["stepped", "scraped"])
def test_progress_sums_to_the_whole(way: str) -> None:
    server = LimitedServer(NODES, samples=40, failures=[passing()])
    shares: list[float] = []
    ranges = reader(server, max_points=30)
    if way == "stepped":
        list(ranges.stepped(BUSY, START, START + 99, 1, shares.append))
    else:
        list(ranges.scraped(BUSY, START, START + 99, shares.append))
    assert len(shares) > 2
    assert sum(shares) == pytest.approx(1)


@given(
    seconds=st.floats(0.001, 400),
    step=st.sampled_from((0.5, 1.0, 7.0)),
    samples=st.integers(7, 200),
    points=st.integers(1, 50),
)
def test_any_split_returns_the_same(seconds: float, step: float, samples: int, points: int) -> None:
    whole, cut = LimitedServer(NODES), LimitedServer(NODES, samples=samples)
    ranges = Ranges(cut, max_points=points, max_seconds=max(1.0, seconds / 3))
    expected = table(whole.query_range(BUSY.for_values(NODES), START, START + seconds, step))
    assert table(joined(ranges.stepped(BUSY, START, START + seconds, step))) == expected
    assert table(joined(ranges.scraped(BUSY, START, START + seconds))) == table(
        whole.samples(BUSY.for_values(NODES), START, START + seconds)
    )


def test_parts_of_a_series_are_joined() -> None:
    def piece(instance: str, *times: float) -> RangeSeries:
        return RangeSeries({"instance": instance}, array("d", times), array("d", times))

    found = joined([piece("a", 1, 2), piece("b", 1), piece("a", 3), piece("b", 2)])
    assert table(found) == {"a": [(1, 1), (2, 2), (3, 3)], "b": [(1, 1), (2, 2)]}


@pytest.mark.parametrize(
    ("seconds", "points", "step"), [(3600, 3600, 1), (86_400, 300, 300), (30 * 86_400, 2, 1_296_000), (59, 1, 60)]
)
def test_a_natural_step_is_a_round_duration(seconds: float, points: int, step: float) -> None:
    assert natural_step(seconds, points) == step
    assert math.ceil(seconds / step) <= points
