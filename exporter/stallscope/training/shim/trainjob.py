"""Progress of a training in the status of its TrainJob, for Kubeflow Trainer 2.2 and later.

With its feature gate `TrainJobStatus`, Kubeflow Trainer sets in each pod of a TrainJob the address of its status
server, and the paths of a token and of a certificate authority. A process of its own, which `stallscope run` starts,
reads the stored report of rank 0 and posts what is measured. Nothing of it runs in the training.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from http.client import HTTPException, HTTPSConnection
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stallscope.common.cluster_tls import client_context
from stallscope.common.standard_error import show
from stallscope.training.protocol.report import Report, ReportError, parse
from stallscope.training.shim.stored_reports import NEWEST, SETTINGS, UPDATES_ITSELF, is_alive, started

Verdict = Callable[[Report], Mapping[str, str]]
"""Returns the verdict on a run as metrics; empty if it is unknown."""
INTERVAL = 15.0
"""Seconds between two updates."""
LONGEST_INTERVAL = 300.0
"""Seconds between two attempts after several failures."""
_POLL = 1.0
"""Seconds between two looks whether the training has ended."""
_TIMEOUT = 5.0
_WINDOW = 600.0
"""Seconds over which the speed is measured."""
_LONGEST = 64
"""Characters of the name and of the value of a metric."""
_LARGEST = 2**31 - 1
_MOST_BYTES = 8192
_GAUGES = ("step", "steps_planned", "epoch", "loss", "learning_rate", "gradient_norm")
_WAITS = ("data_wait", "communication", "checkpoint")
_REMEDIES = {
    401: "check that the token is of this pod and not expired",
    403: "check that the token is of this pod and not expired",
    404: "check that the TrainJob exists",
}


class Refused(Exception):
    """The status was not updated. The message has the problem and the remedy."""


class StatusServer:
    """Kubeflow Trainer's status server, as the pod's environment names it."""

    def __init__(self, url: str, token: str, authority: str) -> None:
        """Prepare; nothing is opened.

        Args:
            url: address of the TrainJob's status.
            token: path of the file with the token, which Kubernetes replaces before it expires.
            authority: path of the certificate authority; empty for those of the system.
        """
        self._url = url
        self._token = token
        self._authority = authority

    def post(self, status: Mapping[str, Any]) -> None:
        """Replace the status.

        Raises:
            Refused: it was not replaced.
        """
        address = urlsplit(self._url)
        if address.scheme != "https" or not address.hostname:
            raise Refused(f"expected a URL https://HOST/PATH, got {self._url[:200]!r}; the token is sent only with TLS")
        try:
            token = Path(self._token).read_text(encoding="ascii").strip()
            if not token.isprintable():
                raise ValueError("the token has control characters")
            context = client_context(self._authority)
        except (OSError, ValueError) as problem:
            raise Refused(f"token or certificate authority: {problem}; check the pod's projected volume") from None
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection = HTTPSConnection(address.hostname, address.port or 443, timeout=_TIMEOUT, context=context)
        try:
            connection.request("POST", address.path or "/", json.dumps({"trainerStatus": status}), headers)
            with connection.getresponse() as response:
                body = response.read(_MOST_BYTES)
        except (OSError, HTTPException) as problem:
            raise Refused(
                f"{address.netloc}: no response ({problem or type(problem).__name__}); check that network policies "
                "permit TCP to Kubeflow Trainer"
            ) from None
        finally:
            connection.close()
        if response.status != 200:
            remedy = _REMEDIES.get(response.status, "see the log of Kubeflow Trainer")
            raise Refused(f"{address.netloc}: HTTP status {response.status}{_reason(body)}; {remedy}")


class Progress:
    """Turns the reports of rank 0 into statuses; remembers the last ten minutes for the speed."""

    def __init__(self) -> None:
        self._seen: deque[Report] = deque()

    def status(self, report: Report, verdict: Mapping[str, str]) -> dict[str, Any]:
        """Return the status in the schema of `TrainerStatus`; what is unknown is absent."""
        if self._seen and self._seen[0].session != report.session:
            self._seen.clear()
        self._seen.append(report)
        while len(self._seen) > 2 and report.sent - self._seen[1].sent >= _WINDOW:
            self._seen.popleft()
        step, planned = report.gauges.get("step"), report.gauges.get("steps_planned")
        step_seconds = self._step_seconds(report)
        status: dict[str, Any] = {
            "lastUpdatedTime": datetime.fromtimestamp(report.sent, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        }
        if step is not None and planned:
            status["progressPercentage"] = int(max(0.0, min(100.0, 100.0 * step / planned)))
            if step >= planned:
                status["estimatedRemainingSeconds"] = 0
            elif step_seconds is not None and report.state in ("starting", "running"):
                status["estimatedRemainingSeconds"] = int(min((planned - step) * step_seconds, _LARGEST))
        metrics = {name: report.gauges[name] for name in _GAUGES if name in report.gauges}
        if step_seconds is not None:
            metrics["step_seconds"] = step_seconds
        numbers = {**metrics, **self._shares(report), **report.values}
        texts = {name: f"{value:.6g}" for name, value in numbers.items() if isfinite(value)}
        texts = {"run": report.run, "state": report.state, **verdict, **texts}
        status["metrics"] = [
            {"name": name[:_LONGEST], "value": value[:_LONGEST]} for name, value in texts.items() if name and value
        ]
        return status

    def _step_seconds(self, report: Report) -> float | None:
        """Return the seconds of a step over the remembered time, pauses and evaluations included."""
        first = self._seen[0]
        steps = report.gauges.get("step", 0.0) - first.gauges.get("step", 0.0)
        if first is not report and steps > 0:
            return (report.sent - first.sent) / steps
        measured = report.step_seconds
        return measured.sum / measured.count if measured is not None and measured.count > 0 else None

    def _shares(self, report: Report) -> dict[str, float]:
        """Return the share of the loop's time by phase that waits, over the remembered time."""
        before = self._seen[0].phases if self._seen[0] is not report else {}
        seconds = {
            name: phase.seconds - (before[name].seconds if name in before else 0.0)
            for name, phase in report.phases.items()
            if name not in ("initialization", "paused")
        }
        total = sum(seconds.values())
        return {f"{name}_share": seconds[name] / total for name in _WAITS if name in seconds and total > 0}


class Updater:
    """Updates the status from a folder of stored reports: at most one attempt at a time, and fewer while it fails."""

    def __init__(self, folder: str, server: StatusServer, verdict: Verdict | None = None) -> None:
        """Prepare.

        Args:
            folder: the folder of the reports.
            server: receives the status.
            verdict: returns the verdict; None without Prometheus.
        """
        self._folder = Path(folder)
        self._server = server
        self._verdict = verdict
        self._progress = Progress()
        self._posted: tuple[str, int] | None = None
        self._problem = ""
        self.interval = INTERVAL
        """Seconds until the next attempt."""

    def update(self) -> None:
        """Post the newest report of rank 0, unless it was posted already or the program updates the status itself."""
        with suppress(OSError), self._alone():  # the folder is gone, or the last update is being posted
            # Read during the block: the wait for it may have been for the last update.
            report = self.newest()
            if report is None or (report.session, report.sequence) == self._posted or self._is_updated_by_program():
                return
            try:
                self._server.post(self._progress.status(report, self._verdict(report) if self._verdict else {}))
            except Refused as problem:
                self.interval = min(2 * self.interval, LONGEST_INTERVAL)
                if str(problem) != self._problem:
                    show(f"status of the TrainJob: {problem}")
                self._problem = str(problem)
            else:
                self._posted, self._problem, self.interval = (report.session, report.sequence), "", INTERVAL

    def newest(self) -> Report | None:
        """Return the newest report of rank 0; None if no such rank reports on this node."""
        return max((each for each in self._reports() if each.rank == 0), key=lambda each: each.start, default=None)

    def is_elsewhere(self) -> bool:
        """Return whether rank 0 runs on another node: the first rank of this node has another number."""
        return any(each.info.get("local_rank") == "0" and each.rank for each in self._reports())

    def has_ended(self) -> bool:
        """Return whether the folder, or each process of the training, is gone."""
        try:
            if any(map(is_alive, started(str(self._folder)))):
                return False
        except OSError:
            return True
        return not any(is_alive(each.pid) for each in self._reports())

    def _reports(self) -> Iterator[Report]:
        for path in self._folder.glob(f"*{NEWEST}"):  # nothing if the folder is gone
            with suppress(OSError, ReportError):  # a kill has interrupted the writing
                yield parse(path.read_bytes().partition(b"\n")[0])

    def _is_updated_by_program(self) -> bool:
        # Transformers does not update the status with this variable.
        if os.environ.get("DISABLE_KUBEFLOW_INTEGRATION", "").upper() == "TRUE":
            return False
        return any(self._folder.glob(f"*{UPDATES_ITSELF}"))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let no other process post during the block: an earlier status must not replace the last one.

        Raises:
            OSError: the folder is gone, or another process posts for longer than an attempt takes.
        """
        # An existing file: a new one could appear while the folder is being deleted.
        descriptor = os.open(self._folder / SETTINGS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            deadline = time.monotonic() + 2 * _TIMEOUT
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
            yield
        finally:
            os.close(descriptor)


def watch(updater: Updater) -> None:
    """Update the status until the training ends, or is found to have rank 0 on another node."""
    due = time.monotonic()
    while not updater.has_ended():
        if time.monotonic() >= due:
            if updater.is_elsewhere():
                return
            updater.update()
            due = time.monotonic() + updater.interval
        time.sleep(_POLL)
    updater.update()


def _reason(body: bytes) -> str:
    """Return the message of a response of Kubernetes' kind `Status`, in parentheses; empty if it has none."""
    with suppress(ValueError, AttributeError):
        message = json.loads(body).get("message")
        if isinstance(message, str) and message:
            return f" ({' '.join(message.split())[:200]})"
    return ""
