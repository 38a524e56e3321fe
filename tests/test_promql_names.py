"""The finder of names that other tests rely on."""

from __future__ import annotations

import pytest

from tests.promql_names import Matcher, Selector, names_in


@pytest.mark.parametrize(
    ("expression", "metrics"),
    [
        ("up", {"up"}),
        ("rate(a_total[5m])", {"a_total"}),
        ("sum by (x, y) (rate(a_total{x='1'}[5m])) / on (x) group_left (y) b:c:ratio5m", {"a_total", "b:c:ratio5m"}),
        ("sum(a) by (x)", {"a"}),
        ("a and b or c unless d", {"a", "b", "c", "d"}),
        ("a > bool 0.5e3 + 1 - Inf", {"a"}),
        ("a offset 5m", {"a"}),
        ("max_over_time(a[2h:30s])", {"a"}),
        ('label_replace(a, "x", "b", "", "c")', {"a"}),
        ("a # not b\n+ c", {"a", "c"}),
        ('{__name__="a", x="#b"}', {"a"}),
        ("vector(1)", set()),
        ("a * scalar(b{name='c'})", {"a", "b"}),
        ("rate(a_total{run=~'$run'}[$__rate_interval]) > $limit", {"a_total"}),
        ("a5m", {"a5m"}),
        ("count_values('v', a)", {"a"}),
    ],
)
def test_metrics_are_distinguished_from_functions_labels_strings_and_durations(
    expression: str, metrics: set[str]
) -> None:
    assert names_in(expression).metrics == metrics


def test_a_selector_keeps_its_conditions() -> None:
    assert names_in('a{x="1",y=~"b|c", z!=""} + d').selectors == (
        Selector("a", (Matcher("x", "=", "1"), Matcher("y", "=~", "b|c"), Matcher("z", "!=", ""))),
        Selector("d"),
    )


def test_braces_in_a_string_do_not_end_a_selector() -> None:
    assert names_in('a{x=~"1{2}"}').selectors == (Selector("a", (Matcher("x", "=~", "1{2}"),)),)


def test_grouping_labels_are_those_of_every_clause() -> None:
    expression = "sum without (a, b) (m) * on (c) group_left (d) n and ignoring(e) o unless on () p"
    assert names_in(expression).grouping_labels == {"a", "b", "c", "d", "e"}
    assert names_in(expression).metrics == {"m", "n", "o", "p"}
