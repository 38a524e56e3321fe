"""Compare runs: batch sizes, numbers of GPUs, and which cause makes the difference."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stallscope.cli import _prometheus, _times
from stallscope.cli._extras import missing
from stallscope.cli._parser import Parser
from stallscope.cli._progress import progress

if TYPE_CHECKING:
    from stallscope.analysis.comparison import Comparison
    from stallscope.clients.prometheus import Prometheus

_SINCE = "7d"


class _RefusedError(Exception):
    """The comparison can't be made; the message is one line."""


def parser() -> Parser:
    """The command line."""
    made = Parser(
        "compare",
        usage="stallscope compare RUN RUN [RUN …] [flags]",
        description="Put runs that differ in one thing side by side: how many times as fast, what a GPU does in each, "
        "what a step costs however small its batch and what each sample adds, and which cause of lost time makes the "
        "difference. What is compared are means over each run's own steps, from the fifth minute on, as the rules "
        "recorded them.",
        examples={
            "stallscope compare batch64 batch256 batch1024": "is a larger batch worth it, and how large a one?",
            "stallscope compare one-gpu eight-gpus --baseline one-gpu": "what do eight GPUs do of eight times one?",
            "stallscope compare east/vision/resnet50 west/vision/resnet50": "runs of one name on two clusters",
            "stallscope compare before after --since 2026-11-20 --json": "for a program",
        },
        notes="Exit status: 0 where the runs were compared, 1 where that failed, 2 for a wrong command line.",
    )
    made.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="names of the runs, two at least; CLUSTER/NAMESPACE/RUN or NAMESPACE/RUN where several share one",
    )
    made.add_argument(
        "--baseline",
        metavar="RUN",
        help="the one that the others are measured by (default: the first with the fewest GPUs)",
    )
    made.add_argument("--cluster", help="whose runs, where several have one of such a name that doesn't say which")
    made.add_argument("--namespace", help="likewise")
    made.add_argument("--json", action="store_true", help="print one JSON document: seconds, shares from 0 to 1")
    _times.add_flags(made, since=_SINCE)
    _prometheus.add_flags(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command.

    Returns:
        0 when the runs were compared, 1 when that failed, 2 for a wrong command line.
    """
    reader = parser()
    told = reader.parse_args(arguments)
    if told.baseline is not None and told.baseline not in told.runs:
        told.runs = [told.baseline, *told.runs]
    if len(told.runs) < 2:
        reader.error("it takes two runs to compare; name another, or see `stallscope report` for one")
    twice = next((name for name in told.runs if told.runs.count(name) > 1), None)
    if twice is not None:
        reader.error(f"run {twice!r} is named twice")
    try:
        server = _prometheus.client(told)
    except ModuleNotFoundError as error:
        return missing("compare", error, "analysis")
    try:
        comparison = _compare(server, told)
    except _RefusedError as refused:
        print(f"stallscope compare: {refused}", file=sys.stderr)
        return 1
    finally:
        server.close()
    from stallscope.cli import _comparison

    if told.json:
        print(json.dumps(_comparison.document(comparison), indent=2))
    else:
        print(_comparison.text(comparison), end="")
    return 0


def _compare(server: Prometheus, told: Any) -> Comparison:
    from stallscope.analysis.comparison import compare
    from stallscope.analysis.run_figures import read_figures, told_apart
    from stallscope.analysis.runs import RunError, find_run
    from stallscope.clients.prometheus import PrometheusError

    try:
        start, end = _times.span(told, server.now())
        texts: dict[tuple[str, str, str], str] = {}
        figures = []
        with progress("Reading runs", total=len(told.runs)) as advance:
            for text in told.runs:
                run = find_run(server, text, start, end, cluster=told.cluster, namespace=told.namespace)
                same = texts.setdefault((run.cluster, run.namespace, run.name), text)
                if same != text:
                    raise _RefusedError(f"{same!r} and {text!r} are one run; name another")
                figures.append(read_figures(server, run))
                advance()
    except (RunError, PrometheusError, _times.EmptySpanError) as problem:
        raise _RefusedError(_prometheus.reason(problem)) from None
    runs = told_apart(figures)
    comparison = compare(runs, None if told.baseline is None else runs[told.runs.index(told.baseline)])
    return replace(comparison, notes=(*comparison.notes, *server.take_notes()))
