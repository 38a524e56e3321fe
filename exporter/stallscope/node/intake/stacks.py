"""Read the stacks and lines that ranks write to memory files, once a second, and answer requests for them.

A file comes from an untrusted process. It must be a memory file whose size is sealed, so that reading it neither blocks
nor fails, and its text is parsed within limits. It belongs to the rank whose report it was sent with: the kernel
reports the sender, and no other user can report for that rank.
"""

from __future__ import annotations

import fcntl
import logging
import os
import resource
import stat
import threading
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple

from stallscope.model.catalogue.metrics import family
from stallscope.node.intake.held import Held
from stallscope.node.intake.pending import PassedFile
from stallscope.node.intake.quotas import Key
from stallscope.node.intake.requests import Refusal, RequestFolder, answer, document_of, live_ranks, refuse_foreign
from stallscope.node.intake.runs import RunRegistry
from stallscope.node.sampling.clock import Clock, SystemClock
from stallscope.node.sampling.reading import Sample
from stallscope.training.protocol import stack_request, step_request
from stallscope.training.protocol.rank_stacks import RankStacks
from stallscope.training.protocol.report import Report
from stallscope.training.protocol.request_name import STACKS, request_name
from stallscope.training.protocol.stack_file import STACKS_SIZE
from stallscope.training.protocol.stack_request import StackRequest
from stallscope.training.protocol.stacks import MAX_SAMPLES, Capture, Stack, parse, place_of

STACK_INFO = family("stallscope_training_stack_info")

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SETTLED = 0.1
"""Seconds from the last write of a file until it is read, because its timestamp has a resolution of milliseconds."""

_logger = logging.getLogger(__name__)


class Left(NamedTuple):
    """The stacks or lines of a rank, and when it wrote them."""

    capture: Capture
    at: float
    """Unix time."""

    def is_standstill(self, held: Held) -> bool:
        """Return whether the rank is at a standstill, and has sent no report since."""
        return self.capture.standstill and self.at >= held.arrived


class _Entry:
    """The file of a rank's session."""

    def __init__(self, session: str, file: PassedFile, identity: tuple[int, int]) -> None:
        self.session = session
        self.file = file
        self.identity = identity
        self.read_at = 0
        """Modification time of the file when it was last read, in nanoseconds."""
        self.left: Left | None = None


class StackFiles:
    """The files of all ranks. `keep` and `refresh` may be called by different threads; reading needs no lock."""

    def __init__(self, registry: RunRegistry, *, clock: Clock | None = None) -> None:
        """Start without a file.

        Args:
            registry: the runs.
            clock: the system's clock by default.
        """
        self._registry = registry
        self._clock = clock or SystemClock()
        self._changing = threading.Lock()
        self._entries: dict[Key, _Entry] = {}
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = registry.limits.ranks if soft == resource.RLIM_INFINITY else soft // 4
        """Maximum number of files, because the exporter needs descriptors for other purposes."""

    def keep(self, report: Report, file: PassedFile) -> None:
        """Keep the file that was sent with an accepted report, unless it is kept already."""
        held = self._registry.holding(report)
        if held is None or held.ended is not None:
            return
        status = os.fstat(file.descriptor)
        key, identity = held.key, (status.st_dev, status.st_ino)
        with self._changing:
            known = self._entries.get(key)
            if known is not None and (known.session, known.identity) == (report.session, identity):
                return
            if known is None and len(self._entries) >= self.most:
                return
            if not _is_sealed(file.descriptor, status):
                _logger.warning("run %r rank %d sent a file that can't be read safely; it is ignored", *key)
                return
            self._entries = {**self._entries, key: _Entry(report.session, file, identity)}

    def refresh(self) -> None:
        """Read the files that have changed, and close those of ranks that have ended."""
        alive = {held.key: held.report.session for held in self._registry.alive}
        with self._changing:
            self._entries = {key: entry for key, entry in self._entries.items() if alive.get(key) == entry.session}
            entries = self._entries
        for key, entry in entries.items():
            self._read(key, entry)

    def has_file(self, key: Key) -> bool:
        """Return whether the exporter has a rank's file."""
        return key in self._entries

    def of(self, key: Key) -> Left | None:
        """Return the stacks of a rank, or None."""
        entry = self._entries.get(key)
        return None if entry is None else entry.left

    @property
    def standstills(self) -> dict[Key, Stack]:
        """The stack of each rank at a standstill."""
        found = {}
        for held in self._registry.alive if self._entries else ():
            left = self.of(held.key)
            if left is not None and left.is_standstill(held):
                found[held.key] = left.capture.stacks[-1]
        return found

    def collect(self) -> list[Sample]:
        """Return the line of code of each rank at a standstill. Reads memory only."""
        return [
            Sample(STACK_INFO, (run, str(rank), *place_of(stack)), 1) for (run, rank), stack in self.standstills.items()
        ]

    def _read(self, key: Key, entry: _Entry) -> None:
        written = os.fstat(entry.file.descriptor).st_mtime_ns
        if written == entry.read_at or self._clock.time() - written / 1e9 < _SETTLED:
            return
        entry.read_at = written
        try:
            capture = parse(os.pread(entry.file.descriptor, STACKS_SIZE, 0))
        except ValueError as problem:
            _logger.warning("the stacks of run %r rank %d can't be read: %s", *key, problem)
            capture = None
        if capture is not None:
            entry.left = Left(capture, written / 1e9)
        elif entry.left is not None and entry.left.capture.standstill:
            entry.left = None  # the rank reports again; requested stacks are kept


class _Pending(NamedTuple):
    """Unix times of a request: when it was made, when ranks that begin at once are done, and when it expires."""

    requested: float
    ends: float
    expires: float


class StackRequests:
    """Requests for the stacks of running jobs, and their results."""

    def __init__(
        self, registry: RunRegistry, files: StackFiles, folder: Path | None, *, clock: Clock | None = None
    ) -> None:
        """Start without a request.

        Args:
            registry: the runs.
            files: the files of their stacks.
            folder: folder of the socket; None without a socket.
            clock: the system's clock by default.
        """
        self.pickup = 6.0
        """Seconds after which every rank that reports has read a request; the shim reads them every five seconds."""
        self._registry = registry
        self._files = files
        self._folder = RequestFolder(folder)
        self._clock = clock or SystemClock()
        self._pending: dict[str, _Pending] = {}

    def post(self, body: bytes, owner: int | None = None) -> tuple[int, bytes]:
        """Accept `{"run": …, "samples": …, "interval": …, "ranks": […], "lines": …}`; the last three are optional.

        Args:
            body: the request; with 0 samples only the stored stacks are returned. If `lines` is true, each rank samples
                the lines in which it spends its time, instead of single stacks.
            owner: uid that must own the ranks' processes; None for any.

        Returns:
            HTTP status and JSON: 202 with `seconds`, the estimated time until the stacks are available, and `problem`,
            the reason why no rank will receive the request, or empty; 200 with the stacks for 0 samples; or 4xx with
            `error`, the reason, and `message`.
        """
        return answer(lambda: self._accept(body, owner))

    def drop_expired(self) -> None:
        """Remove the files of expired requests."""
        now = self._clock.time()
        for run in [run for run, pending in list(self._pending.items()) if now > pending.expires]:
            self._drop(run)

    def close(self) -> None:
        """Remove every file."""
        for run in list(self._pending):
            self._drop(run)

    def _accept(self, body: bytes, owner: int | None) -> tuple[int, dict[str, Any]]:
        document = document_of(body, "run, a string, and samples, a number")
        run, now = document["run"], self._clock.time()
        try:
            samples = step_request.whole(document.get("samples"), "samples", 0, MAX_SAMPLES)
            interval = stack_request.seconds(document.get("interval", 1.0), "interval", stack_request.MAX_INTERVAL)
            wanted = step_request.rank_numbers(document.get("ranks", []))
            lines = stack_request.flag(document.get("lines", False), "lines")
        except ValueError as problem:
            raise Refusal(400, "bad_request", str(problem)) from None
        ranks = live_ranks(self._registry, run, wanted)
        refuse_foreign(self._registry, ranks, owner, "lines of code" if lines else "stacks")
        if not samples:
            return 200, {"run": run, "time": now, "ranks": [self._result(held) for held in ranks]}
        former = self._pending.get(run, _Pending(-inf, now, now))
        if (wait := former.requested + self.pickup - now) > 0.0:
            message = f"stacks of run {run!r:.150} were requested a moment ago; try again in {ceil(wait)} s"
            raise Refusal(409, "busy", message)
        # Multiples of the interval are the same times for all exporters of a job.
        begins = ceil((now + self.pickup) / interval) * interval
        seconds = stack_request.LINES_SECONDS if lines else begins - now + samples * interval
        ends = now + seconds
        seconds += max(former.ends - now, 0.0)  # a rank completes one request after the other
        request = StackRequest(run, samples, interval, wanted, round(now + seconds, 3), round(begins, 3), lines)
        trouble = self._folder.write(request_name(STACKS, run), stack_request.encode(request))
        self._pending[run] = _Pending(now, ends, request.expires)
        fields = {"run": run, "samples": samples, "lines": lines, "ranks": len(ranks)}
        _logger.info("stacks requested", extra={"fields": fields})
        return 202, {"run": run, "time": now, "seconds": seconds, "problem": trouble}

    def _result(self, held: Held) -> dict[str, Any]:
        left = self._files.of(held.key)
        return RankStacks(
            rank=held.report.rank,
            reported=held.arrived,
            taken=None if left is None else left.at,
            standstill=left is not None and left.is_standstill(held),
            samples=() if left is None else left.capture.stacks,
            lines=None if left is None else left.capture.lines,
            reachable=self._files.has_file(held.key),
            pid=held.report.pid,
            world_size=held.report.info.get("world_size", ""),
        ).document()

    def _drop(self, run: str) -> None:
        self._pending.pop(run, None)
        self._folder.remove(request_name(STACKS, run))


def _is_sealed(descriptor: int, status: os.stat_result) -> bool:
    """Return whether this is a memory file of the correct size, which no process can change."""
    if not stat.S_ISREG(status.st_mode) or status.st_size != STACKS_SIZE:
        return False
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        return False
