"""Listen addresses and URLs of servers."""

from __future__ import annotations

import pytest

from stallscope.common.address import parse_address, split_url
from stallscope.model.clients.exporter import ExporterClient
from stallscope.node.configuration import parse_server

INVALID = [
    "[::1",
    "[::1]80",
    "[::1]x",
    "::1",
    "[]:80",
    "[host]:80",
    "[192.0.2.1]:80",
    ":80",
    "",
    "host:70000",
    "[::1]:70000",
    "host:0",
    "host:-1",
    "host:x",
    "ho st",
    "ho[st:80",
    "h\x01st",
    "höst",
    "a..b",
    "x" * 64,
]


@pytest.mark.parametrize("place", INVALID)
@pytest.mark.parametrize("read", [split_url, parse_server, ExporterClient])
def test_an_address_without_a_possible_host_and_port_is_refused(read: type[ExporterClient], place: str) -> None:
    with pytest.raises(ValueError, match=r"http://"):
        read(f"http://{place}")


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://host", "host", None),
        ("http://host:", "host", None),
        ("https://user:secret@host.example.:9090/prefix", "host.example.", 9090),
        ("http://[::1]", "::1", None),
        ("http://[fd00::1]:65535", "fd00::1", 65535),
        ("http://user@[::1]:80", "::1", 80),
        ("http://gpu_node-7:80", "gpu_node-7", 80),
    ],
)
def test_the_url_of_a_server_has_a_host_and_a_port(url: str, host: str, port: int | None) -> None:
    parts = split_url(url)
    assert (parts.hostname, parts.port) == (host, port)
    assert parse_server(url) == url


@pytest.mark.parametrize("text", ["h\x01st:80", "h\u200bst:80", "[::1:80", "::1:80", "host:70000", "host", "host:"])
def test_a_listen_address_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)
