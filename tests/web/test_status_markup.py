"""Pieces of the status page."""

from __future__ import annotations

from stallscope.node.web.status.markup import Part, attribute, line, stacked


def test_what_html_reads_is_escaped() -> None:
    assert attribute("<a href='x' id=\"y\">&") == "&lt;a href=&#x27;x&#x27; id=&quot;y&quot;&gt;&amp;"


def test_what_can_not_be_seen_is_spelt_out() -> None:
    assert attribute("a\nb\u202ec\ud800") == "a\\nb\\u202ec\\ud800"


def test_a_stacked_bar_never_grows_beyond_its_whole() -> None:
    drawn = stacked((Part("a", 0.7), Part("b", 0.7), Part("c", 0.2), Part("d", -1)))
    assert '<rect class="b" x="700" width="300"' in drawn
    assert 'class="c"' not in drawn
    assert 'class="d"' not in drawn


def test_a_line_needs_two_points() -> None:
    assert line(b"") == ""
    assert line(bytes((50, 255))) == ""
    assert "mean 50 %" in line(bytes((40, 60)))
