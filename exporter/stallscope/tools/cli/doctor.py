"""Check the installation of a node or a cluster, and show what to fix."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from stallscope.common.formatting import readable
from stallscope.common.local_stack import newest_stack
from stallscope.model.clients.address import VARIABLE, default_exporter
from stallscope.tools.cli._exporter import DEFAULT_EXPORTER, exporter_url
from stallscope.tools.cli._parser import Parser, nearest
from stallscope.tools.cli._progress import add_flag, progress
from stallscope.tools.cli._prometheus import add_flags

if TYPE_CHECKING:
    from stallscope.tools.doctor.checkup import Result, Subject

PARTS = {
    "node": "drivers, GPUs, and permissions of the exporter's user",
    "exporter": "health and metrics of the exporter",
    "reports": "the path from a training to the exporter, with a test report that creates no run",
    "prometheus": "scrapes, rules, thresholds, alerts",
    "cluster": "all exporters, as Prometheus sees them",
}
_ADDRESS = "STALLSCOPE_ADDRESS"
_COLUMNS = 100
_COLOURS = {"failed": "31", "warning": "33", "skipped": "2", "ok": "32"}
"""ANSI colours by status, most severe first."""
_MAX_LENGTH = 1000
"""Maximum length of a message, in characters: messages may quote servers."""
_TIMEOUT = 5.0
"""Seconds per query: a slower server is reported as a problem."""


def parser() -> Parser:
    """Return the parser of the command line."""
    listed = "; ".join(f"{name}: {content}" for name, content in PARTS.items())
    made = Parser(
        "doctor",
        usage="stallscope doctor [PART...] [flags]",
        description="Check an installation part by part. For each problem, show where it is and what to do. "
        f"The parts are {listed}. Without PART, all parts are checked; Prometheus is skipped if no URL is given and "
        "none responds on this machine.",
        examples={
            "stallscope doctor": "this node, as the training user; run it as root to check all permissions",
            "stallscope doctor prometheus cluster --prometheus.url http://prometheus:9090": "a cluster, from anywhere",
            "STALLSCOPE_ADDRESS=udp://10.0.0.7 stallscope doctor reports": "do a container's reports arrive?",
            "stallscope doctor --json | jq '.results[] | select(.status == \"failed\")'": "for scripts",
        },
        notes="Exit status: 0 if no check failed (warnings are allowed), 1 if a check failed, 2 for an invalid command "
        "line. NO_COLOR=1 disables colours.",
    )
    made.add_argument("parts", nargs="*", metavar="PART", help=f"part to check: {', '.join(PARTS)} (default: all)")
    made.add_argument("--json", action="store_true", help="print one JSON document")
    made.add_argument(
        "--exporter.url",
        dest="exporter_url",
        type=exporter_url,
        metavar="URL",
        help=f"URL of the exporter (default: the host of {_ADDRESS}, {DEFAULT_EXPORTER})",
    )
    add_flag(made)
    add_flags(made, timeout=_TIMEOUT, servers="an exporter or Prometheus")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the checks; return 0 if none failed, 1 if one failed, 2 for an invalid command line."""
    command_line = parser()
    parsed = command_line.parse_args(arguments)
    for name in parsed.parts:
        if name not in PARTS:
            hint = nearest(name, PARTS) or f"; expected {', '.join(PARTS)}"
            command_line.error(f"unknown part {name!r}{hint}")
    # A missing Prometheus is a problem only if the user has named it, one of its parts, or has started one with `up`.
    stack = newest_stack()
    named = (
        bool(os.environ.get(VARIABLE) or stack)
        or any(each.startswith("--prometheus.url") for each in arguments)
        or not {"prometheus", "cluster"}.isdisjoint(parsed.parts)
    )
    environment = dict(os.environ)
    if parsed.exporter_url is None and not environment.get(_ADDRESS) and stack:
        environment[_ADDRESS] = stack.exporter.replace("http", "udp", 1)
    subject = _subject(parsed, environment, prometheus_named=named)
    results = _examine(
        [name for name in PARTS if name in (parsed.parts or PARTS)], subject, show=not parsed.json, quiet=parsed.quiet
    )
    counts = Counter[str](each.finding.status for each in results)
    if parsed.json:
        print(json.dumps({"results": [_entry(each) for each in results], "counts": dict(counts)}, indent=2))
    else:
        print(f"\n{', '.join(f'{counts[status]} {status}' for status in _COLOURS if counts[status])}")
    return int(counts["failed"] > 0)


def _examine(names: Sequence[str], subject: Subject, *, show: bool, quiet: bool) -> list[Result]:
    """Run the checks, and print the results of each part as soon as it is complete."""
    from stallscope.tools.doctor.checkup import examined
    from stallscope.tools.doctor.examination import PARTS as CHECKS

    results: list[Result] = []
    for name in names:
        with progress(f"Checking {name}", quiet=quiet):
            found = list(examined(CHECKS[name], subject))
        results += found
        if show:
            print(("\n" if len(results) > len(found) else "") + _shown(name, found), flush=True)
    return results


def _shown(part: str, results: Iterable[Result]) -> str:
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    columns = min(_COLUMNS, shutil.get_terminal_size((_COLUMNS, 0)).columns)
    lines = [f"\033[1m{part}\033[0m" if coloured else part]
    above = ""
    for _, check, (status, message, remedy) in results:
        word = f"{status:<7}"
        start = f"  {word}  {check + ':':<19}"
        first, *others = _wrapped(message, columns, start, " " * len(start))
        lines += [first.replace(word, f"\033[{_COLOURS[status]}m{word}\033[0m", 1) if coloured else first, *others]
        if remedy and remedy != above:
            lines += _wrapped(f"-> {remedy}", columns, " " * len(start), " " * (len(start) + 3))
        above = remedy
    return "\n".join(lines)


def _wrapped(text: str, columns: int, first: str, others: str) -> list[str]:
    shown = readable(" ".join(text.split()), _MAX_LENGTH)
    return textwrap.wrap(
        shown, columns, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, break_long_words=False
    )


def _entry(result: Result) -> dict[str, str]:
    return {"part": result.part, "check": result.check, **result.finding._asdict()}


def _subject(parsed: argparse.Namespace, environment: Mapping[str, str], *, prometheus_named: bool) -> Subject:
    from stallscope.tools.doctor.checkup import Subject

    return Subject(
        exporter_url=parsed.exporter_url or _exporter_of(environment.get(_ADDRESS, "").strip()),
        prometheus_url=parsed.prometheus_url,
        prometheus_named=prometheus_named,
        environment=environment,
        prometheus_timeout=parsed.prometheus_timeout,
        certificate=parsed.certificate,
    )


def _exporter_of(address: str) -> str:
    """Return the URL of the exporter that receives the reports: same host, usually the same port."""
    from urllib.parse import urlsplit

    from stallscope.model.clients.exporter import DEFAULT_PORT

    scheme, _, place = address.partition("://")
    if scheme not in ("udp", "http", "https"):
        return default_exporter()
    try:
        parts = urlsplit(f"//{place}")
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        port = parts.port or {"http": 80, "https": 443}.get(scheme, DEFAULT_PORT)
        return exporter_url(f"{'https' if scheme == 'https' else 'http'}://{host}:{port}")
    except (ValueError, argparse.ArgumentTypeError):  # the check `reports` describes an invalid address
        return default_exporter()
