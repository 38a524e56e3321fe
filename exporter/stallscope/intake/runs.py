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
that is seen alive; that one takes the place of such a sender, whenever each of them started.

A state is what the shim reported, except for two that are decided here. A rank is `lost` if its process is known to be
gone, or can't be seen from here and has been silent for the expiry time. A rank is `terminated` as soon as its process
sends the notice of SIGTERM or SIGHUP (see `shim.termination`), and also if its process is gone within ten minutes of
that notice: a container's first process ignores SIGTERM, reports on, and is killed after the grace period. A newer
report replaces both states. Series of a finished, failed, terminated or lost rank stay for the expiry time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from stallscope import signature
from stallscope.catalogue import ACTIVITIES, RUN_STATES, MetricType, family
from stallscope.intake import authentication
from stallscope.intake.authentication import Authentication
from stallscope.intake.processes import Process, Processes
from stallscope.report import (
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
REJECTION_REASONS = (*REASONS, "future", "run_limit", "rank_limit", "superseded", "not_owner", *authentication.REASONS)
DEFAULT_EXPIRY = 900.0
MAX_CLOCK_LEAD = 3600.0
"""Seconds by which a session's start may lie ahead of this machine's clock; one far ahead could never be superseded."""

_LOCAL_CLOCK_LEAD = 60.0
"""The same for a session on this machine, which has the same clock."""
_GRACE_PERIOD = 600.0
"""Seconds after the notice of a signal within which the end of a process counts as caused by the signal."""
_CUMULATIVE = (MetricType.COUNTER, MetricType.HISTOGRAM)
_MAX_FORMER = 8
"""Sessions that are remembered of those that once held a name."""

_logger = logging.getLogger(__name__)

Key = tuple[str, int]


@dataclass(frozen=True)
class Limits:
    """How much is held; what would go beyond is refused, and never displaces what is there."""

    runs: int = 64
    ranks_per_run: int = 256
    ranks: int = 1024
    value_names_per_run: int = MAX_VALUES


class Held(NamedTuple):
    """What is known of one rank. Replaced as a whole."""

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
        self._value_names: dict[str, set[str]] = {}
        self._own_names: dict[tuple[str, int, str], str] = {}
        self._arrived: dict[str, int] = dict.fromkeys(TRANSPORTS, 0)
        self._rejected: dict[str, int] = dict.fromkeys(REJECTION_REASONS, 0)
        self._dropped_values = 0
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

    def terminate(self, sessions: Collection[str], pid_seen: int | None, *, pid_required: bool = False) -> None:
        """Take in the notice that SIGTERM or SIGHUP reached the process of these sessions.

        Args:
            sessions: as the sender's address names them.
            pid_seen: the sender's pid as the kernel reports it; a forked child has another than its parent.
            pid_required: ignore a notice that the kernel can't attribute to the process of the session.
        """
        now = self._clock.monotonic()
        with self._writing:
            for key, held in self._held.items():
                if held.report.session not in sessions or (held.ended is not None and not held.lost):
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

        The counters and histograms of a rank that goes on are absent until its next report. The file may be older than
        the last scrape, and Prometheus takes a counter that falls for one that begins again, and counts it twice.
        """
        with self._writing:
            for held in holdings:
                key = (held.report.run, held.report.rank)
                try:
                    if key not in self._held:
                        self._make_room(key)
                        report = self._within_value_names(held.report)
                        self._held = {**self._held, key: held._replace(report=report, restored=held.ended is None)}
                        if held.told_run:
                            self._own_names[(held.told_run, key[1], report.session)] = report.run
                        self._changes += 1
                except ReportError as error:
                    self._rejected[error.reason] += 1
            self._let_go_of_expired(self._clock.monotonic())

    def collect(self) -> list[Sample]:
        """Every series of every rank held, and of this registry. Memory only."""
        known = self._collected
        collected: dict[Key, tuple[Held, tuple[Sample, ...]]] = {}
        ranks: list[Sample] = []
        for key, held in list(self._held.items()):
            entry = known.get(key)
            if entry is None or entry[0] is not held:
                samples = _samples(held)
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
        return samples + ranks

    def _admit(self, report: Report, pid_seen: int | None, uid: int | None) -> None:
        now, wall = self._clock.monotonic(), self._clock.time()
        told_run = report.run
        report = self._under_own_name(report, uid)
        report, held, process = self._find(report, pid_seen)
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
            self._make_room(key)
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
            former = (*held.former, held.report.session)[-_MAX_FORMER:]
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
        )
        if held is None:
            self._held = {**self._held, key: entry}
        else:
            self._held[key] = entry
        self._changes += 1

    def _find(self, report: Report, pid_seen: int | None) -> tuple[Report, Held | None, Process | None]:
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
            report = _renamed(report, process.pid)
            held = self._held.get((report.run, report.rank))
        return report, held, process

    def _under_own_name(self, report: Report, uid: int | None) -> Report:
        """Return the report under the name that its run goes by here: another one where a user's run has its name.

        Raises:
            ReportError: its session or its rank is one of a run that is not the sender's.
        """
        own_name = self._own_names.get((report.run, report.rank, report.session))
        if own_name is not None:
            report = report._replace(run=own_name)
        held = self._held.get((report.run, report.rank))
        if held is not None and held.uid == uid:
            return report
        owner = next(
            (each for (run, _rank), each in self._held.items() if run == report.run and self._seen_alive(each)), None
        )
        if owner is None or owner.uid in (None, uid) or (uid is None and held is None):
            return report
        if uid is None and held is not None and not self._seen_alive(held):
            return report
        if uid is None or (held is not None and held.report.session == report.session):
            raise ReportError(
                "not_owner",
                f"run {report.run!r} rank {report.rank} belongs to a process of user {owner.uid} that is alive; "
                "give two runs that live at once two names",
            )
        return _renamed(report, uid)

    def _seen_alive(self, held: Held) -> bool:
        """Return True for a rank of this machine that is not known to be over, also where `/proc` hides its process."""
        if held.ended is not None or held.process is None:
            return held.ended is None and held.uid is not None
        return not self._processes.gone(held.process)

    def _both_live(self, held: Held, process: Process | None) -> bool:
        """Whether the sender that is held and this one are seen to be two processes that live."""
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
            "run %r rank %d is told by two processes that live; only the one that started later counts: "
            "give two runs that live at once two names",
            report.run,
            report.rank,
        )
        return held.restarts

    def _make_room(self, key: Key) -> None:
        """Refuse a rank that is one too many, unless letting go of expired ones makes room."""
        problem = self._limit_reached(key)
        if problem is not None:
            self._let_go_of_expired(self._clock.monotonic())
            problem = self._limit_reached(key)
            if problem is not None:
                raise problem

    def _limit_reached(self, key: Key) -> ReportError | None:
        limits = self.limits
        if len(self._held) >= limits.ranks:
            return ReportError("rank_limit", f"this exporter holds {limits.ranks} ranks, its limit")
        ranks_by_run: dict[str, int] = {}
        for run, _rank in self._held:
            ranks_by_run[run] = ranks_by_run.get(run, 0) + 1
        ranks = ranks_by_run.get(key[0])
        if ranks is None and len(ranks_by_run) >= limits.runs:
            return ReportError("run_limit", f"this exporter holds {limits.runs} runs, its limit")
        if ranks is not None and ranks >= limits.ranks_per_run:
            return ReportError(
                "rank_limit", f"run {key[0]!r} has {limits.ranks_per_run} ranks on this exporter, its limit"
            )
        return None

    def _let_go_of_expired(self, now: float) -> None:
        kept = {key: held for key, held in self._held.items() if held.ended is None or now - held.ended < self.expiry}
        if len(kept) < len(self._held):
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


def _terminated(held: Held, now: float) -> Held:
    return held._replace(report=held.report._replace(state="terminated"), lost=False, ended=now)


def _renamed(report: Report, number: int) -> Report:
    """Return the report as one of a run `<run>-<number>`, as far as the length of names allows."""
    name = f"-{number}"
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


def _samples(held: Held) -> Iterable[Sample]:
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
