"""The report as Markdown: tables that hold together, curves in small, and names that are names."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest

from stallscope.report import markdown
from stallscope.report.document import Document
from tests.report import example


def test_a_report_is_headings_facts_tables_and_sentences() -> None:
    text = markdown.write(example.ordinary())
    for line in (
        "# Run resnet50-imagenet",
        "- Lost: **37 %** (of the time that can be judged)",
        "## What to change",
        "### 1. Waiting for data: disk",
        "> [!WARNING]",
        "> Prometheus has nothing from 2023-11-15 02:00 to 02:40: the server was down.",
        "| Cause | Share (of its GPU time) | Lost | Energy | Money | Verdict for | Triggers | Worst at |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        "| Blocking checkpoints | 6.0 % | 11.4 h |  | 28.90 EUR | 42 min | 1 | 2023-11-15 07:50:00 |",
        "40.7 hours were lost to the disk, 11.4 to checkpoints, 9.2 to communication.",
    ):
        assert line in text.splitlines(), line
    assert re.search(
        r"^\*\*Read from local NVMe.*\*\* \[Runbook\]\(https://.*InputDiskBound\.md\)$", text, re.MULTILINE
    )
    assert "\n\n\n" not in text
    assert "None" not in text


@pytest.mark.parametrize("make", [example.ordinary, example.nothing, example.hostile])
def test_every_row_of_a_table_has_as_many_cells(make: Callable[[], Document]) -> None:
    lines = markdown.write(make()).splitlines()
    for line, following in pairwise(lines):
        if line.startswith("|") and following.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == len(re.findall(r"(?<!\\)\|", following))


def test_names_from_outside_mean_nothing_in_markdown() -> None:
    text = markdown.write(example.hostile())
    assert not re.search(r"(?<!\\)<", text)
    assert not re.search(r"(?<!\\)\]\((?!https://github\.com/stallscope)", text)
    assert "\\$\\\\frac{1}{0}\\$ \\| \\`code\\` \\| \\*bold\\*" in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("input_disk_bound of rank 3", "input_disk_bound of rank 3"),
        ("_private_", "\\_private\\_"),
        ("# no heading", "\\# no heading"),
        ("- no list", "\\- no list"),
        ("1. no list", "1\\. no list"),
        ("node-1: 3.5 GB", "node-1: 3.5 GB"),
        ("40.7 h", "40.7 h"),
        ("-3 °C", "-3 °C"),
        ("---", "\\---"),
    ],
)
def test_only_what_would_mean_something_is_escaped(text: str, escaped: str) -> None:
    assert markdown.escaped(text) == escaped


def test_a_curve_is_a_line_of_blocks_with_its_gaps() -> None:
    assert markdown.sparkline([0.0, 0.5, None, 1.0]) == "▁▅ █"
    assert markdown.sparkline([None, None]) == ""
    assert markdown.sparkline([3.0, 3.0]) == "██"
    assert len(markdown.sparkline([float(number) for number in range(1000)])) <= 48


def test_curves_stand_in_small_beneath_their_sentence() -> None:
    text = markdown.write(example.ordinary())
    assert re.search("^- `[▁-█ ]+` Waiting for data: disk: 10 % to 35 %$", text, re.MULTILINE)
    assert re.search("^- `[▁-█ ]+` 100 ms to 9.54 s$", text, re.MULTILINE)
