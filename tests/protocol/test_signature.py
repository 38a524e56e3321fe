from __future__ import annotations

import pytest

from stallscope.training.protocol import signature

NAME, SECRET = signature.key("a token of some length")
DOCUMENT = b'{"version": 1,\n"run": "resnet50"}'
AT = 1_700_000_100.25


def test_what_was_signed_is_genuine_and_comes_out_as_it_went_in() -> None:
    data = signature.signed(DOCUMENT, NAME, SECRET, AT)
    assert signature.is_signed(data)
    assert signature.claim(data) == (NAME, AT)
    assert signature.is_genuine(data, SECRET)
    assert signature.document_of(data) == DOCUMENT == data[signature.LENGTH :]


@pytest.mark.parametrize("at", [0.0, 999.999, 1_700_000_100.0, 9_999_999_999.999])
def test_the_line_is_always_as_long(at: float) -> None:
    data = signature.signed(DOCUMENT, NAME, SECRET, at)
    assert len(data) == signature.LENGTH + len(DOCUMENT)
    assert signature.claim(data) == (NAME, at)


def test_every_byte_counts() -> None:
    data = signature.signed(DOCUMENT, NAME, SECRET, AT)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        assert not signature.is_genuine(bytes(changed), SECRET) or position == signature.LENGTH - 1
    assert not signature.is_genuine(data + b" ", SECRET)
    assert not signature.is_genuine(data, signature.key("another token of some length")[1])


def test_an_unsigned_document_is_what_it_is() -> None:
    assert not signature.is_signed(DOCUMENT)
    assert signature.document_of(DOCUMENT) == DOCUMENT


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"1a2b3c4d",
        b"1a2b3c4d 1700000100.250 " + b"0" * 63,
        b"1a2b3c4d 17000001e0.250 " + b"0" * 64,
        b"1a2b3c4d -700000100.250 " + b"0" * 64,
        b"1a2b3c4d 1700000100.250 " + b"0" * 65,
        b"1a2b3c4d            nan " + b"0" * 64,
        b"1a2b3c4d 1700000100.250 " + b"0" * 40 + b" " + b"0" * 23,
    ],
)
def test_a_malformed_line_claims_nothing(line: bytes) -> None:
    assert signature.claim(signature.SCHEME + line + b"\n" + DOCUMENT) is None
    assert signature.claim(signature.SCHEME + line) is None


def test_the_name_of_a_key_reveals_neither_token_nor_secret() -> None:
    assert len(NAME) == 8
    assert NAME not in (SECRET, SECRET.hex().encode()[:8])
