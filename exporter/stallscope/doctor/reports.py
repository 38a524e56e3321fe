"""The way from a training to the exporter: a trial report, sent as the shim sends, and whether it was taken.

Its run has a name that exporters count and do not hold, so that nothing shows of it but one report more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from stallscope.clients.exporter import ExporterClient, ExporterError
from stallscope.doctor.checkup import Finding, Part, Stop, Subject, failed, ok, skipped, warning
from stallscope.doctor.exporter import REPORTS, REPORTS_REJECTED, client_of, read
from stallscope.protocol.report import DEFAULT_PORT, DEFAULT_SOCKET, TRIAL_RUN, VERSION, encode
from stallscope.shim.transport import Post, transport

_DEFAULT = f"unix://{DEFAULT_SOCKET} or udp://127.0.0.1:{DEFAULT_PORT}"
_WAIT_SECONDS = 8.0
"""Where dozens of ranks report, a page is made every five seconds."""
_SETTLED_SECONDS = 1.2
"""A page is made once a second, and may be made between a report's arrival and its refusal."""
_LOOK_SECONDS = 0.2
_REMEDIES = {
    "absent": "start the exporter, or set STALLSCOPE_ADDRESS to where it is; in a container, mount the socket's folder",
    "denied": "let the training's user write to the socket: its folder needs mode 0755, the socket 0666",
    "unreachable": "see routes and firewalls between this machine and the exporter, or set STALLSCOPE_ADDRESS",
    "timeout": "see firewalls between this machine and the exporter, and how busy that machine is",
    "queue_full": "the exporter does not read what comes: see its log, and whether its process is stopped",
    "error": "set STALLSCOPE_ADDRESS to where the exporter is; it must be able to answer there",
}


class _Counts(NamedTuple):
    arrived: Mapping[str, float]
    """By transport."""
    refused: Mapping[str, float]
    """By reason."""


class _Complaints(logging.Handler):
    """Keeps what the shim complains of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


def _begin(subject: Subject) -> Subject:
    if subject.environment.get("STALLSCOPE_DISABLE", "").strip().lower() not in ("", "0", "false", "no", "off"):
        raise Stop(skipped("STALLSCOPE_DISABLE is set: trainings report nothing", "unset it to have runs watched"))
    return subject


def _trial(subject: Subject) -> Iterator[Finding]:
    address = subject.environment.get("STALLSCOPE_ADDRESS", "").strip() or _DEFAULT
    with contextlib.closing(client_of(subject)) as client:
        yield _tried(subject, address, client)


def _tried(subject: Subject, address: str, client: ExporterClient) -> Finding:
    before = _counts(client)
    complaints = _Complaints()
    logger = logging.getLogger("stallscope")
    logger.addHandler(complaints)
    try:
        send = transport(subject.environment)
        problem = "error" if complaints.told else send(_document())
        send.close()
    except ValueError as complaint:  # STALLSCOPE_STRICT is set
        complaints.told.append(str(complaint))
        problem = "error"
    finally:
        logger.removeHandler(complaints)
    if problem is not None:
        said = complaints.told[-1] if complaints.told else f"a report to {address} could not be sent ({problem})"
        return failed(said, _REMEDIES.get(problem, _REMEDIES["error"]))
    if isinstance(send, Post):
        return ok(f"{address} took a trial report")
    if before is None:
        return warning(
            f"a trial report to {address} was sent; whether it was taken can't be seen, since {client.name} gives no "
            "metrics",
            "say where the exporter's metrics are with --exporter.url",
        )
    return _arrival(address, client, before)


def _arrival(address: str, client: ExporterClient, before: _Counts) -> Finding:
    """Whether a datagram, which has no answer, was counted."""
    ways = ("unix", "udp") if address == _DEFAULT else (address.partition("://")[0],)
    deadline = time.monotonic() + _WAIT_SECONDS
    time.sleep(_SETTLED_SECONDS)
    while time.monotonic() < deadline:
        now = _counts(client) or before
        refused = [reason for reason, number in now.refused.items() if number > before.refused.get(reason, 0.0)]
        if refused:
            return failed(
                f"{client.name} refused a report when the trial report came ({refused[0]})",
                "see the exporter's log; where reports must be signed, set STALLSCOPE_TOKEN or STALLSCOPE_TOKEN_FILE",
            )
        came = [each for each in ways if now.arrived.get(each, 0.0) > before.arrived.get(each, 0.0)]
        if came:
            return ok(f"{client.name} took a trial report to {address} ({came[0]})")
        time.sleep(_LOOK_SECONDS)
    return failed(
        f"a report to {address} was sent, and {client.name} counted none",
        "another exporter listens there, or a firewall drops it: set STALLSCOPE_ADDRESS and --exporter.url to the same",
    )


def _counts(client: ExporterClient) -> _Counts | None:
    try:
        page = read(client)
    except ExporterError:
        return None
    return _Counts(
        {labels["transport"]: value for labels, value in page.samples(REPORTS)},
        {labels["reason"]: value for labels, value in page.samples(REPORTS_REJECTED)},
    )


def _document() -> bytes:
    now = time.time()
    return encode(
        {
            "version": VERSION,
            "run": TRIAL_RUN,
            "rank": 0,
            "session": uuid.uuid4().hex,
            "sequence": 1,
            "pid": os.getpid(),
            "start": now,
            "sent": now,
            # What an exporter that does not know the name would hold is over at once.
            "state": "finished",
            "activity": "training",
        }
    )


PART = Part("reports", _begin, (("trial", _trial),))
