"""NVIDIA GPUs through their driver.

The main reader holds the session with the driver and knows which GPUs there are; each GPU is read on a thread of its
own, so that one that hangs stops no other. What a GPU's series say when it is lost, hung or gone is decided in
`collect`, from what is known of its reader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, NamedTuple, NoReturn, TypeVar

from stallscope.catalogue import BELOW_LEVELS, THROTTLE_REASONS, Family, family
from stallscope.gpus.driver import (
    Device,
    DeviceLost,
    Driver,
    DriverError,
    DriverUnavailable,
    Identity,
    ProcessKind,
    SampleKind,
    SystemInfo,
    Unsupported,
    Utilization,
)
from stallscope.nvidia.nvml import NvmlDriver
from stallscope.sampling.integrals import Stretch, TimeIntegral, Timeline, UtilizationIntegral
from stallscope.sampling.reader import ReaderState
from stallscope.sampling.reading import Distribution, Sample
from stallscope.sources.base import Environment, NotPresent, Source, SourceState, register

INFO = family("stallscope_gpu_info")
UP = family("stallscope_gpu_up")
LOST_INFO = family("stallscope_gpu_lost_info")
LAST_READING = family("stallscope_gpu_last_reading_timestamp_seconds")
SIGNAL_SUPPORTED = family("stallscope_gpu_signal_supported")
BUSY = family("stallscope_gpu_busy_seconds_total")
MEMORY_BUSY = family("stallscope_gpu_memory_busy_seconds_total")
IDLE = family("stallscope_gpu_idle_seconds_total")
BELOW = family("stallscope_gpu_below_seconds_total")
DIPS = family("stallscope_gpu_dips_total")
DIP_INTERVAL = family("stallscope_gpu_dip_interval_seconds")
DIP_INTERVAL_SQUARES = family("stallscope_gpu_dip_interval_seconds_sumsq")
UTILIZATION_SAMPLES = family("stallscope_gpu_utilization_samples")
UTILIZATION = family("stallscope_gpu_utilization_ratio")
MEMORY_UTILIZATION = family("stallscope_gpu_memory_utilization_ratio")
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
PCIE_GENERATION = family("stallscope_gpu_pcie_link_generation")
PCIE_GENERATION_MAX = family("stallscope_gpu_pcie_link_generation_max")
PCIE_WIDTH = family("stallscope_gpu_pcie_link_width")
PCIE_WIDTH_MAX = family("stallscope_gpu_pcie_link_width_max")
PROCESSES = family("stallscope_gpu_processes")

_ENUMERATION_SECONDS = 10.0
_INCOMPLETE_SECONDS = 2.0
"""The same while some GPU does not say what it is."""
_INTRODUCTION_SECONDS = 1.0
"""How long new GPUs together may take to say what they are; who takes longer comes in at a later enumeration."""
_RETRY_KNOWN_SECONDS = 5.0
"""Longest pause between two attempts to reach a driver that was there before, and ..."""
_RETRY_ABSENT_SECONDS = 30.0
"""... one that never was."""
_STALE_INTERVALS = 3

# Seconds between two askings; 0 is at every reading.
_EVERY_READING, _OFTEN, _SOMETIMES, _SELDOM = 0.0, 2.0, 10.0, 60.0

_Answer = TypeVar("_Answer")
_Label = TypeVar("_Label", bound=str)


class _Question(NamedTuple):
    """Something that a GPU is asked, at its own cadence."""

    ask: Callable[[_Gpu, _Session], list[Sample]]
    families: tuple[Family, ...]
    every: float
    may_be_empty: bool = False
    """Whether a GPU that has the signal may have no series to show."""


class _Session:
    """What was learnt of one GPU since the driver was opened; a new one forgets what the GPU did not support."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.now = 0.0
        """When the newest reading began, monotonic."""
        self.lacking: set[str] = set()
        self.supported: dict[Family, bool] = {}
        self.pointless: set[_Question] = set()
        self.answers: dict[_Question, list[Sample]] = {}
        self.asked_at: dict[_Question, float] = {}

    def optional(self, name: str, call: Callable[[], _Answer]) -> _Answer | None:
        """The answer, or None where this GPU was found to lack it; then it is not asked again."""
        if name in self.lacking:
            return None
        try:
            return call()
        except Unsupported:
            self.lacking.add(name)
            return None


class _Gpu:
    """One GPU, from the first time it is seen until the exporter ends. `read` belongs to its own thread."""

    identity: Identity
    labels: tuple[str, str]
    info: Sample
    session: _Session

    def __init__(self, environment: Environment) -> None:
        self.listed = True
        """Whether the newest enumeration showed it."""
        self.lost_reason = ""
        """Why it is down, as last known; empty while it is up."""
        self.met_in = 0
        """Number of the session with the driver in which it was last met."""
        self.last_reading: float | None = None
        """Wall clock."""
        self._clock = environment.clock
        longest = _STALE_INTERVALS * environment.interval
        self._interval = environment.interval
        self._timelines: dict[SampleKind, Timeline] = {"gpu": Timeline(longest), "memory": Timeline(longest)}
        self._polls = {"energy": Timeline(longest), "throttling": Timeline(longest)}
        self._utilization = UtilizationIntegral()
        self._memory_busy = TimeIntegral()
        self._means: dict[SampleKind, float | None] = {"gpu": None, "memory": None}
        self._energy = TimeIntegral()
        self._throttled: dict[str, TimeIntegral] = {}

    def meet(self, identity: Identity, system: SystemInfo, device: Device) -> None:
        """Take note of what the GPU is, and of the device that answers for it from now on."""
        self.identity = identity
        self.labels = (str(identity.index), identity.uuid)
        self.info = Sample(
            INFO,
            (
                *self.labels,
                identity.model,
                identity.serial,
                identity.pci_bus_id,
                system.driver_version,
                system.cuda_version,
                identity.vbios_version,
                identity.architecture,
                identity.compute_capability,
                "exclusive",
            ),
            1,
        )
        self.session = _Session(device)

    def read(self) -> Iterable[Sample]:
        """Ask what is due and return everything known.

        Raises:
            DeviceLost, DriverUnavailable: the GPU or the driver is gone.
            DriverError: no question at all was answered.
        """
        session = self.session
        now = session.now = self._clock.monotonic()
        failure: DriverError | None = None
        answered = False
        for question in _QUESTIONS:
            asked_at = session.asked_at.get(question)
            # Half an interval of slack, since readings come a little early or late.
            if asked_at is not None and now - asked_at < question.every - self._interval / 2:
                continue
            if question in session.pointless:
                continue
            try:
                answer = question.ask(self, session)
            except Unsupported:
                session.supported.update(dict.fromkeys(question.families, False))
                session.pointless.add(question)
            except (DeviceLost, DriverUnavailable):
                raise
            except DriverError as problem:
                # One call that fails costs its own series; it is asked again at the next reading.
                failure = problem
                session.answers.pop(question, None)
            else:
                answered = True
                session.asked_at[question] = now
                session.answers[question] = answer
                present = {sample.family for sample in answer}
                for each in question.families:
                    session.supported[each] = (
                        session.supported.get(each, False) or question.may_be_empty or each in present
                    )
        if failure is not None and not answered:
            raise failure
        samples = [sample for answer in session.answers.values() for sample in answer]
        samples += [
            Sample(SIGNAL_SUPPORTED, (*self.labels, each.signal), int(supported))
            for each, supported in session.supported.items()
            if each.optional
        ]
        return samples

    def one(self, which: Family, value: float | Distribution | None, *labels: str) -> list[Sample]:
        """A sample of this GPU, or none where there is no value."""
        return [] if value is None else [Sample(which, (*self.labels, *labels), value)]

    def several(self, which: Family, values: Mapping[_Label, float]) -> list[Sample]:
        """A sample for each value of the family's own label."""
        return [Sample(which, (*self.labels, label), value) for label, value in values.items()]

    def ask_utilization(self, session: _Session) -> list[Sample]:
        """Utilisation of GPU and memory, integrated from the driver's samples where it keeps any."""
        stretches = {kind: self._new_stretches(session, kind) for kind in self._timelines}
        silent = [
            kind
            for kind, new in stretches.items()
            if not new and (f"{kind} samples" in session.lacking or self._timelines[kind].silent(session.now))
        ]
        if silent:
            snapshot = session.optional("utilization", session.device.utilization)
            if snapshot is None and {"gpu samples", "memory samples"} <= session.lacking:
                raise Unsupported("this GPU tells no utilisation")
            if snapshot is not None:
                for kind in silent:
                    stretches[kind] = [self._timelines[kind].poll(_of(snapshot, kind), session.now)]
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

    def _new_stretches(self, session: _Session, kind: SampleKind) -> list[Stretch]:
        timeline = self._timelines[kind]
        samples = session.optional(
            f"{kind} samples", lambda: session.device.utilization_samples(kind, timeline.newest_us)
        )
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
        found += self.one(UTILIZATION, self._means["gpu"])
        found += self.one(IDLE, busy.idle)
        found += self.several(BELOW, {f"{level:g}": busy.below[level] for level in BELOW_LEVELS})
        found += self.one(DIPS, busy.dips)
        found += self.one(DIP_INTERVAL, Distribution((), busy.dip_interval_sum, busy.dip_intervals))
        found += self.one(DIP_INTERVAL_SQUARES, busy.dip_interval_sum_of_squares)
        counts = tuple(busy.observations)
        return found + self.one(UTILIZATION_SAMPLES, Distribution(counts, busy.observation_sum, sum(counts)))

    def ask_memory(self, session: _Session) -> list[Sample]:
        """Frame buffer."""
        memory = session.device.memory()
        return (
            self.one(MEMORY_TOTAL, memory.total)
            + self.one(MEMORY_USED, memory.used)
            + self.one(MEMORY_RESERVED, memory.reserved)
        )

    def ask_power(self, session: _Session) -> list[Sample]:
        """Power, and energy by the driver's counter or else by integrating power."""
        watts = session.optional("power", session.device.power)
        joules = session.optional("energy", session.device.energy)
        if watts is not None and joules is None:
            self._energy.add(self._polls["energy"].poll(watts, session.now))
            joules = self._energy.total
        if watts is None and joules is None:
            raise Unsupported("this GPU tells neither power nor energy")
        return self.one(POWER, watts) + self.one(ENERGY, joules)

    def ask_throttling(self, session: _Session) -> list[Sample]:
        """Throttled time by the driver's counters, and for reasons without one by sampling the bits."""
        counted = session.optional("throttle counters", session.device.throttle_seconds)
        reasons = session.optional("throttle reasons", session.device.throttle_reasons)
        if counted is None and reasons is None:
            raise Unsupported("this GPU does not tell why its clocks are down")
        seconds: dict[str, float] = dict(counted or {})
        if reasons is not None:
            stretch = self._polls["throttling"].poll(1.0, session.now)
            for reason in THROTTLE_REASONS:
                if reason in seconds:
                    continue
                integral = self._throttled.setdefault(reason, TimeIntegral())
                integral.add(Stretch(float(reason in reasons), stretch.seconds))
                seconds[reason] = integral.total
        return self.several(THROTTLED, seconds)

    def ask_temperature(self, session: _Session) -> list[Sample]:
        """Temperatures."""
        return self.several(TEMPERATURE, session.device.temperatures())

    def ask_clocks(self, session: _Session) -> list[Sample]:
        """Clocks now."""
        return self.several(CLOCK, session.device.clocks())

    def ask_fans(self, session: _Session) -> list[Sample]:
        """Fan speeds."""
        return self.several(FAN_SPEED, {str(fan): speed for fan, speed in enumerate(session.device.fans())})

    def ask_bar1(self, session: _Session) -> list[Sample]:
        """BAR1 aperture."""
        bar1 = session.device.bar1()
        return self.one(BAR1_TOTAL, bar1.total) + self.one(BAR1_USED, bar1.used)

    def ask_processes(self, session: _Session) -> list[Sample]:
        """How many processes hold a context."""
        kinds: tuple[ProcessKind, ...] = ("compute", "graphics")
        found: dict[str, float] = {}
        for kind in kinds:
            processes = session.optional(f"{kind} processes", lambda kind=kind: session.device.processes(kind))  # type: ignore[misc]
            if processes is not None:
                found[kind] = len(processes)
        if not found:
            raise Unsupported("this GPU does not tell its processes")
        return self.several(PROCESSES, found)

    def ask_pcie_link(self, session: _Session) -> list[Sample]:
        """The PCIe link."""
        link = session.device.pcie_link()
        return (
            self.one(PCIE_GENERATION, link.generation)
            + self.one(PCIE_GENERATION_MAX, link.generation_max)
            + self.one(PCIE_WIDTH, link.width)
            + self.one(PCIE_WIDTH_MAX, link.width_max)
        )

    def ask_power_limits(self, session: _Session) -> list[Sample]:
        """Power limits."""
        limits = session.device.power_limits()
        return self.one(POWER_LIMIT, limits.enforced) + self.one(POWER_LIMIT_DEFAULT, limits.default)

    def ask_temperature_limits(self, session: _Session) -> list[Sample]:
        """Temperature limits."""
        return self.several(TEMPERATURE_LIMIT, session.device.temperature_limits())

    def ask_clock_limits(self, session: _Session) -> list[Sample]:
        """Highest clocks."""
        return self.several(CLOCK_MAX, session.device.clocks_max())

    def ask_configured_clocks(self, session: _Session) -> list[Sample]:
        """Clocks set below their maximum."""
        return self.several(CLOCK_CONFIGURED, session.device.clocks_configured())


_QUESTIONS = (
    _Question(_Gpu.ask_utilization, (BUSY, MEMORY_BUSY), _EVERY_READING),
    _Question(_Gpu.ask_memory, (MEMORY_TOTAL, MEMORY_USED, MEMORY_RESERVED), _EVERY_READING),
    _Question(_Gpu.ask_power, (POWER, ENERGY), _EVERY_READING),
    _Question(_Gpu.ask_throttling, (THROTTLED,), _EVERY_READING),
    _Question(_Gpu.ask_temperature, (TEMPERATURE,), _OFTEN),
    _Question(_Gpu.ask_clocks, (CLOCK,), _OFTEN),
    _Question(_Gpu.ask_fans, (FAN_SPEED,), _SOMETIMES),
    _Question(_Gpu.ask_bar1, (BAR1_TOTAL, BAR1_USED), _SOMETIMES),
    _Question(_Gpu.ask_processes, (PROCESSES,), _SOMETIMES),
    _Question(_Gpu.ask_pcie_link, (PCIE_GENERATION, PCIE_GENERATION_MAX, PCIE_WIDTH, PCIE_WIDTH_MAX), _SOMETIMES),
    _Question(_Gpu.ask_power_limits, (POWER_LIMIT, POWER_LIMIT_DEFAULT), _SOMETIMES),
    _Question(_Gpu.ask_configured_clocks, (CLOCK_CONFIGURED,), _SOMETIMES, may_be_empty=True),
    _Question(_Gpu.ask_temperature_limits, (TEMPERATURE_LIMIT,), _SELDOM),
    _Question(_Gpu.ask_clock_limits, (CLOCK_MAX,), _SELDOM),
)


@register
class NvidiaSource(Source):
    """See the module."""

    name: ClassVar[str] = "nvidia"
    summary: ClassVar[str] = "NVIDIA GPUs through their driver (NVML)."
    harmless: ClassVar[tuple[type[Exception], ...]] = (DeviceLost,)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._driver: Driver = environment.driver() if environment.driver is not None else NvmlDriver()
        self._gpus: dict[str, _Gpu] = {}
        self._introductions: dict[int, _Introduction] = {}
        self._open = False
        self._session = 0
        """Number of the newest session with the driver."""
        self._session_over = 0
        """Number of the newest session that a GPU's reader found at its end."""
        self._problem: DriverUnavailable | None = None
        self._pause = 0.0
        self._retry_at = 0.0
        self._enumerate_at = 0.0
        self._complaint = ""

    def read(self) -> Iterable[Sample]:
        """Keep the session with the driver, and the list of GPUs.

        Raises:
            NotPresent: this machine has, and had, no driver that answers.
            DriverUnavailable: the driver is gone; tried again after a pause.
            DriverError: a GPU does not say what it is, and so has no series that could tell of it.
        """
        now = self.environment.clock.monotonic()
        if self._open and self._session_over == self._session:
            self._disconnect()
        if not self._open:
            self._connect(now)
        if now >= self._enumerate_at:
            try:
                self._enumerate(now)
            except DriverUnavailable as problem:
                self._disconnect()
                self._fail(problem, now)
        if self._complaint:
            raise DriverError("unidentified", self._complaint)
        return ()

    def parts(self) -> Mapping[str, Callable[[], Iterable[Sample]]]:
        """A reader for each GPU that the driver shows, by UUID."""
        return {uuid: self._reader(gpu) for uuid, gpu in self._gpus.items() if gpu.listed}

    def collect(self, state: SourceState) -> Iterable[Sample]:
        """Every GPU ever seen, and the readings of those that are well."""
        for uuid, gpu in self._gpus.items():
            reader = state.parts.get(uuid)
            yield gpu.info
            if reader is not None and reader.read_time is not None:
                gpu.last_reading = reader.read_time
            if gpu.last_reading is not None:
                yield Sample(LAST_READING, gpu.labels, gpu.last_reading)
            reason = self._trouble(gpu, reader, state)
            if reason is None:
                continue
            gpu.lost_reason = reason
            yield Sample(UP, gpu.labels, int(not reason))
            if reason:
                yield Sample(LOST_INFO, (*gpu.labels, reason), 1)
            elif reader is not None:
                yield from reader.samples

    def close(self) -> None:
        """Let the driver go."""
        if self._open:
            self._disconnect()

    def _trouble(self, gpu: _Gpu, reader: ReaderState | None, state: SourceState) -> str | None:
        """Why the GPU is down; the empty string where it is up, None where that is not known yet."""
        if not gpu.listed:
            # A GPU that was lost and then left the driver's list is still lost for the first reason.
            return gpu.lost_reason or "not_enumerated"
        error = reader.error if reader is not None else None
        if isinstance(error, DriverUnavailable) and isinstance(state.main.error, DriverUnavailable):
            return state.main.error.reason  # the main reader knows why; the GPU's only that its session is over
        if isinstance(error, (DeviceLost, DriverUnavailable)):
            return error.reason
        if reader is not None and reader.fresh(state.now, state.stale_after):
            return ""
        if reader is not None and reader.hung(state.now, state.stale_after):
            return "hung"
        if error is not None:
            return error.reason if isinstance(error, DriverError) else "failing"
        if reader is not None and reader.attempts and reader.busy_since is not None:
            return "hung"  # all was well until the reading that has now outlasted the one before
        return gpu.lost_reason or (None if gpu.last_reading is None else "stale")

    def _reader(self, gpu: _Gpu) -> Callable[[], Iterable[Sample]]:
        def read() -> Iterable[Sample]:
            session = self._session
            try:
                return gpu.read()
            except DriverUnavailable:
                # The main reader opens the session again; a GPU's thread must not.
                self._session_over = session
                raise

        return read

    def _connect(self, now: float) -> None:
        if self._problem is not None and now < self._retry_at:
            self._fail(self._problem)
        try:
            self._driver.open()
        except DriverUnavailable as problem:
            self._fail(problem, now)
        self._open = True
        self._problem = None
        self._pause = 0.0
        self._session += 1
        self._introductions = {}
        self._enumerate_at = now

    def _disconnect(self) -> None:
        self._open = False
        self._driver.close()

    def _fail(self, problem: DriverUnavailable, now: float | None = None) -> NoReturn:
        """Raise what became of the driver; with a time, also set when to try again."""
        if now is not None:
            longest = _RETRY_KNOWN_SECONDS if self._gpus else _RETRY_ABSENT_SECONDS
            self._pause = min(2 * self._pause or self.environment.interval, longest)
            self._retry_at = now + self._pause
            self._problem = problem
        if not self._gpus:
            raise NotPresent(str(problem))
        # A new one each time: raising the same again would make its traceback grow for ever.
        raise DriverUnavailable(problem.reason, str(problem))

    def _enumerate(self, now: float) -> None:
        devices = self._driver.devices()
        system = self._driver.system()
        self._enumerate_at = now + _ENUMERATION_SECONDS
        known = {id(gpu.session.device): gpu for gpu in self._gpus.values() if gpu.met_in == self._session}
        met, complete = self._introduce({place: each for place, each in enumerate(devices) if id(each) not in known})
        listed = {gpu.identity.uuid for device in devices if (gpu := known.get(id(device))) is not None}
        gpus = dict(self._gpus)
        for device, identity in met:
            listed.add(identity.uuid)
            gpu = gpus.get(identity.uuid)
            if gpu is None:
                gpu = gpus[identity.uuid] = _Gpu(self.environment)
            # Another object for the same GPU in the same session has nothing new to tell.
            if gpu.met_in != self._session or gpu.identity != identity:
                gpu.meet(identity, system, device)
                gpu.met_in = self._session
        for uuid, gpu in gpus.items():
            # While somebody does not say who it is, it may be any of those that are missing.
            gpu.listed = uuid in listed or (gpu.listed and not complete)
        self._gpus = gpus
        if not complete:
            self._enumerate_at = now + _INCOMPLETE_SECONDS

    def _introduce(self, strangers: Mapping[int, Device]) -> tuple[list[tuple[Device, Identity]], bool]:
        """Ask devices who they are, side by side, and whether all of them said so in time."""
        pending = {place: asked for place, asked in self._introductions.items() if asked.thread.is_alive()}
        asked = {place: pending.get(place) or _Introduction(device) for place, device in strangers.items()}
        self._introductions = {**pending, **asked}
        clock = self.environment.clock
        deadline = clock.monotonic() + _INTRODUCTION_SECONDS
        met: list[tuple[Device, Identity]] = []
        for place, introduction in asked.items():
            if place not in pending:  # who let the first deadline pass is not waited for again
                introduction.thread.join(max(0.0, deadline - clock.monotonic()))
            if isinstance(introduction.error, DriverUnavailable):
                raise introduction.error
            if introduction.identity is not None:
                met.append((introduction.device, introduction.identity))
        silent = [str(each.error or "no answer") for each in asked.values() if each.identity is None]
        self._complaint = f"{len(silent)} of the GPUs do not say what they are: {'; '.join(silent)}" if silent else ""
        return met, not silent


class _Introduction:
    """One device asked for its identity on a thread of its own, since it may never answer."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.identity: Identity | None = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._ask, name="identify GPU", daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        try:
            self.identity = self.device.identity()
        except Exception as problem:  # noqa: BLE001 - the main reader says what became of it
            self.error = problem


def _of(snapshot: Utilization, kind: SampleKind) -> float:
    return snapshot.gpu if kind == "gpu" else snapshot.memory
