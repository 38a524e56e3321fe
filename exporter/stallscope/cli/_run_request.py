"""Requests to the ranks of a run, through the exporters of its nodes: shared by `trace` and `stop`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from stallscope.cli import _client_certificate
from stallscope.cli._exporter import DEFAULT_EXPORTER, exporter_url
from stallscope.cli._parser import Parser
from stallscope.clients.client_certificate import ClientCertificate
from stallscope.clients.exporter import Answer, ExporterClient, ExporterError
from stallscope.common.formatting import readable, without_password

TIMEOUT = 5.0
_LONGEST_ANSWER = 1 << 20
_SHOWN = 300
"""Maximum length of an exporter's error message."""


class _Refused(Exception):
    """An exporter rejected the request or did not respond; the message is one line."""


def add_arguments(made: Parser) -> None:
    """Add the run, its first step, the exporters and the form of the output."""
    made.add_argument("run", metavar="RUN", help="the run's name, as in the label run of its metrics")
    made.add_argument(
        "--first-step",
        type=_first_step,
        metavar="NUMBER",
        help="first step of the request, counted from 0 (default: the first that all ranks receive in time)",
    )
    made.add_argument(
        "--exporter.url",
        "--exporter",
        dest="exporter",
        action="append",
        type=_url,
        metavar="URL",
        help=f"exporter of the node; again for each further node of the job (default: {DEFAULT_EXPORTER})",
    )
    made.add_argument("--json", action="store_true", help="print one JSON document with each exporter's response")
    _client_certificate.add_flags(made, "an exporter")


def send(action: str, parsed: argparse.Namespace, fields: dict[str, Any], summary: Callable[[Any], str]) -> int:
    """Send a request to each exporter, and print what it responds.

    Args:
        action: one of `run_request.ACTIONS`.
        parsed: the command line.
        fields: further fields of the request.
        summary: returns a response in words.

    Returns:
        0 if every exporter accepted the request, otherwise 1.
    """
    wanted = {"run": parsed.run, **fields}
    first = parsed.first_step
    answers: list[dict[str, Any]] = []
    for address in parsed.exporter or [DEFAULT_EXPORTER]:
        exporter = without_password(address)
        document = wanted if first is None else {**wanted, "first_step": first}
        try:
            answer = _request(action, address, document, parsed.certificate)
        except _Refused as refused:
            answer = {"problem": str(refused)}
        else:
            first = answer["first_step"]  # so that ranks on the other nodes get the same step
            if not parsed.json:
                print(f"{exporter}: {summary(answer)}")
        answers.append({"exporter": exporter, **answer})
        if answer.get("problem"):
            print(f"stallscope {action}: {exporter}: {answer['problem']}", file=sys.stderr)
    if missing := _missing_ranks(answers):
        print(f"stallscope {action}: {missing}", file=sys.stderr)
    if parsed.json:
        print(json.dumps(answers, indent=2))
    return int(any(answer.get("problem") for answer in answers))


def ranks_of(answer: dict[str, Any]) -> str:
    """Return the ranks of a response in words."""
    ranks: Sequence[int] = answer["ranks"]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"


def _missing_ranks(answers: Sequence[dict[str, Any]]) -> str:
    """Return a sentence on ranks of other nodes, which no exporter has reached; else empty."""
    world = max((answer.get("world_size", 0) for answer in answers), default=0)
    reached = len({rank for answer in answers for rank in answer.get("ranks", ())})
    if not reached or reached >= world:
        return ""
    return f"{reached} of {world} ranks are on these nodes; name the exporter of each node with --exporter.url"


def _request(
    action: str, exporter: str, wanted: dict[str, Any], certificate: ClientCertificate | None
) -> dict[str, Any]:
    try:
        client = ExporterClient(exporter, timeout=TIMEOUT, max_bytes=_LONGEST_ANSWER, certificate=certificate)
        path = urlsplit(exporter).path.rstrip("/") + f"/api/v1/{action}"
        answer = client.request("POST", path, json.dumps(wanted).encode(), {"Content-Type": "application/json"})
        client.close()
    except (ExporterError, ValueError) as error:
        raise _Refused(str(error)) from None
    document = _document(answer)
    if not 200 <= answer.status < 300:
        words = document.get("message") if isinstance(document, dict) else None
        if isinstance(words, str):
            raise _Refused(readable(words, _SHOWN))
        raise _Refused(f"HTTP status {answer.status}; check that this exporter accepts {action} requests")
    if not isinstance(document, dict) or type(document.get("first_step")) is not int:
        raise _Refused("not a Stallscope exporter")
    return document


def _document(answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return None


def _first_step(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise argparse.ArgumentTypeError(f"expected a step number, got {text!r}")
    return int(text)


def _url(text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    return exporter_url(url).rstrip("/")
