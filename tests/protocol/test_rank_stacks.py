"""The form in which an exporter returns the stacks of a rank."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stallscope.training.protocol.rank_stacks import RankStacks, parse
from stallscope.training.protocol.stacks import Frame, HotLine, SampledPhase

STEP, READ = (Frame("/job/train.py", 7, "step"),), (Frame("/job/data.py", 3, "read"),)
FULL = RankStacks(
    rank=3,
    reported=5.0,
    taken=4.5,
    standstill=False,
    samples=(STEP, READ, STEP),
    lines={"other": SampledPhase(5.0, (HotLine("a.py:1", "f", 0.5, 4),))},
    reachable=False,
    pid=42,
    world_size="8",
)
DOCUMENT: dict[str, Any] = json.loads(json.dumps(FULL.document()))


def test_a_rank_arrives_as_it_was_sent_with_each_stack_once() -> None:
    assert parse(DOCUMENT) == FULL
    assert (len(DOCUMENT["stacks"]), DOCUMENT["samples"]) == (2, [0, 1, 0])


def test_an_older_exporter_sends_neither_process_nor_lines() -> None:
    old = {key: value for key, value in DOCUMENT.items() if key not in ("pid", "world_size", "reachable", "lines")}
    found = parse(old)
    assert (found.pid, found.world_size, found.reachable, found.lines) == (None, "", True, None)
    assert not found.has_lines
    assert "lines" not in found.document()


@pytest.mark.parametrize(
    "change",
    [
        {"rank": True},
        {"rank": "3"},
        {"reported": None},
        {"taken": "now"},
        {"standstill": 0},
        {"reachable": None},
        {"pid": "42"},
        {"world_size": 8},
        {"stacks": [[]]},
        {"stacks": [[["/job/train.py", "7", "step"]]]},
        {"stacks": [[["/job/train.py", 7]]]},
        {"samples": [2]},
        {"samples": [-1]},
        {"samples": [True]},
        {"lines": {"other": 5}},
    ],
    ids=str,
)
def test_another_format_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"format|type|frame|negative"):
        parse({**DOCUMENT, **change})


@pytest.mark.parametrize("document", [None, 5, [], "rank", {}])
def test_what_is_no_rank_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="format"):
        parse(document)
