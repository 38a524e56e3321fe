"""One GPU: its identity, its polls, and its supported signals.

Every poll (`poll.py`) has its own interval, runs on the GPU's own thread, and uses the cheapest driver call that works.
A poll that the driver refuses is repeated after a pause (`drivers/retry.py`). Rates are integrated, so that the
exporter exports seconds, bytes and joules.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from stallscope.model.catalogue.metrics import Family, family
from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.gpu.activity import ActivityPoll, EnginePoll
from stallscope.node.collectors.gpu.poll import Answer, MemoryPoll, Poll, Session, TablePoll
from stallscope.node.collectors.gpu.processes import ProcessPoll, ProcessUtilizationPoll
from stallscope.node.collectors.gpu.totals import EnergyPoll, PcieThroughputPoll, ThrottlingPoll, TrafficPoll
from stallscope.node.collectors.gpu.utilization import UtilizationPoll
from stallscope.node.drivers.device import (
    Device,
    DeviceLost,
    DriverError,
    DriverUnavailable,
    Identity,
    Readings,
    SystemInfo,
    Unsupported,
)
from stallscope.node.drivers.occupancy import Occupancy
from stallscope.node.drivers.peak_flops import peak_flops
from stallscope.node.drivers.retry import LONGEST_PAUSE, Retry
from stallscope.node.drivers.signals import MINUTE, QUERIES, SECONDS_10
from stallscope.node.drivers.unified_memory import has_unified_memory
from stallscope.node.sampling.reading import Distribution, Sample

_logger = logging.getLogger(__name__)

INFO = family("stallscope_gpu_info")
SIGNAL_SUPPORTED = family("stallscope_gpu_signal_supported")
XID_EVENTS = family("stallscope_gpu_xid_events_total")
XID_LAST = family("stallscope_gpu_xid_last_timestamp_seconds")
PEAK_FLOPS = family("stallscope_gpu_peak_flops")

STALE_INTERVALS = 3
LONGEST_INTERVAL = 5.0
"""Maximum seconds between readings: drivers keep about 16 s of samples, and older samples are lost."""
_INSTANCES = "instances"


class Gpu:
    """One GPU or MIG instance, from its first enumeration until it is dropped. Only its own thread calls `read`."""

    identity: Identity
    labels: tuple[str, str]
    session: Session

    def __init__(self, environment: Environment) -> None:
        self.listed = True
        """True if the newest enumeration listed it."""
        self.lost_reason = ""
        """Last known reason why it is down; empty while it is up."""
        self.lost_at: float | None = None
        """Time at which a reading first found it lost, in monotonic seconds; None while it responds."""
        self.gone_at: float | None = None
        """Time at which it was first missing in an enumeration, in monotonic seconds."""
        self.met_in = 0
        """Number of the newest driver session that listed it."""
        self.last_reading: float | None = None
        """Unix time."""
        self.instances: tuple[Device, ...] | None = None
        """MIG instances in the newest reading; None if MIG is off."""
        self.look_again = False
        """True to query MIG instances at the next reading, even if they are not due."""
        self.memory_used: int | None = None
        self.xids: Mapping[int, tuple[int, float]] = {}
        """Number of events and Unix time of the newest, by code; the listener's thread replaces the mapping."""
        self._environment = environment
        self._interval = min(environment.interval, LONGEST_INTERVAL)
        self._longest = STALE_INTERVALS * self._interval
        """Seconds after which a reading is stale."""
        activity, traffic = ActivityPoll(), TrafficPoll()
        self._processes = ProcessPoll()
        self._process_utilization = ProcessUtilizationPoll(self._processes)
        polls: list[Poll] = [
            TablePoll("counters"),
            activity,
            traffic,
            UtilizationPoll(activity, self._interval, self._longest),
            self._processes,
            MemoryPoll(environment.root),
            *(TablePoll(query) for query in QUERIES if query not in ("counters", "memory")),
            EnergyPoll(self._longest),
            ThrottlingPoll(self._longest),
            EnginePoll(activity),
            self._process_utilization,
            PcieThroughputPoll(traffic, enabled=environment.pcie_throughput),
            _IdentityPoll(self),
        ]
        polls.sort(key=lambda poll: poll.every)  # stable: some polls use the readings of earlier ones
        # Instances come first, because all known support is dropped when MIG is switched on or off.
        self._polls = (_InstancePoll(self), *polls)
        self._families = {poll.name: poll.families for poll in self._polls}
        self._sets = {poll.name: frozenset(poll.families) for poll in self._polls}
        self._persistence_off_logged = False
        self._retry: Retry = Retry()
        self._supported: dict[Family, bool] = {}
        """Support of each family, as logged last."""
        self._known_as: tuple[Identity, SystemInfo] | None = None
        self._system = SystemInfo("", "")
        self._info: dict[str, Sample] = {}
        self._mig: tuple[str, ...] = ()

    def meet(self, identity: Identity, system: SystemInfo, device: Device) -> None:
        """Begin a session: set the identity, and the device that is used from now on."""
        self.identify(identity, system)
        for poll in self._polls:
            poll.reopened()
        # The counts of the previous session are passed at once: a page rendered now must count nothing twice.
        before = (self.calls, self._rejected_by_calls()) if hasattr(self, "session") else ()
        self.session = Session(device, self._retry, self._longest, *before)
        self._retry.forget()

    def identify(self, identity: Identity, system: SystemInfo | None = None) -> None:
        """Update the identity of the GPU, and the system information if given; UUID and index stay the same."""
        system = self._system if system is None else system
        if (identity, system) == self._known_as:
            return
        self._known_as = (identity, system)
        self.identity = identity
        self.labels = (str(identity.index), identity.uuid)
        self._mig = (identity.mig,) if identity.mig else ()
        self._system = system
        self._info = {}
        peaks = {} if identity.mig else peak_flops(identity.model)
        self._peaks = self._samples({PEAK_FLOPS: peaks})

    def rest(self) -> None:
        """Release all data except identity and counters: the GPU is gone, perhaps for a long time."""
        self.session.answers = {}  # a new dictionary, because a reading may still use the old one
        self.session.forget()
        self._processes.processes = self.memory_used = None

    def cut(self, instances: Iterable[Device] | None) -> None:
        """Store the MIG instances; None if MIG is off."""
        found = None if instances is None else tuple(instances)
        if (found is None) != (self.instances is None):
            self.session.forget()  # with MIG, a GPU supports other signals
            self._supported.clear()
        self.instances = found

    @property
    def calls(self) -> int:
        """Driver calls made for this GPU so far."""
        session = self.session
        return session.calls_before + session.device.calls

    @property
    def rejected(self) -> Mapping[str, int]:
        """Implausible values of the GPU so far, by reason."""
        found = self._rejected_by_calls()
        for poll in self._polls:
            poll.count_rejected(found)
        return {reason: count for reason, count in found.items() if count}

    def _rejected_by_calls(self) -> Counter[str]:
        """Count the values that devices rejected in all sessions, by reason, without timelines and counters."""
        session = self.session
        found = Counter(session.rejected_before)
        for reason, count in session.device.rejected.items():
            found[reason] += count
        return found

    @property
    def served(self) -> Mapping[str, str]:
        """Return the driver call of each signal queried so far."""
        return {**self.session.device.served, **self.session.served}

    @property
    def occupancy(self) -> Occupancy:
        """Processes on the GPU in the newest reading."""
        return Occupancy(
            self.identity,
            self.memory_used,
            self._processes.processes or (),
            dict(self._process_utilization.busy),
        )

    def sharing(self) -> str:
        """Return how the GPU is shared: a value of the label `sharing`."""
        if self.identity.mig or self.instances is not None:
            return "mig"
        reported = self._environment.occupancies.sharing(self.identity.uuid)
        if reported:
            return reported
        return "mps" if any(process.kind == "mps" for process in self._processes.processes or ()) else "exclusive"

    def info(self) -> Sample:
        """Return the info series."""
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
            optional = ("", "unified") if has_unified_memory(identity) else self._mig
            known = self._info[sharing] = Sample(INFO, (*self.labels, *values, *optional), 1)
        return known

    def xid_samples(self) -> list[Sample]:
        """Return the series of Xid events."""
        found: list[Sample] = []
        for xid, (count, when) in self.xids.items():
            found += self.one(XID_EVENTS, count, str(xid)) + self.one(XID_LAST, when, str(xid))
        return found

    def note_xid(self, xid: int, when: float) -> None:
        """Count an Xid event. Only the listener's thread calls this."""
        count, _ = self.xids.get(xid, (0, 0.0))
        self.xids = {**self.xids, xid: (count + 1, when)}

    def read(self) -> Iterable[Sample]:
        """Make the polls that are due, and return the samples of all polls.

        Raises:
            DeviceLost, DriverUnavailable: the GPU or the driver is gone.
            DriverError: no poll was answered.
        """
        session = self.session
        now = self._environment.clock.monotonic()
        session.begin(now, self.met_in)
        if self.look_again:
            self.look_again = False
            session.polled_at.pop(_INSTANCES, None)
            session.retry.answered(_INSTANCES)
        failure: DriverError | None = None
        answered = refused = False
        for poll in self._polls:
            name = poll.name
            polled_at = session.polled_at.get(name)
            # Half an interval of slack, because readings can be a little early or late.
            if polled_at is not None and now - polled_at < poll.every - self._interval / 2:
                continue
            if not session.retry.due(name, now):
                continue
            try:
                answer = poll.read(session)
            except Unsupported as refusal:
                if session.has.get(name):
                    refused = True
                    session.refusal = str(refusal)
                if not poll.in_parts:
                    session.retry.refused(name, now)
                session.answers.pop(name, None)
                self._learn(name, frozenset())
            except (DeviceLost, DriverUnavailable):
                raise
            except DriverError as problem:
                # A failed call affects only its own series; it is repeated at the next reading.
                failure = problem
                session.answers.pop(name, None)
                if session.has.get(name) and problem.reason != "busy":
                    session.refusal = str(problem)
                    self._note_families(poll, ())
            else:
                # An answer derived from other answers does not show that the driver responds.
                answered = answered or (bool(answer) and not poll.follows)
                session.polled_at[name] = now
                session.retry.answered(name)
                if answer is None:
                    continue
                session.answers[name] = self._samples(answer)
                self._note_families(poll, answer)
        if failure is not None and not answered:
            raise failure
        if refused and not answered:
            # A GPU does not lose all signals at once: the session has failed, and only a new one shows the reason.
            raise DriverUnavailable("no_permission", "the GPU refuses all queries that it answered before")
        self._note_readings(session.readings)
        samples = [sample for answer in session.answers.values() for sample in answer]
        samples += self._peaks
        if session.support is None:
            session.support = self._support()
        return samples + session.support

    def _note_readings(self, readings: Mapping[str, Readings]) -> None:
        """Store readings that are also used apart from their own series."""
        used = readings.get("memory", {}).get("memory_used_bytes")
        if isinstance(used, (int, float)):
            self.memory_used = int(used)
        persistent = readings.get("persistence_mode", {}).get("persistence_mode")
        if persistent is None:
            return
        if not persistent and not self._persistence_off_logged:
            _logger.warning(
                "GPU %s (%s): persistence mode is off: each first use of the idle GPU initialises it again, which "
                "takes tens of milliseconds to seconds, and delays every other call. While this exporter runs, it "
                "keeps the GPU open. Turn persistence mode on with nvidia-persistenced, or nvidia-smi -pm 1",
                *self.labels,
            )
        self._persistence_off_logged = not persistent

    def _note_families(self, poll: Poll, answer: Iterable[Family]) -> None:
        """Store the families in an answer; a family that is absent from several answers is no longer supported."""
        session, name = self.session, poll.name
        known = session.has.get(name)
        found = self._sets[name].intersection(answer)
        if found == known and not session.missing_since:
            return
        patience = STALE_INTERVALS * max(poll.every, self._interval)
        for each in poll.families:
            if each in found:
                session.missing_since.pop((name, each), None)
            elif known and each in known:
                since = session.missing_since.setdefault((name, each), session.polled_at.get(name, session.now))
                if session.now - since < patience:
                    found |= {each}
        self._learn(name, found)

    def _learn(self, poll: str, families: frozenset[Family]) -> None:
        if families != self.session.has.get(poll):
            self.session.has[poll] = families
            self.session.support = None

    def _support(self) -> list[Sample]:
        """Return the series of `signal_supported`, and log what has changed."""
        has = self.session.has
        reported = frozenset[Family]().union(*has.values())
        queried = {each: each in reported for poll in has for each in self._families[poll]}
        queried[PEAK_FLOPS] = bool(self._peaks)
        changed = [each for each, supported in queried.items() if self._supported.get(each, supported) != supported]
        self._supported.update({each: supported for each, supported in queried.items() if supported or each in changed})
        lost = ", ".join(each.signal for each in changed if not queried[each])
        if lost:
            _logger.warning(
                "GPU %s (%s): the driver no longer reports %s; newest error: %s; pauses between retries: up to %d s",
                *self.labels,
                lost,
                self.session.refusal or "none",
                LONGEST_PAUSE,
            )
        returned = ", ".join(each.signal for each in changed if queried[each])
        if returned:
            _logger.info("GPU %s (%s): the driver reports %s again", *self.labels, returned)
        return [
            Sample(SIGNAL_SUPPORTED, (*self.labels, each.signal, *self._mig), int(supported))
            for each, supported in queried.items()
            if each.optional
        ]

    def one(self, which: Family, value: float | Distribution | None, *labels: str) -> list[Sample]:
        """Return a sample of this GPU, or nothing without a value."""
        return [] if value is None else [Sample(which, (*self.labels, *labels, *self._mig), value)]

    def _samples(self, answer: Answer) -> list[Sample]:
        """Return the series of an answer."""
        labels, mig = self.labels, self._mig
        found: list[Sample] = []
        for each, value in answer.items():
            if isinstance(value, (float, int, Distribution)):
                found.append(Sample(each, (*labels, *mig), value))
            else:
                found += [Sample(each, (*labels, label, *mig), number) for label, number in value.items()]
        return found


class _InstancePoll(Poll):
    """Polls the MIG instances, which the collector reads as separate GPUs."""

    name = _INSTANCES
    every = SECONDS_10

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def read(self, session: Session) -> Answer:
        self._gpu.cut(session.device.instances())
        return {}


class _IdentityPoll(Poll):
    """Completes the identity of a GPU whose parts were unknown at first."""

    name = "identity"
    every = MINUTE

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def read(self, session: Session) -> Answer:
        identity = session.device.identity()
        if identity.uuid == self._gpu.identity.uuid:
            self._gpu.identify(identity)
        return {}
