"""Request a clean end of a running training job at its next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stallscope.tools.cli import _requests, _step_requests
from stallscope.tools.cli._parser import Parser

_SILENT_SECONDS = 60.0
"""Seconds without a step above which the summary shows them."""


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "stop",
        usage="stallscope stop RUN [flags]",
        description="Request that a run ends between two steps. All ranks get the same step. Before it, each rank "
        "calls the function given to stallscope.on_stop, or else sends SIGTERM to itself, as a scheduler does. Both "
        "ends must allow it: the exporter with --report.allow-stop-requests, every rank with STALLSCOPE_ALLOW_STOP=1. "
        "A run that makes no more steps does not end: use its scheduler. The same users may request it as for "
        "`stallscope trace`.",
        examples={
            "stallscope stop resnet50": "a run on this node",
            "stallscope stop llama --exporter.url node1:19400 --exporter.url node2:19400": "a run on two nodes",
        },
        notes="Exit status: 0 if every exporter accepted the request, 1 if not, 2 for an invalid command line.",
    )
    _step_requests.add_flags(
        made, "step before which to stop, counted from 0 (default: the first that all ranks receive in time)"
    )
    _requests.add_flags(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status that `parser` describes."""
    return _step_requests.send("stop", parser().parse_args(arguments), {}, _summary)


def _summary(answer: dict[str, Any]) -> str:
    sentence = f"{_step_requests.ranks_of(answer)} will stop before step {answer['first_step']}"
    silent = answer.get("silent", 0.0)
    if silent > _SILENT_SECONDS:
        return f"{sentence}, if they make steps again: the last step was {silent:.0f} s ago"
    return f"{sentence}, in about {answer['seconds']:.0f} s"
