"""Requests to running jobs, through the exporters of their nodes."""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import urlsplit

from stallscope.common.formatting import readable
from stallscope.model.clients.client_certificate import ClientCertificate
from stallscope.model.clients.exporter import Answer, ExporterClient, ExporterError
from stallscope.tools.cli import _client_certificate
from stallscope.tools.cli._exporter import DEFAULT_EXPORTER, exporter_url
from stallscope.tools.cli._parser import Parser
from stallscope.training.protocol.step_request import MAX_RANKS

_LONGEST_ANSWER = 16 << 20
_SHOWN = 300
"""Maximum length of an exporter's error message."""


class Refused(Exception):
    """An exporter rejected the request or did not respond; the message is one line."""


def add_flags(parser: Parser, verb: str = "") -> None:
    """Add the flags that select ranks and exporters.

    Args:
        parser: the parser of the command.
        verb: what is done with the ranks, for the help; empty for a command that is for all ranks.
    """
    if verb:
        parser.add_argument(
            "--rank",
            type=rank_numbers,
            default=[],
            metavar="RANKS",
            help=f"{verb} only these ranks: 0, 0-3 or 0,8,16-23 (default: all)",
        )
    parser.add_argument(
        "--exporter.url",
        "--exporter",
        dest="exporter",
        action="append",
        type=_url,
        metavar="URL",
        help=f"exporter of the node; again for each further node of the job (default: {DEFAULT_EXPORTER})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document with each exporter's response")
    _client_certificate.add_flags(parser, "an exporter")


def post(
    exporter: str,
    path: str,
    wanted: dict[str, Any],
    certificate: ClientCertificate | None,
    kind: str,
    timeout: float = 5.0,
) -> dict[str, Any]:
    """Send a request, and return the response's JSON object.

    Args:
        exporter: address of the exporter.
        path: of the request.
        wanted: the request.
        certificate: sent if the exporter requires one.
        kind: of the request, for messages.
        timeout: seconds for the whole response.

    Raises:
        Refused: the exporter rejected it or did not respond.
    """
    try:
        client = ExporterClient(exporter, timeout=timeout, max_bytes=_LONGEST_ANSWER, certificate=certificate)
        whole_path = urlsplit(exporter).path.rstrip("/") + path
        answer = client.request("POST", whole_path, json.dumps(wanted).encode(), {"Content-Type": "application/json"})
        client.close()
    except (ExporterError, ValueError) as error:
        raise Refused(str(error)) from None
    document = _document(answer)
    if not 200 <= answer.status < 300:
        words = document.get("message") if isinstance(document, dict) else None
        if isinstance(words, str):
            raise Refused(readable(words, _SHOWN))
        raise Refused(f"HTTP status {answer.status}; check that this exporter accepts {kind} requests")
    if not isinstance(document, dict):
        raise Refused("not a Stallscope exporter")
    return document


def _document(answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return None


def rank_numbers(text: str) -> list[int]:
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        ends = (low, high if dash else low)
        if not all(end.isascii() and end.isdecimal() and len(end) < 8 for end in ends):
            raise argparse.ArgumentTypeError(f"expected ranks such as 0, 0-3 or 0,8,16-23, got {text!r}")
        if not 0 <= int(ends[1]) - int(ends[0]) < MAX_RANKS:
            raise argparse.ArgumentTypeError(f"expected a range of at most {MAX_RANKS} ranks, got {part.strip()!r}")
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    if len(found) > MAX_RANKS:
        raise argparse.ArgumentTypeError(f"expected at most {MAX_RANKS} ranks, got {len(found)}; omit --rank for all")
    return sorted(found)


def _url(text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    return exporter_url(url).rstrip("/")
