"""Read the sockets for reports, each on its own thread, and pass the datagrams to the runs.

If a socket can't be opened, its `problem` states why and what to do. The other sockets work, and it is retried. A
socket whose file was removed is reopened, because senders can no longer reach it.

Reports are processed in batches: a report in a batch costs half as much as a single one, and a report that a newer one
replaces costs nothing. The interval between batches grows with their cost. The last report of a session is processed at
once: otherwise its process would be found gone, and the rank lost, before the report is read. During a batch the socket
is still read, because the kernel's queue for a UNIX socket holds only eleven datagrams.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from stallscope.intake.complaints import Complaints
from stallscope.intake.doors import Door, Received
from stallscope.intake.runs import Transport
from stallscope.intake.waiting import is_last, newest, sessions_terminated
from stallscope.protocol.report import Report, ReportError
from stallscope.sampling.clock import Clock, SystemClock

_logger = logging.getLogger(__name__)

Accept = Callable[[bytes, Transport, int | None, int | None], object]
Terminated = Callable[[tuple[str, ...], int | None, int | None], object]

_SHARE = 0.005
"""Target share of one CPU for processing reports. Larger costs lengthen the wait between batches."""
_LONGEST_WAIT = 1.0
"""Maximum seconds between two batches."""
_MOST_WAITING = 256
"""Datagrams that make a batch full, so that it is processed at once."""
_MOST_BYTES = 1 << 20
"""Total bytes that make a batch full."""
_AT_ONCE = 16
"""Datagrams read between two processed ones: more than a UNIX socket's queue holds, but bounded in a flood."""
_MENDING_INTERVAL = 1.0
"""Seconds between two checks that a socket is open and its file in place."""


class _Waiting:
    """Datagrams received but not yet processed."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._urgent = False
        self._bytes = 0

    @property
    def full(self) -> bool:
        return len(self.received) >= _MOST_WAITING or self._bytes >= _MOST_BYTES

    def add(self, received: Received) -> None:
        data = received[0]
        self.received.append(received)
        self._urgent = self._urgent or is_last(data) or bool(sessions_terminated(received[3]))
        self._bytes += len(data)

    def may_wait(self, due: float) -> bool:
        """Return True if more datagrams may still be awaited, until `due` at the latest."""
        return not (self._urgent or self.full) and time.monotonic() < due


class DoorKeeper:
    """Reads all sockets for reports."""

    def __init__(
        self,
        doors: tuple[Door, ...],
        accept: Accept,
        overtaken: Callable[[Transport, int], object] = lambda _transport, _number: None,
        terminated: Terminated = lambda _sessions, _pid, _uid: None,
        *,
        clock: Clock | None = None,
        complaints: Complaints | None = None,
    ) -> None:
        """Prepare; no door is opened yet.

        Args:
            doors: to read from.
            accept: called with data, transport, and the sender's pid and uid, by any thread; may raise ReportError.
            overtaken: called with transport and number of reports that newer ones of their session have overtaken.
            terminated: called with the sessions, pid and uid of a process that SIGTERM or SIGHUP ends.
            clock: the machine's own by default.
            complaints: logs why a report was refused, since senders of datagrams get no response.
        """
        self.doors = doors
        self._accept = accept
        self._overtaken = overtaken
        self._terminated = terminated
        self._clock = clock or SystemClock()
        self._complaints = complaints or Complaints(self._clock)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Open the doors and read from those that opened; the others are logged."""
        for door in self.doors:
            if not door.open():
                _logger.warning("%s", door.problem)
            self._threads.append(
                threading.Thread(target=self._keep, args=(door,), name=f"door-{door.transport}", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Process the datagrams that have arrived, and close the sockets."""
        if not self._threads:
            return
        self._stopping.set()
        for door in self.doors:
            door.shut()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads = []
        for door in self.doors:
            door.close()

    def _keep(self, door: Door) -> None:
        waiting = _Waiting()
        due, mended = 0.0, self._clock.monotonic()
        while not self._stopping.is_set():
            if door.socket is None:
                self._stopping.wait(_MENDING_INTERVAL)
            elif (received := door.receive(wait=not waiting.received or waiting.may_wait(due))) is not None:
                waiting.add(received)
            if waiting.may_wait(due):
                continue
            if waiting.received:
                began = time.thread_time()
                waiting = self._take_in(waiting, door)
                due = time.monotonic() + min(_LONGEST_WAIT, (time.thread_time() - began) / _SHARE)
            if self._clock.monotonic() - mended >= _MENDING_INTERVAL:
                self._mend(door, waiting)
                mended = self._clock.monotonic()
        waiting = self._take_in(waiting, door)
        self._receive(door, waiting)
        self._take_in(waiting, door)

    def _mend(self, door: Door, waiting: _Waiting) -> None:
        """Reopen the socket if necessary; datagrams received through the previous socket are kept."""
        if door.socket is not None:
            if door.in_place():
                return
            _logger.warning("%s is no longer in its place; reopening it", door.address)
            self._receive(door, waiting)
            door.close()
        elif door.hopeless:
            return
        problem = door.problem
        if door.open():
            _logger.info("reports can come through %s again", door.address)
        elif door.problem != problem:
            _logger.warning("%s", door.problem)

    def _receive(self, door: Door, waiting: _Waiting) -> None:
        """Move the received datagrams to `waiting`, if the socket is open."""
        for _ in range(_AT_ONCE):
            received = None if door.socket is None else door.receive(wait=False)
            if received is None:
                return
            waiting.add(received)

    def _take_in(self, waiting: _Waiting, door: Door) -> _Waiting:
        """Process the waiting datagrams; return the datagrams that arrived meanwhile."""
        arrived = _Waiting()
        read = [door.read(received) for received in waiting.received]
        datagrams = newest(read)
        overtaken = sum(not each.terminated for each in read) - sum(not each.terminated for each in datagrams)
        self._overtaken(door.transport, overtaken)
        for datagram in datagrams:
            try:
                if datagram.terminated:
                    self._terminated(datagram.terminated, datagram.pid or None, datagram.uid)
                else:
                    report = self._accept(datagram.data, door.transport, datagram.pid, datagram.uid)
                    if isinstance(report, Report):
                        door.note(datagram, report.session)
            except ReportError as error:
                where = f"{door.address} from {datagram.origin}" if datagram.origin else door.address
                self._complaints.tell(where, error)
            except Exception:
                _logger.exception("a report through %s could not be taken in", door.address)
            if not arrived.full:
                self._receive(door, arrived)
        return arrived
