"""Registry of runs: the last report of each rank, its state, and the resulting series.

A rank is identified by run and rank number; each process that reports it is a session. Late and duplicate reports of a
session are accepted and have no effect, because newer reports are cumulative.

What happens to a report is decided elsewhere: under which name it is held (`ownership`), whether it may follow the rank
that holds this place (`succession`), whether there is room for it (`room`), which of its names become series
(`known_names`); and without a report, whether a rank still runs (`liveness`) and whether it stays (`expiry`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal

from stallscope.model.catalogue.metrics import MetricType, family
from stallscope.node.intake import authentication
from stallscope.node.intake.authentication import Authentication
from stallscope.node.intake.expiry import unexpired
from stallscope.node.intake.held import Held
from stallscope.node.intake.known_names import KnownNames
from stallscope.node.intake.liveness import gone, has_gone, signalled
from stallscope.node.intake.ownership import Names
from stallscope.node.intake.processes import Processes
from stallscope.node.intake.quotas import Key, Limits, Sender, Usage, has_new_names, usage_of
from stallscope.node.intake.room import Room
from stallscope.node.intake.series import samples_of
from stallscope.node.intake.succession import monotonic, succession, without_restart
from stallscope.node.sampling.clock import Clock, SystemClock
from stallscope.node.sampling.reading import Sample
from stallscope.training.protocol import signature
from stallscope.training.protocol.report import REASONS, Report, ReportError, parse
from stallscope.training.protocol.vocabulary import LAST_STATES, MAX_BYTES, TRIAL_RUN

REPORTS = family("stallscope_exporter_reports_total")
REPORTS_REJECTED = family("stallscope_exporter_reports_rejected_total")
RUNS = family("stallscope_exporter_runs")
SERIES_DROPPED = family("stallscope_exporter_series_dropped_total")

Transport = Literal["unix", "udp", "http"]
TRANSPORTS: tuple[Transport, ...] = ("unix", "udp", "http")
REJECTION_REASONS = (
    *REASONS,
    *("future", "run_limit", "rank_limit", "series_limit", "memory_limit", "superseded", "not_owner"),
    *authentication.REASONS,
)
DEFAULT_EXPIRY = 900.0
MAX_CLOCK_LEAD = 3600.0
"""Seconds that a session's start may be ahead of this machine's clock. Later sessions could never replace one far
ahead."""

_LOCAL_CLOCK_LEAD = 60.0
"""The limit for a session on this machine, which has the same clock."""
_CUMULATIVE = (MetricType.COUNTER, MetricType.HISTOGRAM)
_RESTORED_SECONDS = 60.0
"""Seconds in which a restored rank must report before it counts as silent."""

_logger = logging.getLogger(__name__)


class RunRegistry:
    """Admits reports and exposes their series. Thread-safe; `collect` takes no lock."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        expiry: float = DEFAULT_EXPIRY,
        clock: Clock | None = None,
        root: Path = Path("/"),
    ) -> None:
        """Start empty.

        Args:
            limits: the defaults if left out; the attribute may be replaced later.
            expiry: seconds that the series of an ended rank stay; the attribute may be replaced later.
            clock: the machine's own if left out.
            root: folder that contains `proc`.
        """
        self.expiry = expiry
        self._clock = clock or SystemClock()
        self._processes = Processes(root)
        self._writing = threading.Lock()
        # A reader may iterate at any time: keys are added or removed by replacing the dictionary, values in place.
        self._held: dict[Key, Held] = {}
        self._room = Room(limits or Limits())
        self._run_names = Names(self._processes)
        self._series_names = KnownNames()
        self._arrived: dict[str, int] = dict.fromkeys(TRANSPORTS, 0)
        self._rejected: dict[str, int] = dict.fromkeys(REJECTION_REASONS, 0)
        self._changes = 0
        self._collected: dict[Key, tuple[Held, tuple[Sample, ...]]] = {}

    @property
    def limits(self) -> Limits:
        """Limits of runs, ranks, series and memory."""
        return self._room.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._room.limits = limits

    @property
    def held(self) -> tuple[Held, ...]:
        """Every rank."""
        return tuple(self._held.values())

    @property
    def alive(self) -> list[Held]:
        """Every rank that has not ended."""
        return [held for held in self._held.values() if held.ended is None]

    def holding(self, report: Report) -> Held | None:
        """Return the rank that holds the session of an accepted report, or None if another session has its place."""
        held = self._held.get((self._run_names.of(report), report.rank))
        return held if held is not None and held.report.session == report.session else None

    @property
    def changes(self) -> int:
        """Number of changes so far."""
        return self._changes

    def accept(
        self,
        data: bytes,
        transport: Transport,
        pid_seen: int | None = None,
        authentication: Authentication | None = None,
        uid: int | None = None,
    ) -> Report:
        """Accept one report. A report of `TRIAL_RUN` is checked and counted, but not held.

        Args:
            data: the document's bytes.
            transport: transport of the report.
            pid_seen: pid of the sender in this process' pid namespace, if the kernel reports it.
            authentication: verifies the signature; without it, signatures are ignored.
            uid: user of the sender, if the kernel reports it.

        Raises:
            ReportError: with a reason of `REJECTION_REASONS`. It is counted, and no rank has changed.
        """
        with self._writing:
            self._arrived[transport] += 1
        try:
            if len(data) > MAX_BYTES or not (authentication or signature.is_signed(data)):
                report = parse(data)
            elif authentication is None:
                report = parse(signature.document_of(data))
            else:
                report = parse(authentication.opened(data))
                authentication.refuse_replay(report)
            if report.run != TRIAL_RUN:
                with self._writing:
                    self._admit(report, pid_seen or None, uid)
        except ReportError as error:
            with self._writing:
                self._rejected[error.reason] += 1
            raise
        return report

    def count_overtaken(self, transport: Transport, number: int) -> None:
        """Count reports that were skipped because a newer one of their session had arrived."""
        with self._writing:
            self._arrived[transport] += number

    def terminate(
        self, sessions: Collection[str], pid_seen: int | None, uid: int | None = None, *, pid_required: bool = False
    ) -> None:
        """Accept the notice that SIGTERM or SIGHUP reached the process of these sessions.

        Args:
            sessions: from the sender's address.
            pid_seen: pid of the sender, if the kernel reports it; a forked child has a different one.
            uid: user of the sender, if the kernel reports it; the notice of another user is ignored.
            pid_required: ignore a notice that the kernel can't attribute to the process of the session.
        """
        now = self._clock.monotonic()
        with self._writing:
            for key, held in self._held.items():
                if held.report.session not in sessions or (held.ended is not None and not held.lost):
                    continue
                if held.uid != uid:
                    continue
                if (held.process is None and pid_required) or (held.process and held.process.pid != pid_seen):
                    continue
                self._held[key] = signalled(held, now)
                self._changes += 1

    def check_processes(self) -> None:
        """Mark lost and terminated ranks, and drop expired ones. Reads `/proc`."""
        now = self._clock.monotonic()
        ended = [
            (key, held)
            for key, held in list(self._held.items())
            if held.ended is None and has_gone(held, self._processes, now, self.expiry)
        ]
        with self._writing:
            for key, held in ended:
                if self._held.get(key) is held:  # otherwise it has reported since
                    self._held[key] = gone(held, now)
                    self._changes += 1
            self._drop_expired(now)

    def restore(self, holdings: Iterable[Held]) -> None:
        """Restore ranks from before a restart of the exporter, within the limits; ranks that have reported since stay.

        Silence continues while the exporter is down. A rank whose process is not visible has a minute for its next
        report, because earlier reports found no exporter. It is dropped after a silence of twice the expiry time.

        The counters and histograms of a rank are absent until its next report, because the file may be older than the
        last scrape: Prometheus treats a lower counter as a reset, and would count the difference twice.
        """
        now = self._clock.monotonic()
        with self._writing:
            for held in holdings:
                key = held.key
                if held.ended is None and held.process is None:
                    if now - held.last_seen >= 2.0 * self.expiry:
                        continue
                    held = held._replace(last_seen=max(held.last_seen, now - self.expiry + _RESTORED_SECONDS))
                try:
                    if key not in self._held:
                        self._make_room(key, held.uid, usage_of(held.report), 0)
                        report = self._series_names.within_value_names(held.report, self.limits.value_names_per_run)
                        self._room.totals.set(key, held.uid, usage_of(report))
                        self._series_names.start(key, report)
                        self._held = {**self._held, key: held._replace(report=report, restored=True)}
                        if held.reported_run:
                            self._run_names.remember(held.reported_run, report)
                        self._changes += 1
                except ReportError as error:
                    self._rejected[error.reason] += 1
            self._drop_expired(now)

    def collect(self) -> list[Sample]:
        """Return every series of every rank, and of the registry itself. Reads memory only."""
        known = self._collected
        collected: dict[Key, tuple[Held, tuple[Sample, ...]]] = {}
        ranks: list[Sample] = []
        for key, held in list(self._held.items()):
            entry = known.get(key)
            if entry is None or entry[0] is not held:
                samples: Iterable[Sample] = samples_of(held)
                if held.restored:
                    samples = (each for each in samples if each.family.type not in _CUMULATIVE)
                entry = (held, tuple(samples))
            collected[key] = entry
            ranks += entry[1]
        self._collected = collected
        # The registry's own series come first: they must be on a page that is full.
        samples = [Sample(REPORTS, (transport,), number) for transport, number in self._arrived.items()]
        samples += [Sample(REPORTS_REJECTED, (reason,), number) for reason, number in self._rejected.items()]
        samples.append(Sample(RUNS, (), len({run for run, _rank in collected})))
        samples.append(Sample(SERIES_DROPPED, ("value_names_per_run",), self._series_names.dropped_values))
        samples.append(Sample(SERIES_DROPPED, ("series_quota",), self._series_names.dropped_series))
        return samples + ranks

    def _admit(self, reported: Report, pid_seen: int | None, sender: Sender) -> None:
        now, wall = self._clock.monotonic(), self._clock.time()
        report, held, process = self._run_names.place(self._held, reported, pid_seen, sender)
        key = (report.run, report.rank)
        restarts, ended, notice = report.restarts, None, None
        former: tuple[str, ...] = ()
        if held is not None and held.report.session == report.session:
            if report.sequence <= held.report.sequence:
                return
            report = monotonic(held.report, report)
            restarts, former, notice = held.restarts, held.former, held.signalled
            if not held.lost:  # otherwise the known process was wrong
                process, ended = held.process or process, held.ended
        # Only for new sessions: a held one must not fall silent because a clock was set back.
        elif report.start > wall + (MAX_CLOCK_LEAD if sender is None else _LOCAL_CLOCK_LEAD):
            raise ReportError(
                "future", f"start is {report.start - wall:.0f} s ahead of this machine's clock; synchronize the clocks"
            )
        elif held is None:
            usage = usage_of(report)
            self._make_room(key, sender, usage, usage.series)
            if report.run != reported.run:
                self._start_beside(reported, report.run)
        else:
            restarts, former, forgotten = succession(held, report, process, sender, self._processes)
            self._run_names.forget(reported.run, report.rank, forgotten)
            self._series_names.restart_values(key, self._held)
        if report.state not in LAST_STATES:
            ended = None
        elif ended is None:
            ended = now
            if report.failure:
                _logger.info("run %r rank %d failed with %s", report.run, report.rank, report.failure)
        self._run_names.remember(reported.run, report)
        report = self._series_names.within_value_names(report, self.limits.value_names_per_run)
        if held is not None:
            report = self._within_quota(key, sender, held.report, report)
        else:
            self._series_names.start(key, report)
        self._room.totals.set(key, sender, usage_of(report))
        entry = Held(
            report,
            wall,
            now,
            restarts,
            process,
            lost=False,
            ended=ended,
            reported_run=reported.run if reported.run != report.run else "",
            former=former,
            signalled=notice,
            uid=sender,
            admitted=now if held is None else held.admitted,
        )
        if held is None:
            self._held = {**self._held, key: entry}
        else:
            self._held[key] = entry
        self._changes += 1
        if ended is not None and (held is None or held.ended is None):
            self._drop_expired(now)

    def _start_beside(self, reported: Report, name: str) -> None:
        """Note that a new run has the name of another one in its reports, and is held under `name`."""
        key = (reported.run, reported.rank)
        other = self._held.get(key)
        if other is not None and reported.session in other.former:
            self._held[key] = without_restart(other)
        _logger.warning(
            "run %r rank %d is reported by two live processes; the second one is shown as run %r: "
            "give the runs different names",
            *(reported.run, reported.rank, name),
        )

    def _make_room(self, key: Key, sender: Sender, usage: Usage, new_series: int) -> None:
        """Displace ranks for a new or growing rank that would exceed a limit.

        Raises:
            ReportError: the rank would still exceed a limit; no rank is displaced.
        """
        now = self._clock.monotonic()
        if not self._room.fits(key, usage):
            self._drop_expired(now)
        displaced = self._room.make(self._held, key, sender, usage, new_series, now, self.expiry)
        if displaced:
            self._keep({each: held for each, held in self._held.items() if each not in displaced})

    def _within_quota(self, key: Key, sender: Sender, before: Report, after: Report) -> Report:
        """Drop new names in the report of a held rank at a limit."""
        if not has_new_names(before, after):
            return after
        series = self._series_names.new_series(key, after)
        try:
            self._make_room(key, sender, usage_of(after), series)
        except ReportError:
            return self._series_names.without_new(before, after, series)
        self._series_names.extend(key, after)
        return after

    def _drop_expired(self, now: float) -> None:
        self._room.forget_created(now, self.expiry)
        kept = unexpired(self._held, now, self.expiry, self.limits, self._room.totals.sender_of)
        if len(kept) < len(self._held):
            self._keep(kept)

    def _keep(self, kept: dict[Key, Held]) -> None:
        for key in self._held.keys() - kept.keys():
            self._room.totals.remove(key)
        self._held = kept
        self._series_names.keep(kept)
        self._run_names.keep(kept)
        self._changes += 1
