"""Compare runs: batch sizes, numbers of GPUs, and which cause makes the difference."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stallscope.tools.cli import _prometheus, _times
from stallscope.tools.cli._extras import missing
from stallscope.tools.cli._parser import Parser
from stallscope.tools.cli._progress import add_flag, progress

if TYPE_CHECKING:
    from stallscope.model.analysis.comparison import Comparison
    from stallscope.model.clients.prometheus import Prometheus

_SINCE = "7d"


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "compare",
        usage="""stallscope compare RUN RUN [RUN …] [flags]
       stallscope compare FILE.json FILE.json [FILE.json …] [--json]""",
        description="Compare runs that differ in one respect: speed, throughput per GPU, the fixed time of a step and "
        "the time per sample, and the causes of lost time that explain the difference. Work and step time are means "
        "over each run's own steps, from the fifth minute on, as the rules recorded them; of a run of less than seven "
        "minutes, over all steps that it counted. Lost time is that of the whole run, as in its report. Files are "
        "summaries of `stallscope run`: they need no server, and are compared with the first of them.",
        examples={
            "stallscope compare before.json after.json": "two summaries of `stallscope run --summary FILE.json`",
            "stallscope compare batch64 batch256 batch1024": "find the best batch size",
            "stallscope compare one-gpu eight-gpus --baseline one-gpu": "how well does the run scale to eight GPUs?",
            "stallscope compare east/vision/resnet50 west/vision/resnet50": "runs of the same name on two clusters",
            "stallscope compare before after --since 2026-11-20 --json": "for a program",
        },
        notes="Exit status: 0 if the runs were compared, 1 if that failed, 2 for an invalid command line.",
    )
    made.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="names of at least two runs; CLUSTER/NAMESPACE/RUN or NAMESPACE/RUN if several runs share a name; or "
        "files with summaries",
    )
    made.add_argument(
        "--baseline",
        metavar="RUN",
        help="run to compare the others with (default: the first with the fewest GPUs)",
    )
    _prometheus.add_run_flags(made, "the runs", "runs of these names")
    made.add_argument("--json", action="store_true", help="print one JSON document: seconds, shares from 0 to 1")
    _times.add_flags(made, since=_SINCE)
    add_flag(made)
    _prometheus.add_flags(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status that `parser` describes."""
    reader = parser()
    parsed = reader.parse_args(arguments)
    if parsed.baseline is not None and parsed.baseline not in parsed.runs:
        parsed.runs = [parsed.baseline, *parsed.runs]
    if len(parsed.runs) < 2:
        reader.error("expected at least two runs; for one run, use `stallscope report`")
    twice = next((name for name in parsed.runs if parsed.runs.count(name) > 1), None)
    if twice is not None:
        reader.error(f"run {twice!r} is listed twice")
    if all(name.endswith(".json") for name in parsed.runs):
        return _compare_summaries(parsed)
    try:
        server = _prometheus.client(parsed)
    except ModuleNotFoundError as error:
        return missing("compare", error, "analysis")
    try:
        comparison = _compare(server, parsed)
    except _prometheus.CommandFailed as failed:
        print(f"stallscope compare: {failed}", file=sys.stderr)
        return 1
    finally:
        server.close()
    from stallscope.tools.cli import _comparison

    if parsed.json:
        print(json.dumps(_comparison.document(comparison), indent=2))
    else:
        print(_comparison.text(comparison), end="")
    return 0


def _compare_summaries(parsed: Any) -> int:
    from stallscope.tools.summary import comparison, kept

    try:
        runs = [comparison.read(kept.find(name)) for name in parsed.runs]
    except comparison.SummaryError as problem:
        print(f"stallscope compare: {problem}", file=sys.stderr)
        return 1
    if parsed.json:
        print(json.dumps(comparison.document(runs), indent=2))
    else:
        print(comparison.text(runs), end="")
    return 0


def _compare(server: Prometheus, parsed: Any) -> Comparison:
    from stallscope.model.analysis.comparison import compare
    from stallscope.model.analysis.over_time import require_rules
    from stallscope.model.analysis.run_figures import read_figures, with_distinct_names
    from stallscope.model.analysis.runs import find_run

    with _prometheus.one_line_errors():
        start, end = _times.span(parsed, server.now())
        texts: dict[tuple[str, str, str], str] = {}
        figures = []
        with progress("Reading runs", total=len(parsed.runs), quiet=parsed.quiet) as advance:
            for text in parsed.runs:
                run = find_run(server, text, start, end, cluster=parsed.cluster, namespace=parsed.namespace)
                same = texts.setdefault((run.cluster, run.namespace, run.name), text)
                if same != text:
                    raise _prometheus.CommandFailed(f"{same!r} and {text!r} are the same run; name another")
                figures.append(read_figures(server, run))
                require_rules(server, server.name, start, end)
                advance()
    runs = with_distinct_names(figures)
    comparison = compare(runs, None if parsed.baseline is None else runs[parsed.runs.index(parsed.baseline)])
    return replace(comparison, notes=(*comparison.notes, *server.take_notes()))
