"""Check of the path from a training to the exporter, with a test report sent by the shim's own code.

Exporters count the reserved run name of the test report but do not keep the run, so it leaves no series behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from stallscope.model.clients.exporter import ExporterClient, ExporterError
from stallscope.tools.doctor.checkup import Finding, Part, Stop, Subject, failed, ok, skipped, warning
from stallscope.tools.doctor.exporter import REPORTS, REPORTS_REJECTED, client_of, read
from stallscope.training.protocol.report import encode
from stallscope.training.protocol.vocabulary import DEFAULT_PORT, DEFAULT_SOCKET, TRIAL_RUN, VERSION
from stallscope.training.shim.http_transport import Post
from stallscope.training.shim.transport import transport

_DEFAULT = f"unix://{DEFAULT_SOCKET} or udp://127.0.0.1:{DEFAULT_PORT}"
_POLL_SECONDS = 0.2
_REMEDIES = {
    "absent": "start the exporter, or set STALLSCOPE_ADDRESS to its address; in a container, mount the socket's folder",
    "denied": "let the training's user write to the socket: its folder needs mode 0755, the socket 0666",
    "unreachable": "check routes and firewalls between this machine and the exporter, or set STALLSCOPE_ADDRESS",
    "timeout": "check firewalls between this machine and the exporter, and the load of that machine",
    "queue_full": "the exporter does not read its socket: see its log, and check that its process is not stopped",
    "error": "set STALLSCOPE_ADDRESS to the address of the exporter",
}


class _Counts(NamedTuple):
    arrived: Mapping[str, float]
    """By transport."""
    refused: Mapping[str, float]
    """By reason."""


class _Warnings(logging.Handler):
    """Record the shim's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _begin(subject: Subject) -> Subject:
    if subject.environment.get("STALLSCOPE_DISABLE", "").strip().lower() not in ("", "0", "false", "no", "off"):
        raise Stop(skipped("STALLSCOPE_DISABLE is set: trainings report nothing", "unset it to measure runs"))
    return subject


def _trial(subject: Subject) -> Iterator[Finding]:
    address = subject.environment.get("STALLSCOPE_ADDRESS", "").strip() or _DEFAULT
    with contextlib.closing(client_of(subject)) as client:
        yield _send(subject, address, client)


def _send(subject: Subject, address: str, client: ExporterClient) -> Finding:
    before = _counts(client)
    warnings = _Warnings()
    logger = logging.getLogger("stallscope")
    logger.addHandler(warnings)
    try:
        send = transport(subject.environment)
        problem = "error" if warnings.messages else send(_document())
        send.close()
    except ValueError as error:  # STALLSCOPE_STRICT is set
        warnings.messages.append(str(error))
        problem = "error"
    finally:
        logger.removeHandler(warnings)
    if problem is not None:
        unsent = f"a report to {address} could not be sent ({problem})"
        return failed(
            warnings.messages[-1] if warnings.messages else unsent, _REMEDIES.get(problem, _REMEDIES["error"])
        )
    if isinstance(send, Post):
        return ok(f"{address} accepted a test report")
    if before is None:
        return warning(
            f"a test report was sent to {address}, but its arrival is unknown: {client.name} serves no metrics",
            "set --exporter.url to the exporter's metrics",
        )
    return _arrival(subject, address, client, before)


def _arrival(subject: Subject, address: str, client: ExporterClient, before: _Counts) -> Finding:
    """Check the exporter's counters for a datagram, which gets no response."""
    transports = ("unix", "udp") if address == _DEFAULT else (address.partition("://")[0],)
    deadline = time.monotonic() + subject.arrival_timeout
    time.sleep(subject.page_interval)
    while time.monotonic() < deadline:
        now = _counts(client) or before
        refused = [reason for reason, number in now.refused.items() if number > before.refused.get(reason, 0.0)]
        if refused:
            return failed(
                f"{client.name} rejected a report when the test report arrived ({refused[0]})",
                "see the exporter's log; if reports must be signed, set STALLSCOPE_TOKEN or STALLSCOPE_TOKEN_FILE",
            )
        arrived = [each for each in transports if now.arrived.get(each, 0.0) > before.arrived.get(each, 0.0)]
        if arrived:
            return ok(f"{client.name} accepted a test report to {address} ({arrived[0]})")
        time.sleep(_POLL_SECONDS)
    return failed(
        f"a report was sent to {address}, but {client.name} counted none",
        "another exporter listens there, or a firewall drops reports: check STALLSCOPE_ADDRESS and --exporter.url",
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
            # Finished, so that an exporter that does not know the reserved name drops the run soon.
            "state": "finished",
            "activity": "training",
        }
    )


PART = Part("reports", _begin, (("trial", _trial),))
