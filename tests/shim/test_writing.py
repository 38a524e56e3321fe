from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.training.shim.tolerance import label
from stallscope.training.shim.writing import amounts, quoted, texts, values, words

LABELS = st.text().map(lambda text: label(text, 128))


@given(st.lists(LABELS), st.dictionaries(LABELS, LABELS))
def test_text_is_read_as_it_was(some: list[str], named: dict[str, str]) -> None:
    assert json.loads(words(some)) == some
    assert json.loads(texts(named)) == named


@given(st.dictionaries(LABELS, st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)))
def test_numbers_are_read_to_twelve_digits(named: dict[str, float]) -> None:
    assert json.loads(values(named)) == pytest.approx(named, rel=1e-11, abs=1e-300)


@given(st.dictionaries(LABELS, st.floats(0, 1e300)))
def test_amounts_are_read_to_the_millionth(named: dict[str, float]) -> None:
    assert json.loads(amounts(named)) == pytest.approx(named, rel=1e-15, abs=5.1e-7)


@pytest.mark.parametrize("text", ["%s", "100 %", '"', "\\", '\\"', "ü", "\N{GRINNING FACE}", ""])
def test_signs_with_a_meaning_of_their_own_are_text(text: str) -> None:
    assert json.loads(quoted(text)) == text
    assert json.loads(values({text: 1})) == {text: 1}


def test_nothing_is_an_empty_object() -> None:
    assert (words([]), texts({}), amounts({}), values({})) == ("[]", "{}", "{}", "{}")
