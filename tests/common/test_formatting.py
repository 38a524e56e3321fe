"""Numbers and texts from outside as people read them."""

from __future__ import annotations

import pytest

from stallscope.common.formatting import ago, count, duration, gpu_name, percent, readable, size, size_of


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.0834, "83.4 ms"),
        (1.256, "1.26 s"),
        (12.4, "12 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (5460, "1 h 31 min"),
        (90_000, "1 d 1 h"),
        (86_400 * 400, "400 d"),
        (1e300, "over a century"),
        (float("inf"), "over a century"),
        (float("nan"), "over a century"),
    ],
)
def test_times_have_two_units_at_most(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_elapsed_time_is_formatted_whatever_a_clock_returns() -> None:
    assert [ago(seconds) for seconds in (-5, 9.6, 90, float("inf"))] == [
        *("0 s ago", "10 s ago", "1 min 30 s ago", "over a century ago")
    ]


@pytest.mark.parametrize(("ratio", "words"), [(0, "0 %"), (0.001, "under 1 %"), (0.634, "63 %"), (1, "100 %")])
def test_what_is_there_never_reads_as_nothing(ratio: float, words: str) -> None:
    assert percent(ratio) == words


def test_implausible_numbers_have_few_digits() -> None:
    assert (count(1_234_567), count(1e308), count(-3)) == ("1,234,567", "1e+308", "-3")


def test_sizes_have_binary_units() -> None:
    assert (size(0), size(1536), size(80 << 30)) == ("0 B", "1.5 KiB", "80.0 GiB")
    assert size_of(512 << 20, 80 << 30) == "0.5 of 80.0 GiB"


def test_a_cut_text_says_that_it_is_cut() -> None:
    assert readable("k" * 1024, 10) == "k" * 9 + "…"
    assert readable("k" * 10, 10) == "k" * 10


def test_what_can_not_be_seen_is_spelt_out() -> None:
    assert readable("a\nb\u202ec\ud800") == "a\\nb\\u202ec\\ud800"


def test_no_escape_sequence_is_left() -> None:
    assert readable("\x1b[2J\x9b31m\a") == "\\x1b[2J\\x9b31m\\x07"


def test_a_mig_instance_is_named_after_its_gpu() -> None:
    assert gpu_name("1") == "GPU 1"
    assert gpu_name("1", "2") == "GPU 1 MIG 2"
    assert gpu_name("1\n", "2", lambda text: f"<{text.strip()}>") == "GPU <1> MIG <2>"
    assert gpu_name("1\n") == "GPU 1\\n"
