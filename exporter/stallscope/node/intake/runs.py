"""Registry of runs: the last report of each rank, its state, and the resulting series.

A rank is identified by run and rank number; each process that reports it is a session. Late and duplicate reports of a
session are accepted and have no effect, because newer reports are cumulative.

A different session for a rank that is held

- is the rank's next session, a restart, if the held session has ended or its process is gone, whatever their clocks
  say; or, if its process is not visible, if the new session started later.
- becomes a run of its own, `<run>-<pid>`, if both processes are seen alive and each has a world size of one, as in a
  sweep.
- replaces the held session, without counting as a restart, if both processes are seen alive and belong to larger runs:
  only the session that started later counts, on every exporter alike.
- replaces the held session until that one reports again, if neither process is visible, as in two containers that
  report through UDP or HTTP. If each has a world size of one, the returning session then becomes a run of its own,
  `<run>-<session>`, and the other session no longer counts as a restart.

A replaced session is refused as `superseded` while the name is held, or until its successor has ended and its own
process is seen alive. Therefore the series of one name neither alternate between two runs nor mix them.

A run belongs to the user of its ranks that are seen alive: the uid that the kernel reports for the socket. A run of the
same name by another user is held as `<run>-<uid>`. A report for another user's session is refused as `not_owner`. A
sender without a uid (HTTP, and UDP except as in `local_senders`) can add ranks to a run, but never replaces a rank that
is seen alive. A rank that is seen alive replaces one of such a sender, whichever started first. The sender's run is
held as `<run>-network` if both have a world size of one; otherwise its rank is refused as `not_owner`. A run never gets
a name that belongs to another user.

States come from the shim's reports, except two. A rank is `lost` if its process is known to be gone, or if its process
is not visible and the rank has been silent for the expiry time. A rank is `terminated` when its process sends the
notice of SIGTERM or SIGHUP (see `shim.termination`), and also if its process is gone within ten minutes of that notice:
process 1 of a container ignores SIGTERM, continues to report, and is killed after the grace period. A process that is
not visible counts as gone after a minute of silence in these ten minutes. A newer report replaces both states. The
series of a finished, failed, terminated or lost rank stay for the expiry time.

Runs, ranks, series and memory are limited: in total, for each run, and for each sender (see `quotas`). A new rank above
a limit is refused. New names in reports of a held rank are dropped, and the rank stays. At a limit of the total,

- a local user displaces ranks of the largest sender, if that sender still holds at least as much as this user
  afterwards: first ended ranks, then ranks that the network reported only once, then the newest.
- a sender on the network displaces only ranks of the network that were reported once, more than a minute ago.

Of ended runs, the newest of each sender and in total stay; older ones are dropped before their expiry time, so that a
series of short runs neither fills the page nor prevents the next run.

No sender creates more series within an expiry time than the exporter may hold.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from stallscope.model.catalogue.metrics import ACTIVITIES, RUN_STATES, MetricType, family
from stallscope.node.intake import authentication
from stallscope.node.intake.authentication import Authentication
from stallscope.node.intake.processes import Process, Processes
from stallscope.node.intake.quotas import (
    Key,
    Sender,
    Totals,
    Usage,
    has_new_names,
    names_of,
    usage_of,
    without_new_names,
)
from stallscope.node.sampling.clock import Clock, SystemClock
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.training.protocol import signature
from stallscope.training.protocol.report import REASONS, CodeLine, Phase, Report, ReportError, parse
from stallscope.training.protocol.vocabulary import (
    COUNTERS,
    GAUGES,
    INFO_KEYS,
    LAST_STATES,
    MAX_BYTES,
    MAX_NAME_LENGTH,
    MAX_VALUES,
    TRIAL_RUN,
)

RANK_INFO = family("stallscope_training_rank_info")
RANK_GPU_INFO = family("stallscope_training_rank_gpu_info")
STATE = family("stallscope_training_state")
ACTIVITY = family("stallscope_training_activity")
START = family("stallscope_training_start_timestamp_seconds")
FIRST_STEP = family("stallscope_training_first_step_timestamp_seconds")
LAST_STEP = family("stallscope_training_last_step_timestamp_seconds")
LAST_PUSH = family("stallscope_training_last_push_timestamp_seconds")
RESTARTS = family("stallscope_training_restarts_total")
STEP_SECONDS = family("stallscope_training_step_seconds")
PHASE_SECONDS = family("stallscope_training_phase_seconds_total")
PHASE_GPU_SECONDS = family("stallscope_training_phase_gpu_seconds_total")
PHASE_OCCURRENCES = family("stallscope_training_phase_occurrences_total")
PHASE_MAX = family("stallscope_training_phase_max_seconds")
CODE_SECONDS = family("stallscope_training_code_seconds_total")
VALUE = family("stallscope_training_value")
PRECISION = family("stallscope_training_precision_info")
DROPPED_REPORTS = family("stallscope_training_shim_dropped_reports_total")
COUNTER_FAMILIES = {key: family(f"stallscope_training_{key}_total") for key in COUNTERS}
GAUGE_FAMILIES = {key: family(f"stallscope_training_{key}") for key in GAUGES}

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
_NETWORK = "network"
"""Suffix of a run's name, in place of the uid, for a sender without one."""
_GRACE_PERIOD = 600.0
"""Seconds after the notice of a signal within which the end of a process counts as caused by the signal."""
_SILENT_AFTER_NOTICE = 60.0
"""Seconds without a report after which a process that is not visible, and has sent the notice of a signal, is gone."""
_CUMULATIVE = (MetricType.COUNTER, MetricType.HISTOGRAM)
_MAX_FORMER = 8
"""Former sessions of a rank to remember."""
_SESSION_LENGTH = 8
"""Characters of a session in the name of a run."""
_MAX_KNOWN_NAMES = 256
"""Names of a rank to remember; a report has at most 145."""
_RESTORED_SECONDS = 60.0
"""Seconds in which a restored rank must report before it counts as silent."""
_PROOF_SECONDS = 10.0
"""Seconds of reports after which a rank of the network is proven."""
_UNPROVEN_SILENCE = 60.0
"""Seconds of silence after which an unproven rank can be displaced by another one of the network."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Limits of runs, ranks, series and memory."""

    runs: int = 64
    ended_runs: int = 64
    """Ended runs of all senders, whatever `runs` is."""
    ended_runs_per_sender: int = 32
    ranks_per_run: int = 256
    ranks: int = 1024
    value_names_per_run: int = MAX_VALUES
    series: int = 40_000
    """Series of all ranks. A page has up to 50,000, and the node's own series come first."""
    series_per_run: int = 36_000
    memory: int = 96 << 20
    """Bytes for all ranks, including pages."""
    memory_per_run: int = 72 << 20

    @property
    def all(self) -> Usage:
        """Limits of all ranks together."""
        return Usage(self.runs, self.ranks, self.series, self.memory)

    @property
    def run(self) -> Usage:
        """Limits of one run."""
        return Usage(1, self.ranks_per_run, self.series_per_run, self.memory_per_run)


class _Shortage(NamedTuple):
    """A limit that a rank would exceed."""

    resource: str
    """The field of Usage."""
    of_run: bool
    error: ReportError


class Held(NamedTuple):
    """State of one rank. Replaced as a whole."""

    report: Report
    arrived: float
    """Unix time of the report's arrival."""
    last_seen: float
    """Monotonic time of the report's arrival."""
    restarts: int = 0
    process: Process | None = None
    """The sender's process, if visible."""
    lost: bool = False
    ended: float | None = None
    """Monotonic time when the rank was first known to be finished, failed, terminated or lost."""
    reported_run: str = ""
    """Name of the run in its reports, if it is held under another name."""
    former: tuple[str, ...] = ()
    """Sessions that this one replaced, directly or indirectly, oldest first."""
    signalled: float | None = None
    """Monotonic time of the notice of SIGTERM or SIGHUP."""
    uid: int | None = None
    """User of the sender, if the kernel reports it."""
    admitted: float = 0.0
    """Monotonic time of the first report."""
    restored: bool = False
    """True until the first report after a restart of the exporter: the counters in the state file may be below scraped
    ones."""

    @property
    def key(self) -> Key:
        """Run and rank."""
        return self.report.run, self.report.rank

    @property
    def state(self) -> str:
        """One of RUN_STATES."""
        return "lost" if self.lost else self.report.state


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
        self.limits = limits or Limits()
        self.expiry = expiry
        self._clock = clock or SystemClock()
        self._processes = Processes(root)
        self._writing = threading.Lock()
        # A reader may iterate at any time: keys are added or removed by replacing the dictionary, values in place.
        self._held: dict[Key, Held] = {}
        self._totals = Totals()
        self._created: dict[Sender, tuple[float, int]] = {}
        """Start of a sender's current expiry time, and the series it has created since."""
        self._known_names: dict[Key, set[int]] = {}
        """Hashes of all names of a rank, in this and former sessions."""
        self._value_names: dict[str, set[str]] = {}
        self._own_names: dict[tuple[str, int, str], str] = {}
        self._arrived: dict[str, int] = dict.fromkeys(TRANSPORTS, 0)
        self._rejected: dict[str, int] = dict.fromkeys(REJECTION_REASONS, 0)
        self._dropped_values = 0
        self._dropped_series = 0
        self._changes = 0
        self._collected: dict[Key, tuple[Held, tuple[Sample, ...]]] = {}

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
        run = self._own_names.get((report.run, report.rank, report.session), report.run)
        held = self._held.get((run, report.rank))
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
                self._held[key] = _terminated(held._replace(signalled=now), now)
                self._changes += 1

    def check_processes(self) -> None:
        """Mark lost and terminated ranks, and drop expired ones. Reads `/proc`."""
        now = self._clock.monotonic()
        lost = [
            (key, held)
            for key, held in list(self._held.items())
            if held.ended is None
            and (self._processes.gone(held.process) if held.process else now - held.last_seen >= self._patience(held))
        ]
        with self._writing:
            for key, held in lost:
                if self._held.get(key) is held:  # otherwise it has reported since
                    ended = now if held.process else held.last_seen
                    is_terminated = _is_signalled(held, ended)
                    self._held[key] = _terminated(held, now) if is_terminated else held._replace(lost=True, ended=now)
                    self._changes += 1
            self._drop_expired(now)

    def _patience(self, held: Held) -> float:
        """Return the seconds of silence after which a process that is not visible counts as gone."""
        return min(_SILENT_AFTER_NOTICE, self.expiry) if _is_signalled(held, held.last_seen) else self.expiry

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
                        report = self._within_value_names(held.report)
                        self._totals.set(key, held.uid, usage_of(report))
                        self._known_names[key] = set(names_of(report))
                        self._held = {**self._held, key: held._replace(report=report, restored=True)}
                        if held.reported_run:
                            self._own_names[(held.reported_run, key[1], report.session)] = report.run
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
        samples.append(Sample(SERIES_DROPPED, ("value_names_per_run",), self._dropped_values))
        samples.append(Sample(SERIES_DROPPED, ("series_quota",), self._dropped_series))
        return samples + ranks

    def _admit(self, report: Report, pid_seen: int | None, uid: int | None) -> None:
        now, wall = self._clock.monotonic(), self._clock.time()
        reported_run = report.run
        report = self._under_own_name(report, uid)
        report, held, process = self._find(report, pid_seen, uid)
        key = (report.run, report.rank)
        restarts, ended, signalled = report.restarts, None, None
        former: tuple[str, ...] = ()
        if held is not None and held.report.session == report.session:
            if report.sequence <= held.report.sequence:
                return
            report = _monotonic(held.report, report)
            restarts, former, signalled = held.restarts, held.former, held.signalled
            if not held.lost:  # otherwise the known process was wrong
                process, ended = held.process or process, held.ended
        # Only for new sessions: a held one must not fall silent because a clock was set back.
        elif report.start > wall + (MAX_CLOCK_LEAD if uid is None else _LOCAL_CLOCK_LEAD):
            raise ReportError(
                "future", f"start is {report.start - wall:.0f} s ahead of this machine's clock; synchronize the clocks"
            )
        elif held is None:
            usage = usage_of(report)
            self._make_room(key, uid, usage, usage.series)
            if report.run != reported_run:
                self._uncount_restart((reported_run, report.rank), report.session)
                _logger.warning(
                    "run %r rank %d is reported by two live processes; the second one is shown as run %r: "
                    "give the runs different names",
                    reported_run,
                    report.rank,
                    report.run,
                )
        else:
            restarts = max(restarts, self._succeed(held, report, process, uid))
            former = (*held.former, held.report.session)
            for forgotten in former[:-_MAX_FORMER]:
                self._own_names.pop((reported_run, report.rank, forgotten), None)
            former = former[-_MAX_FORMER:]
            self._reset_value_names(key)
        if report.state not in LAST_STATES:
            ended = None
        elif ended is None:
            ended = now
            if report.failure:
                _logger.info("run %r rank %d failed with %s", report.run, report.rank, report.failure)
        if report.run != reported_run:
            self._own_names[(reported_run, report.rank, report.session)] = report.run
        reported_run = reported_run if reported_run != report.run else ""
        report = self._within_value_names(report)
        if held is not None:
            report = self._within_quota(key, uid, held.report, report)
        else:
            self._known_names[key] = set(names_of(report))
        self._totals.set(key, uid, usage_of(report))
        entry = Held(
            report,
            wall,
            now,
            restarts,
            process,
            lost=False,
            ended=ended,
            reported_run=reported_run,
            former=former,
            signalled=signalled,
            uid=uid,
            admitted=now if held is None else held.admitted,
        )
        if held is None:
            self._held = {**self._held, key: entry}
        else:
            self._held[key] = entry
        self._changes += 1
        if ended is not None and (held is None or held.ended is None):
            self._drop_expired(now)

    def _find(
        self, report: Report, pid_seen: int | None, uid: int | None
    ) -> tuple[Report, Held | None, Process | None]:
        """Return the report under the name it is held by, the held rank, and the sender's process if visible."""
        held = self._held.get((report.run, report.rank))
        if held is not None and held.report.session == report.session and held.process is not None and not held.lost:
            return report, held, held.process
        process = None if pid_seen is None else self._processes.find(pid_seen)
        if (
            held is not None
            and process is not None
            and held.report.session != report.session
            and report.session not in held.former
            and self._both_live(held, process)
            and _is_single(held.report)
            and _is_single(report)
        ):
            report = _renamed(report, str(process.pid))
            self._refuse_foreign(report, uid)
            held = self._held.get((report.run, report.rank))
        elif held is not None and process is None and _goes_on(held, report, uid):
            report = _renamed(report, report.session[:_SESSION_LENGTH])
            held = self._held.get((report.run, report.rank))
        return report, held, process

    def _under_own_name(self, report: Report, uid: int | None) -> Report:
        """Return the report under the name its run is held by, which differs if the name belongs to another user.

        Raises:
            ReportError: the session, the rank or that name belongs to another user's run.
        """
        own_name = self._own_names.get((report.run, report.rank, report.session))
        if own_name is not None:
            report = report._replace(run=own_name)
        held = self._held.get((report.run, report.rank))
        if held is not None and held.uid == uid:
            return report
        owner = self._owner(report.run)
        if owner is None or owner.uid in (None, uid) or (uid is None and held is None):
            return report
        if uid is None and held is not None and not self._seen_alive(held):
            return report
        # A session has one sender. Renaming one rank of a larger run would separate it from the others.
        if held is not None and (
            held.report.session == report.session
            or (uid is None and not (_is_single(held.report) and _is_single(report)))
        ):
            self._refuse_foreign(report, uid)
        report = _renamed(report, _NETWORK if uid is None else str(uid))
        self._refuse_foreign(report, uid)
        return report

    def _refuse_foreign(self, report: Report, uid: int | None) -> None:
        """Check that the run's name does not belong to another user.

        Raises:
            ReportError: it does.
        """
        owner = self._owner(report.run)
        if owner is not None and owner.uid not in (None, uid):
            raise ReportError(
                "not_owner",
                f"run {report.run!r} rank {report.rank} belongs to a live process of user {owner.uid}; "
                "give concurrent runs different names",
            )

    def _owner(self, name: str) -> Held | None:
        """Return a rank of the run that is seen alive, or None; all such ranks belong to one user."""
        return next((each for (run, _rank), each in self._held.items() if run == name and self._seen_alive(each)), None)

    def _seen_alive(self, held: Held) -> bool:
        """Return True for a rank of this machine that has not ended, even if `/proc` hides its process."""
        if held.ended is not None or held.process is None:
            return held.ended is None and held.uid is not None
        return not self._processes.gone(held.process)

    def _both_live(self, held: Held, process: Process | None) -> bool:
        """Return True if the held sender and this one are seen to be two live processes."""
        return (
            held.ended is None
            and held.process is not None
            and process is not None
            and process.pid != held.process.pid
            and not self._processes.gone(held.process)
            and not self._processes.gone(process)
        )

    def _succeed(self, held: Held, report: Report, process: Process | None, uid: int | None) -> int:
        """Check that a session may replace the held one, and return the resulting number of restarts.

        Raises:
            ReportError: the session was replaced, or started before the held one.
        """
        over = held.ended is not None or (
            held.process is not None and (held.process == process or self._processes.gone(held.process))
        )
        seen_first = held.uid is None and uid is not None
        returns = process is not None and (over or seen_first) and not self._processes.gone(process)
        if (report.session in held.former and not returns) or not (
            over or seen_first or report.start > held.report.start
        ):
            raise ReportError(
                "superseded",
                f"run {report.run!r} rank {report.rank} has a session that started later; "
                "give concurrent runs different names",
            )
        if report.session in held.former:
            return held.restarts
        if not self._both_live(held, process):
            return held.restarts + 1
        _logger.warning(
            "run %r rank %d is reported by two live processes; only the one that started later counts: "
            "give concurrent runs different names",
            report.run,
            report.rank,
        )
        return held.restarts

    def _uncount_restart(self, key: Key, session: str) -> None:
        """Count a rank that replaced a session as no restart, because the session goes on."""
        held = self._held.get(key)
        if held is not None and session in held.former:
            self._held[key] = held._replace(restarts=max(held.report.restarts, held.restarts - 1))

    def _make_room(self, key: Key, sender: Sender, usage: Usage, new_series: int) -> None:
        """Displace ranks for a new or growing rank that would exceed a limit.

        Args:
            key: the rank.
            sender: its sender.
            usage: total usage of the rank.
            new_series: series that are not exposed yet.

        Raises:
            ReportError: the rank would still exceed a limit; no rank is displaced.
        """
        now = self._clock.monotonic()
        if self._shortage(key, usage) is not None:
            self._drop_expired(now)
        displaced: list[tuple[Key, Sender, Usage]] = []
        try:
            while (shortage := self._shortage(key, usage)) is not None:
                victims = () if shortage.of_run else self._displaceable(key, sender, usage, shortage.resource, now)
                if not victims:
                    raise shortage.error
                for victim in victims:
                    displaced.append((victim, self._totals.sender_of(victim), self._totals.rank(victim)))
                    self._totals.remove(victim)
            self._count_created(sender, new_series, now)
        except ReportError:
            for each in displaced:
                self._totals.set(*each)
            raise
        if displaced:
            for (run, rank), owner, _usage in displaced:
                _logger.warning(
                    "dropped run %r rank %d of %s for run %r of %s",
                    *(run, rank, _name_of(owner), key[0], _name_of(sender)),
                )
            gone = {victim for victim, _owner, _usage in displaced}
            self._keep({each: held for each, held in self._held.items() if each not in gone})

    def _count_created(self, sender: Sender, number: int, now: float) -> None:
        """Count the series that a sender creates.

        Raises:
            ReportError: the sender would create more series within an expiry time than the exporter may hold.
        """
        if not number:
            return
        since, before = self._created.get(sender, (now, 0))
        if now - since >= self.expiry:
            since, before = now, 0
        if before + number > self.limits.series:
            raise ReportError(
                "series_limit",
                f"{_name_of(sender)} has created {before} series within {self.expiry:g} s, the limit is "
                f"{self.limits.series}; use the same names of runs, phases and values again",
            )
        self._created[sender] = (since, before + number)

    def _shortage(self, key: Key, usage: Usage) -> _Shortage | None:
        """Return the first limit that the rank would exceed with this usage, or None."""
        run = self._totals.run(key[0])
        more = usage.minus(self._totals.rank(key))._replace(runs=int(not run.ranks))
        for of_run, limit, total in ((False, self.limits.all, self._totals.all), (True, self.limits.run, run)):
            for resource, most, held, added in zip(Usage._fields, limit, total, more, strict=True):
                if added > 0 and held + added > most:
                    return _Shortage(resource, of_run, _limit_error(resource, most, key[0] if of_run else ""))
        return None

    def _displaceable(self, key: Key, sender: Sender, usage: Usage, resource: str, now: float) -> Sequence[Key]:
        """Return the ranks to displace next: all of one run at the limit of runs, else one; empty if none may be."""
        more = usage.minus(self._totals.rank(key))._replace(runs=1)
        needed = getattr(self._totals.sender(sender).plus(more), resource)
        # During a flood of refused reports, the loop over all ranks would be too expensive.
        if sender is None:
            if not any(_displaceable_by_network(held, now) for held in self._held.values()):
                return ()
        elif not any(getattr(other, resource) > needed for other in self._totals.senders_except(sender)):
            return ()
        groups: dict[Key | str, list[Key]] = {}
        for each in self._held:
            if each != key and self._totals.rank(each).ranks:
                groups.setdefault(each[0] if resource == "runs" else each, []).append(each)
        first: tuple[tuple[float, ...], Sequence[Key]] = ((0.0,), ())
        for group in groups.values():
            owner = self._totals.sender_of(group[0])
            held = getattr(self._totals.sender(owner), resource)
            order_of_group = max(_displacement_order(self._held[each]) for each in group)
            order = (-held, *order_of_group)
            if order >= first[0] or any(self._totals.sender_of(each) != owner for each in group):
                continue
            if owner == sender:
                allowed = all(_displaceable_by_network(self._held[each], now) for each in group)
            else:
                lost = 1 if resource == "runs" else getattr(self._totals.rank(group[0]), resource)
                allowed = sender is not None and held - lost >= needed
            if allowed:
                first = (order, group)
        return first[1]

    def _within_quota(self, key: Key, sender: Sender, before: Report, after: Report) -> Report:
        """Drop new names in the report of a held rank at a limit."""
        if not has_new_names(before, after):
            return after
        known = self._known_names.get(key, set())
        new = {name: series for name, series in names_of(after).items() if name not in known}
        try:
            self._make_room(key, sender, usage_of(after), sum(new.values()))
        except ReportError:
            self._dropped_series += sum(new.values())
            after = without_new_names(before, after)
        else:
            known = set(new) if len(known) + len(new) > _MAX_KNOWN_NAMES else known | new.keys()
        self._known_names[key] = known
        return after

    def _drop_expired(self, now: float) -> None:
        kept = {key: held for key, held in self._held.items() if held.ended is None or now - held.ended < self.expiry}
        excess = self._excess_runs(kept)
        if excess:
            kept = {key: held for key, held in kept.items() if key[0] not in excess}
        self._created = {
            sender: (since, number) for sender, (since, number) in self._created.items() if now - since < self.expiry
        }
        if len(kept) < len(self._held):
            self._keep(kept)

    def _excess_runs(self, held: Mapping[Key, Held]) -> Collection[str]:
        """Return the ended runs above the limits: the oldest of each sender, then of the sender with the most."""
        ended: dict[str, float] = {}
        owners: dict[str, Sender] = {}
        for (run, rank), each in held.items():
            ended[run] = max(ended.get(run, 0.0), math.inf if each.ended is None else each.ended)
            owners[run] = self._totals.sender_of((run, rank))
        oldest_first: dict[Sender, list[str]] = {}
        for run in sorted(ended, key=lambda run: (ended[run], run)):
            if ended[run] < math.inf:
                oldest_first.setdefault(owners[run], []).append(run)
        excess: list[str] = []
        for runs in oldest_first.values():
            while len(runs) > self.limits.ended_runs_per_sender:
                excess.append(runs.pop(0))
        while sum(map(len, oldest_first.values())) > self.limits.ended_runs:
            largest = max(oldest_first.values(), key=lambda runs: (len(runs), -ended[runs[0]]))
            excess.append(largest.pop(0))
        return frozenset(excess)

    def _keep(self, kept: dict[Key, Held]) -> None:
        for key in self._held.keys() - kept.keys():
            self._totals.remove(key)
            self._known_names.pop(key, None)
        self._held = kept
        runs = {run for run, _rank in kept}
        self._value_names = {run: names for run, names in self._value_names.items() if run in runs}
        self._own_names = {reported: run for reported, run in self._own_names.items() if (run, reported[1]) in kept}
        self._changes += 1

    def _reset_value_names(self, key: Key) -> None:
        """Reset the run's value names to those of its other ranks, for a new session."""
        run = key[0]
        others = [held.report.values for other, held in self._held.items() if other != key and other[0] == run]
        self._value_names[run] = set().union(*others)

    def _within_value_names(self, report: Report) -> Report:
        """Drop values whose names exceed the limit of the run over all of its ranks."""
        names = self._value_names.setdefault(report.run, set())
        if report.values.keys() <= names:
            return report
        for name in report.values:
            if len(names) < self.limits.value_names_per_run:
                names.add(name)
        kept = {name: value for name, value in report.values.items() if name in names}
        self._dropped_values += len(report.values) - len(kept)
        return report._replace(values=kept)


_ENDED, _UNPROVEN, _REMOTE, _LOCAL = range(4)
"""Order of displacement of one sender's ranks."""


def _displacement_order(held: Held) -> tuple[int, float]:
    """Return the sort key of a rank: the lowest is displaced first.

    Among ended and unproven ranks the oldest goes first, among the others the newest.
    """
    if held.ended is not None:
        return _ENDED, held.ended
    if held.uid is not None:
        return _LOCAL, -held.admitted
    if held.last_seen - held.admitted < _PROOF_SECONDS:
        return _UNPROVEN, held.admitted
    return _REMOTE, -held.admitted


def _displaceable_by_network(held: Held, now: float) -> bool:
    """Return True for an unproven rank that has been silent for long enough."""
    return now - held.last_seen >= _UNPROVEN_SILENCE and _displacement_order(held)[0] == _UNPROVEN


def _name_of(sender: Sender) -> str:
    return "the network" if sender is None else f"user {sender}"


def _limit_error(resource: str, limit: int, run: str) -> ReportError:
    """Return the error for a rank that would exceed a limit of all ranks, or of `run` if it is not empty."""
    subject, place = (f"run {run!r} has", " on this exporter") if run else ("this exporter holds", "")
    more_ranks = "report some of them to another exporter" if run else "raise --report.max-ranks"
    reason, amount, remedy = {
        "runs": ("run_limit", f"{limit} runs", "raise --report.max-runs"),
        "ranks": ("rank_limit", f"{limit} ranks", more_ranks),
        "series": ("series_limit", f"ranks with up to {limit} series", "report fewer ranks, phases or values"),
        "memory": (
            *("memory_limit", f"ranks that take up to {limit >> 20} MiB"),
            "use shorter names of runs, phases and values",
        ),
    }[resource]
    return ReportError(reason, f"{subject} {amount}{place}, its limit; {remedy}")


def _is_signalled(held: Held, time: float) -> bool:
    """Return whether the process was in the grace period of a signal at that monotonic time."""
    return held.signalled is not None and time - held.signalled <= _GRACE_PERIOD


def _terminated(held: Held, now: float) -> Held:
    return held._replace(report=held.report._replace(state="terminated"), lost=False, ended=now)


def _renamed(report: Report, suffix: str) -> Report:
    """Return the report with the run's name `<run>-<suffix>`, shortened to the longest valid name."""
    name = f"-{suffix}"
    return report._replace(run=report.run[: MAX_NAME_LENGTH - len(name)] + name)


def _goes_on(held: Held, report: Report, uid: int | None) -> bool:
    """Return whether a replaced session runs next to its successor: it reports what it did after the other's start.

    A late report, or one that another process sends for it, was written before.
    """
    return (
        report.session in held.former
        and held.ended is None
        and held.process is None
        and held.uid == uid
        and report.state not in LAST_STATES
        and report.sent > held.report.start
        and _is_single(held.report)
        and _is_single(report)
    )


def _is_single(report: Report) -> bool:
    return report.info.get("world_size", "") in ("", "0", "1")


def _monotonic(old: Report, new: Report) -> Report:
    """Return the newer report of a session, with each cumulative number at least that of the older one.

    Clocks that are read at different moments can make a number decrease slightly. Prometheus would treat that as a
    counter reset, so such numbers keep their former value. A lower number of steps is an error.

    Raises:
        ReportError: the number of steps decreased.
    """
    if old.step_seconds is not None:
        before, after = old.step_seconds, new.step_seconds
        if after is None or any(map(int.__lt__, after.counts, before.counts)):
            raise ReportError(
                "bad_field",
                f"step_seconds has {after.count if after else 0} steps after {before.count} in one session; "
                "expected cumulative numbers: start a new session with a new process",
            )
        if after.sum < before.sum:
            new = new._replace(step_seconds=after._replace(sum=before.sum))
    phases = new.phases
    for name, phase in phases.items():
        former = old.phases.get(name)
        if former is not None and (
            phase.seconds < former.seconds
            or phase.occurrences < former.occurrences
            or (phase.gpu_seconds or 0.0) < (former.gpu_seconds or 0.0)
        ):
            phases = {**phases, name: _monotonic_phase(former, phase)}
    return new._replace(
        phases=phases,
        counters=_monotonic_numbers(old.counters, new.counters),
        dropped=_monotonic_numbers(old.dropped, new.dropped),
        code={phase: _monotonic_lines(old.code.get(phase, ()), lines) for phase, lines in new.code.items()},
    )


def _monotonic_phase(old: Phase, new: Phase) -> Phase:
    gpu_seconds = new.gpu_seconds
    if gpu_seconds is not None and old.gpu_seconds is not None:
        gpu_seconds = max(gpu_seconds, old.gpu_seconds)
    return Phase(max(new.seconds, old.seconds), max(new.occurrences, old.occurrences), new.max, gpu_seconds)


def _monotonic_lines(old: Iterable[CodeLine], new: Iterable[CodeLine]) -> tuple[CodeLine, ...]:
    before = {line[:2]: line.seconds for line in old}
    return tuple(line._replace(seconds=max(line.seconds, before.get(line[:2], 0.0))) for line in new)


def _monotonic_numbers(old: Mapping[str, float], new: Mapping[str, float]) -> Mapping[str, float]:
    if all(number >= old.get(key, 0.0) for key, number in new.items()):
        return new
    return {key: max(number, old.get(key, 0.0)) for key, number in new.items()}


def samples_of(held: Held) -> Iterator[Sample]:
    """Yield every series of a rank."""
    report = held.report
    rank = (report.run, str(report.rank))
    yield Sample(RANK_INFO, (*rank, *[report.info.get(key, "") for key in INFO_KEYS]), 1)
    for gpu in report.gpus:
        yield Sample(RANK_GPU_INFO, (*rank, gpu.gpu, gpu.uuid), 1)
    present = held.state
    for state in RUN_STATES:
        yield Sample(STATE, (*rank, state), 1 if state == present else 0)
    for activity in ACTIVITIES:
        yield Sample(ACTIVITY, (*rank, activity), 1 if activity == report.activity else 0)
    yield Sample(START, rank, report.start)
    if report.first_step is not None:
        yield Sample(FIRST_STEP, rank, report.first_step)
    if report.last_step is not None:
        yield Sample(LAST_STEP, rank, report.last_step)
    yield Sample(LAST_PUSH, rank, held.arrived)
    yield Sample(RESTARTS, rank, held.restarts)
    steps = report.step_seconds
    if steps is not None:
        yield Sample(STEP_SECONDS, rank, Distribution(steps.counts, steps.sum, steps.count))
    for name, phase in report.phases.items():
        labels = (*rank, name)
        yield Sample(PHASE_SECONDS, labels, phase.seconds)
        yield Sample(PHASE_OCCURRENCES, labels, phase.occurrences)
        yield Sample(PHASE_MAX, labels, phase.max)
        if phase.gpu_seconds is not None:
            yield Sample(PHASE_GPU_SECONDS, labels, phase.gpu_seconds)
    for name, lines in report.code.items():
        for line in lines:
            yield Sample(CODE_SECONDS, (*rank, name, line.location, line.function), line.seconds)
    for key, number in report.counters.items():
        yield Sample(COUNTER_FAMILIES[key], rank, number)
    for key, number in report.gauges.items():
        yield Sample(GAUGE_FAMILIES[key], rank, number)
    for name, number in report.values.items():
        yield Sample(VALUE, (*rank, name), number)
    for precision in report.precision:
        yield Sample(PRECISION, (*rank, precision), 1)
    for cause, number in report.dropped.items():
        yield Sample(DROPPED_REPORTS, (*rank, cause), number)
