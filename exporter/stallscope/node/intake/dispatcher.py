"""Reads the datagram receivers, one thread each, and dispatches what arrives.

A receiver that can't be opened does not stop the others. Its `problem` states the reason and the remedy, and the
dispatcher tries again. It also reopens a receiver whose socket file was removed.

Reports are dispatched in batches: a report in a batch costs half as much as a single one, and older reports of a
session are skipped. The batch interval grows with the CPU time of a batch. The last report of a session is dispatched
at once, because the rank would count as lost if its process were found gone first. The socket is read while a batch is
dispatched, because the kernel's queue of a UNIX socket holds only eleven datagrams.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from stallscope.node.intake.pending import PassedFile, is_last, newest, sessions_terminated
from stallscope.node.intake.receivers import Received, Receiver
from stallscope.node.intake.refusal_log import RefusalLog
from stallscope.node.intake.runs import Transport
from stallscope.node.sampling.clock import Clock, SystemClock
from stallscope.training.protocol.report import Report, ReportError

_logger = logging.getLogger(__name__)

Accept = Callable[[bytes, Transport, int | None, int | None], object]
Terminated = Callable[[tuple[str, ...], int | None, int | None], object]
Passed = Callable[[Report, PassedFile], object]

_READ_BETWEEN = 16
"""Datagrams to read between two dispatched ones: more than a UNIX socket's queue holds, but bounded during a flood."""


@dataclass(frozen=True)
class BatchLimits:
    """Limits of a batch of reports."""

    cpu_share: float = 0.005
    """Share of one CPU that dispatching may use; above it, the batch interval grows."""
    interval: float = 1.0
    """Longest batch interval in seconds."""
    datagrams: int = 256
    """Datagrams of a receiver that make a batch full."""
    size: int = 1 << 20
    """Bytes of a receiver's datagrams that make a batch full."""


class _Batch:
    """Datagrams that were received and not yet dispatched."""

    def __init__(self, limits: BatchLimits) -> None:
        self.received: list[Received] = []
        self._limits = limits
        self._urgent = False
        self._size = 0

    @property
    def full(self) -> bool:
        return len(self.received) >= self._limits.datagrams or self._size >= self._limits.size

    def add(self, received: Received) -> None:
        data = received[0]
        self.received.append(received)
        self._urgent = self._urgent or is_last(data) or bool(sessions_terminated(received[3]))
        self._size += len(data)

    def may_wait(self, due: float) -> bool:
        """Return True if more datagrams may be added before `due`."""
        return not (self._urgent or self.full) and time.monotonic() < due


class Dispatcher:
    """Threads that read receivers and dispatch reports."""

    def __init__(
        self,
        receivers: tuple[Receiver, ...],
        accept: Accept,
        overtaken: Callable[[Transport, int], object] = lambda _transport, _number: None,
        terminated: Terminated = lambda _sessions, _pid, _uid: None,
        passed: Passed = lambda _report, _file: None,
        *,
        limits: BatchLimits | None = None,
        check_interval: float = 1.0,
        clock: Clock | None = None,
        refusals: RefusalLog | None = None,
    ) -> None:
        """Prepare; no receiver is opened yet.

        Args:
            receivers: the receivers to read.
            accept: called with data, transport, and the sender's pid and uid, by any thread; may raise ReportError.
            overtaken: called with transport and number of reports that were skipped for newer ones of their session.
            terminated: called with the sessions, pid and uid of a process that SIGTERM or SIGHUP ends.
            passed: called with an accepted report and the file that came with it.
            limits: limits of a batch; the defaults if left out.
            check_interval: seconds between two checks that a receiver is open and its file in place.
            clock: the machine's own by default.
            refusals: log of refused reports, since senders of datagrams get no answer.
        """
        self.receivers = receivers
        self._accept = accept
        self._overtaken = overtaken
        self._terminated = terminated
        self._passed = passed
        self._limits = limits or BatchLimits()
        self._check_interval = check_interval
        self._clock = clock or SystemClock()
        self._refusals = refusals or RefusalLog(self._clock)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Open the receivers and start reading; log those that can't be opened."""
        for receiver in self.receivers:
            if not receiver.open():
                _logger.warning("%s", receiver.problem)
            self._threads.append(
                threading.Thread(target=self._run, args=(receiver,), name=f"receiver-{receiver.transport}", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Dispatch what has arrived, and close the receivers."""
        if not self._threads:
            return
        self._stopping.set()
        for receiver in self.receivers:
            receiver.shut()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads = []
        for receiver in self.receivers:
            receiver.close()

    def _run(self, receiver: Receiver) -> None:
        batch = _Batch(self._limits)
        due, checked = 0.0, self._clock.monotonic()
        while not self._stopping.is_set():
            if receiver.socket is None:
                self._stopping.wait(self._check_interval)
            elif (received := receiver.receive(wait=not batch.received or batch.may_wait(due))) is not None:
                batch.add(received)
            if batch.may_wait(due):
                continue
            if batch.received:
                began = time.thread_time()
                batch = self._dispatch(batch, receiver)
                spent = time.thread_time() - began
                due = time.monotonic() + min(self._limits.interval, spent / self._limits.cpu_share)
            if self._clock.monotonic() - checked >= self._check_interval:
                self._reopen(receiver, batch)
                checked = self._clock.monotonic()
        batch = self._dispatch(batch, receiver)
        self._read(receiver, batch)
        self._dispatch(batch, receiver)

    def _reopen(self, receiver: Receiver, batch: _Batch) -> None:
        """Open a receiver that is closed or whose file is gone; datagrams in the old socket join the batch."""
        if receiver.socket is not None:
            if receiver.in_place():
                return
            _logger.warning("the socket file %s is gone; creating it again", receiver.address)
            self._read(receiver, batch)
            receiver.close()
        elif receiver.unresolvable:
            return
        problem = receiver.problem
        if receiver.open():
            _logger.info("%s receives reports again", receiver.address)
        elif receiver.problem != problem:
            _logger.warning("%s", receiver.problem)

    def _read(self, receiver: Receiver, batch: _Batch) -> None:
        """Add the datagrams in the socket's queue to the batch, if the receiver is open."""
        for _ in range(_READ_BETWEEN):
            received = None if receiver.socket is None else receiver.receive(wait=False)
            if received is None:
                return
            batch.add(received)

    def _dispatch(self, batch: _Batch, receiver: Receiver) -> _Batch:
        """Dispatch a batch, and return the datagrams that arrived meanwhile as the next one."""
        arrived = _Batch(self._limits)
        read = [receiver.read(received) for received in batch.received]
        datagrams = newest(read)
        overtaken = sum(not each.terminated for each in read) - sum(not each.terminated for each in datagrams)
        self._overtaken(receiver.transport, overtaken)
        for datagram in datagrams:
            try:
                if datagram.terminated:
                    self._terminated(datagram.terminated, datagram.pid or None, datagram.uid)
                else:
                    report = self._accept(datagram.data, receiver.transport, datagram.pid, datagram.uid)
                    if isinstance(report, Report):
                        receiver.remember(datagram, report.session)
                        if datagram.file is not None:
                            self._passed(report, datagram.file)
            except ReportError as error:
                where = f"{receiver.address} from {datagram.origin}" if datagram.origin else receiver.address
                self._refusals.log(where, error)
            except Exception:
                _logger.exception("a report through %s failed", receiver.address)
            if not arrived.full:
                self._read(receiver, arrived)
        return arrived
