"""Texts in PromQL: promtool and a real Prometheus read them unchanged (see test_prometheus)."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from stallscope.model.clients.expressions import any_of, quoted


def unquoted(text: str) -> str:
    assert text[0] == text[-1] == '"'
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text[1:-1], flags=re.DOTALL)


@given(st.text())
def test_a_quoted_text_is_one_string_and_the_same_text(text: str) -> None:
    assert not re.search(r'(?<!\\)(\\\\)*"', quoted(text)[1:-1])
    assert "\n" not in quoted(text)
    assert unquoted(quoted(text)) == text


@given(st.lists(st.text(), min_size=1), st.text())
def test_a_matcher_matches_exactly_its_texts(texts: list[str], other: str) -> None:
    pattern = re.compile(unquoted(any_of(texts)))
    assert all(pattern.fullmatch(text) for text in texts)
    assert bool(pattern.fullmatch(other)) == (other in texts)
