"""The report as Markdown: well-formed tables, sparklines, and escaped names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from stallscope.common.formatting import readable
from stallscope.tools.report import markdown
from stallscope.tools.report.document import Document
from stallscope.tools.report.words import LONGEST_TEXT
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
        "| Cause | Share (of its GPU time) | Lost | Energy | Cost | Worst at |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        "| Blocking checkpoints | 6.0 % | 11.4 h |  | 28.90 EUR | 2023-11-15 07:50:00 |",
        "40.7 hours were lost to the disk.",
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


def test_names_from_outside_have_no_markup_in_markdown() -> None:
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
def test_only_markup_is_escaped(text: str, escaped: str) -> None:
    assert markdown.escaped(text) == escaped


def rendered(markdown_text: str) -> list[Token]:
    """Parse a text as GitHub's Markdown, with automatic links for addresses."""
    parser = MarkdownIt("gfm-like")
    assert parser.linkify is not None
    parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
    return parser.parse(markdown_text)


def words(tokens: Sequence[Token]) -> str:
    """Return the text of the only paragraph; fail if it contains anything but text."""
    opening, inline, closing = tokens
    assert (opening.type, inline.type, closing.type) == ("paragraph_open", "inline", "paragraph_close")
    assert {child.type for child in inline.children or ()} <= {"text"}, inline.children
    return "".join(child.content for child in inline.children or ()).replace("\u200b", "")


HOSTILE_WORDS = (
    "a | b",
    "`code` ``more``",
    "<img src=x onerror=alert(1)>",
    "[a](https://evil.example)",
    "![a](https://evil.example/x.png)",
    "see https://evil.example/login and HTTP://evil.example",
    "www.evil.example",
    "ftp://evil.example",
    "<https://evil.example>",
    "   # heading",
    "    code",
    "===",
    "--- ---",
    "***",
    "* item",
    "+ item",
    "2) item",
    "> quote",
    "~~gone~~ **bold** __bold__ _it_",
    "[^1] [x] [ ]",
    "&lt;b&gt; &#60;",
    "| --- |",
    "a\\",
    "two\nlines",
    "a\n\n# b",
    "\ttab",
)


@pytest.mark.parametrize("text", HOSTILE_WORDS)
def test_a_renderer_shows_a_hostile_text_as_the_text_that_it_is(text: str) -> None:
    assert words(rendered(markdown.escaped(text))) == readable(text.strip(), LONGEST_TEXT)


@given(st.text(st.one_of(st.sampled_from("#-+=*_~`|[]()<>!@&\\/.:w 1"), st.characters()), min_size=1))
def test_a_renderer_shows_any_text_as_that_text(text: str) -> None:
    shown = readable(text.strip(), LONGEST_TEXT)
    assume(shown)
    assert words(rendered(markdown.escaped(text))) == shown


@pytest.mark.parametrize("text", HOSTILE_WORDS)
def test_a_hostile_text_stays_within_its_cell_and_its_notice(text: str) -> None:
    row = rendered(f"| name | other |\n| --- | --- |\n| {markdown.escaped(text)} | 1 |")
    assert sum(token.type == "td_open" for token in row) == 2
    assert {child.type for token in row for child in token.children or ()} <= {"text"}
    notice = rendered(f"> [!NOTE]\n> {markdown.escaped(text)}")
    assert not {token.type for token in notice} & {"heading_open", "bullet_list_open", "ordered_list_open", "hr"}


@pytest.mark.parametrize(
    "text", ["@everyone", "run of @alice", "fixes #12", "see !34", "a@b.example", "/close", "/assign @x"]
)
def test_names_do_not_notify_users_or_close_issues(text: str) -> None:
    escaped = markdown.escaped(text)
    # Both search the text for these, despite a backslash.
    assert not re.search(r"[@#!]\w", escaped.replace("&#8203;", "\u200b"))
    assert not escaped.startswith("/")


@pytest.mark.parametrize("text", ["resnet50", "lr=0.1, batch 32", "node-1:19400", "C# 5 %", "a/b", "x @ y", "wow."])
def test_an_ordinary_name_is_not_escaped(text: str) -> None:
    assert markdown.escaped(text) == text


def test_a_run_at_a_standstill_is_not_shown_as_running() -> None:
    document = example.nothing()
    assert ", still running)" in markdown.write(document)
    stopped = markdown.write(replace(document, standstill_timestamp_seconds=example.START))
    assert ", at a standstill since 20" in stopped
    assert "still running" not in stopped


def test_a_sparkline_has_blocks_and_gaps() -> None:
    assert markdown.sparkline([0.0, 0.5, None, 1.0]) == "▁▅ █"
    assert markdown.sparkline([None, None]) == ""
    assert markdown.sparkline([3.0, 3.0]) == "██"
    assert len(markdown.sparkline([float(number) for number in range(1000)])) <= 48


def test_sparklines_follow_their_sentence() -> None:
    text = markdown.write(example.ordinary())
    assert re.search("^- `[▁-█ ]+` Waiting for data: disk: 10 % to 35 %$", text, re.MULTILINE)
    assert re.search("^- `[▁-█ ]+` 100 ms to 9.54 s$", text, re.MULTILINE)
