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

from stallscope.common.local_stack import newest_stack
from stallscope.model.clients.address import LOCAL_STACK, VARIABLE, default_exporter
from stallscope.tools.cli import _client_certificate
from stallscope.tools.cli._durations import duration
from stallscope.tools.cli._exporter import DEFAULT_EXPORTER, exporter_url
from stallscope.tools.cli._extras import missing
from stallscope.tools.cli._parser import Parser
from stallscope.tools.cli._prometheus import address

if TYPE_CHECKING:
    from stallscope.model.clients.client_certificate import ClientCertificate
    from stallscope.model.view.model import Node
    from stallscope.model.view.verdicts import VerdictWatch
    from stallscope.tools.terminal.feed import Feed
    from stallscope.tools.terminal.lines import Line

_LEAST_COLUMNS = 20
_RESPONSE_LIMIT = 12.0
"""Seconds to wait for the first response of an exporter: a little more than twice the time limit of a page."""
_RENEWAL_SECONDS = 6.0
"""Seconds until an exporter certainly has a newer page: large pages are renewed every five seconds."""


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "top",
        usage="stallscope top [--exporter.url URL]... [flags]",
        description="Show the metrics of a node's exporter: activity, memory, power, temperature, clocks and owners of "
        "each GPU, phases, progress and throughput of training runs, the host, and problems. With a Prometheus that "
        "has Stallscope's rules, also show what costs most and what to change. All values come from the exporter; "
        "the GPU driver is not called. Exporters do not export process IDs; `stallscope pick --explain --reserve 0s` "
        "shows them on the machine itself.",
        examples={
            "stallscope top": "this node, live; press ? for the keys",
            "stallscope top --exporter.url node1:19400 --exporter.url node2:19400": "two nodes on one screen",
            "stallscope top --prometheus.url http://prometheus:9090": "with verdicts",
            "stallscope top --once | less": "as plain text, once",
            "stallscope top --json | jq '.nodes[].gpus[] | select(.owners == []) | .gpu'": "GPUs without an owner",
        },
        notes="--once and --json poll twice, an interval apart, since rates need two samples. They poll again, for at "
        "most six seconds, until the exporter has a newer page. If the output is not a terminal, or a dumb one, the "
        "screen is printed once. NO_COLOR is respected.\n\n"
        "Exit status: 0 on success, 1 if an exporter did not respond (with --once or --json), 2 for an invalid "
        "command line.",
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
        # argparse also parses a default that is text, so that an invalid variable is rejected too.
        default=os.environ.get(VARIABLE) or None,
        metavar="URL",
        help=f"Prometheus server to query for verdicts (default: {VARIABLE}, {LOCAL_STACK}, or none)",
    )
    _client_certificate.add_flags(made, "exporters and a Prometheus")
    made.add_argument(
        "--interval",
        type=duration("200ms", "1h"),
        default=2.0,
        metavar="DURATION",
        help="interval between two polls (default: 2s)",
    )
    made.add_argument("--once", action="store_true", help="print the screen as plain text and exit")
    made.add_argument("--json", action="store_true", help="print one JSON document with all values and exit")
    made.add_argument(
        "--owner",
        default="",
        metavar="TEXT",
        help="show only GPUs and runs whose user, pod, namespace or job contains this text",
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 0 on success, 1 if an exporter did not respond, 2 for an invalid command line."""
    parsed = parser().parse_args(arguments)
    # Log messages would garble the screen.
    logging.getLogger("stallscope").addHandler(logging.NullHandler())
    from stallscope.model.clients.exporter import ExporterClient
    from stallscope.tools.terminal.feed import Feed

    prometheus = parsed.prometheus
    # A stack's Prometheus knows the runs of its own exporter only.
    if prometheus is None and not parsed.exporters and (stack := newest_stack()):
        prometheus = stack.prometheus
    clients = [ExporterClient(url, certificate=parsed.certificate) for url in parsed.exporters or [default_exporter()]]
    feeds = [Feed(client, parsed.interval) for client in clients]
    try:
        watch = _watch(prometheus, parsed.certificate)
    except ModuleNotFoundError as error:
        return missing("top --prometheus.url", error, "exporter")
    if parsed.once or parsed.json or not _is_live_terminal():
        return _once(feeds, watch, parsed)
    return _live(feeds, watch, parsed)


def _watch(url: str | None, certificate: ClientCertificate | None) -> VerdictWatch | None:
    if url is None:
        return None
    from stallscope.model.clients.prometheus import Prometheus
    from stallscope.model.view.verdicts import VerdictWatch

    return VerdictWatch(Prometheus(url, certificate=certificate))


def _is_live_terminal() -> bool:
    # Textual draws on standard error.
    ends = (sys.stdin, sys.stdout, sys.stderr)
    return all(end.isatty() for end in ends) and os.environ.get("TERM", "dumb") != "dumb"


def _live(feeds: list[Feed], watch: VerdictWatch | None, parsed: argparse.Namespace) -> int:
    try:
        from stallscope.tools.terminal.live import Top
    except ModuleNotFoundError as error:
        return missing("top", error, "terminal", alternative="--once and --json work without it")
    colours = not os.environ.get("NO_COLOR")
    screen = Top(feeds, watch, owner=parsed.owner, colours=colours, ascii_only=not _speaks_unicode())
    screen.run(mouse=False)
    return screen.return_code or 0


def _once(feeds: list[Feed], watch: VerdictWatch | None, parsed: argparse.Namespace) -> int:
    from stallscope.tools.terminal.gpu_lines import SORTS
    from stallscope.tools.terminal.screen import Screen
    from stallscope.tools.terminal.views import overview, title

    began = time.monotonic()
    _poll_all(feeds)
    waiting = {feed: node for feed in feeds if (node := feed.look().node) is not None}
    due = began
    while waiting:
        due += parsed.interval
        time.sleep(max(0.0, due - time.monotonic()))
        _poll_all(list(waiting))
        over = time.monotonic() - began >= _RENEWAL_SECONDS
        waiting = {} if over else {feed: node for feed, node in waiting.items() if _is_as_before(feed, node)}
    seen = tuple(feed.look() for feed in feeds)
    failed = [each for each in seen if each.problem]
    has_data = any(each.node is not None for each in seen)
    screen = Screen(seen, None)
    if watch is not None and has_data:
        watch.look(screen.run_names, screen.gpu_names)
        watch.poll()
        screen = Screen(seen, watch.look(screen.run_names, screen.gpu_names))
    screen = screen.of(parsed.owner)
    if parsed.json:
        from stallscope.tools.terminal.document import document

        print(json.dumps(document(screen), indent=2))
    elif has_data:
        columns = max(_LEAST_COLUMNS, shutil.get_terminal_size().columns)
        print(_printed([title(screen, time.strftime("%H:%M:%S")), *overview(screen, SORTS[0], columns)]), end="")
    for each in failed:
        print(f"stallscope top: {each.name}: {each.problem}", file=sys.stderr)
    sys.stdout.flush()
    return int(bool(failed))


def _is_as_before(feed: Feed, node: Node) -> bool:
    """Return True if the exporter responds but has no newer page."""
    seen = feed.look()
    return seen.node is node and not seen.problem


def _poll_all(feeds: Sequence[Feed]) -> None:
    """Poll all exporters concurrently, so that the wait for several hanging ones does not add up."""
    from stallscope.common.concurrency import run_concurrently

    run_concurrently({str(place): feed.poll for place, feed in enumerate(feeds)}, _RESPONSE_LIMIT, "feed")


def _printed(lines: Sequence[Line]) -> str:
    from stallscope.tools.terminal.lines import ASCII, plain

    text = "\n".join(plain(each) for each in lines).rstrip("\n") + "\n"
    return text if _speaks_unicode() else text.translate(ASCII)


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
