from __future__ import annotations

import pytest

from stallscope.common.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":19400", Address("", 19400)),
        ("127.0.0.1:19400", Address("127.0.0.1", 19400)),
        ("[::1]:19400", Address("::1", 19400)),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_reads_the_spellings_of_other_exporters_and_writes_them_back(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "19400",
        "localhost",
        "localhost:",
        ":http",
        ":-1",
        ":65536",
        "::1:19400",
        "[::1]19400",
        "a b:1",
        "http://h:1",
    ],
)
def test_refuses_what_is_no_address_and_says_what_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT, :PORT or \[IPV6\]:PORT"):
        parse_address(text)
