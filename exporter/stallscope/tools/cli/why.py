"""Explain the verdict of a run or a GPU: values beside thresholds, and hidden causes."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stallscope.tools.cli import _prometheus, _times
from stallscope.tools.cli._extras import missing
from stallscope.tools.cli._parser import Parser
from stallscope.tools.cli._progress import add_flag, progress

if TYPE_CHECKING:
    from stallscope.model.clients.prometheus import Prometheus
    from stallscope.model.view.explanation import Explanation

_CLOCK_ERROR = 60.0
"""Seconds by which this machine's clock may be ahead of the server's."""


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "why",
        usage="""stallscope why RUN [RUN …] [flags]
       stallscope why --gpu INDEX|UUID [--instance NODE] [flags]""",
        description="Explain the verdict of a run or a GPU from the series that the rules recorded: since when it "
        "holds, the measured values beside their thresholds, the causes that it hides and why, the signals that are "
        "missing, and what would have to change for another verdict. A run that has ended has its last verdict. A GPU "
        "has a verdict of its own, which may differ from that of the run on it.",
        examples={
            "stallscope why resnet50": "the present verdict of a run",
            "stallscope why resnet50 --all": "every cause that was considered, with its values",
            "stallscope why resnet50 --at 2026-11-21T09:30": "the verdict at a time",
            "stallscope why --gpu 3 --instance node1": "a GPU: idle, lost, throttled, shared …",
            "stallscope why vision/resnet50 --json": "for a program",
        },
        notes="Exit status: 0 if the verdicts were explained, 1 if that failed, 2 for an invalid command line.",
    )
    made.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="names of runs; CLUSTER/NAMESPACE/RUN or NAMESPACE/RUN if several runs share a name",
    )
    made.add_argument(
        "--gpu",
        action="append",
        default=[],
        dest="gpus",
        type=_gpu,
        metavar="GPU",
        help="index of a GPU, or UUID of a GPU or a MIG instance (or its beginning), as in alerts; can be repeated",
    )
    made.add_argument(
        "--instance",
        metavar="NODE",
        help="node of the GPUs, if several nodes have such a GPU: its instance label in Prometheus, with or without "
        "the port",
    )
    made.add_argument(
        "--at",
        type=_times.when,
        default="now",
        metavar="TIME",
        help="time of the verdict: a duration before now (90m, 24h), or a time (2026-11-21T09:30, in this machine's "
        "time zone unless it names one) (default: now)",
    )
    _prometheus.add_run_flags(made, "the runs", "runs of these names", gpus=True)
    made.add_argument("--all", action="store_true", help="list every cause that was considered, with its values")
    made.add_argument("--json", action="store_true", help="print one JSON document: seconds, shares from 0 to 1")
    add_flag(made)
    _prometheus.add_flags(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status that `parser` describes."""
    command_line = parser()
    parsed = command_line.parse_args(arguments)
    if parsed.instance is not None and not parsed.gpus:
        command_line.error("--instance: requires --gpu; `stallscope top` shows all GPUs of a node")
    if not parsed.runs and not parsed.gpus:
        command_line.error("RUN: required without --gpu; name a run, or a GPU with --gpu")
    try:
        server = _prometheus.client(parsed)
    except ModuleNotFoundError as error:
        return missing("why", error, "analysis")
    try:
        with progress("Querying Prometheus", total=len(parsed.runs) + len(parsed.gpus), quiet=parsed.quiet) as advance:
            explained, notes = _explain(server, parsed, advance)
    except _prometheus.CommandFailed as failed:
        print(f"stallscope why: {failed}", file=sys.stderr)
        return 1
    finally:
        server.close()
    from stallscope.tools.cli import _explanation

    for note in notes:
        print(f"stallscope why: {note}", file=sys.stderr)
    if parsed.json:
        documents = {"runs": [_explanation.document(each) for each in explained if each.of_gpu is None]}
        if parsed.gpus:
            documents["gpus"] = [_explanation.document(each) for each in explained if each.of_gpu is not None]
        print(json.dumps(documents, indent=2))
    else:
        names = Counter(map(_name, explained))
        texts = (
            _explanation.text(each, everything=parsed.all, with_place=names[_name(each)] > 1) for each in explained
        )
        print("\n".join(texts), end="")
    return 0


def _name(found: Explanation) -> str:
    return found.run if found.of_gpu is None else found.of_gpu.labels.name


def _gpu(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("expected the index or the UUID of a GPU, got an empty text")
    return text.strip()


def _explain(server: Prometheus, parsed: Any, advance: Callable[..., None]) -> tuple[list[Explanation], list[str]]:
    from stallscope.common.formatting import utc
    from stallscope.model.analysis.over_time import matchers_of, require_rules
    from stallscope.model.analysis.runs import find_run
    from stallscope.model.clients.expressions import any_of
    from stallscope.model.view.explanation import LOOKBACK, explain
    from stallscope.model.view.gpu_explanation import explain_gpu
    from stallscope.model.view.gpu_finder import find_gpu

    found = []
    with _prometheus.one_line_errors():
        now = server.now()
        at = parsed.at.from_(now)
        if at > now + _CLOCK_ERROR:
            raise _prometheus.CommandFailed(f"--at: {utc(at)} is in the future; choose a time until {utc(now)}")
        at = min(at, now)
        for name in parsed.runs:
            run = find_run(
                server, name, at - LOOKBACK, at, cluster=parsed.cluster, namespace=parsed.namespace, flags="--at"
            )
            require_rules(server, server.name, at - LOOKBACK, at)
            place = run.cluster, run.namespace, run.name
            found.append(explain(server, place, matchers_of(run), f"instance=~{any_of(run.instances)}", at, run.states))
            advance()
        if parsed.gpus:
            require_rules(server, server.name, at - LOOKBACK, at)
        for name in parsed.gpus:
            gpu = find_gpu(server, name, at - LOOKBACK, at, instance=parsed.instance, cluster=parsed.cluster)
            found.append(explain_gpu(server, gpu, at))
            advance()
    return found, server.take_notes()
