"""GPUs and training runs of a node, live in a terminal or once as text or JSON."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stallscope.cli import _client_certificate
from stallscope.cli._durations import duration
from stallscope.cli._exporter import DEFAULT_EXPORTER, exporter_url
from stallscope.cli._extras import missing
from stallscope.cli._parser import Parser
from stallscope.cli._prometheus import address
from stallscope.clients.address import VARIABLE

if TYPE_CHECKING:
    from stallscope.clients.client_certificate import ClientCertificate
    from stallscope.terminal.feed import Feed
    from stallscope.terminal.lines import Line
    from stallscope.view.model import Node
    from stallscope.view.verdicts import VerdictWatch

_LEAST_COLUMNS = 20
_PATIENCE = 12.0
"""Seconds until an exporter that has not answered once is not waited for: twice what a page may take, and some."""
_RENEWAL_SECONDS = 6.0
"""Until an exporter has a newer page for sure: a large one is made every five seconds."""


def parser() -> Parser:
    """The command line."""
    made = Parser(
        "top",
        usage="stallscope top [--exporter.url URL]... [flags]",
        description="Show what a node's exporter says: each GPU's activity, memory, power, temperature, clocks and "
        "owners, training runs with their phases, progress and throughput, the host, and what is wrong. With a "
        "Prometheus that holds Stallscope's rules: what costs most, and what to change. Everything comes from the "
        "exporter; the GPUs' driver is not asked. Processes are counted, and told by owner: exporters tell no process "
        "numbers; on the machine itself, `stallscope pick --explain --reserve 0s` does.",
        examples={
            "stallscope top": "this node, live; ? in it tells of keys",
            "stallscope top --exporter.url node1:19400 --exporter.url node2:19400": "two nodes on one screen",
            "stallscope top --prometheus.url http://prometheus:9090": "with verdicts",
            "stallscope top --once | less": "as plain text, once",
            "stallscope top --json | jq '.nodes[].gpus[] | select(.owners == []) | .gpu'": "GPUs that nobody holds",
        },
        notes="Once and as JSON two looks are taken, an interval apart, since rates need two; more of them, for six "
        "seconds at most, while the exporter has no newer page, as where dozens of ranks report. Where output is no "
        "terminal, or a dumb one, the screen is printed once. NO_COLOR is honoured.\n\n"
        "Exit status: 0 when all was well, 1 when an exporter did not answer (once), 2 for a wrong command line.",
    )
    made.add_argument(
        "--exporter.url",
        dest="exporters",
        action="append",
        type=exporter_url,
        metavar="URL",
        help=f"exporter of the node; again for each further node (default: {DEFAULT_EXPORTER})",
    )
    made.add_argument(
        "--prometheus.url",
        dest="prometheus",
        type=address,
        # argparse reads a default that is text as it would read the flag: a wrong variable is refused likewise.
        default=os.environ.get(VARIABLE) or None,
        metavar="URL",
        help=f"Prometheus that is asked for verdicts (default: {VARIABLE}, or else none)",
    )
    _client_certificate.add_flags(made, "exporters and a Prometheus")
    made.add_argument(
        "--interval",
        type=duration("200ms", "1h"),
        default=2.0,
        metavar="DURATION",
        help="time between two looks (default: 2s)",
    )
    made.add_argument("--once", action="store_true", help="print the screen as plain text and end")
    made.add_argument("--json", action="store_true", help="print one JSON document with everything and end")
    made.add_argument(
        "--owner",
        default="",
        metavar="TEXT",
        help="only GPUs and runs of whoever has this in the name of user, pod, namespace or job",
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 0 when all was well, 1 where an exporter did not answer, 2 for a wrong command line."""
    parsed = parser().parse_args(arguments)
    # What a library has to say must not stand across the screen.
    logging.getLogger("stallscope").addHandler(logging.NullHandler())
    from stallscope.clients.exporter import ExporterClient
    from stallscope.terminal.feed import Feed

    clients = [ExporterClient(url, certificate=parsed.certificate) for url in parsed.exporters or [DEFAULT_EXPORTER]]
    feeds = [Feed(client, parsed.interval) for client in clients]
    try:
        watch = _watch(parsed.prometheus, parsed.certificate)
    except ModuleNotFoundError as error:
        return missing("top --prometheus.url", error, "exporter")
    if parsed.once or parsed.json or not _is_live_terminal():
        return _once(feeds, watch, parsed)
    return _live(feeds, watch, parsed)


def _watch(url: str | None, certificate: ClientCertificate | None) -> VerdictWatch | None:
    if url is None:
        return None
    from stallscope.clients.prometheus import Prometheus
    from stallscope.view.verdicts import VerdictWatch

    return VerdictWatch(Prometheus(url, certificate=certificate))


def _is_live_terminal() -> bool:
    # Textual draws on standard error.
    ends = (sys.stdin, sys.stdout, sys.stderr)
    return all(end.isatty() for end in ends) and os.environ.get("TERM", "dumb") != "dumb"


def _live(feeds: list[Feed], watch: VerdictWatch | None, parsed: argparse.Namespace) -> int:
    try:
        from stallscope.terminal.live import Top
    except ModuleNotFoundError as error:
        return missing("top", error, "terminal", otherwise="--once and --json do without")
    colours = not os.environ.get("NO_COLOR")
    screen = Top(feeds, watch, owner=parsed.owner, colours=colours, ascii_only=not _speaks_unicode())
    screen.run(mouse=False)
    return screen.return_code or 0


def _once(feeds: list[Feed], watch: VerdictWatch | None, parsed: argparse.Namespace) -> int:
    from stallscope.terminal.gpu_lines import SORTS
    from stallscope.terminal.screen import Screen
    from stallscope.terminal.views import overview, title

    began = time.monotonic()
    _ask_all(feeds)
    waiting = {feed: node for feed in feeds if (node := feed.look().node) is not None}
    due = began
    while waiting:
        due += parsed.interval
        time.sleep(max(0.0, due - time.monotonic()))
        _ask_all(list(waiting))
        over = time.monotonic() - began >= _RENEWAL_SECONDS
        waiting = {} if over else {feed: node for feed, node in waiting.items() if _is_as_before(feed, node)}
    seen = tuple(feed.look() for feed in feeds)
    failed = [each for each in seen if each.problem]
    told = any(each.node is not None for each in seen)
    screen = Screen(seen, None)
    if watch is not None and told:
        watch.look(screen.run_names, screen.gpu_names)
        watch.ask()
        screen = Screen(seen, watch.look(screen.run_names, screen.gpu_names))
    screen = screen.of(parsed.owner)
    if parsed.json:
        from stallscope.terminal.document import document

        print(json.dumps(document(screen), indent=2))
    elif told:
        columns = max(_LEAST_COLUMNS, shutil.get_terminal_size().columns)
        print(_printed([title(screen, time.strftime("%H:%M:%S")), *overview(screen, SORTS[0], columns)]), end="")
    for each in failed:
        print(f"stallscope top: {each.name}: {each.problem}", file=sys.stderr)
    sys.stdout.flush()
    return int(bool(failed))


def _is_as_before(feed: Feed, node: Node) -> bool:
    """Whether the exporter answers, and has no newer page."""
    seen = feed.look()
    return seen.node is node and not seen.problem


def _ask_all(feeds: Sequence[Feed]) -> None:
    """Ask everybody at once, so that those who hang hang together; each says of itself that it still does."""
    from stallscope.common.concurrency import side_by_side

    side_by_side({str(place): feed.ask for place, feed in enumerate(feeds)}, _PATIENCE, "feed")


def _printed(lines: Sequence[Line]) -> str:
    from stallscope.terminal.lines import ASCII, plain

    text = "\n".join(plain(each) for each in lines).rstrip("\n") + "\n"
    if _speaks_unicode():
        return text
    encoding = sys.stdout.encoding or "ascii"
    return text.translate(ASCII).encode(encoding, "backslashreplace").decode(encoding)


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
