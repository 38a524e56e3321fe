"""Reads the doors, a thread each, and hands on what comes.

A door that can't be opened is no reason to stop: its `problem` says why and what to do, the others work, and it is
tried again. So is one whose socket file was removed: nobody could find it any more.

Reports wait for others before they are taken in: one after the other, each costs half as much as alone, and what a
newer one overtakes costs nothing. The more it costs, the longer they wait; the last one of a session doesn't, or its
process would be found gone, and the rank lost, before it is known to have finished. Meanwhile the door is read, for the
kernel's queue for a UNIX socket has room for eleven.
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
"""Of a processor that taking in may use; beyond it reports wait for others ..."""
_LONGEST_WAIT = 1.0
"""... but not for longer than this, in seconds."""
_MOST_WAITING = 256
"""Datagrams of a door that wait at most; then they are taken in at once ..."""
_MOST_BYTES = 1 << 20
"""... and so they are when they are this long together."""
_AT_ONCE = 16
"""Datagrams read between two that are taken in: more than a UNIX socket's queue holds, and no flood without end."""
_MENDING_INTERVAL = 1.0
"""Seconds between two looks at whether a door is open and in its place."""


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
    """See the module."""

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
            complaints: hears why a report was refused, since senders of datagrams get no answer.
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
        """Take in what has arrived by now, and close."""
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
        """Open the door anew if it has to be; what came through the former one waits with the rest."""
        if door.socket is not None:
            if door.in_place():
                return
            _logger.warning("%s is no longer in its place; opening it anew", door.address)
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
        """Let what has come to the door wait here, if it is open."""
        for _ in range(_AT_ONCE):
            received = None if door.socket is None else door.receive(wait=False)
            if received is None:
                return
            waiting.add(received)

    def _take_in(self, waiting: _Waiting, door: Door) -> _Waiting:
        """Take in what waits, and keep the door free meanwhile; what came through it."""
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
