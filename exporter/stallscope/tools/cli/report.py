"""Report on a run: where GPU time went, what it cost, and what to change first."""

from __future__ import annotations

import argparse
import contextlib
import locale
import logging
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from stallscope.common.formatting import readable
from stallscope.common.whole_files import reason, whole_file
from stallscope.tools.cli import _prometheus, _times
from stallscope.tools.cli._durations import duration
from stallscope.tools.cli._extras import missing
from stallscope.tools.cli._parser import Parser, nearest
from stallscope.tools.cli._progress import add_flag, progress
from stallscope.tools.cli._prometheus import CommandFailed, one_line_errors
from stallscope.tools.report.formats import SUFFIXES, format_of, load, written
from stallscope.tools.report.words import UnknownZone, title_of, zone

if TYPE_CHECKING:
    from stallscope.model.analysis.runs import Run
    from stallscope.model.clients.prometheus import Prometheus
    from stallscope.tools.report.document import Document
    from stallscope.tools.report.options import Options
    from stallscope.tools.report.subject import Subject

_SINCE_OF_A_RUN, _SINCE_OF_OWNERS, _SINCE = "30d", "7d", "24h"
_STANDARD_OUTPUT = Path("-")
_SHORTEST_WATCH = "5s"
"""Minimum interval between two reports, to limit the load on the server."""
_SHORTEST_SHIFT = "1m"
_NAMED = 8
_TEAM_SERIES = "kube_namespace_labels"
_TEAM_LABEL = f"{_TEAM_SERIES}:label_team"
"""The label `team` of namespaces, as kube-state-metrics exposes it."""
_OWNERS = 50
"""Maximum number of owners in a table for people."""
_PRICE = re.compile(r"([0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z]{3}|[^\w\s.,;:+-]?)")
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_:]*")


class _Price(NamedTuple):
    """A price as on the command line."""

    amount: float
    currency: str
    """Empty if it is not given."""


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "report",
        usage="stallscope report [--run NAME | --instance NODE … | --by OWNER] [flags]",
        description="Write a one-page report on a training run: lost GPU time by cause, with hours, energy and cost; "
        "alerts; steps, phases, GPUs, ranks and hosts; and what to change, largest gain first. The page needs no "
        "network and no scripts, and can be printed. Without --run, the report covers the GPUs of the given nodes, or "
        "of all nodes that the server knows.",
        examples={
            "stallscope report --run resnet50": "the whole run, as report.html",
            "stallscope report --run resnet50 --price-per-gpu-hour 2.50 --currency EUR": "with the cost of lost time",
            "stallscope report --run eight-gpus --against one-gpu": "with a comparison of how it scales",
            "stallscope report --run resnet50 --watch 60s": "written again every minute until the run has ended",
            "stallscope report --run resnet50 --format markdown": "for a merge request, on standard output",
            "stallscope report --by team --compare-to 7d": "who holds, uses and loses how many GPU-hours",
            "stallscope report --instance node-1 --since 7d --out node-1.html": "all GPUs of a node, for all users",
        },
        notes="Exit status: 0 if the report was written, 1 if that failed, 2 for an invalid command line. An existing "
        "file is replaced only once the new one is complete.",
    )
    subject = made.add_mutually_exclusive_group()
    subject.add_argument(
        "--run", metavar="NAME", help="the run to report on; CLUSTER/NAMESPACE/NAME if the name is not unique"
    )
    subject.add_argument(
        "--instance",
        action="append",
        default=[],
        metavar="NODE",
        help="the node to report on: its instance label in Prometheus, with or without the port; can be repeated",
    )
    subject.add_argument(
        "--by",
        choices=("user", "namespace", "team", "run"),
        metavar="OWNER",
        help="GPU-hours held, busy, idle and lost by each user, namespace, team or run, with cost and savings",
    )
    made.add_argument("--cluster", help="cluster of the subject, if there are several")
    made.add_argument("--namespace", metavar="NAME", help="its namespace, if several have a run of that name")
    made.add_argument(
        "--against",
        metavar="RUN",
        help="run to compare with, to show how this one scales; from the same --cluster and --namespace unless given "
        "as CLUSTER/NAMESPACE/RUN or NAMESPACE/RUN",
    )
    _times.add_flags(made, since=f"{_SINCE_OF_A_RUN} for a run, {_SINCE_OF_OWNERS} with --by, {_SINCE} otherwise")
    made.set_defaults(since=None)
    made.add_argument("--timezone", type=_zone, default="UTC", metavar="ZONE", help="time zone (default: UTC)")
    made.add_argument(
        "--compare-to",
        type=duration(_SHORTEST_SHIFT),
        metavar="DURATION",
        help="with --by: add the period of equal length that ended this much earlier",
    )
    made.add_argument(
        "--team-label",
        type=_team_label,
        default=_TEAM_LABEL,
        metavar="[SERIES:]LABEL",
        help=f"with --by team: its label (default: {_TEAM_LABEL})",
    )
    cost = made.add_argument_group("cost")
    cost.add_argument(
        "--price-per-gpu-hour", type=_price, metavar="PRICE", help="price of one GPU for one hour, such as 2.50USD"
    )
    cost.add_argument(
        "--price-per-kilowatt-hour", type=_price, metavar="PRICE", help="price of energy, if it is billed separately"
    )
    cost.add_argument(
        "--currency",
        default="",
        help="currency of the prices, such as EUR or USD (default: from the prices, or the locale)",
    )
    output = made.add_argument_group("output")
    output.add_argument("--format", choices=SUFFIXES, help="file format (default: from the file's name, or html)")
    output.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="same as --format json",
    )
    output.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write; - is standard output (default: report.html, or standard output for other formats)",
    )
    output.add_argument(
        "--notebook", type=Path, metavar="FILE", help="also write a notebook that makes this report from data frames"
    )
    output.add_argument(
        "--watch",
        type=duration(_SHORTEST_WATCH),
        metavar="DURATION",
        help="write the report again at this interval until the run has ended; an open page reloads itself",
    )
    add_flag(made)
    _prometheus.add_flags(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status that `parser` describes."""
    parsed = _parse(parser(), arguments)
    # Hide matplotlib's warning that its cache folder is not writable.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        server = _prometheus.client(parsed)
        load(parsed.format)
    except ModuleNotFoundError as error:
        return missing("report", error, "analysis")
    try:
        document = _write(server, parsed) if parsed.watch is None else _watch(server, parsed)
    except CommandFailed as failed:
        print(f"stallscope report: {failed}", file=sys.stderr)
        return 1
    finally:
        server.close()
    first = document.first_recommendation
    if parsed.out != _STANDARD_OUTPUT:
        print(f"wrote {parsed.out}")
        if first is not None:
            print(f"change first: {title_of(first.cause)}. {first.advice}")
    return 0


def _parse(reader: Parser, arguments: Sequence[str]) -> Any:
    """Parse and validate the command line, and fill in the defaults that depend on other flags."""
    parsed = reader.parse_args(arguments)
    for name, value in (("--run", parsed.run), ("--against", parsed.against)):
        if value == "":
            reader.error(f"{name}: expected a name")  # empty, for example from an unset shell variable
    for path in (parsed.out, parsed.notebook):
        if path is not None and path.is_dir():
            reader.error(f"{path} is a directory; name a file in it")
    if parsed.format is None:
        parsed.format = format_of(parsed.out) if parsed.out and parsed.out.suffix else "html"
    if parsed.format is None:
        reader.error(f"{parsed.out}: unknown format; expected {', '.join(SUFFIXES.values())}, or set --format")
    if parsed.out is None:
        parsed.out = Path("report.html") if parsed.format == "html" else _STANDARD_OUTPUT
    if parsed.since is None:
        parsed.since = _times.when(_SINCE_OF_A_RUN if parsed.run else _SINCE_OF_OWNERS if parsed.by else _SINCE)
    if parsed.by is None:
        for flag, value in (("--compare-to", parsed.compare_to), ("--format csv", parsed.format == "csv" or None)):
            if value is not None:
                reader.error(f"{flag}: requires --by")
    if parsed.by is not None and parsed.watch is not None:
        reader.error("--watch: cannot be combined with --by")
    for flag, value in (("--against", parsed.against), ("--namespace", parsed.namespace)):
        if value is not None and not parsed.run:
            reader.error(f"{flag}: requires --run")
    if parsed.cluster is not None and not (parsed.run or parsed.instance or parsed.by):
        reader.error("--cluster: requires --run, --instance or --by")
    if parsed.notebook is not None and not parsed.run:
        reader.error("--notebook: requires --run")
    if parsed.notebook is not None and parsed.notebook == parsed.out:
        reader.error(f"--notebook: {parsed.notebook} is also the report's file; name another")
    if parsed.against is not None and parsed.against == parsed.run:
        reader.error(f"--against: {parsed.against!r} is the run itself; name another")
    if parsed.watch is not None and parsed.out == _STANDARD_OUTPUT:
        reader.error("--watch: cannot write to standard output; name a file with --out")
    if parsed.watch is not None and parsed.end != _times.When():
        reader.error("--watch: cannot be combined with --end")
    return parsed


def _watch(server: Prometheus, parsed: Any) -> Document:
    """Write the report repeatedly until its subject has ended; keep the last good one."""
    last: Document | None = None
    while True:
        began = monotonic()
        try:
            document = _write(server, parsed)
        except CommandFailed as failed:
            if last is None:
                raise
            kept = datetime.fromtimestamp(last.made_at).astimezone().strftime("%H:%M:%S")
            print(f"stallscope report: {failed}; keeping the report of {kept}, will retry", file=sys.stderr)
        else:
            if not document.live:
                return document
            if last is None:
                print(f"wrote {parsed.out}; writing it again every {parsed.watch:g} s until Ctrl-C", flush=True)
            last = document
        sleep(max(0.0, parsed.watch - (monotonic() - began)))


def _write(server: Prometheus, parsed: Any) -> Document:
    """Build the report and write it.

    Raises:
        CommandFailed: the report cannot be built or written.
    """
    from stallscope.tools.report.options import Options

    gpu_hour, kilowatt_hour = parsed.price_per_gpu_hour, parsed.price_per_kilowatt_hour
    options = Options(
        gpu_hour_price=None if gpu_hour is None else gpu_hour.amount,
        kilowatt_hour_price=None if kilowatt_hour is None else kilowatt_hour.amount,
        currency=parsed.currency or _currency((gpu_hour, kilowatt_hour)),
        zone=parsed.timezone,
    )
    notebook: bytes | None = None
    server.take_warnings()  # drop those of the previous report
    with one_line_errors():
        if parsed.by is None:
            document, notebook = _of_subject(server, parsed, options)
        else:
            with progress("Querying Prometheus", quiet=parsed.quiet):
                document = _of_owners(server, parsed, options)
    for part in document.incomplete:
        print(f"stallscope report: incomplete: {part}", file=sys.stderr)
    refresh = parsed.watch if document.live else None
    _put(parsed.out, written(document, parsed.format, refresh_seconds=refresh))
    if notebook is not None:
        _put(parsed.notebook, notebook)
    return document


def _of_subject(server: Prometheus, parsed: Any, options: Options) -> tuple[Document, bytes | None]:
    """Return the report on a run or on GPUs, and the notebook if one is requested."""
    from stallscope.model.analysis.over_time import require_rules
    from stallscope.tools.report.contents import PARTS, build

    with progress("Querying Prometheus", total=PARTS + 2, quiet=parsed.quiet) as advance:
        now = server.now()
        start, end = _times.span(parsed, now)
        subject = _subject(server, parsed, start, end)
        require_rules(server, server.name, start, end)
        if end < now:  # a run that was active then may have ended since
            subject = replace(subject, live=False)
        if parsed.against:
            against = _run(server, parsed, parsed.against, start, end)
            if subject.run is not None and _is_same(against, subject.run):
                raise CommandFailed(f"--against: {parsed.against!r} is the run itself; name another")
            options = replace(options, against=against)
        advance()
        document = build(subject, server, options, lambda _what: advance())
    if parsed.notebook is None:
        return document, None
    from stallscope.tools.report import notebook

    return document, notebook.written(subject, server.name, options)


def _of_owners(server: Prometheus, parsed: Any, options: Options) -> Document:
    """Return the report by owner."""
    from stallscope.model.analysis.over_time import require_rules
    from stallscope.tools.report import owners

    label, series = parsed.team_label
    period = owners.Period(*_times.span(parsed, server.now()))
    require_rules(server, server.name, period.start, period.end)
    return owners.build(
        server,
        period,
        owners.Grouping(parsed.by, label, series, parsed.cluster),
        options,
        compare_to=parsed.compare_to,
        rows=None if parsed.format in ("csv", "json") else _OWNERS,
    )


def _put(path: Path, content: bytes) -> None:
    if path == _STANDARD_OUTPUT:
        sys.stdout.buffer.write(content)
        return
    try:
        with whole_file(path) as file:
            file.write(content)
    except OSError as error:
        raise CommandFailed(reason(error, path)) from None


def _subject(server: Prometheus, parsed: Any, start: float, end: float) -> Subject:
    from stallscope.tools.report.subject import of_everything, of_run

    if parsed.run:
        return of_run(server, _run(server, parsed, parsed.run, start, end))
    if parsed.instance:
        return _nodes(server, parsed, start, end)
    return of_everything(start, end)


def _run(server: Prometheus, parsed: Any, name: str, start: float, end: float) -> Run:
    from stallscope.model.analysis.runs import find_run

    return find_run(server, name, start, end, cluster=parsed.cluster, namespace=parsed.namespace)


def _is_same(one: Run, other: Run) -> bool:
    return (one.cluster, one.namespace, one.name) == (other.cluster, other.namespace, other.name)


def _nodes(server: Prometheus, parsed: Any, start: float, end: float) -> Subject:
    from stallscope.model.clients.expressions import any_of, quoted
    from stallscope.tools.report.subject import of_nodes

    its_own = "" if parsed.cluster is None else f"cluster={quoted(parsed.cluster)}"
    known = server.label_values("instance", f"stallscope_build_info{{{its_own}}}", start, end)
    if not known:
        where = "" if parsed.cluster is None else f" of cluster {parsed.cluster!r}"
        raise CommandFailed(f"the server scraped no Stallscope exporter{where} in this time range")
    instances = [_instance(name, known) for name in dict.fromkeys(parsed.instance)]
    if parsed.cluster is None:
        seen = f"last_over_time(stallscope_build_info{{instance=~{any_of(instances)}}}[{end - start:.0f}s])"
        clusters: dict[str, set[str]] = {}
        for each in server.query(f"group by (cluster, instance) ({seen})", at=end):
            clusters.setdefault(each.labels.get("instance", ""), set()).add(each.labels.get("cluster", ""))
        for instance, several in sorted(clusters.items()):
            if len(several) > 1:
                names = ", ".join(readable(name) or '""' for name in sorted(several))
                raise CommandFailed(f"several clusters have a node {instance}; choose one with --cluster: {names}")
    return of_nodes(instances, start, end, parsed.cluster)


def _instance(name: str, known: Sequence[str]) -> str:
    """Return the instance label of a node's exporter.

    Raises:
        CommandFailed: no exporter or several exporters match.
    """
    found = [each for each in known if name in (each, each.rpartition(":")[0])]
    if len(found) == 1:
        return found[0]
    if found:
        raise CommandFailed(f"several exporters match {name!r}; choose from {', '.join(found)}")
    hosts = [each.rpartition(":")[0] for each in known]
    hint = (
        nearest(name, known)
        or nearest(name, hosts)
        or f"; known instances: {', '.join(known[:_NAMED])}{' …' if len(known) > _NAMED else ''}"
    )
    raise CommandFailed(f"no exporter has instance {name!r} in this time range{hint}")


def _zone(text: str) -> str:
    try:
        zone(text)
    except UnknownZone as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _team_label(text: str) -> tuple[str, str]:
    """Return label and series."""
    series, _, label = text.rpartition(":")
    found = label, series or _TEAM_SERIES
    if not all(map(_NAME.fullmatch, found)):
        raise argparse.ArgumentTypeError(f"expected a label such as {_TEAM_LABEL}, got {text!r}")
    return found


def _price(text: str) -> _Price:
    found = _PRICE.fullmatch(text.strip())
    price = float(found[1]) if found else math.nan
    if found is None or not 0 <= price < math.inf:
        raise argparse.ArgumentTypeError(f"expected a price such as 2.50 or 2.50USD, got {text!r}")
    return _Price(price, found[2])


def _currency(prices: Sequence[_Price | None]) -> str:
    """Return the currency of the first price that has one, else that of the locale; empty if it has none."""
    named = next((price.currency for price in prices if price is not None and price.currency), "")
    if named or not any(prices):
        return named
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_MONETARY, "")
    return str(locale.localeconv()["int_curr_symbol"]).strip()
