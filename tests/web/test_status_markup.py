"""Numbers and texts as the status page shows them."""

from __future__ import annotations

import pytest

from stallscope.web.status.markup import Part, attribute, count, duration, line, percent, size, size_of, stacked


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


@pytest.mark.parametrize(("ratio", "words"), [(0, "0 %"), (0.001, "under 1 %"), (0.634, "63 %"), (1, "100 %")])
def test_what_is_there_never_reads_as_nothing(ratio: float, words: str) -> None:
    assert percent(ratio) == words


def test_numbers_that_can_not_be_meant_have_few_digits() -> None:
    assert (count(1_234_567), count(1e308), count(-3)) == ("1,234,567", "1e+308", "-3")


def test_sizes_have_binary_units() -> None:
    assert (size(0), size(1536), size(80 << 30)) == ("0 B", "1.5 KiB", "80.0 GiB")
    assert size_of(512 << 20, 80 << 30) == "0.5 of 80.0 GiB"


def test_a_cut_text_says_that_it_is_cut() -> None:
    assert attribute("k" * 1024, 10) == "k" * 9 + "…"
    assert attribute("k" * 10, 10) == "k" * 10


def test_what_can_not_be_seen_is_spelt_out() -> None:
    assert attribute("a\nb\u202ec\ud800") == "a\\nb\\u202ec\\ud800"


def test_what_html_reads_is_escaped() -> None:
    assert attribute("<a href='x' id=\"y\">&") == "&lt;a href=&#x27;x&#x27; id=&quot;y&quot;&gt;&amp;"


def test_a_stacked_bar_never_grows_beyond_its_whole() -> None:
    drawn = stacked((Part("a", 0.7), Part("b", 0.7), Part("c", 0.2), Part("d", -1)))
    assert '<rect class="b" x="700" width="300"' in drawn
    assert 'class="c"' not in drawn
    assert 'class="d"' not in drawn


def test_a_line_needs_two_points() -> None:
    assert line(b"") == ""
    assert line(bytes((50, 255))) == ""
    assert "mean 50 %" in line(bytes((40, 60)))
