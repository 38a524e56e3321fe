"""Report on a run: where GPU time went, what it cost, and what to change first."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from stallscope.cli import _prometheus, _times
from stallscope.cli._durations import duration
from stallscope.cli._extras import missing
from stallscope.cli._parser import Parser, nearest
from stallscope.cli._progress import progress
from stallscope.common.formatting import readable
from stallscope.common.whole_files import reason, whole_file
from stallscope.report.formats import SUFFIXES, format_of, load, written
from stallscope.report.words import UnknownZone, title_of, zone

if TYPE_CHECKING:
    from stallscope.analysis.runs import Run
    from stallscope.clients.prometheus import Prometheus
    from stallscope.report.document import Document
    from stallscope.report.subject import Subject

_SINCE_OF_A_RUN, _SINCE = "30d", "24h"
_STANDARD_OUTPUT = Path("-")
_SHORTEST_WATCH = "5s"
"""Between two reports: a shorter time would keep the server at nothing else."""
_NAMED = 8


class _RefusedError(Exception):
    """There is no report; the message is one line."""


def parser() -> Parser:
    """The command line."""
    made = Parser(
        "report",
        usage="stallscope report [--run NAME | --instance NODE …] [flags]",
        description="Write one page on a training run: what it was, where its GPU time went by cause, with hours, "
        "energy and money, which rules fired when, steps, phases, GPUs, ranks and hosts, and what to change, the "
        "greatest gain first. The page needs no network and no script, and prints. Without --run it tells of the GPUs "
        "of some nodes, or of all that the server knows.",
        examples={
            "stallscope report --run resnet50": "the whole run, as report.html",
            "stallscope report --run resnet50 --price-per-gpu-hour 2.50 --currency EUR": "and what its losses cost",
            "stallscope report --run eight-gpus --against one-gpu": "and how it scales",
            "stallscope report --run resnet50 --watch 60s": "written again every minute until the run has ended",
            "stallscope report --run resnet50 --format markdown": "for a merge request, on standard output",
            "stallscope report --instance node-1 --since 7d --out node-1.html": "a node's GPUs, whoever used them",
        },
        notes="Exit status: 0 where the report was written, 1 where that failed, 2 for a wrong command line. A file "
        "that is there stays as it is until the new one is complete.",
    )
    subject = made.add_mutually_exclusive_group()
    subject.add_argument(
        "--run", metavar="NAME", help="the run to report on, as CLUSTER/NAMESPACE/NAME where several have that name"
    )
    subject.add_argument(
        "--instance",
        action="append",
        default=[],
        metavar="NODE",
        help="the node to report on, by the name under which its exporter is scraped, with or without its port; may "
        "be told several times",
    )
    made.add_argument("--cluster", help="whose run or node, where several clusters have one of that name")
    made.add_argument("--namespace", help="whose run, where several have one of that name")
    made.add_argument(
        "--against",
        metavar="RUN",
        help="another run, to tell how this one scales: of the same --cluster and --namespace, unless it is told as "
        "CLUSTER/NAMESPACE/RUN or NAMESPACE/RUN",
    )
    _times.add_flags(made, since=f"{_SINCE_OF_A_RUN} for a run, else {_SINCE}")
    made.set_defaults(since=None)
    made.add_argument(
        "--timezone", type=_zone, default="UTC", metavar="ZONE", help="in which times are shown (default: UTC)"
    )
    money = made.add_argument_group("money")
    money.add_argument("--price-per-gpu-hour", type=_price, metavar="PRICE", help="what an hour of one GPU costs")
    money.add_argument(
        "--price-per-kilowatt-hour", type=_price, metavar="PRICE", help="what energy costs, where that is apart"
    )
    money.add_argument("--currency", default="", help="of the prices: EUR, USD")
    output = made.add_argument_group("output")
    output.add_argument(
        "--format", choices=SUFFIXES, help="how it is written (default: as the file's name says, or else html)"
    )
    output.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where to write it; - is standard output (default: report.html, and standard output for other formats)",
    )
    output.add_argument(
        "--notebook", type=Path, metavar="FILE", help="write a notebook too that makes this report, from data frames"
    )
    output.add_argument(
        "--watch",
        type=duration(_SHORTEST_WATCH),
        metavar="DURATION",
        help="write it again so often, until the run has ended; a page in a browser renews itself meanwhile",
    )
    _prometheus.add_flags(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command.

    Returns:
        0 when the report was written, 1 when that failed, 2 for a wrong command line.
    """
    told = _told(parser(), arguments)
    # That it finds no folder for its cache is no news of the report.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        server = _prometheus.client(told)
        load(told.format)
    except ModuleNotFoundError as error:
        return missing("report", error, "analysis")
    try:
        document = _write(server, told) if told.watch is None else _watch(server, told)
    except _RefusedError as refused:
        print(f"stallscope report: {refused}", file=sys.stderr)
        return 1
    finally:
        server.close()
    first = document.first_recommendation
    if told.out != _STANDARD_OUTPUT:
        print(f"wrote {told.out}")
        if first is not None:
            print(f"change first: {title_of(first.cause)}. {first.advice}")
    return 0


def _told(reader: Parser, arguments: Sequence[str]) -> Any:
    """The command line, with what was left out filled in."""
    told = reader.parse_args(arguments)
    for name, value in (("--run", told.run), ("--against", told.against)):
        if value == "":
            reader.error(f"{name} names no run")  # as an unset variable of a shell
    for path in (told.out, told.notebook):
        if path is not None and path.is_dir():
            reader.error(f"{path} is a folder; name a file in it")
    if told.format is None:
        told.format = format_of(told.out) if told.out and told.out.suffix else "html"
    if told.format is None:
        reader.error(f"{told.out} is of no known format ({', '.join(SUFFIXES.values())}); name one with --format")
    if told.out is None:
        told.out = Path("report.html") if told.format == "html" else _STANDARD_OUTPUT
    if told.since is None:
        told.since = _times.when(_SINCE_OF_A_RUN if told.run else _SINCE)
    for flag, value in (("--against", told.against), ("--namespace", told.namespace)):
        if value is not None and not told.run:
            reader.error(f"{flag} is about a run; name it with --run")
    if told.cluster is not None and not told.run and not told.instance:
        reader.error("--cluster is about a run or a node; name it with --run or --instance")
    if told.notebook is not None and not told.run:
        reader.error("--notebook tells of a run; name it with --run")
    if told.notebook is not None and told.notebook == told.out:
        reader.error(f"--notebook {told.notebook} is the report's own file; name another")
    if told.against is not None and told.against == told.run:
        reader.error(f"--against {told.against!r} is the run itself; name another")
    if told.watch is not None and told.out == _STANDARD_OUTPUT:
        reader.error("--watch writes a file again and again; name it with --out")
    if told.watch is not None and told.end != _times.When():
        reader.error("--watch follows what goes on; leave --end out")
    return told


def _watch(server: Prometheus, told: Any) -> Document:
    """Write the report again and again until what it tells of has ended; the last good one stays."""
    last: Document | None = None
    while True:
        began = monotonic()
        try:
            document = _write(server, told)
        except _RefusedError as refused:
            if last is None:
                raise
            kept = datetime.fromtimestamp(last.made_at).astimezone().strftime("%H:%M:%S")
            print(f"stallscope report: {refused}; the report of {kept} stays, and is tried again", file=sys.stderr)
        else:
            if not document.live:
                return document
            if last is None:
                print(f"wrote {told.out}, and writes it again every {told.watch:g} s; Ctrl-C ends that", flush=True)
            last = document
        sleep(max(0.0, told.watch - (monotonic() - began)))


def _write(server: Prometheus, told: Any) -> Document:
    """Ask for the report and write it.

    Raises:
        _RefusedError: there is none, or it can't be written.
    """
    from stallscope.analysis.runs import RunError
    from stallscope.clients.prometheus import PrometheusError
    from stallscope.report.contents import PARTS, build
    from stallscope.report.options import Options

    server.take_warnings()  # of the report before
    try:
        with progress("Asking Prometheus", total=PARTS + 2) as advance:
            now = server.now()
            start, end = _times.span(told, now)
            subject = _subject(server, told, start, end)
            if end < now:  # what went on then may long be over
                subject = replace(subject, live=False)
            against = _run(server, told, told.against, start, end) if told.against else None
            if against is not None and subject.run is not None and _is_same(against, subject.run):
                raise _RefusedError(f"--against {told.against!r} is the run itself; name another")
            options = Options(
                gpu_hour_price=told.price_per_gpu_hour,
                kilowatt_hour_price=told.price_per_kilowatt_hour,
                currency=told.currency,
                zone=told.timezone,
                against=against,
            )
            advance()
            document = build(subject, server, options, lambda _what: advance())
    except (RunError, PrometheusError, _times.EmptySpanError) as problem:
        raise _RefusedError(_prometheus.reason(problem)) from None
    for part in document.incomplete:
        print(f"stallscope report: a part is missing: {part}", file=sys.stderr)
    refresh = told.watch if document.live else None
    _put(told.out, written(document, told.format, refresh_seconds=refresh))
    if told.notebook is not None:
        from stallscope.report import notebook

        _put(told.notebook, notebook.written(subject, server.name, options))
    return document


def _put(path: Path, content: bytes) -> None:
    if path == _STANDARD_OUTPUT:
        sys.stdout.buffer.write(content)
        return
    try:
        with whole_file(path) as file:
            file.write(content)
    except OSError as error:
        raise _RefusedError(reason(error, path)) from None


def _subject(server: Prometheus, told: Any, start: float, end: float) -> Subject:
    from stallscope.report.subject import of_everything, of_run

    if told.run:
        return of_run(server, _run(server, told, told.run, start, end))
    if told.instance:
        return _nodes(server, told, start, end)
    return of_everything(start, end)


def _run(server: Prometheus, told: Any, name: str, start: float, end: float) -> Run:
    from stallscope.analysis.runs import find_run

    return find_run(server, name, start, end, cluster=told.cluster, namespace=told.namespace)


def _is_same(one: Run, other: Run) -> bool:
    return (one.cluster, one.namespace, one.name) == (other.cluster, other.namespace, other.name)


def _nodes(server: Prometheus, told: Any, start: float, end: float) -> Subject:
    from stallscope.clients.expressions import any_of, quoted
    from stallscope.report.subject import of_nodes

    its_own = "" if told.cluster is None else f"cluster={quoted(told.cluster)}"
    known = server.label_values("instance", f"stallscope_build_info{{{its_own}}}", start, end)
    if not known:
        where = "" if told.cluster is None else f" of cluster {told.cluster!r}"
        raise _RefusedError(f"the server scraped none of Stallscope's exporters{where} in that time")
    instances = [_instance(name, known) for name in dict.fromkeys(told.instance)]
    if told.cluster is None:
        seen = f"last_over_time(stallscope_build_info{{instance=~{any_of(instances)}}}[{end - start:.0f}s])"
        clusters: dict[str, set[str]] = {}
        for each in server.query(f"group by (cluster, instance) ({seen})", at=end):
            clusters.setdefault(each.labels.get("instance", ""), set()).add(each.labels.get("cluster", ""))
        for instance, several in sorted(clusters.items()):
            if len(several) > 1:
                names = ", ".join(readable(name) or '""' for name in sorted(several))
                raise _RefusedError(f"several clusters have a node {instance}; choose one with --cluster: {names}")
    return of_nodes(instances, start, end, told.cluster)


def _instance(name: str, known: Sequence[str]) -> str:
    """The name under which a node's exporter is scraped."""
    found = [each for each in known if name in (each, each.rpartition(":")[0])]
    if len(found) == 1:
        return found[0]
    if found:
        raise _RefusedError(f"several exporters are on {name!r}; choose from {', '.join(found)}")
    hosts = [each.rpartition(":")[0] for each in known]
    hint = (
        nearest(name, known)
        or nearest(name, hosts)
        or f"; there are {', '.join(known[:_NAMED])}{' …' if len(known) > _NAMED else ''}"
    )
    raise _RefusedError(f"no exporter is scraped as {name!r} in that time{hint}")


def _zone(text: str) -> str:
    try:
        zone(text)
    except UnknownZone as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no price; expected a number such as 2.50")
    return price
