"""One GPU: what it is asked, how often, and what becomes of the answers.

Every question is asked at its own cadence, on the GPU's own thread, and by the cheapest call that answers. One that the
driver refuses is repeated after a pause (`retry.py`). Rates are integrated here, so that what leaves the exporter are
seconds, bytes and joules.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stallscope.catalogue.metrics import BELOW_LEVELS, THROTTLE_REASONS, Family, family
from stallscope.collectors.base import Environment
from stallscope.collectors.gpu.traffic import Traffic
from stallscope.drivers.device import (
    ENGINES,
    Activity,
    Counters,
    Device,
    DeviceLost,
    DriverError,
    DriverUnavailable,
    GpuProcess,
    Identity,
    ProcessUtilization,
    SampleKind,
    SystemInfo,
    TimedSample,
    Unsupported,
    Utilization,
)
from stallscope.drivers.occupancy import Occupancy
from stallscope.drivers.peak_flops import peak_flops
from stallscope.drivers.retry import LONGEST_PAUSE, Retry
from stallscope.sampling.integrals import (
    COUNTER_SLACK,
    DriverCounter,
    Stretch,
    TimeIntegral,
    Timeline,
    UtilizationIntegral,
)
from stallscope.sampling.reading import Distribution, Sample

_logger = logging.getLogger(__name__)

INFO = family("stallscope_gpu_info")
SIGNAL_SUPPORTED = family("stallscope_gpu_signal_supported")
BUSY = family("stallscope_gpu_busy_seconds_total")
OBSERVED = family("stallscope_gpu_observed_seconds_total")
MEMORY_BUSY = family("stallscope_gpu_memory_busy_seconds_total")
IDLE = family("stallscope_gpu_idle_seconds_total")
BELOW = family("stallscope_gpu_below_seconds_total")
DIPS = family("stallscope_gpu_dips_total")
DIP_INTERVAL = family("stallscope_gpu_dip_interval_seconds")
DIP_INTERVAL_SQUARES = family("stallscope_gpu_dip_interval_seconds_sumsq")
UTILIZATION_SAMPLES = family("stallscope_gpu_utilization_samples")
UTILIZATION = family("stallscope_gpu_utilization_ratio")
MEMORY_UTILIZATION = family("stallscope_gpu_memory_utilization_ratio")
SM_ACTIVE = family("stallscope_gpu_sm_active_seconds_total")
SM_OCCUPANCY = family("stallscope_gpu_sm_occupancy_seconds_total")
PIPE_ACTIVE = family("stallscope_gpu_pipe_active_seconds_total")
DRAM_ACTIVE = family("stallscope_gpu_dram_active_seconds_total")
ENGINE_BUSY = family("stallscope_gpu_engine_busy_seconds_total")
MEMORY_TOTAL = family("stallscope_gpu_memory_total_bytes")
MEMORY_USED = family("stallscope_gpu_memory_used_bytes")
MEMORY_RESERVED = family("stallscope_gpu_memory_reserved_bytes")
BAR1_TOTAL = family("stallscope_gpu_bar1_total_bytes")
BAR1_USED = family("stallscope_gpu_bar1_used_bytes")
POWER = family("stallscope_gpu_power_watts")
POWER_LIMIT = family("stallscope_gpu_power_limit_watts")
POWER_LIMIT_DEFAULT = family("stallscope_gpu_power_limit_default_watts")
ENERGY = family("stallscope_gpu_energy_joules_total")
TEMPERATURE = family("stallscope_gpu_temperature_celsius")
TEMPERATURE_LIMIT = family("stallscope_gpu_temperature_limit_celsius")
FAN_SPEED = family("stallscope_gpu_fan_speed_ratio")
CLOCK_CONFIGURED = family("stallscope_gpu_clock_configured_hertz")
CLOCK = family("stallscope_gpu_clock_hertz")
CLOCK_MAX = family("stallscope_gpu_clock_max_hertz")
THROTTLED = family("stallscope_gpu_throttled_seconds_total")
PCIE_RECEIVED = family("stallscope_gpu_pcie_receive_bytes_total")
PCIE_TRANSMITTED = family("stallscope_gpu_pcie_transmit_bytes_total")
PCIE_GENERATION = family("stallscope_gpu_pcie_link_generation")
PCIE_GENERATION_MAX = family("stallscope_gpu_pcie_link_generation_max")
PCIE_WIDTH = family("stallscope_gpu_pcie_link_width")
PCIE_WIDTH_MAX = family("stallscope_gpu_pcie_link_width_max")
PCIE_REPLAYS = family("stallscope_gpu_pcie_replays_total")
NVLINK_RECEIVED = family("stallscope_gpu_nvlink_receive_bytes_total")
NVLINK_TRANSMITTED = family("stallscope_gpu_nvlink_transmit_bytes_total")
NVLINK_ERRORS = family("stallscope_gpu_nvlink_errors_total")
NVLINK_LINKS = family("stallscope_gpu_nvlink_links")
NVLINK_LINKS_ACTIVE = family("stallscope_gpu_nvlink_links_active")
ECC_ERRORS = family("stallscope_gpu_ecc_errors_total")
REMAPPED_ROWS = family("stallscope_gpu_remapped_rows")
ROW_REMAP_PENDING = family("stallscope_gpu_row_remap_pending")
ROW_REMAP_FAILED = family("stallscope_gpu_row_remap_failed")
RETIRED_PAGES = family("stallscope_gpu_retired_pages")
XID_EVENTS = family("stallscope_gpu_xid_events_total")
XID_LAST = family("stallscope_gpu_xid_last_timestamp_seconds")
PEAK_FLOPS = family("stallscope_gpu_peak_flops")
PERSISTENCE_MODE = family("stallscope_gpu_persistence_mode")
PROCESSES = family("stallscope_gpu_processes")

_TRAFFIC_ANSWERS: Mapping[Family, tuple[str, str]] = {
    PCIE_RECEIVED: ("pcie_received", "pcie_received"),
    PCIE_TRANSMITTED: ("pcie_transmitted", "pcie_transmitted"),
    NVLINK_RECEIVED: ("nvlink_received", "nvlink_received"),
    NVLINK_TRANSMITTED: ("nvlink_transmitted", "nvlink_transmitted"),
}
"""What tells of each: the field of `Counters`, and that of `Activity`."""

STALE_INTERVALS = 3
LONGEST_INTERVAL = 5.0
"""Seconds: drivers keep some 16 s of samples; read less often, the rest would be lost."""

# Seconds between two askings; 0 is at every reading.
_EVERY_READING, _OFTEN, _NOW_AND_THEN, _SOMETIMES, _SELDOM = 0.0, 2.0, 5.0, 10.0, 60.0
_PROCESS_SILENCE = 12.0
"""Seconds: what a process sample speaks for at most, since idle processes leave no sample."""
_PROCESSES_REMEMBERED = 4096
# Counters that grow faster are implausible, per second.
_MOST_WATTS, _MOST_THROTTLED, _MOST_PCIE, _MOST_NVLINK = 1e5, 1.0, 1e12, 1e13
_MOST_ERRORS = {"ecc": 1e6, "nvlink": 1e12, "pcie_replays": 1e6}

_NOTHING = frozenset[Family]()
_Answer = TypeVar("_Answer")
_Label = TypeVar("_Label", bound=str)


@dataclass(frozen=True, eq=False)  # compared by identity: a question is a dictionary key many times a reading
class _Question:
    """Something that a GPU is asked, at its own cadence."""

    ask: Callable[[Gpu, Session], list[Sample] | None]
    """None where it is not known yet whether the GPU has the signal."""
    families: tuple[Family, ...]
    every: float
    may_be_empty: bool = False
    """Whether a GPU that has the signal may have no series to show."""
    in_parts: bool = False
    """True where its parts are retried one by one: it then makes no driver call that is not due."""


class Session:
    """State of one GPU that holds until the driver is opened again."""

    def __init__(
        self,
        device: Device,
        retry: Retry,
        calls_before: int = 0,
        rejected_before: Mapping[str, int] | None = None,
    ) -> None:
        self.device = device
        self.retry = retry
        """Of questions, and of parts of them by name; outlives the session."""
        self.calls_before = calls_before
        """Driver calls made for the GPU in earlier sessions."""
        self.rejected_before: Mapping[str, int] = rejected_before or {}
        """Values that its devices rejected in them, by reason."""
        self.now = 0.0
        """When the newest reading began, monotonic."""
        self.has: dict[_Question, frozenset[Family]] = {}
        """For each question that was answered or refused, the families in its answers."""
        self.missing_since: dict[tuple[_Question, Family], float] = {}
        """When a family was first absent from an answer that had it, monotonic."""
        self.refusal = ""
        """The newest error of a question that had been answered."""
        self.answers: dict[_Question, list[Sample]] = {}
        self.asked_at: dict[_Question, float] = {}
        self.support: list[Sample] | None = None
        """The series of `signal_supported`, until something changes."""
        self.served: dict[str, str] = {}
        """What this file itself decided about how a signal is served."""
        self.counters: Counters | None = None
        """Of this reading; None where asking failed."""
        self.watts: float | None = None
        """Power at this reading; None where it was not read."""
        self.activity: Activity | None = None
        """Of this reading; None where there is nothing new."""
        self.active_at: float | None = None
        """When there was something new last, monotonic."""
        self.process_newest_us = 0
        self.process_told_at = 0.0

    def forget(self) -> None:
        """Find out again what the GPU supports."""
        self.retry.forget()
        self.has.clear()
        self.missing_since.clear()
        self.asked_at.clear()
        self.support = None

    def optional(self, name: str, call: Callable[[], _Answer]) -> _Answer | None:
        """Return the answer, or None while the GPU refuses it."""
        return self.retry.optional(name, self.now, call)


class Gpu:
    """One GPU or MIG instance, from the first time it is seen until it is forgotten. `read` belongs to its thread."""

    identity: Identity
    labels: tuple[str, str]
    session: Session

    def __init__(self, environment: Environment) -> None:
        self.listed = True
        """Whether the newest enumeration showed it."""
        self.lost_reason = ""
        """Why it is down, as last known; empty while it is up."""
        self.lost_at: float | None = None
        """When a reading first found it lost, monotonic; None while it answers."""
        self.gone_at: float | None = None
        """When it was first missed in an enumeration, monotonic."""
        self.met_in = 0
        """Number of the session with the driver in which it was last met."""
        self.last_reading: float | None = None
        """Wall clock."""
        self.instances: tuple[Device, ...] | None = None
        """MIG instances as last read; None where MIG is off."""
        self.look_again = False
        """Whether to ask for MIG instances at the next reading, due or not."""
        self.processes: tuple[GpuProcess, ...] | None = None
        self.memory_used: int | None = None
        self.xids: Mapping[int, tuple[int, float]] = {}
        """Number of events and wall clock of the newest, by code; replaced by the listener's thread, not edited."""
        self._environment = environment
        self._interval = min(environment.interval, LONGEST_INTERVAL)
        longest = STALE_INTERVALS * self._interval
        self._timelines: dict[SampleKind, Timeline] = {"gpu": Timeline(longest), "memory": Timeline(longest)}
        self._engine_timelines: dict[str, Timeline] = {engine: Timeline(4 * _NOW_AND_THEN) for engine in ENGINES}
        self._longest = longest
        """Seconds: an older reading is stale."""
        self._polls = {"energy": Timeline(longest), "throttling": Timeline(longest), "pcie": Timeline(60.0)}
        self._utilization = UtilizationIntegral()
        self._memory_busy = TimeIntegral()
        self._means: dict[SampleKind, float | None] = {"gpu": None, "memory": None}
        self._energy = DriverCounter(most_per_second=_MOST_WATTS)
        self._throttled = {
            reason: DriverCounter(most_per_second=_MOST_THROTTLED, slack=COUNTER_SLACK) for reason in THROTTLE_REASONS
        }
        self._errors: dict[tuple[str, str], DriverCounter] = {}
        """By family and kind."""
        self._shares: dict[str, float] = {}
        """Seconds by the name of what was active: units of the GPU that are measured as shares."""
        self._active: frozenset[str] = frozenset()
        """The names in the newest activity."""
        self._active_engines: frozenset[str] = frozenset()
        """The engines in the newest activity."""
        self._engines: dict[str, float] = {}
        self._traffic = {
            PCIE_RECEIVED: Traffic(most_per_second=_MOST_PCIE, may_be_narrow=True),
            PCIE_TRANSMITTED: Traffic(most_per_second=_MOST_PCIE, may_be_narrow=True),
            NVLINK_RECEIVED: Traffic(most_per_second=_MOST_NVLINK),
            NVLINK_TRANSMITTED: Traffic(most_per_second=_MOST_NVLINK),
        }
        self._process_busy: dict[int, float] = {}
        self._persistence_said = False
        self._retry: Retry = Retry()
        self._supported: dict[Family, bool] = {}
        """As last logged."""
        self._known_as: tuple[Identity, SystemInfo] | None = None
        self._info: dict[str, Sample] = {}
        self._mig: tuple[str, ...] = ()

    def meet(self, identity: Identity, system: SystemInfo, device: Device) -> None:
        """Take note of what the GPU is, and of the device that answers for it from now on."""
        self.identify(identity, system)
        for timeline in (*self._timelines.values(), *self._engine_timelines.values()):
            timeline.reopened()
        # With the counts of the session before, at once: a page that is made meanwhile counts nothing twice.
        before = (self.calls, self._rejected_by_calls()) if hasattr(self, "session") else ()
        self.session = Session(device, self._retry, *before)
        self._retry.forget()

    def identify(self, identity: Identity, system: SystemInfo) -> None:
        """Replace what is known of the GPU and its driver; the UUID and index stay."""
        if (identity, system) == self._known_as:
            return
        self._known_as = (identity, system)
        self.identity = identity
        self.labels = (str(identity.index), identity.uuid)
        self._mig = (identity.mig,) if identity.mig else ()
        self._system = system
        self._info = {}
        peaks = {} if identity.mig else peak_flops(identity.model)
        self._peaks = self.several(PEAK_FLOPS, peaks)

    def rest(self) -> None:
        """Hold no more than its name and its counters need: it is gone, and may stay so for long."""
        self.session.answers = {}  # another one, since a reading may still be in the old
        self.session.forget()
        self.processes = self.memory_used = None

    @property
    def calls(self) -> int:
        """Driver calls made for this GPU so far."""
        session = self.session
        return session.calls_before + session.device.calls

    @property
    def rejected(self) -> Mapping[str, int]:
        """What the GPU said and can't have meant, by reason, so far."""
        found = self._rejected_by_calls()
        for timeline in (*self._timelines.values(), *self._engine_timelines.values()):
            for reason, count in (("future_timestamp", timeline.future), ("backwards", timeline.backwards)):
                found[reason] += count
        for counter in (self._energy, *self._throttled.values(), *list(self._errors.values())):
            found["backwards"] += counter.backwards
            found["out_of_range"] += counter.out_of_range
        for traffic in self._traffic.values():
            found["backwards"] += traffic.counter.backwards
            found["out_of_range"] += traffic.out_of_range
        return {reason: count for reason, count in found.items() if count}

    def _rejected_by_calls(self) -> Counter[str]:
        """Count by reason what devices rejected, in all sessions; timelines and counters outlive a session."""
        session = self.session
        found = Counter(session.rejected_before)
        for reason, count in session.device.rejected.items():
            found[reason] += count
        return found

    @property
    def served(self) -> Mapping[str, str]:
        """Which call serves each signal, as far as asked."""
        return {**self.session.device.served, **self.session.served}

    @property
    def occupancy(self) -> Occupancy:
        """Who is on it, as last read."""
        return Occupancy(self.identity, self.memory_used, self.processes or (), dict(self._process_busy))

    def sharing(self) -> str:
        """How the GPU is handed out, in the catalogue's words."""
        if self.identity.mig or self.instances is not None:
            return "mig"
        told = self._environment.occupancies.sharing(self.identity.uuid)
        if told:
            return told
        return "mps" if any(process.kind == "mps" for process in self.processes or ()) else "exclusive"

    def info(self) -> Sample:
        """The series that says what it is."""
        sharing = self.sharing()
        known = self._info.get(sharing)
        if known is None:
            identity, system = self.identity, self._system
            values = (
                identity.model,
                identity.serial,
                identity.pci_bus_id,
                system.driver_version,
                system.cuda_version,
                identity.vbios_version,
                identity.architecture,
                identity.compute_capability,
                sharing,
            )
            known = self._info[sharing] = Sample(INFO, (*self.labels, *values, *self._mig), 1)
        return known

    def xid_samples(self) -> list[Sample]:
        """The Xid events heard of."""
        found: list[Sample] = []
        for xid, (count, when) in self.xids.items():
            found += self.one(XID_EVENTS, count, str(xid)) + self.one(XID_LAST, when, str(xid))
        return found

    def note_xid(self, xid: int, when: float) -> None:
        """Count an Xid event; belongs to the listener's thread."""
        count, _ = self.xids.get(xid, (0, 0.0))
        self.xids = {**self.xids, xid: (count + 1, when)}

    def read(self) -> Iterable[Sample]:
        """Ask what is due and return everything known.

        Raises:
            DeviceLost, DriverUnavailable: the GPU or the driver is gone.
            DriverError: no question at all was answered.
        """
        session = self.session
        now = session.now = self._environment.clock.monotonic()
        session.counters = session.activity = session.watts = None
        if self.look_again:
            self.look_again = False
            session.asked_at.pop(_INSTANCES, None)
            session.retry.answered(_INSTANCES)
        failure: DriverError | None = None
        answered = refused = False
        for question in _QUESTIONS:
            asked_at = session.asked_at.get(question)
            # Half an interval of slack, since readings come a little early or late.
            if asked_at is not None and now - asked_at < question.every - self._interval / 2:
                continue
            if not session.retry.due(question, now):
                continue
            try:
                answer = question.ask(self, session)
            except Unsupported as refusal:
                if session.has.get(question):
                    refused = True
                    session.refusal = str(refusal)
                if not question.in_parts:
                    session.retry.refused(question, now)
                session.answers.pop(question, None)
                self._learn(question, _NOTHING)
            except (DeviceLost, DriverUnavailable):
                raise
            except DriverError as problem:
                # One call that fails costs its own series; it is asked again at the next reading.
                failure = problem
                session.answers.pop(question, None)
                if session.has.get(question) and problem.reason != "busy":
                    session.refusal = str(problem)
                    self._note_families(question, (), answered=False)
            else:
                # What merely follows from other answers proves nothing.
                answered = answered or (bool(answer) and question not in _FOLLOWING)
                session.asked_at[question] = now
                session.retry.answered(question)
                if answer is None:
                    continue
                session.answers[question] = answer
                self._note_families(question, answer)
        if failure is not None and not answered:
            raise failure
        if refused and not answered:
            # No GPU loses all that it has at once: the session is to blame, and only a new one tells what for.
            raise DriverUnavailable("no_permission", "the GPU refuses everything that it answered before")
        samples = [sample for answer in session.answers.values() for sample in answer]
        samples += self._peaks
        if session.support is None:
            session.support = self._support()
        return samples + session.support

    def _note_families(self, question: _Question, answer: Sequence[Sample], *, answered: bool = True) -> None:
        """Take note of the families in an answer; one that is absent from several is not supported any more."""
        session = self.session
        known = session.has.get(question)
        if question.may_be_empty and answered:
            found = frozenset(question.families)
        else:
            found = frozenset({sample.family for sample in answer}.intersection(question.families))
        if found == known and not session.missing_since:
            return
        patience = STALE_INTERVALS * max(question.every, self._interval)
        for each in question.families:
            if each in found:
                session.missing_since.pop((question, each), None)
            elif known and each in known:
                since = session.missing_since.setdefault((question, each), session.asked_at.get(question, session.now))
                if session.now - since < patience:
                    found |= {each}
        self._learn(question, found)

    def _learn(self, question: _Question, families: frozenset[Family]) -> None:
        if families != self.session.has.get(question):
            self.session.has[question] = families
            self.session.support = None

    def _support(self) -> list[Sample]:
        """Return the series of `signal_supported`, and log what has changed."""
        has = self.session.has
        told = frozenset[Family]().union(*has.values())
        asked = {each: each in told for question in has for each in question.families}
        asked[PEAK_FLOPS] = bool(self._peaks)
        changed = [each for each, supported in asked.items() if self._supported.get(each, supported) != supported]
        self._supported.update({each: supported for each, supported in asked.items() if supported or each in changed})
        lost = ", ".join(each.signal for each in changed if not asked[each])
        if lost:
            _logger.warning(
                "GPU %s (%s): the driver no longer reports %s; newest error: %s; pauses between retries: up to %d s",
                *self.labels,
                lost,
                self.session.refusal or "none",
                LONGEST_PAUSE,
            )
        returned = ", ".join(each.signal for each in changed if asked[each])
        if returned:
            _logger.info("GPU %s (%s): the driver reports %s again", *self.labels, returned)
        return [
            Sample(SIGNAL_SUPPORTED, (*self.labels, each.signal, *self._mig), int(supported))
            for each, supported in asked.items()
            if each.optional
        ]

    def one(self, which: Family, value: float | Distribution | None, *labels: str) -> list[Sample]:
        """A sample of this GPU, or none where there is no value."""
        return [] if value is None else [Sample(which, (*self.labels, *labels, *self._mig), value)]

    def several(self, which: Family, values: Mapping[_Label, float]) -> list[Sample]:
        """A sample for each value of the family's own label."""
        return [Sample(which, (*self.labels, label, *self._mig), value) for label, value in values.items()]

    def ask_counters(self, session: Session) -> list[Sample]:
        """What the driver counts; other questions of the same reading look at it too."""
        counters = session.counters = session.device.counters()
        return self.one(TEMPERATURE, counters.memory_temperature, "memory")

    def ask_activity(self, session: Session) -> list[Sample] | None:
        """Shares of the GPU's units that were active, integrated."""
        activity = session.device.activity()
        if activity is None or not activity.seconds:
            self._require_turn(session)
            return self._activity_samples() or None
        session.activity = activity
        session.active_at = session.now
        shares = {"sm": activity.sm, "occupancy": activity.occupancy, "dram": activity.dram}
        active = {name: ratio for name, ratio in shares.items() if ratio is not None}
        active.update({f"pipe {pipe}": ratio for pipe, ratio in activity.pipes.items()})
        self._active = frozenset(active)
        for name, ratio in active.items():
            self._shares[name] = self._shares.get(name, 0.0) + ratio * activity.seconds
        self._active_engines = frozenset(activity.engines)
        for engine, ratio in activity.engines.items():
            self._engines[engine] = self._engines.get(engine, 0.0) + ratio * activity.seconds
        return self._activity_samples()

    def _require_turn(self, session: Session) -> None:
        """Go on unless activity has been missing for so long that what is known is stale.

        Raises:
            DriverError: another GPU's call is in the way, and may hang.
        """
        if session.active_at is not None and session.now - session.active_at > self._longest:
            raise DriverError("busy", "the GPU's activity can't be read while another GPU's call is under way")

    def _activity_samples(self) -> list[Sample]:
        shares = {name: seconds for name, seconds in self._shares.items() if name in self._active}
        pipes = {name[5:]: seconds for name, seconds in shares.items() if name.startswith("pipe ")}
        return (
            self.one(SM_ACTIVE, shares.get("sm"))
            + self.one(SM_OCCUPANCY, shares.get("occupancy"))
            + self.one(DRAM_ACTIVE, shares.get("dram"))
            + self.several(PIPE_ACTIVE, pipes)
            + self.several(ENGINE_BUSY, {engine: self._engines[engine] for engine in sorted(self._active_engines)})
        )

    def ask_traffic(self, session: Session) -> list[Sample] | None:
        """Bytes over PCIe and NVLink, by what counters and activity of this reading told."""
        counters, activity = session.counters, session.activity
        found: list[Sample] = []
        for each, (counted, moved) in _TRAFFIC_ANSWERS.items():
            traffic = self._traffic[each]
            traffic.take(
                None if counters is None else getattr(counters, counted),
                None if activity is None else getattr(activity, moved),
                session.now,
                self.met_in,
                0.0 if activity is None else activity.seconds,
            )
            if traffic.moved_at is None or session.now - traffic.moved_at > self._longest:
                session.served.pop(each.signal, None)
                continue  # a total that stands still would look like an idle link
            found += self.one(each, traffic.total)
            if traffic.by_activity:
                session.served[each.signal] = "activity (GPM)"
            else:
                session.served.pop(each.signal, None)
        return found if found or {_COUNTERS, _ACTIVITY} <= session.has.keys() else None

    def ask_utilization(self, session: Session) -> list[Sample] | None:
        """Utilisation of GPU and memory, integrated from the driver's samples where it keeps any."""
        stretches = {kind: self._new_stretches(session, kind) for kind in self._timelines}
        silent = [
            kind
            for kind, new in stretches.items()
            if not new and (f"{kind} samples" in session.retry or self._timelines[kind].silent(session.now))
        ]
        if silent:
            snapshot = session.optional("utilization", session.device.utilization)
            if snapshot is not None:
                for kind in silent:
                    stretches[kind] = [self._timelines[kind].poll(_of(snapshot, kind), session.now)]
            elif (
                "gpu samples" in session.retry
                and "memory samples" in session.retry
                and not self._active_instead(session, stretches)
            ):
                self._require_turn(session)
                return None
        for stretch in stretches["gpu"]:
            self._utilization.add(stretch)
        for stretch in stretches["memory"]:
            self._memory_busy.add(stretch)
        integrals: dict[SampleKind, TimeIntegral] = {"gpu": self._utilization, "memory": self._memory_busy}
        for kind, integral in integrals.items():
            if stretches[kind]:
                mean = integral.take_mean()
                self._means[kind] = stretches[kind][-1].value if mean is None else mean
        return self._utilization_samples()

    def _active_instead(self, session: Session, stretches: dict[SampleKind, list[Stretch]]) -> bool:
        """Let the share of time with any work stand for utilisation, as on MIG instances; False while it is unknown."""
        activity = session.activity
        if activity is None and _ACTIVITY not in session.retry:
            return False
        if activity is None or activity.graphics is None:
            raise Unsupported("this GPU tells no utilisation")
        session.served[BUSY.signal] = "the share of time with any work (GPM)"
        self._timelines["gpu"].poll(activity.graphics, session.now)  # samples that come later speak for no time of it
        stretches["gpu"] = [Stretch(activity.graphics, activity.seconds)]
        return True

    def _new_stretches(self, session: Session, kind: SampleKind) -> list[Stretch]:
        timeline = self._timelines[kind]
        samples = _buffered(session, kind, timeline)
        if not samples:
            return []
        if not timeline.newest_us:
            # The buffer's history is older than this process; one interval of it makes the first reading whole.
            begin = samples[-1].timestamp_us - self._interval * 1e6
            samples = [sample for sample in samples if sample.timestamp_us >= begin]
        return timeline.samples(samples, session.now)

    def _utilization_samples(self) -> list[Sample]:
        busy = self._utilization
        found: list[Sample] = []
        if self._means["memory"] is not None:
            found += self.one(MEMORY_BUSY, self._memory_busy.total)
            found += self.one(MEMORY_UTILIZATION, self._means["memory"])
        if self._means["gpu"] is None:
            return found
        found += self.one(BUSY, busy.total)
        found += self.one(OBSERVED, busy.elapsed)
        found += self.one(UTILIZATION, self._means["gpu"])
        found += self.one(IDLE, busy.idle)
        found += self.several(BELOW, {f"{level:g}": busy.below[level] for level in BELOW_LEVELS})
        found += self.one(DIPS, busy.dips)
        found += self.one(DIP_INTERVAL, Distribution((), busy.dip_interval_sum, busy.dip_intervals))
        found += self.one(DIP_INTERVAL_SQUARES, busy.dip_interval_sum_of_squares)
        counts = tuple(busy.observations)
        return found + self.one(UTILIZATION_SAMPLES, Distribution(counts, busy.observation_sum, sum(counts)))

    def ask_engines(self, session: Session) -> list[Sample] | None:
        """Engines by the driver's sample buffers, where activity does not tell of them."""
        if _ACTIVITY not in session.has:
            return None  # it is not known yet which ones activity tells
        found: dict[str, float] = {}
        for engine in ENGINES:
            timeline = self._engine_timelines[engine]
            if engine in self._active_engines and _ACTIVITY not in session.retry:
                timeline.poll(0.0, session.now)  # samples that come later count no time before it
                continue
            samples = _buffered(session, engine, timeline)
            if samples is None:
                continue
            total = self._engines.get(engine, 0.0)
            if samples:
                if not timeline.newest_us:
                    samples = samples[-1:]
                total += sum(each.value * each.seconds for each in timeline.samples(samples, session.now))
            found[engine] = total
        if not found:
            raise Unsupported("this GPU does not tell how busy its other engines are")
        self._engines.update(found)
        return self.several(ENGINE_BUSY, found)

    def ask_memory(self, session: Session) -> list[Sample]:
        """Frame buffer."""
        memory = session.device.memory()
        self.memory_used = memory.used
        return (
            self.one(MEMORY_TOTAL, memory.total)
            + self.one(MEMORY_USED, memory.used)
            + self.one(MEMORY_RESERVED, memory.reserved)
        )

    def ask_power(self, session: Session) -> list[Sample]:
        """Power now."""
        session.watts = session.device.power()
        return self.one(POWER, session.watts)

    def ask_energy(self, session: Session) -> list[Sample]:
        """Energy by the driver's counter, or by integrating power while the driver does not count."""
        counted = session.counters.energy if session.counters is not None else None
        if counted is not None:
            session.served.pop(ENERGY.signal, None)
            return self.one(ENERGY, self._energy.take(counted, session=self.met_in, now=session.now))
        self._require_counters(session)
        if session.watts is None and _POWER in session.retry:
            raise Unsupported("this GPU tells neither power nor energy")
        if session.watts is None or not self._uncounted(self._energy, session):
            raise DriverError("implausible", "the GPU's energy can't be read now")
        session.served[ENERGY.signal] = "integrated power"
        stretch = self._polls["energy"].poll(session.watts, session.now)
        return self.one(ENERGY, self._energy.add(session.watts * stretch.seconds))

    def _counters_failed(self, session: Session) -> bool:
        """Whether the counters are merely not known at this reading."""
        return session.counters is None and _COUNTERS not in session.retry

    def _require_counters(self, session: Session) -> None:
        """Go on unless the counters are merely not known at this reading. Raises DriverError where they are not."""
        if self._counters_failed(session):
            raise DriverError("driver_error", "the GPU's counters could not be read")

    def _uncounted(self, counter: DriverCounter, session: Session) -> bool:
        """Return whether the driver does not count this now, beyond a few readings that may merely have failed."""
        if self._counters_failed(session):
            return False
        return counter.counted_at is None or session.now - counter.counted_at > self._longest

    def ask_throttling(self, session: Session) -> list[Sample]:
        """Throttled time by the driver's counters, and for reasons without one by sampling the bits."""
        counted = session.counters.throttled if session.counters is not None else {}
        seconds = {
            reason: self._throttled[reason].take(value, session=self.met_in, now=session.now)
            for reason, value in counted.items()
        }
        reasons: frozenset[str] | None = None
        try:
            reasons = session.optional("throttle reasons", session.device.throttle_reasons)
        except (DeviceLost, DriverUnavailable):
            raise
        except DriverError:
            if not counted:
                raise
        if not counted and reasons is None:
            self._require_counters(session)
            raise Unsupported("this GPU does not tell why its clocks are down")
        if reasons is not None:
            stretch = self._polls["throttling"].poll(1.0, session.now)
            for reason, counter in self._throttled.items():
                if reason not in counted and self._uncounted(counter, session):
                    seconds[reason] = counter.add(stretch.seconds if reason in reasons else 0.0)
        return self.several(THROTTLED, seconds)

    def ask_temperature(self, session: Session) -> list[Sample]:
        """Temperature of the GPU itself; the memory's comes with the counters."""
        return self.one(TEMPERATURE, session.device.temperature(), "gpu")

    def ask_clocks(self, session: Session) -> list[Sample]:
        """Clocks now."""
        return self.several(CLOCK, session.device.clocks())

    def ask_fans(self, session: Session) -> list[Sample]:
        """Fan speeds."""
        return self.several(FAN_SPEED, {str(fan): speed for fan, speed in session.device.fans().items()})

    def ask_bar1(self, session: Session) -> list[Sample]:
        """BAR1 aperture."""
        bar1 = session.device.bar1()
        return self.one(BAR1_TOTAL, bar1.total) + self.one(BAR1_USED, bar1.used)

    def ask_health(self, session: Session) -> list[Sample]:
        """Errors, and the state of links and memory."""
        health = session.device.health()
        errors = {kind: self._counted(count, "ecc", kind) for kind, count in health.ecc_errors.items()}
        link_errors = {kind: self._counted(count, "nvlink", kind) for kind, count in health.nvlink_errors.items()}
        replays = health.pcie_replays
        return (
            self.several(ECC_ERRORS, errors)
            + self.several(REMAPPED_ROWS, health.remapped_rows)
            + self.one(ROW_REMAP_PENDING, _flag(health.row_remap_pending))
            + self.one(ROW_REMAP_FAILED, _flag(health.row_remap_failed))
            + self.several(RETIRED_PAGES, health.retired_pages)
            + self.one(PCIE_REPLAYS, None if replays is None else self._counted(replays, "pcie_replays"))
            + self.several(NVLINK_ERRORS, link_errors)
            + self.one(NVLINK_LINKS, health.nvlink_links)
            + self.one(NVLINK_LINKS_ACTIVE, health.nvlink_links_active)
        )

    def _counted(self, count: int, what: str, kind: str = "") -> float:
        """Return a count of errors as a total that never goes back."""
        counter = self._errors.get((what, kind))
        if counter is None:
            counter = self._errors[what, kind] = DriverCounter(most_per_second=_MOST_ERRORS[what], slack=COUNTER_SLACK)
        return counter.take(count, session=self.met_in, now=self.session.now)

    def ask_processes(self, session: Session) -> list[Sample]:
        """How many processes hold a context."""
        processes = tuple(session.device.processes())
        self.processes = processes
        counts = Counter("graphics" if process.kind == "graphics" else "compute" for process in processes)
        return self.several(PROCESSES, {kind: counts[kind] for kind in ("compute", "graphics")})

    def ask_process_utilization(self, session: Session) -> list[Sample]:
        """How long each process kept the GPU busy: for the owners, no series of its own."""
        newest = session.process_newest_us
        silent = session.now - session.process_told_at
        # A clock that went back shows only in the driver's whole buffer.
        samples = session.device.process_utilization(newest if silent < _PROCESS_SILENCE else 0)
        if newest:
            # One from the future would silence all others until then.
            latest = newest + (silent + _PROCESS_SILENCE) * 1e6
            samples = [sample for sample in samples if sample.timestamp_us <= latest]
        if not samples:
            return []
        newest_now = max(sample.timestamp_us for sample in samples)
        if newest_now == newest:
            return []
        session.process_told_at = session.now
        session.process_newest_us = newest_now
        if newest_now > newest:
            self._credit_processes([sample for sample in samples if sample.timestamp_us > newest], newest)
        return []

    def _credit_processes(self, samples: Iterable[ProcessUtilization], since_us: int) -> None:
        busy = self._process_busy
        seen: dict[int, int] = {}
        for pid, timestamp_us, ratio, _ in samples:
            before = seen.get(pid, since_us)
            seen[pid] = timestamp_us
            # The first sample ever speaks for a time whose beginning nobody knows.
            seconds = min((timestamp_us - before) / 1e6, _PROCESS_SILENCE) if before else 0.0
            busy[pid] = busy.get(pid, 0.0) + ratio * max(0.0, seconds)
        if len(busy) > _PROCESSES_REMEMBERED:
            present = {process.pid for process in self.processes or ()}
            self._process_busy = {pid: seconds for pid, seconds in busy.items() if pid in present}

    def ask_pcie_link(self, session: Session) -> list[Sample]:
        """The PCIe link."""
        link = session.device.pcie_link()
        return (
            self.one(PCIE_GENERATION, link.generation)
            + self.one(PCIE_GENERATION_MAX, link.generation_max)
            + self.one(PCIE_WIDTH, link.width)
            + self.one(PCIE_WIDTH_MAX, link.width_max)
        )

    def ask_pcie_throughput(self, session: Session) -> list[Sample]:
        """PCIe bytes by integrating what is measured on the spot: slow, so only where asked for and nothing counts."""
        if not self._environment.pcie_throughput:
            raise Unsupported("throughput is not asked for")
        if PCIE_RECEIVED in session.has.get(_TRAFFIC, ()):
            return []
        rates = dict(zip((PCIE_RECEIVED, PCIE_TRANSMITTED), session.device.pcie_throughput(), strict=True))
        stretch = self._polls["pcie"].poll(1.0, session.now)
        found: list[Sample] = []
        for each, rate in rates.items():
            found += self.one(each, self._traffic[each].add(rate * stretch.seconds))
            session.served[each.signal] = "integrated throughput"
        return found

    def ask_power_limits(self, session: Session) -> list[Sample]:
        """Power limits."""
        limits = session.device.power_limits()
        return self.one(POWER_LIMIT, limits.enforced) + self.one(POWER_LIMIT_DEFAULT, limits.default)

    def ask_temperature_limits(self, session: Session) -> list[Sample]:
        """Temperature limits."""
        return self.several(TEMPERATURE_LIMIT, session.device.temperature_limits())

    def ask_clock_limits(self, session: Session) -> list[Sample]:
        """Highest clocks."""
        return self.several(CLOCK_MAX, session.device.clocks_max())

    def ask_configured_clocks(self, session: Session) -> list[Sample]:
        """Clocks set below their maximum."""
        return self.several(CLOCK_CONFIGURED, session.device.clocks_configured())

    def ask_persistence_mode(self, session: Session) -> list[Sample]:
        """Whether the driver keeps the GPU initialised; said once where it does not."""
        persistent = session.device.persistence_mode()
        if not persistent and not self._persistence_said:
            _logger.warning(
                "GPU %s (%s): persistence mode is off: each first use of the idle GPU initialises it anew, which was "
                "seen to take tens of milliseconds to seconds and holds up every other call; while this exporter runs "
                "it keeps the GPU open. Turn it on with nvidia-persistenced, or nvidia-smi -pm 1",
                *self.labels,
            )
        self._persistence_said = not persistent
        return self.one(PERSISTENCE_MODE, int(persistent))

    def ask_identity(self, session: Session) -> list[Sample]:
        """Complete what was unknown of the GPU when it was met."""
        identity = session.device.identity()
        if identity.uuid == self.identity.uuid:
            self.identify(identity, self._system)
        return []

    def ask_instances(self, session: Session) -> list[Sample]:
        """The MIG instances, for the source to read as GPUs of their own."""
        instances = session.device.instances()
        if (instances is None) != (self.instances is None):
            session.forget()  # a GPU that is cut up has other signals than a whole one
            self._supported.clear()
        self.instances = None if instances is None else tuple(instances)
        return []


def _buffered(session: Session, kind: SampleKind, timeline: Timeline) -> Sequence[TimedSample] | None:
    """New samples from the driver's buffer; None where it keeps none of that kind."""
    newest_us = timeline.ask_from(session.now)
    return session.optional(f"{kind} samples", lambda: session.device.utilization_samples(kind, newest_us))


def _of(snapshot: Utilization, kind: SampleKind) -> float:
    return snapshot.gpu if kind == "gpu" else snapshot.memory


def _flag(value: bool | None) -> int | None:
    return None if value is None else int(value)


_COUNTERS = _Question(Gpu.ask_counters, (TEMPERATURE,), _EVERY_READING)
_ACTIVITY = _Question(
    Gpu.ask_activity, (SM_ACTIVE, SM_OCCUPANCY, PIPE_ACTIVE, DRAM_ACTIVE, ENGINE_BUSY), _EVERY_READING
)
_POWER = _Question(Gpu.ask_power, (POWER,), _EVERY_READING)
_TRAFFIC = _Question(Gpu.ask_traffic, tuple(_TRAFFIC_ANSWERS), _EVERY_READING)
_ENERGY = _Question(Gpu.ask_energy, (ENERGY,), _EVERY_READING, in_parts=True)
_FOLLOWING = frozenset({_TRAFFIC, _ENERGY})
"""These make no driver call of their own."""
_INSTANCES = _Question(Gpu.ask_instances, (), _SOMETIMES)
_QUESTIONS = (
    # First, since a GPU that was cut up, or made whole, forgets all that was learnt.
    _INSTANCES,
    # Then these two: others look at what they told.
    _COUNTERS,
    _ACTIVITY,
    _TRAFFIC,
    _Question(Gpu.ask_utilization, (BUSY, MEMORY_BUSY), _EVERY_READING, in_parts=True),
    _Question(Gpu.ask_memory, (MEMORY_TOTAL, MEMORY_USED, MEMORY_RESERVED), _EVERY_READING),
    _POWER,
    _ENERGY,
    _Question(Gpu.ask_throttling, (THROTTLED,), _EVERY_READING, in_parts=True),
    _Question(Gpu.ask_temperature, (TEMPERATURE,), _OFTEN),
    _Question(Gpu.ask_clocks, (CLOCK,), _NOW_AND_THEN),
    _Question(Gpu.ask_engines, (ENGINE_BUSY,), _NOW_AND_THEN, in_parts=True),
    _Question(Gpu.ask_process_utilization, (), _NOW_AND_THEN),
    _Question(Gpu.ask_processes, (PROCESSES,), _SOMETIMES),
    _Question(Gpu.ask_fans, (FAN_SPEED,), _SOMETIMES),
    _Question(
        Gpu.ask_health,
        (
            ECC_ERRORS,
            REMAPPED_ROWS,
            ROW_REMAP_PENDING,
            ROW_REMAP_FAILED,
            RETIRED_PAGES,
            PCIE_REPLAYS,
            NVLINK_ERRORS,
            NVLINK_LINKS,
            NVLINK_LINKS_ACTIVE,
        ),
        _SOMETIMES,
    ),
    _Question(Gpu.ask_pcie_link, (PCIE_GENERATION, PCIE_GENERATION_MAX, PCIE_WIDTH, PCIE_WIDTH_MAX), _SOMETIMES),
    _Question(Gpu.ask_pcie_throughput, (PCIE_RECEIVED, PCIE_TRANSMITTED), _SOMETIMES),
    _Question(Gpu.ask_power_limits, (POWER_LIMIT, POWER_LIMIT_DEFAULT), _SOMETIMES),
    _Question(Gpu.ask_bar1, (BAR1_TOTAL, BAR1_USED), _SELDOM),
    _Question(Gpu.ask_configured_clocks, (CLOCK_CONFIGURED,), _SELDOM, may_be_empty=True),
    _Question(Gpu.ask_temperature_limits, (TEMPERATURE_LIMIT,), _SELDOM),
    _Question(Gpu.ask_clock_limits, (CLOCK_MAX,), _SELDOM),
    _Question(Gpu.ask_persistence_mode, (PERSISTENCE_MODE,), _SELDOM),
    _Question(Gpu.ask_identity, (), _SELDOM),
)
