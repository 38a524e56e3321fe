"""Integrals: nothing credited twice, nothing invented, and dips told apart from noise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.sampling.integrals import DriverCounter, Stretch, TimeIntegral, Timeline, UtilizationIntegral

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
    for stretch in timeline.samples(samples, now=0.0):
        integral.add(stretch)
    return integral


@given(st.lists(st.tuples(gaps, ratios), min_size=1))
def test_busy_and_unused_time_sum_to_the_time_credited(readings: list[tuple[float, float]]) -> None:
    integral, timeline = UtilizationIntegral(), Timeline(longest=3.0)
    unused = expected = 0.0
    at = START_US
    timeline.samples([(at, 0.5)], now=0.0)
    for gap, value in readings:
        previous, at = at, at + round(gap * 1e6)
        for stretch in timeline.samples([(at, value)], now=0.0):
            integral.add(stretch)
            unused += (1 - stretch.value) * stretch.seconds
        seconds = (at - previous) / 1e6
        expected += seconds if seconds <= 3.0 else 0.0
    assert integral.elapsed == pytest.approx(expected)
    assert integral.total + unused == pytest.approx(expected)
    assert integral.idle <= integral.below[0.1] <= integral.below[0.5] <= integral.elapsed
    assert sum(integral.observations) == len(readings)
    assert integral.observation_sum == pytest.approx(sum(value for _, value in readings))


@given(st.lists(st.tuples(gaps, ratios, st.booleans()), min_size=1))
def test_samples_and_polls_together_never_credit_more_time_than_passed(
    readings: list[tuple[float, float, bool]],
) -> None:
    integral, timeline = TimeIntegral(), Timeline(longest=3.0)
    now = credited = 0.0
    for gap, value, polled in readings:
        now += gap
        new = [timeline.poll(value, now)] if polled else timeline.samples([(START_US + round(now * 1e6), value)], now)
        for stretch in new:
            integral.add(stretch)
            credited += stretch.seconds
    assert credited <= now + 1e-4
    assert integral.total <= credited + 1e-9


@given(st.floats(1.0, 20.0), st.floats(0.2, 0.8))
def test_a_square_wave_is_integrated_within_one_percent(period: float, share: float) -> None:
    integral = integrated(wave(period, period * share, duration=100 * period))
    assert integral.total / integral.elapsed == pytest.approx(share, rel=0.01)


def test_a_sample_seen_before_is_not_counted_again() -> None:
    timeline, integral = Timeline(longest=3.0), UtilizationIntegral()
    samples = wave(2.0, 1.0, 20.0)
    for overlap in range(0, len(samples), 3):
        for stretch in timeline.samples(samples[max(0, overlap - 10) : overlap + 3], now=0.0):
            integral.add(stretch)
    assert sum(integral.observations) == len(samples)
    assert integral.elapsed == pytest.approx(20.0 - PERIOD)


def test_an_outage_is_credited_to_nobody() -> None:
    integral = integrated([(START_US, 1.0), (START_US + 1_000_000, 1.0), (START_US + 601_000_000, 1.0)])
    assert integral.elapsed == pytest.approx(1.0)
    assert integral.total == pytest.approx(1.0)


def test_an_interval_within_the_limit_is_credited_to_the_sample_that_ends_it() -> None:
    integral = integrated([(START_US, 1.0), (START_US + 3_000_000, 0.25)])
    assert integral.total == pytest.approx(0.75)


def test_history_before_the_first_reading_is_not_credited() -> None:
    assert integrated([(START_US, 1.0)]).elapsed == 0
    assert Timeline(longest=3.0).poll(1.0, now=50.0).seconds == 0


def test_a_silent_buffer_is_bridged_by_polls_and_no_second_counts_twice() -> None:
    timeline, integral = Timeline(longest=3.0), UtilizationIntegral()
    now = 100.0
    for stretch in timeline.samples([(START_US, 1.0), (START_US + 500_000, 1.0)], now):
        integral.add(stretch)
    assert not timeline.silent(now + 1.0)
    for second in range(2, 12):
        assert timeline.silent(now + second)
        integral.add(timeline.poll(0.0, now + second))
    for stretch in timeline.samples([(START_US + 500_000 + 11_500_000, 1.0)], now + 12):
        integral.add(stretch)
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
    integral.add(Stretch(1.0, 1.0))
    integral.add(Stretch(0.0, 3.0))
    assert integral.take_mean() == pytest.approx(0.25)
    integral.add(Stretch(0.5, 1.0))
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


def _dips(*stretches: tuple[float, float]) -> int:
    integral = UtilizationIntegral()
    for value, seconds in stretches:
        integral.add(Stretch(value, seconds))
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
        integral.add(Stretch(value, seconds))
    assert integral.dips == 2
    assert integral.dip_intervals == 0


def test_a_reading_on_a_bucket_bound_belongs_to_that_bucket() -> None:
    integral = UtilizationIntegral()
    for value in (0.0, 0.05, 0.051, 1.0):
        integral.add(Stretch(value, 1.0))
    assert integral.observations == [1, 1, 1, 0, 0, 0, 0, 1, 0]


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


def test_a_counter_of_kilobytes_told_in_bytes_wraps_at_its_own_width() -> None:
    counter = DriverCounter(widths=(32,), unit=1000)
    assert counter.take(1000 * (2**32 - 100)) == 1000 * (2**32 - 100)
    assert counter.take(1000 * 50) == 1000 * (2**32 + 50)


@pytest.mark.parametrize(("last", "raw"), [(2**31 - 1, 5), (2**32 - 5, 2**30), (2**40, 5)])
def test_a_fall_that_no_wrap_explains_is_none(last: int, raw: int) -> None:
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


@given(st.lists(st.integers(0, 2**32 // 4 - 1), min_size=1), st.integers(0, 2**32 - 1))
def test_a_wrapping_counter_read_often_enough_loses_nothing(growth: list[int], start: int) -> None:
    counter = DriverCounter(widths=(32,))
    true = start
    counter.take(start)
    for each in growth:
        true += each
        assert counter.take(true % 2**32) == true
