"""Integrals: nothing credited twice, nothing invented, and dips distinguished from noise."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, combinations, pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.node.sampling.integrals import DriverCounter, Interval, TimeIntegral, Timeline, UtilizationIntegral

PERIOD = 1 / 6
"""Seconds between two samples of a real driver."""
START_US = 1_700_000_000_000_000

ratios = st.floats(0, 1)
gaps = st.floats(0.01, 10)


def wave(period: float, busy: float, duration: float) -> list[tuple[int, float]]:
    """Driver samples of a GPU that is busy for the first `busy` seconds of each period: means over what they end."""

    def busy_until(at: float) -> float:
        return at // period * busy + min(at % period, busy)

    ends = [step * PERIOD for step in range(1, int(duration / PERIOD) + 1)]
    shares = [(busy_until(end) - busy_until(end - PERIOD)) / PERIOD for end in ends]
    return [(START_US + round(end * 1e6), min(1.0, round(share, 9))) for end, share in zip(ends, shares, strict=True)]


def integrated(samples: list[tuple[int, float]]) -> UtilizationIntegral:
    integral, timeline = UtilizationIntegral(), Timeline(longest=3.0)
    for sample in samples:
        for span in timeline.samples([sample], now=(sample[0] - START_US) / 1e6):
            integral.add(span)
    return integral


@given(st.lists(st.tuples(gaps, ratios), min_size=1))
def test_busy_and_unused_time_sum_to_the_time_credited(readings: list[tuple[float, float]]) -> None:
    integral, timeline = UtilizationIntegral(), Timeline(longest=3.0)
    unused = credited = now = 0.0
    for gap, value in [(0.0, 0.5), *readings]:
        now += gap
        for span in timeline.samples([(START_US + round(now * 1e6), value)], now):
            integral.add(span)
            unused += (1 - span.value) * span.seconds
            credited += span.seconds
    assert integral.elapsed == pytest.approx(credited)
    assert integral.total + unused == pytest.approx(credited)
    assert integral.idle <= integral.below[0.1] <= integral.below[0.5] <= integral.elapsed
    assert sum(integral.observations) == len(readings) + 1
    assert integral.observation_sum == pytest.approx(sum(value for _, value in readings) + 0.5)


@given(st.lists(st.tuples(gaps, ratios, st.booleans()), min_size=1))
def test_samples_and_polls_together_never_credit_more_time_than_passed(
    readings: list[tuple[float, float, bool]],
) -> None:
    integral, timeline = TimeIntegral(), Timeline(longest=3.0)
    now = credited = 0.0
    for gap, value, polled in readings:
        now += gap
        new = [timeline.poll(value, now)] if polled else timeline.samples([(START_US + round(now * 1e6), value)], now)
        for span in new:
            integral.add(span)
            credited += span.seconds
    assert credited <= now + 1e-4
    assert integral.total <= credited + 1e-9


@settings(max_examples=40)
@given(st.floats(1.0, 20.0), st.floats(0.2, 0.8))
def test_a_square_wave_is_integrated_within_one_percent(period: float, share: float) -> None:
    integral = integrated(wave(period, period * share, duration=100 * period))
    assert integral.total / integral.elapsed == pytest.approx(share, rel=0.01)


def test_a_sample_seen_before_is_not_counted_again() -> None:
    timeline, integral = Timeline(longest=3.0), UtilizationIntegral()
    samples = wave(2.0, 1.0, 20.0)
    for overlap in range(0, len(samples), 3):
        for span in timeline.samples(samples[max(0, overlap - 10) : overlap + 3], now=overlap * PERIOD):
            integral.add(span)
    assert sum(integral.observations) == len(samples)
    assert integral.elapsed == pytest.approx(20.0 - PERIOD)


def test_of_an_outage_only_the_usual_time_before_its_last_sample_is_credited() -> None:
    integral = integrated([(START_US, 1.0), (START_US + 1_000_000, 1.0), (START_US + 601_000_000, 1.0)])
    assert integral.elapsed == pytest.approx(2.0)
    assert integral.total == pytest.approx(2.0)


def test_of_an_outage_before_anything_is_usual_nothing_is_credited() -> None:
    assert integrated([(START_US, 1.0), (START_US + 600_000_000, 1.0)]).elapsed == 0


def test_an_interval_not_much_longer_than_usual_is_credited_to_the_sample_that_ends_it() -> None:
    integral = integrated([(START_US, 1.0), (START_US + 1_000_000, 1.0), (START_US + 2_900_000, 0.25)])
    assert integral.total == pytest.approx(1.475)


def test_a_driver_that_changes_its_pace_is_followed() -> None:
    fast = [(START_US + round(step * PERIOD * 1e6), 1.0) for step in range(60)]
    slow = [(fast[-1][0] + step * 1_000_000, 1.0) for step in range(1, 101)]
    assert integrated(fast + slow).elapsed == pytest.approx(109.8, abs=5.0)


@given(st.lists(st.floats(0.02, 0.5), min_size=20, max_size=200))
def test_irregular_samples_are_credited_whole(spacings: list[float]) -> None:
    at, samples = START_US, [(START_US, 1.0)]
    # The first four of every ten keep the usual interval from falling under half the longest.
    for place, spacing in enumerate(spacings):
        at += round((0.5 if place % 10 < 4 else spacing) * 1e6)
        samples.append((at, 1.0))
    integral = integrated(samples)
    assert integral.elapsed == pytest.approx((at - START_US) / 1e6, rel=1e-6)


def test_history_before_the_first_reading_is_not_credited() -> None:
    assert integrated([(START_US, 1.0)]).elapsed == 0
    assert Timeline(longest=3.0).poll(1.0, now=50.0).seconds == 0


def test_a_silent_buffer_is_bridged_by_polls_and_no_second_counts_twice() -> None:
    timeline, integral = Timeline(longest=3.0), UtilizationIntegral()
    now = 100.0
    for span in timeline.samples([(START_US, 1.0), (START_US + 500_000, 1.0)], now):
        integral.add(span)
    assert not timeline.silent(now + 1.0)
    for second in range(2, 12):
        assert timeline.silent(now + second)
        integral.add(timeline.poll(0.0, now + second))
    for span in timeline.samples([(START_US + 500_000 + 11_500_000, 1.0)], now + 12):
        integral.add(span)
    assert integral.idle == pytest.approx(11.0)
    assert integral.total == pytest.approx(0.5 + 0.5)
    assert integral.elapsed == pytest.approx(12.0)


def test_polls_alone_integrate_by_our_own_clock() -> None:
    timeline, energy = Timeline(longest=3.0), TimeIntegral()
    for second in range(11):
        energy.add(timeline.poll(700.0, float(second)))
    assert energy.total == pytest.approx(7000.0)


def test_a_failed_minute_of_polls_is_not_counted_as_busy() -> None:
    timeline, energy = Timeline(longest=3.0), TimeIntegral()
    for now in (0.0, 1.0, 61.0, 62.0):
        energy.add(timeline.poll(1.0, now))
    assert energy.total == pytest.approx(2.0)


def test_the_mean_is_that_since_it_was_last_taken() -> None:
    integral = TimeIntegral()
    assert integral.take_mean() is None
    integral.add(Interval(1.0, 1.0))
    integral.add(Interval(0.0, 3.0))
    assert integral.take_mean() == pytest.approx(0.25)
    integral.add(Interval(0.5, 1.0))
    assert integral.take_mean() == pytest.approx(0.5)
    assert integral.take_mean() is None


def test_regular_dips_give_their_period_and_no_spread() -> None:
    integral = integrated(wave(5.0, 4.5, 300.0))
    assert integral.dips == 60
    assert integral.dip_intervals == 59
    mean = integral.dip_interval_sum / integral.dip_intervals
    variance = integral.dip_interval_sum_of_squares / integral.dip_intervals - mean**2
    assert mean == pytest.approx(5.0, rel=0.01)
    assert variance**0.5 < 0.1 * mean


def _dips(*intervals: tuple[float, float]) -> int:
    integral = UtilizationIntegral()
    for value, seconds in intervals:
        integral.add(Interval(value, seconds))
    return integral.dips


def test_a_dip_needs_a_second_above_half_before_it() -> None:
    assert _dips((0.9, 1.0), (0.05, 0.2)) == 1
    assert _dips((0.9, 0.8), (0.05, 0.2)) == 0
    assert _dips((0.5, 5.0), (0.05, 0.2)) == 0


def test_a_fall_that_stops_short_is_no_dip() -> None:
    assert _dips((0.9, 2.0), (0.1, 0.2), (0.9, 2.0)) == 0


def test_a_smeared_edge_is_still_one_dip() -> None:
    assert _dips((0.9, 2.0), (0.3, 0.2), (0.0, 0.2), (0.3, 0.2), (0.0, 0.2), (0.9, 2.0)) == 1


def test_a_gpu_that_stays_down_dips_once() -> None:
    assert _dips((1.0, 10.0), *[(0.0, 1.0)] * 100) == 1


def test_the_time_between_dips_is_unknown_across_an_outage() -> None:
    integral = UtilizationIntegral()
    for value, seconds in ((1.0, 5.0), (0.0, 1.0), (1.0, 0.0), (1.0, 5.0), (0.0, 1.0)):
        integral.add(Interval(value, seconds, unbroken=seconds > 0))
    assert integral.dips == 2
    assert integral.dip_intervals == 0


def test_a_reading_on_a_bucket_bound_belongs_to_that_bucket() -> None:
    integral = UtilizationIntegral()
    for value in (0.0, 0.05, 0.051, 1.0):
        integral.add(Interval(value, 1.0))
    assert integral.observations == [1, 1, 1, 0, 0, 0, 0, 1, 0]


class DriverBuffer:
    """Return a load as a driver buffers it: means over its period in whole per cent, the newest hundred."""

    def __init__(self, load: Load, *, phase: float = 0.0, period: float = PERIOD, depth: int = 100) -> None:
        self._load = load
        self._phase = phase
        self._period = period
        self._depth = depth
        self.start_us = START_US

    def newer_than(self, timestamp_us: int, now: float) -> list[tuple[int, float]]:
        """The samples that the driver would hand over at that moment."""
        newest = math.floor((now - self._phase) / self._period)
        steps = range(max(1, newest - self._depth + 1), newest + 1)
        ends = [
            (self.start_us + round(end * 1e6), end) for end in (self._phase + step * self._period for step in steps)
        ]
        return [
            (at_us, round(self._load.busy_between(end - self._period, end) / self._period, 2))
            for at_us, end in ends
            if at_us > timestamp_us
        ]


class Load:
    """Utilisation as a function of time: pieces of (seconds, level), idle afterwards."""

    def __init__(self, pieces: list[tuple[float, float]]) -> None:
        self.ends = [0.0]
        self._busy = [0.0]
        self._levels = [level for _, level in pieces] + [0.0]
        for seconds, level in pieces:
            self.ends.append(self.ends[-1] + seconds)
            self._busy.append(self._busy[-1] + seconds * level)

    def busy_between(self, begin: float, end: float) -> float:
        """The true integral."""
        return self._until(end) - self._until(begin)

    def _until(self, at: float) -> float:
        piece = bisect_right(self.ends, at) - 1
        return self._busy[piece] + (at - self.ends[piece]) * self._levels[piece]


class Reading(NamedTuple):
    """State after one poll."""

    now: float
    covered_until: float
    busy: float
    elapsed: float


def follow(load: Load, buffer: DriverBuffer, polls: Iterable[float]) -> tuple[UtilizationIntegral, list[Reading]]:
    """Read the buffer at the polls' moments, as the source does."""
    timeline, integral = Timeline(longest=3.0), UtilizationIntegral()
    readings = []
    for now in polls:
        for span in timeline.samples(buffer.newer_than(timeline.request_from(now), now), now):
            integral.add(span)
        if timeline.newest_us:
            covered = (timeline.newest_us - START_US) / 1e6
            readings.append(Reading(now, covered, integral.total, integral.elapsed))
    return integral, readings


loads = st.lists(st.tuples(st.floats(0.05, 8.0), ratios), min_size=1, max_size=60).map(Load)
phases = st.floats(0.0, PERIOD)


@settings(deadline=None, max_examples=40)
@given(loads, phases, st.lists(st.floats(0.3, 14.0), min_size=30, max_size=30))
def test_busy_time_is_within_one_percent_over_the_time_that_samples_cover(
    load: Load, phase: float, pauses: list[float]
) -> None:
    polls = list(accumulate(pauses))
    _, readings = follow(load, DriverBuffer(load, phase=phase), polls)
    for first, later in combinations(readings, 2):
        covered = later.covered_until - first.covered_until
        true = load.busy_between(first.covered_until, later.covered_until)
        assert later.elapsed - first.elapsed == pytest.approx(covered, abs=1e-4)
        assert later.busy - first.busy == pytest.approx(true, abs=0.01 * covered + 1e-5)


@settings(deadline=None, max_examples=40)
@given(loads, phases, st.sampled_from([1, 2, 5, 15, 30, 60, 120]))
def test_between_two_scrapes_busy_time_is_within_one_percent_and_one_sample(
    load: Load, phase: float, spacing: int
) -> None:
    _, readings = follow(load, DriverBuffer(load, phase=phase), [0.5 + second for second in range(301)])
    scraped = readings[1::spacing]
    for before, after in pairwise(scraped):
        true = load.busy_between(before.now, after.now)
        # The newest sample is up to one period old at either end.
        assert after.busy - before.busy == pytest.approx(true, abs=0.01 * spacing + PERIOD + 1e-4)


@pytest.mark.parametrize("missing", [0.3, 5.0, 100.0])
def test_time_that_the_buffer_lost_before_a_late_reading_is_not_counted(missing: float) -> None:
    load = Load([(1000.0, 1.0)])
    late = 11.0 + 100 * PERIOD + missing
    _, (_, before, after) = follow(load, DriverBuffer(load), [10.0, 11.0, late])
    assert after.elapsed - before.elapsed == pytest.approx(100 * PERIOD, abs=PERIOD + 1e-3)


@pytest.mark.parametrize("interval", [20.0, 60.0])
def test_what_the_buffer_still_holds_stands_for_intervals_that_are_longer_than_it_reaches_back(interval: float) -> None:
    # No multiple of the load's period, so that the buffer is not always read at the same place of it.
    load = Load([(3.0, 1.0), (1.7, 0.0)] * 2000)
    buffer = DriverBuffer(load)
    timeline, integral = Timeline(longest=3 * interval), UtilizationIntegral()
    for reading in range(1, 101):
        now = reading * interval
        for span in timeline.samples(buffer.newer_than(timeline.newest_us, now), now):
            integral.add(span)
    assert integral.elapsed == pytest.approx(99 * interval, rel=0.02)
    assert integral.total / integral.elapsed == pytest.approx(3.0 / 4.7, abs=0.02)
    assert integral.idle / integral.elapsed == pytest.approx(1.7 / 4.7 - PERIOD / 4.7, abs=0.02)
    # Dips have a clock of their own, which stops between readings.
    assert integral.dip_interval_sum / integral.dip_intervals == pytest.approx(4.7, abs=0.1)


@pytest.mark.parametrize("step", [-1e9, -100.0, 100.0, 1e9])
def test_a_driver_clock_that_was_set_is_followed_and_polls_bridge_the_time_until_then(step: float) -> None:
    load = Load([(1000.0, 0.5)])
    buffer = DriverBuffer(load)
    timeline, integral = Timeline(longest=3.0), UtilizationIntegral()
    for second in range(10, 120):
        now = float(second)
        if second == 50:
            buffer.start_us += round(step * 1e6)
        new = timeline.samples(buffer.newer_than(timeline.request_from(now), now), now)
        if not new and timeline.silent(now):
            new = [timeline.poll(0.5, now)]
        for span in new:
            integral.add(span)
    # From the hundred samples of the first buffer, only so much is credited as one outage may be long.
    assert 105 <= integral.elapsed <= 112 + 1
    assert not timeline.silent(119.0)
    assert timeline.backwards == (step < 0)


def test_a_driver_clock_that_runs_twice_as_fast_credits_no_more_than_our_own() -> None:
    timeline, integral = Timeline(longest=3.0), UtilizationIntegral()
    for reading in range(1, 601):
        now = reading / 6
        for span in timeline.samples([(START_US + round(2 * now * 1e6), 1.0)], now):
            integral.add(span)
    assert integral.elapsed <= 100 * 1.001 + 2.0


def test_a_sample_from_the_future_is_passed_over_and_costs_nothing() -> None:
    timeline, integral = Timeline(longest=3.0), UtilizationIntegral()
    rogue = (START_US + 10**12, 1.0)
    for second in range(1, 31):
        batch = [(START_US + round((second - 1 + step * PERIOD) * 1e6), 0.5) for step in range(1, 7)]
        if 10 <= second < 20:
            batch.insert(3, rogue)
        for span in timeline.samples(batch, now=float(second)):
            integral.add(span)
    assert timeline.future == 1
    assert integral.elapsed == pytest.approx(30 - PERIOD, abs=1e-3)
    assert integral.total == pytest.approx(integral.elapsed / 2)


def test_a_driver_loaded_again_with_another_clock_is_followed_at_the_next_reading() -> None:
    timeline = Timeline(longest=3.0)
    timeline.samples([(START_US, 1.0), (START_US + 500_000, 1.0)], now=100.0)
    timeline.reopened()
    assert timeline.request_from(102.0) == 0
    assert timeline.samples([(1_000_000, 1.0)], now=102.0) == []
    (span,) = timeline.samples([(1_500_000, 1.0)], now=102.5)
    assert span.seconds == pytest.approx(0.5)
    assert not span.unbroken


def test_samples_that_come_late_in_bulk_do_not_credit_again_what_polls_bridged() -> None:
    timeline = Timeline(longest=3.0)
    credited = 0.0
    for second in range(60):
        now = float(second)
        batch = (
            [(START_US + round((second - 5 + step * PERIOD) * 1e6), 1.0) for step in range(1, 31)]
            if second % 5 == 0
            else []
        )
        new = timeline.samples(batch, now)
        if not new and timeline.silent(now):
            new = [timeline.poll(1.0, now)]
        credited += sum(span.seconds for span in new)
    assert 56 <= credited <= 62


wild_samples = st.lists(st.tuples(st.integers(-(2**63), 2**64) | st.integers(0, 10**8), st.floats()), max_size=8)


@given(st.lists(st.tuples(st.floats(0, 100), wild_samples | st.floats()), max_size=40))
def test_whatever_a_driver_says_totals_only_grow_and_never_by_more_than_time_passed(
    readings: list[tuple[float, list[tuple[int, float]] | float]],
) -> None:
    timeline, integral = Timeline(longest=3.0), UtilizationIntegral()
    now = 0.0
    before = _totals(integral)
    for pause, said in readings:
        now += pause
        new = timeline.samples(said, now) if isinstance(said, list) else [timeline.poll(said, now)]
        for span in new:
            assert span.seconds >= 0
            integral.add(span)
        after = _totals(integral)
        assert all(later >= earlier for earlier, later in zip(before, after, strict=True))
        before = after
    assert integral.total <= integral.elapsed + 1e-9
    # Five seconds may lie before the first reading; a driver's clock may run a thousandth fast.
    assert integral.elapsed <= now * 1.001 + 5.0 + 1e-6


def _totals(integral: UtilizationIntegral) -> list[float]:
    return [
        integral.total,
        integral.elapsed,
        integral.idle,
        *integral.below.values(),
        integral.dips,
        integral.dip_intervals,
        integral.dip_interval_sum,
        integral.dip_interval_sum_of_squares,
        *integral.observations,
        integral.observation_sum,
    ]


busy_pieces = st.tuples(st.floats(1.0, 6.0), st.floats(0.6, 1.0))
dip_pieces = st.tuples(st.floats(0.5, 3.0), st.just(0.0))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(busy_pieces, dip_pieces), min_size=1, max_size=20), phases)
def test_every_dip_of_half_a_second_is_counted_once_whatever_its_phase(
    rounds: list[tuple[tuple[float, float], tuple[float, float]]], phase: float
) -> None:
    # A settled start, since the first samples only set the beginning.
    pieces = [(5.0, 0.8), *[piece for pair in rounds for piece in pair], (2.0, 0.8)]
    load = Load(pieces)
    integral, readings = follow(load, DriverBuffer(load, phase=phase), [0.7 * step for step in range(1, 300)])
    starts = load.ends[2:-1:2]
    # After the last piece the load is idle for good: one more fall.
    assert integral.dips == len(starts) + 1
    assert readings


@pytest.mark.parametrize("level", [0.55, 0.6, 0.8, 1.0])
def test_a_dip_is_due_after_one_second_wherever_samples_cut_it(level: float) -> None:
    load = Load([(5.0, level), (0.5, 0.0), *[(1.0, level), (0.5, 0.0)] * 3, (5.0, level)])
    polls = [0.7 * step for step in range(1, 20)]
    for phase in range(20):
        integral, _ = follow(load, DriverBuffer(load, phase=phase * PERIOD / 20), polls)
        assert integral.dips == 4


@given(st.floats(0.02, 0.3), phases)
def test_a_short_dip_is_never_counted_twice(length: float, phase: float) -> None:
    load = Load([(5.0, 1.0), *[(length, 0.0), (4.0, 1.0)] * 10])
    last = 5.0 + 10 * (4.0 + length)
    buffer = DriverBuffer(load, phase=phase)
    integral, _ = follow(load, buffer, [0.7 * step for step in range(1, int(last / 0.7))])
    assert integral.dips <= 10


@settings(deadline=None, max_examples=40)
@given(st.floats(1.5, 10.0), st.floats(0.5, 3.0), phases)
def test_the_period_of_dips_is_right_to_one_sample(busy: float, idle: float, phase: float) -> None:
    load = Load([(busy, 1.0), (idle, 0.0)] * 20)
    integral, _ = follow(load, DriverBuffer(load, phase=phase), [0.7 * s for s in range(1, int(load.ends[-1] / 0.7))])
    mean = integral.dip_interval_sum / integral.dip_intervals
    mean_square = integral.dip_interval_sum_of_squares / integral.dip_intervals
    # Each start is right to one sample; over many the error of the mean is shared among them.
    assert integral.dip_interval_sum == pytest.approx((busy + idle) * integral.dip_intervals, abs=PERIOD + 1e-3)
    assert max(0.0, mean_square - mean**2) ** 0.5 <= PERIOD


def test_a_driver_counter_starts_at_the_driver_s_own_figure_and_follows_it() -> None:
    counter = DriverCounter()
    assert counter.take(500.0) == 500.0
    assert counter.take(512.5) == 512.5


def test_a_counter_that_goes_backwards_adds_nothing_and_goes_on_from_there() -> None:
    counter = DriverCounter()
    assert [counter.take(raw) for raw in (500, 520, 100, 130)] == [500, 520, 520, 550]
    assert counter.backwards == 1
    assert counter.out_of_range == 0


def test_a_single_reading_of_zero_is_not_followed_by_the_whole_count_once_more() -> None:
    counter = DriverCounter()
    assert [counter.take(raw) for raw in (5e9, 5e9 + 10, 0, 5e9 + 30)] == [5e9, 5e9 + 10, 5e9 + 10, 5e9 + 30]
    assert counter.backwards == 1


def test_a_32_bit_counter_wraps() -> None:
    counter = DriverCounter(widths=(32, 64))
    assert [counter.take(raw) for raw in (2**32 - 100, 50)] == [2**32 - 100, 2**32 + 50]
    assert counter.backwards == 0


@pytest.mark.parametrize(("last", "raw"), [(2**31 - 1, 5), (2**32 - 5, 2**30), (2**40, 5)])
def test_a_fall_that_no_wrap_explains_adds_nothing(last: int, raw: int) -> None:
    counter = DriverCounter(widths=(32, 64))
    counter.take(last)
    assert counter.take(raw) == last
    assert counter.backwards == 1


def test_a_driver_that_was_only_opened_again_goes_on() -> None:
    counter = DriverCounter()
    counter.take(500, session=1)
    assert counter.take(530, session=2) == 530


def test_a_driver_that_was_loaded_again_counts_from_nought() -> None:
    counter = DriverCounter(widths=(32,))
    counter.take(2**32 - 1, session=1)
    assert counter.take(30, session=2) == 2**32 + 29
    assert counter.take(40, session=2) == 2**32 + 39
    assert counter.backwards == 0


def test_a_jump_beyond_what_the_hardware_can_do_is_out_of_range() -> None:
    counter = DriverCounter(most_per_second=1000.0)
    readings = [(0.0, 100.0), (1.0, 800.0), (2.0, 9e15), (3.0, 1500.0), (4.0, 1600.0)]
    assert [counter.take(raw, now=now) for now, raw in readings] == [100.0, 800.0, 800.0, 1500.0, 1600.0]
    # One reading too high; the next one goes on from the one before it and so is not backwards.
    assert counter.out_of_range == 1
    assert counter.backwards == 0


def test_after_a_jump_that_lasts_the_counter_goes_on_from_there() -> None:
    counter = DriverCounter(most_per_second=1000.0)
    readings = [(0.0, 100.0), (1.0, 9e6), (2.0, 9e6 + 500), (3.0, 9e6 + 700)]
    assert [counter.take(raw, now=now) for now, raw in readings] == [100.0, 100.0, 600.0, 800.0]


def test_a_wrap_that_would_take_more_than_the_hardware_can_do_is_a_fall() -> None:
    counter = DriverCounter(widths=(32,), most_per_second=1000.0)
    counter.take(2**31, now=0.0)
    assert counter.take(5, now=1.0) == 2**31
    assert counter.backwards == 1


@pytest.mark.parametrize("raw", [float("nan"), float("inf"), -1.0])
def test_what_is_no_count_never_reaches_the_total(raw: float) -> None:
    counter = DriverCounter()
    counter.take(500)
    assert counter.take(raw) == 500
    assert counter.take(510) == 510
    assert counter.out_of_range == 1


@given(
    st.lists(st.tuples(st.floats() | st.integers(-(2**65), 2**65), st.integers(0, 2), st.floats(0, 1e4))),
    st.sampled_from([(), (32,), (32, 64)]),
    st.sampled_from([None, 1e3, 1e12]),
)
def test_a_driver_counter_never_falls_whatever_the_driver_says(
    readings: list[tuple[float, int, float]], widths: tuple[int, ...], most: float | None
) -> None:
    counter = DriverCounter(widths=widths, most_per_second=most)
    last = 0.0
    for raw, session, now in readings:
        total = counter.take(raw, session=session, now=now)
        assert last <= total < float("inf")
        last = total


_driver_events = st.lists(
    st.tuples(
        st.floats(0.01, 20.0),
        st.sampled_from(["counter", "late", "wild", "restart", "error", "integral"]),
        st.floats(0.0, 2.0) | st.floats(0.0, 1e6),
    ),
    max_size=60,
)


@given(st.floats(0.0, 1e6), _driver_events)
def test_a_counter_of_seconds_never_grows_faster_than_time_passes(
    start: float, events: list[tuple[float, str, float]]
) -> None:
    counter = DriverCounter(most_per_second=1, slack=2.0)
    now, since_integral, true, session = 10.0, 0.0, start, 1
    first = counter.take(true, session=session, now=now)
    for seconds, kind, amount in events:
        now += seconds
        true += seconds
        since_integral += seconds
        if kind == "restart":
            true, session = min(amount, seconds), session + 1
        if kind == "integral":
            # The poll of reasons covers only time that no reading of the counter covers.
            counter.add(since_integral)
        elif kind != "error":
            raw = {"counter": true, "restart": true, "late": true + min(amount, 2.0), "wild": amount}[kind]
            counter.take(raw, session=session, now=now)
        if kind != "error":
            since_integral = 0.0
        assert counter.total - first <= now - 10.0 + 1e-6


def test_a_reading_that_came_late_is_added_when_the_next_one_did_not() -> None:
    counter = DriverCounter(most_per_second=1, slack=2.0)
    totals = [counter.take(raw, now=now) for now, raw in [(0.0, 0.0), (1.0, 2.5), (2.0, 2.5), (3.0, 3.0)]]
    assert totals == [0.0, 1.0, 2.0, 3.0]


def test_time_that_was_not_used_is_not_saved_up() -> None:
    counter = DriverCounter(most_per_second=1, slack=2.0)
    for second in range(100):
        counter.take(0.0, now=float(second))
    assert counter.take(2.9, now=100.0) == 1.0


@given(st.lists(st.integers(0, 2**32 // 4 - 1), min_size=1), st.integers(0, 2**32 - 1))
def test_a_wrapping_counter_read_often_enough_loses_nothing(growth: list[int], start: int) -> None:
    counter = DriverCounter(widths=(32,))
    true = start
    counter.take(start)
    for each in growth:
        true += each
        assert counter.take(true % 2**32) == true
