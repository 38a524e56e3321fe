"""Request traces of the next steps of a running training job."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from stallscope.tools.cli import _requests, _step_requests
from stallscope.tools.cli._parser import Parser
from stallscope.training.protocol.step_request import MAX_STEPS


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "trace",
        usage="stallscope trace RUN [flags]",
        description="Request a trace of the next steps of a run, for Perfetto or chrome://tracing. All ranks trace the "
        "same steps. Each rank writes its own file, into its STALLSCOPE_TRACE_DIR. Both ends must allow it: the "
        "exporter with --report.allow-trace-requests, the training with STALLSCOPE_TRACE_DIR or "
        "trace(on_request=True). On this node, users can request traces of their own runs; root, the exporter's user "
        "and members of its --web.control-group can request traces of every run. Requests from another node need "
        "--web.allow-remote-reports and a user or client certificate in the exporter's --web.config.file.",
        examples={
            "stallscope trace resnet50": "the next step of every rank of a run on this node",
            "stallscope trace resnet50 --steps 5 --rank 0-3": "five steps of the first four ranks",
            "stallscope trace llama --exporter.url node1:19400 --exporter.url node2:19400": "a run on two nodes",
        },
        notes="Exit status: 0 if every exporter accepted the request, 1 if not, 2 for an invalid command line.",
    )
    _step_requests.add_flags(
        made, "first step to trace, counted from 0 (default: the first step that all ranks can still trace)"
    )
    made.add_argument(
        "--steps", type=_steps, default=1, metavar="NUMBER", help=f"steps to trace, 1 to {MAX_STEPS} (default: 1)"
    )
    _requests.add_flags(made, "trace")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status that `parser` describes."""
    parsed = parser().parse_args(arguments)
    return _step_requests.send("trace", parsed, {"steps": parsed.steps, "ranks": parsed.rank}, _summary)


def _summary(answer: dict[str, Any]) -> str:
    first, steps = answer["first_step"], answer["steps"]
    numbers = f"step {first}" if steps == 1 else f"steps {first} to {first + steps - 1}"
    return f"{_step_requests.ranks_of(answer)} will trace {numbers}, in about {answer['seconds']:.0f} s"


def _steps(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_STEPS):
        raise argparse.ArgumentTypeError(f"expected an integer from 1 to {MAX_STEPS}, got {text!r}")
    return int(text)
