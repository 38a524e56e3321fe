"""The runs held: what each rank last reported, what became of it, and the series that follow.

A rank is known by run and rank number; each life of its process is a session. Reports of one session that arrive late
or twice are accepted and change nothing, since a newer one says all that they say.

Another session under a name that is held

- is the rank's next life, a restart, where the session held has ended or its process is gone, whatever their clocks
  say; and where its process can't be seen, if it started later.
- is a run of its own where both processes are seen alive and each is alone in its world, as in a sweep: it is held as
  `<run>-<pid>`.
- takes the name, without counting as a restart, where both are seen alive and are ranks of several: only the session
  that started later counts, on every exporter alike.

A session whose place was taken is refused as `superseded` for as long as the name is held, or until the one that took
it is over and its own process is seen alive. So what is told under one name neither changes to and fro nor mixes two
runs.

A run belongs to the user of its ranks that are seen alive: to the uid that the kernel reports for the socket. Another
user's run of that name is held as `<run>-<uid>`, and a report under the session of another user is refused as
`not_owner`. A sender whom the kernel does not see (UDP, HTTP) adds ranks to a run, and never takes the place of one
that is seen alive; that one takes the place of such a sender, whenever each of them started. The sender's run is held
as `<run>-network` where both are alone in their world; otherwise its rank is refused as `not_owner`. A run is never
held under a name that is another user's.

A state is what the shim reported, except for two that are decided here. A rank is `lost` if its process is known to be
gone, or can't be seen from here and has been silent for the expiry time. A rank is `terminated` as soon as its process
sends the notice of SIGTERM or SIGHUP (see `shim.termination`), and also if its process is gone within ten minutes of
that notice: a container's first process ignores SIGTERM, reports on, and is killed after the grace period. A newer
report replaces both states. Series of a finished, failed, terminated or lost rank stay for the expiry time.

Runs, ranks, series and memory are limited: of all, of each run, and for each sender (see `quotas`). A new rank beyond a
limit is refused. New names in the reports of a rank that is held are left out, and the rank goes on. Where a limit of
all is reached,

- a local user displaces ranks of the sender that holds most, where it still holds as much as this user afterwards:
  first what has ended, then what the network has reported only once, then what was admitted last.
- a sender on the network displaces ranks of the network alone that were reported only once, more than a minute ago.

Nobody creates more series within an expiry time than the exporter may hold.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from stallscope.catalogue.metrics import ACTIVITIES, RUN_STATES, MetricType, family
from stallscope.intake import authentication
from stallscope.intake.authentication import Authentication
from stallscope.intake.processes import Process, Processes
from stallscope.intake.quotas import Key, Sender, Totals, Usage, has_new_names, names_of, usage_of, without_new_names
from stallscope.protocol import signature
from stallscope.protocol.report import (
    COUNTERS,
    GAUGES,
    INFO_KEYS,
    LAST_STATES,
    MAX_BYTES,
    MAX_NAME_LENGTH,
    MAX_VALUES,
    REASONS,
    TRIAL_RUN,
    Phase,
    Report,
    ReportError,
    parse,
)
from stallscope.sampling.clock import Clock, SystemClock
from stallscope.sampling.reading import Distribution, Sample

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
"""Seconds by which a session's start may lie ahead of this machine's clock; one far ahead could never be superseded."""

_LOCAL_CLOCK_LEAD = 60.0
"""The same for a session on this machine, which has the same clock."""
_NETWORK = "network"
"""Stands for the user in the name of a run whose sender the kernel does not see."""
_GRACE_PERIOD = 600.0
"""Seconds after the notice of a signal within which the end of a process counts as caused by the signal."""
_CUMULATIVE = (MetricType.COUNTER, MetricType.HISTOGRAM)
_MAX_FORMER = 8
"""Sessions that are remembered of those that once held a name."""
_MAX_KNOWN_NAMES = 256
"""Names that are remembered of a rank; those of one report are at most 145."""
_RESTORED_SECONDS = 60.0
"""Seconds that a restored rank has for a report before its silence counts."""
_PROOF_SECONDS = 10.0
"""Seconds for which a sender on the network must have reported a rank; before, the rank is unproven."""
_UNPROVEN_SILENCE = 60.0
"""Seconds of silence after which an unproven rank makes room for another one of the network."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Most runs, ranks, series and memory of what is held."""

    runs: int = 64
    ranks_per_run: int = 256
    ranks: int = 1024
    value_names_per_run: int = MAX_VALUES
    series: int = 40_000
    """Series of all ranks; the page has room for 50,000, of which the node's own come first."""
    series_per_run: int = 36_000
    memory: int = 96 << 20
    """Bytes for all ranks, pages included."""
    memory_per_run: int = 72 << 20

    @property
    def all(self) -> Usage:
        """Most of all ranks together."""
        return Usage(self.runs, self.ranks, self.series, self.memory)

    @property
    def run(self) -> Usage:
        """Most of one run."""
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
    """Unix time at which the report came."""
    heard: float
    """The same on the monotonic clock."""
    restarts: int = 0
    process: Process | None = None
    """The sender, where it can be seen from here."""
    lost: bool = False
    ended: float | None = None
    """Monotonic time at which it was first known to be finished, failed, terminated or lost."""
    told_run: str = ""
    """The run's name as its reports tell it, where it is held under another."""
    former: tuple[str, ...] = ()
    """Sessions whose place this one took, directly or not, oldest first."""
    signalled: float | None = None
    """Monotonic time at which its process sent the notice of SIGTERM or SIGHUP."""
    uid: int | None = None
    """User of the sender, where the kernel reports it."""
    admitted: float = 0.0
    """Monotonic time of its first report."""
    restored: bool = False
    """Read from the state file, and not heard of since: its counters may be below those that were scraped."""

    @property
    def state(self) -> str:
        """One of RUN_STATES."""
        return "lost" if self.lost else self.report.state


class RunRegistry:
    """Admits reports and exposes them. Every method may be called from any thread; `collect` waits for none."""

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
            expiry: seconds for which an ended rank's series stay; the attribute may be replaced later.
            clock: the machine's own if left out.
            root: where `proc` lies.
        """
        self.limits = limits or Limits()
        self.expiry = expiry
        self._clock = clock or SystemClock()
        self._processes = Processes(root)
        self._writing = threading.Lock()
        # Keys come and go by replacing the dictionary; replacing one value is safe under a reader's feet.
        self._held: dict[Key, Held] = {}
        self._totals = Totals()
        self._created: dict[Sender, tuple[float, int]] = {}
        """Beginning of a sender's present expiry time, and the series that it has created since."""
        self._known_names: dict[Key, set[int]] = {}
        """Hashes of the names that a rank had in this session or before it."""
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
        """Every rank, as of now."""
        return tuple(self._held.values())

    @property
    def changes(self) -> int:
        """Grows whenever something that is held changes."""
        return self._changes

    def accept(
        self,
        data: bytes,
        transport: Transport,
        pid_seen: int | None = None,
        authentication: Authentication | None = None,
        uid: int | None = None,
    ) -> Report:
        """Take in one report; one of `TRIAL_RUN` is refused or counted as any other, but nothing is held of it.

        Args:
            data: the document's bytes.
            transport: the door.
            pid_seen: the sender's pid as the kernel tells it in this process' pid namespace, where it does.
            authentication: refuses what it finds not to be its sender's; without it signatures are not looked at.
            uid: the sender's user as the kernel reports it, where it does.

        Raises:
            ReportError: with a reason of `REJECTION_REASONS`; it is counted, and nothing held has changed.
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
        """Count reports that arrived and need not be read, since a newer one of their session has."""
        with self._writing:
            self._arrived[transport] += number

    def terminate(
        self, sessions: Collection[str], pid_seen: int | None, uid: int | None = None, *, pid_required: bool = False
    ) -> None:
        """Take in the notice that SIGTERM or SIGHUP reached the process of these sessions.

        Args:
            sessions: as the sender's address names them.
            pid_seen: the sender's pid as the kernel reports it; a forked child has another than its parent.
            uid: the sender's user, where the kernel reports it: the same as in the reports, or the notice is ignored.
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
        """Find out which ranks are lost or terminated, and drop expired ones. Reads `/proc`."""
        now = self._clock.monotonic()
        lost = [
            (key, held)
            for key, held in list(self._held.items())
            if held.ended is None
            and (self._processes.gone(held.process) if held.process else now - held.heard >= self.expiry)
        ]
        with self._writing:
            for key, held in lost:
                if self._held.get(key) is held:  # else it has reported since, and lives
                    ended = now if held.process else held.heard
                    signalled = held.signalled is not None and ended - held.signalled <= _GRACE_PERIOD
                    self._held[key] = _terminated(held, now) if signalled else held._replace(lost=True, ended=now)
                    self._changes += 1
            self._let_go_of_expired(now)

    def restore(self, holdings: Iterable[Held]) -> None:
        """Take back what an earlier life of the exporter held, within the limits; what has reported since stays.

        Silence goes on while the exporter is away. A rank that can't be seen has a minute for its next report, since
        earlier ones found no exporter, but is left out after a silence of twice the expiry time.

        The counters and histograms of a rank are absent until its next report. The file may be older than the last
        scrape, also than the next session of a rank that has ended in the file. Prometheus takes a counter that falls
        for one that begins again, and counts it twice.
        """
        now = self._clock.monotonic()
        with self._writing:
            for held in holdings:
                key = (held.report.run, held.report.rank)
                if held.ended is None and held.process is None:
                    if now - held.heard >= 2.0 * self.expiry:
                        continue
                    held = held._replace(heard=max(held.heard, now - self.expiry + _RESTORED_SECONDS))
                try:
                    if key not in self._held:
                        self._make_room(key, held.uid, usage_of(held.report), 0)
                        report = self._within_value_names(held.report)
                        self._totals.set(key, held.uid, usage_of(report))
                        self._known_names[key] = set(names_of(report))
                        self._held = {**self._held, key: held._replace(report=report, restored=True)}
                        if held.told_run:
                            self._own_names[(held.told_run, key[1], report.session)] = report.run
                        self._changes += 1
                except ReportError as error:
                    self._rejected[error.reason] += 1
            self._let_go_of_expired(now)

    def collect(self) -> list[Sample]:
        """Every series of every rank held, and of this registry. Memory only."""
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
        # This registry's own come first: where the page is full, they are what tells of it.
        samples = [Sample(REPORTS, (transport,), number) for transport, number in self._arrived.items()]
        samples += [Sample(REPORTS_REJECTED, (reason,), number) for reason, number in self._rejected.items()]
        samples.append(Sample(RUNS, (), len({run for run, _rank in collected})))
        samples.append(Sample(SERIES_DROPPED, ("value_names_per_run",), self._dropped_values))
        samples.append(Sample(SERIES_DROPPED, ("series_quota",), self._dropped_series))
        return samples + ranks

    def _admit(self, report: Report, pid_seen: int | None, uid: int | None) -> None:
        now, wall = self._clock.monotonic(), self._clock.time()
        told_run = report.run
        report = self._under_own_name(report, uid)
        report, held, process = self._find(report, pid_seen, uid)
        key = (report.run, report.rank)
        restarts, ended, signalled = report.restarts, None, None
        former: tuple[str, ...] = ()
        if held is not None and held.report.session == report.session:
            if report.sequence <= held.report.sequence:
                return
            report = _growing(held.report, report)
            restarts, former, signalled = held.restarts, held.former, held.signalled
            if not held.lost:  # else whatever was known of the process was wrong
                process, ended = held.process or process, held.ended
        # Not asked of a session that is held: a clock set back would silence it.
        elif report.start > wall + (MAX_CLOCK_LEAD if uid is None else _LOCAL_CLOCK_LEAD):
            raise ReportError(
                "future", f"start is {report.start - wall:.0f} s ahead of this machine's clock; set the clocks right"
            )
        elif held is None:
            usage = usage_of(report)
            self._make_room(key, uid, usage, usage.series)
            if report.run != told_run:
                _logger.warning(
                    "run %r rank %d is reported by two processes that live; the second one is shown as run %r: "
                    "give them two names",
                    told_run,
                    report.rank,
                    report.run,
                )
        else:
            restarts = max(restarts, self._succeed(held, report, process, uid))
            former = (*held.former, held.report.session)
            for forgotten in former[:-_MAX_FORMER]:
                self._own_names.pop((told_run, report.rank, forgotten), None)
            former = former[-_MAX_FORMER:]
            self._forget_value_names(key)
        if report.state not in LAST_STATES:
            ended = None
        elif ended is None:
            ended = now
            if report.failure:
                _logger.info("run %r rank %d failed with %s", report.run, report.rank, report.failure)
        if report.run != told_run:
            self._own_names[(told_run, report.rank, report.session)] = report.run
        told_run = told_run if told_run != report.run else ""
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
            told_run=told_run,
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

    def _find(
        self, report: Report, pid_seen: int | None, uid: int | None
    ) -> tuple[Report, Held | None, Process | None]:
        """The report under the name that it goes by here, what is held under that, and the sender where it is seen."""
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
            and _alone(held.report)
            and _alone(report)
        ):
            report = _renamed(report, str(process.pid))
            self._refuse_foreign(report, uid)
            held = self._held.get((report.run, report.rank))
        return report, held, process

    def _under_own_name(self, report: Report, uid: int | None) -> Report:
        """Return the report under the name that its run goes by here: another one where a user's run has its name.

        Raises:
            ReportError: its session, its rank or that name is one of a run that is not the sender's.
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
        # A session has one sender; and ranks of a larger run that clash would be torn from those that do not.
        if held is not None and (
            held.report.session == report.session or (uid is None and not (_alone(held.report) and _alone(report)))
        ):
            self._refuse_foreign(report, uid)
        report = _renamed(report, _NETWORK if uid is None else str(uid))
        self._refuse_foreign(report, uid)
        return report

    def _refuse_foreign(self, report: Report, uid: int | None) -> None:
        """Refuse a report under the name of a run that is another user's.

        Raises:
            ReportError: it is one.
        """
        owner = self._owner(report.run)
        if owner is not None and owner.uid not in (None, uid):
            raise ReportError(
                "not_owner",
                f"run {report.run!r} rank {report.rank} belongs to a process of user {owner.uid} that is alive; "
                "give two runs that live at once two names",
            )

    def _owner(self, name: str) -> Held | None:
        """Return a rank of the run that is seen alive, if there is one: all of them are one user's."""
        return next((each for (run, _rank), each in self._held.items() if run == name and self._seen_alive(each)), None)

    def _seen_alive(self, held: Held) -> bool:
        """Return True for a rank of this machine that is not known to be over, also where `/proc` hides its process."""
        if held.ended is not None or held.process is None:
            return held.ended is None and held.uid is not None
        return not self._processes.gone(held.process)

    def _both_live(self, held: Held, process: Process | None) -> bool:
        """Return True if the known sender and this sender are two different live processes."""
        return (
            held.ended is None
            and held.process is not None
            and process is not None
            and process.pid != held.process.pid
            and not self._processes.gone(held.process)
            and not self._processes.gone(process)
        )

    def _succeed(self, held: Held, report: Report, process: Process | None, uid: int | None) -> int:
        """Let a session take the place of the one that is held; how many restarts that makes.

        Raises:
            ReportError: it has had its time.
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
                "give two runs that live at once two names",
            )
        if report.session in held.former:
            return held.restarts
        if not self._both_live(held, process):
            return held.restarts + 1
        _logger.warning(
            "run %r rank %d is reported by two live processes; only the process that started later counts: "
            "give two runs that live at once two names",
            report.run,
            report.rank,
        )
        return held.restarts

    def _make_room(self, key: Key, sender: Sender, usage: Usage, new_series: int) -> None:
        """Displace what a new or growing rank may displace, where it would exceed a limit.

        Args:
            key: the rank.
            sender: its sender.
            usage: what it would take in all.
            new_series: series that are not exposed yet.

        Raises:
            ReportError: it would still exceed a limit; nothing is displaced.
        """
        now = self._clock.monotonic()
        if self._shortage(key, usage) is not None:
            self._let_go_of_expired(now)
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
                    "run %r rank %d of %s makes room for run %r of %s",
                    *(run, rank, _name_of(owner), key[0], _name_of(sender)),
                )
            gone = {victim for victim, _owner, _usage in displaced}
            self._keep({each: held for each, held in self._held.items() if each not in gone})

    def _count_created(self, sender: Sender, number: int, now: float) -> None:
        """Count series that a sender creates.

        Raises:
            ReportError: they would be more within an expiry time than the exporter may hold.
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
                f"{self.limits.series}; keep the names of runs, phases and values",
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
        """Return the ranks to displace next: those of one run where runs are short, else one; none if none may be."""
        more = usage.minus(self._totals.rank(key))._replace(runs=1)
        needed = getattr(self._totals.sender(sender).plus(more), resource)
        # A flood of refused reports must not cost a look at every rank each.
        if sender is None:
            if not any(_gives_way(held, now) for held in self._held.values()):
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
            standing = max(_standing(self._held[each]) for each in group)
            order = (-held, *standing)
            if order >= first[0] or any(self._totals.sender_of(each) != owner for each in group):
                continue
            if owner == sender:
                allowed = all(_gives_way(self._held[each], now) for each in group)
            else:
                lost = 1 if resource == "runs" else getattr(self._totals.rank(group[0]), resource)
                allowed = sender is not None and held - lost >= needed
            if allowed:
                first = (order, group)
        return first[1]

    def _within_quota(self, key: Key, sender: Sender, before: Report, after: Report) -> Report:
        """Leave out names that are new in the report of a rank that is held, where a limit is reached."""
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

    def _let_go_of_expired(self, now: float) -> None:
        kept = {key: held for key, held in self._held.items() if held.ended is None or now - held.ended < self.expiry}
        self._created = {
            sender: (since, number) for sender, (since, number) in self._created.items() if now - since < self.expiry
        }
        if len(kept) < len(self._held):
            self._keep(kept)

    def _keep(self, kept: dict[Key, Held]) -> None:
        """Drop every rank except these."""
        for key in self._held.keys() - kept.keys():
            self._totals.remove(key)
            self._known_names.pop(key, None)
        self._held = kept
        runs = {run for run, _rank in kept}
        self._value_names = {run: names for run, names in self._value_names.items() if run in runs}
        self._own_names = {told: run for told, run in self._own_names.items() if (run, told[1]) in kept}
        self._changes += 1

    def _forget_value_names(self, key: Key) -> None:
        """A new session brings its own names: leave the run those of its other ranks."""
        run = key[0]
        others = [held.report.values for other, held in self._held.items() if other != key and other[0] == run]
        self._value_names[run] = set().union(*others)

    def _within_value_names(self, report: Report) -> Report:
        """Leave out values whose names are beyond what the run may have over all of its ranks."""
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
"""Order in which ranks of one sender are displaced."""


def _standing(held: Held) -> tuple[int, float]:
    """Return the order of a rank among those that may be displaced: the lowest goes first.

    Of ended and unproven ranks the oldest goes first, of the others the newest.
    """
    if held.ended is not None:
        return _ENDED, held.ended
    if held.uid is not None:
        return _LOCAL, -held.admitted
    if held.heard - held.admitted < _PROOF_SECONDS:
        return _UNPROVEN, held.admitted
    return _REMOTE, -held.admitted


def _gives_way(held: Held, now: float) -> bool:
    """Return True for a rank that makes room for another one of the same sender."""
    return now - held.heard >= _UNPROVEN_SILENCE and _standing(held)[0] == _UNPROVEN


def _name_of(sender: Sender) -> str:
    return "the network" if sender is None else f"user {sender}"


def _limit_error(resource: str, limit: int, run: str) -> ReportError:
    """Return the refusal of a rank that would exceed a limit of all ranks, or of a run where one is named."""
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


def _terminated(held: Held, now: float) -> Held:
    return held._replace(report=held.report._replace(state="terminated"), lost=False, ended=now)


def _renamed(report: Report, suffix: str) -> Report:
    """Return the report as one of a run `<run>-<suffix>`, as far as the length of names allows."""
    name = f"-{suffix}"
    return report._replace(run=report.run[: MAX_NAME_LENGTH - len(name)] + name)


def _alone(report: Report) -> bool:
    return report.info.get("world_size", "") in ("", "0", "1")


def _growing(old: Report, new: Report) -> Report:
    """The newer report of one session, with no cumulative number below the older one's.

    Clocks read at different moments make single numbers step back a little, which Prometheus would take for a restart:
    those stay where they are. Fewer steps than before are no such slip.

    Raises:
        ReportError: the steps went backwards.
    """
    if old.step_seconds is not None:
        before, after = old.step_seconds, new.step_seconds
        if after is None or any(map(int.__lt__, after.counts, before.counts)):
            raise ReportError(
                "bad_field",
                f"step_seconds tells of {after.count if after else 0} steps after {before.count} in one session; "
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
            phases = {**phases, name: _growing_phase(former, phase)}
    return new._replace(
        phases=phases,
        counters=_growing_numbers(old.counters, new.counters),
        dropped=_growing_numbers(old.dropped, new.dropped),
    )


def _growing_phase(old: Phase, new: Phase) -> Phase:
    gpu_seconds = new.gpu_seconds
    if gpu_seconds is not None and old.gpu_seconds is not None:
        gpu_seconds = max(gpu_seconds, old.gpu_seconds)
    return Phase(max(new.seconds, old.seconds), max(new.occurrences, old.occurrences), new.max, gpu_seconds)


def _growing_numbers(old: Mapping[str, float], new: Mapping[str, float]) -> Mapping[str, float]:
    if all(number >= old.get(key, 0.0) for key, number in new.items()):
        return new
    return {key: max(number, old.get(key, 0.0)) for key, number in new.items()}


def samples_of(held: Held) -> Iterator[Sample]:
    """Return every series of a rank."""
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
