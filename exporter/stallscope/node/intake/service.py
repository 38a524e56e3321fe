"""The whole report path: receivers, runs and journal, started and stopped together.

intake = Intake(IntakeSettings(state_file=Path("/var/lib/stallscope/runs.jsonl")))
intake.start()
sampler.add_collector("reports", intake.collect)
status, body = intake.post(request_body)
intake.stop()
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from stallscope.model.catalogue.metrics import family
from stallscope.node.intake.authentication import DEFAULT_WINDOW, Authentication
from stallscope.node.intake.authentication import REASONS as AUTHENTICATION_REASONS
from stallscope.node.intake.dispatcher import BatchLimits, Dispatcher
from stallscope.node.intake.journal import Journal
from stallscope.node.intake.quotas import Limits
from stallscope.node.intake.receivers import Receiver, UdpReceiver, UnixReceiver
from stallscope.node.intake.refusal_log import RefusalLog
from stallscope.node.intake.runs import DEFAULT_EXPIRY, RunRegistry, Transport
from stallscope.node.intake.stacks import StackFiles, StackRequests
from stallscope.node.intake.step_requests import StepRequests
from stallscope.node.sampling.clock import Clock, SystemClock
from stallscope.node.sampling.reading import Sample
from stallscope.training.protocol.report import Report, ReportError
from stallscope.training.protocol.request_name import STACKS
from stallscope.training.protocol.vocabulary import DEFAULT_PORT, DEFAULT_SOCKET

_logger = logging.getLogger(__name__)

RECEIVER_UP = family("stallscope_exporter_receiver_up")

_CHECK_INTERVAL = 1.0
_SAVE_INTERVAL = 10.0
_STATUS = {
    **dict.fromkeys(AUTHENTICATION_REASONS, 403),
    "too_large": 413,
    "superseded": 409,
    "not_owner": 403,
    "run_limit": 429,
    "rank_limit": 429,
    "series_limit": 429,
    "memory_limit": 429,
}
"""HTTP status by reason; 400 for all others."""
_LOGGED = frozenset((*AUTHENTICATION_REASONS, "superseded", "not_owner"))
"""Reasons that are logged although the sender gets a response: the run shown is another one."""


@dataclass(frozen=True)
class IntakeSettings:
    """Settings of the report path."""

    socket: Path | None = Path(DEFAULT_SOCKET)
    """UNIX datagram receiver; None for none."""
    socket_mode: int = 0o666
    udp: tuple[str, int] | None = ("127.0.0.1", DEFAULT_PORT)
    """UDP receiver; None for none."""
    state_file: Path | None = None
    """File that keeps runs over a restart of the exporter; None for none."""
    limits: Limits = field(default_factory=Limits)
    expiry: float = DEFAULT_EXPIRY
    """Seconds that the series of an ended rank stay. A rank whose process is not visible is lost after this silence."""
    token_file: Path | None = None
    """File of the tokens that sign reports; None accepts unsigned reports."""
    token_window: float = DEFAULT_WINDOW
    """Largest difference between a signature's time and this machine's clock, in seconds."""
    socket_needs_token: bool = False
    """True if reports through the UNIX socket must be signed too."""
    requests: Collection[str] = ()
    """Actions that may be requested of ranks, out of `step_request.ACTIONS`."""
    batches: BatchLimits = field(default_factory=BatchLimits)


class Intake:
    """The report path."""

    def __init__(self, settings: IntakeSettings, *, clock: Clock | None = None, root: Path = Path("/")) -> None:
        """Prepare; nothing is opened yet.

        Args:
            settings: receivers, limits and files.
            clock: the machine's own if left out.
            root: folder that contains `proc`, of this process' pid namespace.

        Raises:
            TokenError: the token file can't be used.
        """
        clock = clock or SystemClock()
        self.authentication: Authentication | None = None
        """Verifies reports over networks; None accepts unsigned ones."""
        if settings.token_file is not None:
            self.authentication = Authentication(settings.token_file, window=settings.token_window, clock=clock)
        self._socket_needs_token = settings.socket_needs_token
        self._refusals = RefusalLog(clock)
        self.registry = RunRegistry(settings.limits, expiry=settings.expiry, clock=clock, root=root)
        folder = None if settings.socket is None else settings.socket.parent
        self.step_requests = StepRequests(self.registry, folder, allowed=settings.requests, clock=clock)
        self.stacks = StackFiles(self.registry, clock=clock)
        self.stack_requests = StackRequests(self.registry, self.stacks, folder, clock=clock)
        receivers: list[Receiver] = []
        if settings.socket is not None:
            receivers.append(UnixReceiver(settings.socket, settings.socket_mode))
        if settings.udp is not None:
            # A notice has no signature, so UDP can't carry one where reports must be signed.
            receivers.append(UdpReceiver(*settings.udp, notices=self.authentication is None, root=root))
        self._dispatcher = Dispatcher(
            tuple(receivers),
            self._accept,
            self.registry.count_overtaken,
            self._terminate,
            self.stacks.keep,
            clock=clock,
            limits=settings.batches,
            refusals=self._refusals,
        )
        self._journal = None if settings.state_file is None else Journal(settings.state_file, clock=clock, root=root)
        self._clock = clock
        self._saved_changes = 0
        self._saved_at = clock.monotonic()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def receivers(self) -> tuple[Receiver, ...]:
        """The datagram receivers; `problem` of a closed one has the reason."""
        return self._dispatcher.receivers

    def start(self) -> None:
        """Read the state file, open the receivers, and start the housekeeping, once a second."""
        if self._journal is not None:
            self.registry.restore(self._journal.load())
            self._saved_changes = self.registry.changes
            self.registry.check_processes()  # the first page must not show a rank as running that has ended since
        self._dispatcher.start()
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Close the receivers and write the state file."""
        self._dispatcher.stop(timeout)
        self.step_requests.close()
        self.stack_requests.close()
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None
            self._save()

    def collect(self) -> list[Sample]:
        """Return every series of the report path. Reads memory only; thread-safe."""
        up = [Sample(RECEIVER_UP, (each.transport,), float(each.socket is not None)) for each in self.receivers]
        return [*up, *self.registry.collect(), *self.stacks.collect()]

    def post(self, body: bytes, client: str = "") -> tuple[int, bytes]:
        """Accept a report from a POST request.

        Args:
            body: the report.
            client: address of the client, for the log.

        Returns:
            HTTP status and body: 204 without a body; 200 with requests to the rank; or 4xx with a JSON object of
            `error`, the reason, and `message`.
        """
        try:
            report = self._accept(body, "http")
        except ReportError as error:
            if error.reason in _LOGGED:
                self._refusals.log(f"HTTP from {client}" if client else "HTTP", error)
            answer = json.dumps({"error": error.reason, "message": error.message})
            return _STATUS.get(error.reason, 400), answer.encode()
        requests = self.step_requests.answer(report)
        return (200, requests) if requests else (204, b"")

    def post_request(self, kind: str, body: bytes, owner: int | None, sender: str) -> tuple[int, bytes]:
        """Accept a request to a run: stacks, or one of `step_request.ACTIONS`.

        Args:
            kind: of the request.
            body: the request.
            owner: uid that must own the ranks' processes; None for any.
            sender: who sends the request, for the log.

        Returns:
            HTTP status and JSON.
        """
        if kind == STACKS:
            return self.stack_requests.post(body, owner)
        return self.step_requests.post(kind, body, owner, sender)

    def run_housekeeping(self) -> None:
        """Find lost ranks, drop expired ones, and save the runs every ten seconds."""
        try:
            self.registry.check_processes()
            self.step_requests.drop_expired()
            self.stacks.refresh()
            self.stack_requests.drop_expired()
            if self._clock.monotonic() - self._saved_at >= _SAVE_INTERVAL:
                self._save()
        except Exception:
            _logger.exception("checking the runs failed; trying again")

    def _accept(self, data: bytes, transport: Transport, pid_seen: int | None = None, uid: int | None = None) -> Report:
        exempt = transport == "unix" and not self._socket_needs_token
        return self.registry.accept(data, transport, pid_seen, None if exempt else self.authentication, uid)

    def _terminate(self, sessions: tuple[str, ...], pid_seen: int | None, uid: int | None) -> None:
        # A notice has no signature. Where the UNIX socket requires one, the kernel must name the session's process.
        self.registry.terminate(sessions, pid_seen, uid, pid_required=self._socket_needs_token)

    def _run(self) -> None:
        while not self._stopping.wait(_CHECK_INTERVAL):
            self.run_housekeeping()

    def _save(self) -> None:
        changes = self.registry.changes
        self._saved_at = self._clock.monotonic()
        if self._journal is not None and changes != self._saved_changes and self._journal.save(self.registry.held):
            self._saved_changes = changes
