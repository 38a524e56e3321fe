"""Rule files form layers: no file reads a series that a later file records."""

from __future__ import annotations

import pytest

from tests.promql_names import Matcher, Selector
from tests.rules.layers import ADAPTERS, ORDER, README, Read, readme, reads, selects

_FEEDBACK = {
    Read("canonical", "subjects", "rank_gpu:claimed:info"),
    Read("signals", "verdicts", "run:verdict:ratio5m"),
}
"""A GPU of another exporter takes the target's labels of the rank that claims it. The claim depends on no GPU. A run is
relieved of the verdict of the evaluation before."""


def test_every_file_has_its_layer() -> None:
    stems = {path.stem for path in (README.parent / "rules").glob("*.yml")}
    assert stems == set(ORDER)
    assert len(ORDER) == len(stems)


@pytest.mark.parametrize("stem", ORDER)
def test_no_file_reads_a_series_that_a_later_file_records(stem: str) -> None:
    upward = {
        read
        for read in reads() - _FEEDBACK
        if read.file == stem
        and ORDER.index(read.recorded_by) > ORDER.index(stem)
        and not {stem, read.recorded_by} <= set(ADAPTERS)
    }
    assert not upward


def test_the_exception_is_still_needed() -> None:
    assert reads() >= _FEEDBACK


def test_the_picture_is_drawn_from_the_files() -> None:
    assert README.read_text(encoding="utf-8") == readme(), "run `make generate`"


@pytest.mark.parametrize(
    ("matcher", "expected"),
    [
        (Matcher("domain", "=", "input"), True),
        (Matcher("domain", "=", "time"), False),
        (Matcher("domain", "!=", "input"), False),
        (Matcher("domain", "=~", "input|time"), True),
        (Matcher("domain", "!~", "input|time"), False),
        (Matcher("run", "!=", ""), True),
    ],
)
def test_labels_that_a_rule_sets_decide_which_selectors_read_it(matcher: Matcher, expected: bool) -> None:
    assert selects(Selector("pair_cause:time_lost:ratio5m", (matcher,)), {"domain": "input"}) is expected
