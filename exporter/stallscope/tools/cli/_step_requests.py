"""Requests that are for the same step of all ranks: shared by `trace` and `stop`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from stallscope.common.formatting import without_password
from stallscope.model.clients.address import default_exporter
from stallscope.tools.cli import _requests
from stallscope.tools.cli._parser import Parser


def add_flags(made: Parser, first_step: str) -> None:
    """Add the run, and the first step with this help."""
    made.add_argument("run", metavar="RUN", help="the run's name, as in the label run of its metrics")
    made.add_argument("--first-step", type=_first_step, metavar="NUMBER", help=first_step)


def send(action: str, parsed: argparse.Namespace, fields: dict[str, Any], summary: Callable[[Any], str]) -> int:
    """Send a request to each exporter, and print what it responds.

    Args:
        action: one of `step_request.ACTIONS`.
        parsed: the command line.
        fields: further fields of the request.
        summary: returns a response in words.

    Returns:
        0 if every exporter accepted the request, otherwise 1.
    """
    wanted = {"run": parsed.run, **fields}
    first = parsed.first_step
    answers: list[dict[str, Any]] = []
    for address in parsed.exporter or [default_exporter()]:
        exporter = without_password(address)
        request = wanted if first is None else {**wanted, "first_step": first}
        try:
            answer = _requests.post(address, f"/api/v1/{action}", request, parsed.certificate, action)
            if type(answer.get("first_step")) is not int:
                raise _requests.Refused("not a Stallscope exporter")
        except _requests.Refused as refused:
            answer = {"problem": str(refused)}
        else:
            first = answer["first_step"]  # so that ranks on the other nodes get the same step
            if not parsed.json:
                print(f"{exporter}: {summary(answer)}")
        answers.append({"exporter": exporter, **answer})
        if answer.get("problem"):
            print(f"stallscope {action}: {exporter}: {answer['problem']}", file=sys.stderr)
    if missing := _missing_ranks(answers, fields.get("ranks", ())):
        print(f"stallscope {action}: {missing}", file=sys.stderr)
    if parsed.json:
        print(json.dumps(answers, indent=2))
    return int(any(answer.get("problem") for answer in answers))


def ranks_of(answer: dict[str, Any]) -> str:
    """Return the ranks of a response in words."""
    ranks: Sequence[int] = answer["ranks"]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"


def _missing_ranks(answers: Sequence[dict[str, Any]], wanted: Sequence[int]) -> str:
    """Return a sentence on ranks of other nodes, which no exporter has reached; else empty."""
    world = max((answer.get("world_size", 0) for answer in answers), default=0)
    reached = len({rank for answer in answers for rank in answer.get("ranks", ())})
    if wanted or not reached or reached >= world:
        return ""
    return f"{reached} of {world} ranks are on these nodes; name the exporter of each node with --exporter.url"


def _first_step(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise argparse.ArgumentTypeError(f"expected a step number, got {text!r}")
    return int(text)
