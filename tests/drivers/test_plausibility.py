"""Plausible values of a driver are accepted; others are counted."""

from __future__ import annotations

import math

import pytest

from stallscope.node.drivers.device import DriverError
from stallscope.node.drivers.plausibility import Plausibility

HOUR = 3_600_000_000
YEAR = 365 * 24 * HOUR
WALL = 1_800_000_000


class Clock:
    """Seconds, set by hand."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def monotonic() -> Clock:
    return Clock(5000.0)


@pytest.fixture
def plausibility(monotonic: Clock) -> Plausibility:
    return Plausibility(monotonic, Clock(WALL))


@pytest.mark.parametrize("value", [0, 1, 99.5, 100])
def test_what_lies_within_bounds_is_believed(plausibility: Plausibility, value: float) -> None:
    assert plausibility.number(value, 100) == value
    assert plausibility.counts == {}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (0xFFFF_FFFF, "sentinel"),
        (0x7FFF_FFFF, "sentinel"),
        (2**64 - 1, "sentinel"),
        (2**63 - 1, "sentinel"),
        (0x7FFF_FFFF_FFFF_FFF0, "sentinel"),
        (9.223372036854775807e18, "sentinel"),
        (math.nan, "not_a_number"),
        (math.inf, "not_a_number"),
        (101, "out_of_range"),
        (-5, "out_of_range"),
    ],
)
def test_implausible_values_are_absent_and_counted(plausibility: Plausibility, value: float, reason: str) -> None:
    assert plausibility.number(value, 100) is None
    assert plausibility.counts == {reason: 1}


def test_a_sentinel_within_bounds_is_still_one(plausibility: Plausibility) -> None:
    assert plausibility.number(0xFFFF_FFFF, 1 << 60) is None


def test_what_is_missing_is_no_offence(plausibility: Plausibility) -> None:
    assert plausibility.number(None, 100) is None
    assert plausibility.counts == {}


def test_an_implausible_required_value_is_an_error(plausibility: Plausibility) -> None:
    with pytest.raises(DriverError, match="power came as 4294967295"):
        plausibility.needed("power", 0xFFFF_FFFF, 1000)


@pytest.mark.parametrize(
    ("reported", "taken", "malformed"),
    [
        (b"NVIDIA H200", "NVIDIA H200", False),
        ('A "quoted" \\ name', 'A "quoted" \\ name', False),
        (b"Gr\xc3\xbc\xc3\x9fe", "Grüße", False),
        (None, "", False),
        (b"H\xff200", "H\ufffd200", True),
        ("two\nlines\x00", "twolines", True),
        ("\ud800", "", True),
    ],
)
def test_text_is_made_fit_for_a_label(
    plausibility: Plausibility, reported: str | bytes | None, taken: str, malformed: bool
) -> None:
    assert plausibility.text(reported) == taken
    assert plausibility.counts == ({"malformed_text": 1} if malformed else {})


def entries(*timestamps: int) -> list[tuple[int, int]]:
    return [(timestamp, 50) for timestamp in timestamps]


@pytest.mark.parametrize("zero", [WALL * 1_000_000, 77_000_000], ids=["wall clock", "clock since boot"])
def test_entries_come_in_order_by_any_clock(plausibility: Plausibility, zero: int) -> None:
    assert plausibility.timely(entries(zero + 2, zero + 1, zero + 3)) == entries(zero + 1, zero + 2, zero + 3)
    assert plausibility.counts == {}


def test_unset_entries_are_counted(plausibility: Plausibility) -> None:
    assert plausibility.timely(entries(0, 5, 0)) == entries(5)
    assert plausibility.counts == {"zero_timestamp": 2}


@pytest.mark.parametrize("zero", [WALL * 1_000_000, 77_000_000], ids=["wall clock", "clock since boot"])
def test_one_entry_far_ahead_of_the_others_is_from_the_future(plausibility: Plausibility, zero: int) -> None:
    assert plausibility.timely(entries(zero, zero + 1, zero + 2, zero + 5 * HOUR)) == entries(zero, zero + 1, zero + 2)
    assert plausibility.counts == {"future_timestamp": 1}


def test_a_whole_answer_may_be_from_the_future(plausibility: Plausibility) -> None:
    assert plausibility.timely(entries(WALL * 1_000_000 + YEAR, WALL * 1_000_000 + YEAR + 1)) == []
    assert plausibility.counts == {"future_timestamp": 2}


def test_time_that_passed_here_may_pass_there(plausibility: Plausibility, monotonic: Clock) -> None:
    plausibility.timely(entries(77_000_000))
    monotonic.now += 86_400
    assert len(plausibility.timely(entries(77_000_000 + 24 * HOUR))) == 1


def test_an_entry_far_ahead_of_the_time_that_passed_is_from_the_future(
    plausibility: Plausibility, monotonic: Clock
) -> None:
    plausibility.timely(entries(77_000_000))
    monotonic.now += 1
    assert plausibility.timely(entries(77_000_000 + 2 * HOUR)) == []
    assert plausibility.counts == {"future_timestamp": 1}
    assert len(plausibility.timely(entries(79_000_000))) == 1


def test_a_wall_clock_that_was_set_forward_is_followed(plausibility: Plausibility) -> None:
    plausibility.timely(entries(WALL * 1_000_000 - YEAR))
    assert len(plausibility.timely(entries(WALL * 1_000_000))) == 1


def test_a_driver_clock_that_was_set_forward_is_followed_once_it_goes_on(
    plausibility: Plausibility, monotonic: Clock
) -> None:
    plausibility.timely(entries(77_000_000))
    step = 77_000_000 + 3 * HOUR
    monotonic.now += 1
    assert plausibility.timely(entries(step)) == [], "it may be one slip"
    monotonic.now += 1
    assert len(plausibility.timely(entries(step + 1_000_000))) == 1
    monotonic.now += 1
    assert len(plausibility.timely(entries(step + 2_000_000))) == 1
    assert plausibility.counts == {"future_timestamp": 1}


@pytest.mark.parametrize("second", [77_000_000 + 3 * HOUR, 77_000_000 + 9 * HOUR], ids=["stands", "leaps"])
def test_entries_from_the_future_that_do_not_go_on_as_time_does_stay_rejected(
    plausibility: Plausibility, monotonic: Clock, second: int
) -> None:
    plausibility.timely(entries(77_000_000))
    for timestamp in (77_000_000 + 3 * HOUR, second):
        monotonic.now += 1
        assert plausibility.timely(entries(timestamp)) == []
    assert len(plausibility.timely(entries(79_000_000))) == 1
