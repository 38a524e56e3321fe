"""The flags `--prometheus.…`, shared by the commands, the client made from them, and its errors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stallscope.common.formatting import without_password
from stallscope.model.clients.address import LOCAL, LOCAL_STACK, VARIABLE, default_url
from stallscope.node.configuration import parse_server
from stallscope.tools.cli import _client_certificate, _times
from stallscope.tools.cli._durations import duration
from stallscope.tools.cli._parser import Parser

if TYPE_CHECKING:
    from stallscope.model.clients.prometheus import Prometheus

DEFAULT_TIMEOUT = 60.0
"""Seconds: half of Prometheus' own default for --query.timeout."""
_MAX_BYTES = 128 << 20
"""Maximum size of a response, about five million samples. Longer ranges are queried in pieces."""


def add_flags(parser: Parser, *, timeout: float = DEFAULT_TIMEOUT, servers: str = "a server") -> None:
    """Add `--prometheus.url`, `--prometheus.timeout`, `--client-certificate` and `--client-key` to a command.

    Args:
        parser: the command's parser.
        timeout: default of `--prometheus.timeout`, in seconds.
        servers: servers that may require a client certificate, for the help.
    """
    group = parser.add_argument_group("Prometheus")
    group.add_argument(
        "--prometheus.url",
        dest="prometheus_url",
        # argparse also parses a default that is text, so that an invalid variable is rejected too.
        default=default_url(),
        type=address,
        metavar="URL",
        help=f"Prometheus server, with its path prefix if it has one (default: {VARIABLE}, {LOCAL_STACK}, or {LOCAL})",
    )
    group.add_argument(
        "--prometheus.timeout",
        dest="prometheus_timeout",
        default=timeout,
        type=duration("100ms", "1h"),
        metavar="DURATION",
        help=f"time limit of one query (default: {timeout:g}s)",
    )
    _client_certificate.add_flags(parser, servers)


def add_run_flags(parser: Parser, runs: str, namesakes: str, *, gpus: bool = False) -> None:
    """Add the flags that select among runs of the same name.

    Args:
        parser: the command's parser.
        runs: words of the help texts for the runs.
        namesakes: words for what several clusters may have.
        gpus: True if the cluster also selects GPUs.
    """
    more = " or such GPUs" if gpus else ""
    parser.add_argument("--cluster", help=f"cluster of {runs}, if several clusters have {namesakes}{more}")
    parser.add_argument("--namespace", help=f"namespace of {runs}, if several namespaces have {namesakes}")


def client(parsed: argparse.Namespace) -> Prometheus:
    """Return a client for the server that the flags name, without connecting to it.

    Raises:
        ModuleNotFoundError: the HTTP library is not installed.
    """
    from stallscope.model.clients.prometheus import Prometheus

    return Prometheus(
        parsed.prometheus_url,
        timeout=parsed.prometheus_timeout,
        max_bytes=_MAX_BYTES,
        certificate=parsed.certificate,
    )


class CommandFailed(Exception):
    """The command failed; the message is one line."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Raise `CommandFailed` if the block can't read a run. If the server is unreachable, add how to name another one.

    Raises:
        ModuleNotFoundError: the HTTP library is not installed.
    """
    from stallscope.model.analysis.runs import RunError
    from stallscope.model.clients.prometheus import PrometheusError
    from stallscope.model.view.gpu_finder import GpuError

    try:
        yield
    except (RunError, GpuError, PrometheusError, _times.EmptySpanError) as problem:
        another = isinstance(problem, PrometheusError) and problem.unreachable
        hint = f"; name another server with --prometheus.url or {VARIABLE}" if another else ""
        raise CommandFailed(f"{problem}{hint}") from None


def address(text: str) -> str:
    """Return the normalized URL of a server; an argparse type."""
    try:
        url = parse_server(text)
    except ValueError:
        url = ""
    if not url:
        shown = without_password(text)
        raise argparse.ArgumentTypeError(f"expected http://HOST:PORT or https://HOST:PORT, got {shown!r}")
    return url
