from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.node.owners.protobuf import Malformed, fields, inner, text
from tests.owners.kubelet import field, number_field, varint


def test_texts_and_messages_are_returned_and_numbers_skipped() -> None:
    message = field(1, "name") + number_field(2, 300) + field(16, b"\x08\x01")
    assert list(fields(message)) == [(1, b"name"), (2, None), (16, b"\x08\x01")]


def test_fixed_width_fields_are_passed_over() -> None:
    message = bytes([1 << 3 | 1]) + bytes(8) + bytes([2 << 3 | 5]) + bytes(4) + field(3, "after")
    assert list(fields(message)) == [(1, None), (2, None), (3, b"after")]


def test_an_empty_message_has_no_fields() -> None:
    assert list(fields(b"")) == []


@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), st.binary(max_size=300))))
def test_what_is_encoded_comes_back(pairs: list[tuple[int, bytes]]) -> None:
    assert list(fields(b"".join(field(*pair) for pair in pairs))) == pairs


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    with contextlib.suppress(Malformed):
        assert all(number > 0 for number, _ in fields(message))


@pytest.mark.parametrize("kept", range(1, 6))
def test_a_message_that_breaks_off_is_refused(kept: int) -> None:
    with pytest.raises(Malformed, match="breaks off"):
        list(fields(field(1, "name!")[:kept]))


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (bytes([1 << 3 | 3]), "wire type 3"),
        (bytes([0x00, 0x01]), "field number 0"),
        (b"\xff" * 11, "longer than 64 bits"),
        (field(1, b"")[:1] + varint(2**40) + b"x", "breaks off in field 1"),
    ],
)
def test_nonsense_is_refused_in_plain_words(message: bytes, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        list(fields(message))


def test_a_number_is_no_text() -> None:
    with pytest.raises(Malformed, match="field 2 holds a number"):
        text(2, None)
    with pytest.raises(Malformed, match="field 2 holds a number"):
        inner(2, None)


def test_broken_utf8_costs_its_odd_bytes_only() -> None:
    assert text(1, b"pod-\xff-1") == "pod-\N{REPLACEMENT CHARACTER}-1"
