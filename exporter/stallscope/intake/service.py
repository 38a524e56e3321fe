"""The report path as a whole: doors, runs and journal, started and stopped together.

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
from dataclasses import dataclass, field
from pathlib import Path

from stallscope.intake.authentication import DEFAULT_WINDOW, Authentication
from stallscope.intake.authentication import REASONS as AUTHENTICATION_REASONS
from stallscope.intake.complaints import Complaints
from stallscope.intake.door_keeper import DoorKeeper
from stallscope.intake.doors import Door, UdpDoor, UnixDoor
from stallscope.intake.journal import Journal
from stallscope.intake.runs import DEFAULT_EXPIRY, Limits, RunRegistry, Transport
from stallscope.intake.traces import TraceRequests
from stallscope.protocol.report import DEFAULT_PORT, DEFAULT_SOCKET, Report, ReportError
from stallscope.sampling.clock import Clock, SystemClock
from stallscope.sampling.reading import Sample

_logger = logging.getLogger(__name__)

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
"""HTTP status by reason; 400 for every other."""
_LOGGED = frozenset((*AUTHENTICATION_REASONS, "superseded", "not_owner"))
"""Reasons that are logged although the sender gets an answer: the run that is shown is another one."""


@dataclass(frozen=True)
class IntakeSettings:
    """Settings of the report intake."""

    socket: Path | None = Path(DEFAULT_SOCKET)
    """UNIX datagram door; None for none."""
    socket_mode: int = 0o666
    udp: tuple[str, int] | None = ("127.0.0.1", DEFAULT_PORT)
    """UDP door; None for none."""
    state_file: Path | None = None
    """Where runs outlive a restart of the exporter; None for nowhere."""
    limits: Limits = field(default_factory=Limits)
    expiry: float = DEFAULT_EXPIRY
    """Seconds for which an ended rank's series stay, and of silence until an unseen one is lost."""
    token_file: Path | None = None
    """Tokens that reports must be signed with; None where anybody may report who reaches a door."""
    token_window: float = DEFAULT_WINDOW
    """Seconds by which a signature's time may differ from this machine's."""
    socket_needs_token: bool = False
    """Whether reports through the UNIX socket must be signed too, and not only those over networks."""
    trace_requests: bool = False
    """Whether requests for traces are taken."""


class Intake:
    """See the module."""

    def __init__(self, settings: IntakeSettings, *, clock: Clock | None = None, root: Path = Path("/")) -> None:
        """Prepare; nothing is opened yet.

        Args:
            settings: see there.
            clock: the machine's own if left out.
            root: where `proc` lies, of the same pid namespace as this process.

        Raises:
            TokenError: the token file can't be used.
        """
        clock = clock or SystemClock()
        self.authentication: Authentication | None = None
        """Who may report over networks; None for anybody."""
        if settings.token_file is not None:
            self.authentication = Authentication(settings.token_file, window=settings.token_window, clock=clock)
        self._socket_needs_token = settings.socket_needs_token
        self._complaints = Complaints(clock)
        self.registry = RunRegistry(settings.limits, expiry=settings.expiry, clock=clock, root=root)
        folder = None if settings.socket is None else settings.socket.parent
        self.traces = TraceRequests(self.registry, folder, allowed=settings.trace_requests, clock=clock)
        doors: list[Door] = []
        if settings.socket is not None:
            doors.append(UnixDoor(settings.socket, settings.socket_mode))
        if settings.udp is not None:
            # A notice has no signature, so there is none where reports over UDP require one.
            doors.append(UdpDoor(*settings.udp, notices=self.authentication is None))
        self._doors = DoorKeeper(
            tuple(doors),
            self._accept,
            self.registry.count_overtaken,
            self._terminate,
            clock=clock,
            complaints=self._complaints,
        )
        self._journal = None if settings.state_file is None else Journal(settings.state_file, clock=clock, root=root)
        self._clock = clock
        self._saved_changes = 0
        self._saved_at = clock.monotonic()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def doors(self) -> tuple[Door, ...]:
        """The datagram doors; a `problem` says which are not open and why."""
        return self._doors.doors

    def start(self) -> None:
        """Read the state file, open the doors, and keep house once a second."""
        if self._journal is not None:
            self.registry.restore(self._journal.load())
            self._saved_changes = self.registry.changes
            self.registry.check_processes()  # so that the first page shows no rank that has ended meanwhile as running
        self._doors.start()
        self._thread = threading.Thread(target=self._keep_house_for_ever, name="intake", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Close the doors and write the state file."""
        self._doors.stop(timeout)
        self.traces.close()
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None
            self._save()

    def collect(self) -> list[Sample]:
        """Every series of the report path. Memory only; any thread."""
        return self.registry.collect()

    def post(self, body: bytes, client: str = "") -> tuple[int, bytes]:
        """Take in a report that came as a POST body.

        Args:
            body: the report.
            client: the address that it came from, for the log.

        Returns:
            HTTP status and body: 204 and nothing; 200 and a wish for traces, where there is one; or 4xx and a JSON
            object with `error`, the reason's word, and `message`.
        """
        try:
            report = self._accept(body, "http")
        except ReportError as error:
            if error.reason in _LOGGED:
                self._complaints.tell(f"HTTP from {client}" if client else "HTTP", error)
            answer = json.dumps({"error": error.reason, "message": error.message})
            return _STATUS.get(error.reason, 400), answer.encode()
        wish = self.traces.answer(report)
        return (200, wish) if wish else (204, b"")

    def keep_house(self) -> None:
        """One round of what the background thread does: find lost ranks, let go of old ones, save now and then."""
        try:
            self.registry.check_processes()
            self.traces.let_go_of_expired()
            if self._clock.monotonic() - self._saved_at >= _SAVE_INTERVAL:
                self._save()
        except Exception:
            _logger.exception("the runs could not be checked; trying again")

    def _accept(self, data: bytes, transport: Transport, pid_seen: int | None = None, uid: int | None = None) -> Report:
        spared = transport == "unix" and not self._socket_needs_token
        return self.registry.accept(data, transport, pid_seen, None if spared else self.authentication, uid)

    def _terminate(self, sessions: tuple[str, ...], pid_seen: int | None, uid: int | None) -> None:
        # A notice has no signature. Where the UNIX socket requires one, the kernel must name the session's process.
        self.registry.terminate(sessions, pid_seen, uid, pid_required=self._socket_needs_token)

    def _keep_house_for_ever(self) -> None:
        while not self._stopping.wait(_CHECK_INTERVAL):
            self.keep_house()

    def _save(self) -> None:
        changes = self.registry.changes
        self._saved_at = self._clock.monotonic()
        if self._journal is not None and changes != self._saved_changes and self._journal.save(self.registry.held):
            self._saved_changes = changes
