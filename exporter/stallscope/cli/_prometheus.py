"""Which Prometheus a command asks: the flags, alike in every command, and the client that they stand for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stallscope.cli import _client_certificate
from stallscope.cli._durations import duration
from stallscope.cli._parser import Parser
from stallscope.clients.address import LOCAL, VARIABLE, default_url
from stallscope.common.formatting import without_password
from stallscope.configuration import parse_server

if TYPE_CHECKING:
    from stallscope.clients.prometheus import Prometheus

DEFAULT_TIMEOUT = 60.0
"""Seconds: half of what Prometheus gives a question unless told otherwise."""
_MAX_BYTES = 128 << 20
"""Longest answer that is read: some five million samples. What is longer is asked for in pieces."""


def add_flags(parser: Parser, *, timeout: float = DEFAULT_TIMEOUT, whose: str = "a server") -> None:
    """Give a command `--prometheus.url`, `--prometheus.timeout`, `--client-certificate` and `--client-key`.

    Args:
        parser: of the command.
        timeout: seconds that one question may take unless told.
        whose: servers that may want a client's certificate.
    """
    group = parser.add_argument_group("Prometheus")
    group.add_argument(
        "--prometheus.url",
        dest="prometheus_url",
        # argparse reads a default that is text as it would read the flag: a wrong variable is refused likewise.
        default=default_url(),
        type=address,
        metavar="URL",
        help=f"server that holds the measurements, with its path prefix, if any (default: {VARIABLE}, or else {LOCAL})",
    )
    group.add_argument(
        "--prometheus.timeout",
        dest="prometheus_timeout",
        default=timeout,
        type=duration("100ms", "1h"),
        metavar="DURATION",
        help=f"how long one question may take (default: {timeout:g}s)",
    )
    _client_certificate.add_flags(parser, whose)


def client(parsed: argparse.Namespace) -> Prometheus:
    """The server that the flags name; nothing is asked yet.

    Raises:
        ModuleNotFoundError: the library that asks is not installed.
    """
    from stallscope.clients.prometheus import Prometheus

    return Prometheus(
        parsed.prometheus_url,
        timeout=parsed.prometheus_timeout,
        max_bytes=_MAX_BYTES,
        certificate=parsed.certificate,
    )


def reason(problem: Exception) -> str:
    """Why a command gets no answer, in one line; where nothing listens at the address, with how to name another."""
    from stallscope.clients.prometheus import PrometheusError

    another = isinstance(problem, PrometheusError) and problem.unreachable
    return f"{problem}; name another server with --prometheus.url or {VARIABLE}" if another else str(problem)


def address(text: str) -> str:
    """The address of a server, as argparse reads it."""
    try:
        url = parse_server(text)
    except ValueError:
        url = ""
    if not url:
        shown = without_password(text)
        raise argparse.ArgumentTypeError(f"{shown!r} is no address; expected http://HOST:PORT or https://HOST:PORT")
    return url
