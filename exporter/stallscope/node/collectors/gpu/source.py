"""The collector behind the GPUs of every vendor: it keeps the session with the driver, and the list of GPUs.

The main reader opens and closes the session and lists the GPUs. Each GPU, and each MIG instance, has its own reader
thread, so that a GPU that hangs does not stop the others. Another thread receives the driver's events. `collect`
decides from the state of a reader which series a lost, hung or removed GPU has.
"""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, NoReturn

from stallscope.model.catalogue.gpu_losses import remedy
from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, CollectorState, Environment, NotPresent
from stallscope.node.collectors.gpu.events import Events
from stallscope.node.collectors.gpu.gpu import LONGEST_INTERVAL, Gpu
from stallscope.node.collectors.gpu.introductions import Introductions
from stallscope.node.drivers.device import (
    Device,
    DeviceLost,
    Driver,
    DriverError,
    DriverUnavailable,
    Identity,
    SystemInfo,
)
from stallscope.node.sampling.reader import ReaderState
from stallscope.node.sampling.reading import Sample

_logger = logging.getLogger(__name__)

UP = family("stallscope_gpu_up")
LOST_INFO = family("stallscope_gpu_lost_info")
LAST_READING = family("stallscope_gpu_last_reading_timestamp_seconds")
DRIVER_CALLS = family("stallscope_exporter_driver_calls_total")
VALUES_REJECTED = family("stallscope_exporter_values_rejected_total")

_ENUMERATION_SECONDS = 10.0
_INCOMPLETE_SECONDS = 2.0
"""Seconds between enumerations while a GPU is not identified."""
_RETRY_KNOWN_SECONDS = 5.0
"""Maximum pause between two attempts to open the driver of a machine that has GPUs."""
_RETRY_ABSENT_SECONDS = 30.0
"""Maximum pause between two attempts to open the driver of a machine that shows no GPU."""
_QUIET_SECONDS = 1.0
"""Maximum seconds to wait for calls in progress before the session is closed."""
_REOPEN_LOST_SECONDS = (60.0, 600.0)
"""First and longest pause before a new session is opened for a GPU that stays lost."""
_INSTANCE_REMEMBERED_SECONDS = 600.0
"""Seconds for which a destroyed MIG instance is still shown as down."""
_GPU_REMEMBERED_SECONDS = 7 * 86400.0
"""Seconds for which a GPU that the driver no longer lists is still shown as down: at least a weekend."""
_GONE_AT_MOST = 64
"""Maximum number of removed GPUs and instances that are shown; the newest are kept."""
_EVENTS = "events"
_NOT_INSTALLED = frozenset({"library_not_found", "binding_missing"})
"""Reasons of a driver that is not installed."""
_UNUSED = frozenset({"driver_not_loaded", "library_unusable", "binding_incompatible"})
"""Reasons of a driver that may be left on a machine without a GPU. All others are faults."""

RELEASED = "released"
MIG_RECONFIGURED = "mig_reconfigured"


class GpuCollector(Collector):
    """See the module. A subclass for each vendor provides the driver."""

    harmless: ClassVar[tuple[type[Exception], ...]] = (DeviceLost,)
    longest_interval: ClassVar[float | None] = LONGEST_INTERVAL

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._driver = self.make_driver(environment)
        self._gpus: dict[str, Gpu] = {}
        self._calls_forgotten = 0
        self._rejected_forgotten: Counter[str] = Counter()
        """Counts of GPUs that have been dropped."""
        self._introductions = Introductions(environment.clock)
        self._events = Events(self._driver, environment.clock)
        self._open = False
        self._session = 0
        """Number of the newest session with the driver."""
        self._session_over = 0
        """Number of the newest session that a GPU's reader found to be closed by the driver."""
        self._admitted = threading.Event()
        """Set while GPUs may be read: the session is open and every GPU has its device."""
        self._reopening = False
        self._reading: dict[str, bool] = {}
        """Threads that are reading now; each thread writes only its own entry."""
        self._problem: DriverUnavailable | None = None
        self._absent = False
        """True if the newest problem means that this machine has no such GPUs."""
        self._pause = 0.0
        self._retry_at = 0.0
        self._enumerate_at = 0.0
        self._enumerated: frozenset[int] = frozenset()
        self._hardware: frozenset[str] = frozenset()
        self._reopen_pause = _REOPEN_LOST_SECONDS[0]
        self._reopen_at = 0.0
        self._released_until: float | None = None
        self._held_by: frozenset[str] = frozenset()
        """Keys of the calls that prevent the release of the driver."""
        self._unidentified = ""
        """Error about GPUs that could not be identified; empty if there are none."""

    @property
    def gpus(self) -> Mapping[str, Gpu]:
        """Every known GPU and MIG instance by UUID."""
        return self._gpus

    @abstractmethod
    def make_driver(self, environment: Environment) -> Driver:
        """Return the driver of these GPUs."""

    def hardware(self) -> frozenset[str]:
        """Return the GPUs that the kernel lists. An older session of the driver may not list a new GPU."""
        return frozenset()

    def has_hardware(self) -> bool:
        """Return True if the machine has such GPUs, whether or not their driver works."""
        return bool(self.hardware())

    def is_absent(self, problem: DriverUnavailable) -> bool:
        """Return True if the problem means that this machine has no such GPUs, rather than that their driver fails."""
        return problem.reason in _NOT_INSTALLED or (problem.reason in _UNUSED and not self.has_hardware())

    def read(self) -> Iterable[Sample]:
        """Maintain the session with the driver, and the list of GPUs.

        Raises:
            NotPresent: this machine has no such GPUs; or the driver is released on request.
            DriverUnavailable: the driver does not respond; it is tried again after a pause.
            DriverError: a GPU can't be identified, so no series can report it.
        """
        now = self.environment.clock.monotonic()
        self._stay_released(now)
        if self._open:
            self._admitted.set()  # needed if a pending call has prevented a release
        if self._open and self._session_over == self._session:
            self._disconnect()
        if self._open and self._reopen_due(now):
            self._reopen(now)
        if not self._open:
            self._connect(now)
        if now >= self._enumerate_at or self._instances() != self._enumerated:
            try:
                self._enumerate(now)
            except DriverUnavailable as problem:
                self._disconnect()
                self._fail(problem, now)
        if self._unidentified:
            raise DriverError("unidentified", self._unidentified)
        return ()

    def parts(self) -> Mapping[str, Callable[[], Iterable[Sample]]]:
        """Return a reader for each GPU that the driver lists, by UUID, and a reader for events."""
        if self._released_until is not None:
            return {}
        readers = {uuid: self._reader(gpu) for uuid, gpu in self._gpus.items() if gpu.listed}
        if readers and self._events.due:
            readers[_EVENTS] = self._read_events
        return readers

    def collect(self, state: CollectorState) -> Iterable[Sample]:
        """Return the samples of every known GPU; readings only of GPUs that are up."""
        occupancies = {}
        calls, rejected = self._driver.calls + self._calls_forgotten, self._rejected_forgotten.copy()
        for uuid, gpu in self._gpus.items():
            reader = state.parts.get(uuid)
            calls += gpu.calls
            rejected.update(gpu.rejected)
            yield gpu.info()
            if reader is not None and reader.read_time is not None:
                gpu.last_reading = reader.read_time
            if gpu.last_reading is not None:
                yield from gpu.one(LAST_READING, gpu.last_reading)
            yield from gpu.xid_samples()
            reason = self._trouble(gpu, reader, state)
            if reason is None:
                continue
            gpu.lost_reason = reason
            yield from gpu.one(UP, int(not reason))
            if reason:
                yield from gpu.one(LOST_INFO, 1, reason)
            elif reader is not None:
                yield from reader.samples
                if not gpu.instances:  # processes of a GPU with MIG instances belong to the owners of the instances
                    occupancies[uuid] = gpu.occupancy
                yield from self._events.support(gpu)
        self.environment.occupancies.publish(self.name, occupancies)
        if calls:
            yield Sample(DRIVER_CALLS, (self.name,), calls)
        for why, count in sorted(rejected.items()):
            yield Sample(VALUES_REJECTED, (self.name, why), count)

    def release(self, seconds: float) -> None:
        """Close the driver's device files at the next reading, and open them again after `seconds` seconds."""
        self._released_until = self.environment.clock.monotonic() + seconds if seconds else None

    def close(self) -> None:
        """Close the session with the driver."""
        if self._open:
            self._disconnect()

    def _trouble(self, gpu: Gpu, reader: ReaderState | None, state: CollectorState) -> str | None:
        """Return the reason why the GPU is down; an empty string if it is up, None if this is not known yet."""
        if self._released_until is not None:
            return "hung" if gpu.identity.uuid in self._held_by else RELEASED
        if not gpu.listed:
            if gpu.identity.mig:
                parent = self._gpus.get(gpu.identity.parent_uuid)
                return (parent.lost_reason if parent is not None else "") or MIG_RECONFIGURED
            # A GPU that was lost before it disappeared from the driver's list keeps its first reason.
            return gpu.lost_reason or "not_enumerated"
        error = reader.error if reader is not None else None
        if isinstance(error, DriverUnavailable) and state.hung(state.main):
            return "hung"  # the call that reopens the session does not return
        if isinstance(error, DriverUnavailable) and isinstance(state.main.error, DriverUnavailable):
            return state.main.error.reason  # the GPU's reader only knows that the session has ended
        if isinstance(error, (DeviceLost, DriverUnavailable)):
            return error.reason
        if reader is not None and state.fresh(reader):
            return ""
        if reader is not None and state.hung(reader):
            return "hung"
        if error is not None:
            return error.reason if isinstance(error, DriverError) else "failing"
        if reader is not None and reader.attempts and reader.busy_since is not None:
            return "hung"  # the current reading takes too long, and earlier ones had no error
        return gpu.lost_reason or (None if gpu.last_reading is None else "stale")

    def _reader(self, gpu: Gpu) -> Callable[[], Iterable[Sample]]:
        uuid = gpu.identity.uuid

        def read() -> Iterable[Sample]:
            self._admit(gpu)
            session = self._session
            self._reading[uuid] = True
            try:
                self._require_session()  # it may have ended since
                samples = gpu.read()
            except DriverUnavailable:
                # The main reader opens the session again; a GPU's thread must not.
                self._session_over = session
                raise
            except DeviceLost:
                if gpu.lost_at is None:
                    gpu.lost_at = self.environment.clock.monotonic()
                raise
            finally:
                self._reading[uuid] = False
            gpu.lost_at = None
            return samples

        return read

    def _admit(self, gpu: Gpu) -> None:
        """Return if the session is open; wait briefly while it is being reopened."""
        if self._released_until is not None:
            raise NotPresent("the driver is released on request")
        if not self._admitted.is_set() and not (self._reopening and self._admitted.wait(2 * _QUIET_SECONDS)):
            self._require_session()
        if gpu.met_in != self._session:
            raise DeviceLost(
                gpu.lost_reason or "not_enumerated", "the GPU has not been seen since the driver was opened"
            )

    def _require_session(self) -> None:
        if not self._admitted.is_set():
            reason = self._problem.reason if self._problem is not None else "uninitialized"
            raise DriverUnavailable(reason, "there is no open session with the driver")

    def _read_events(self) -> Iterable[Sample]:
        """Receive the driver's events."""
        self._reading[_EVENTS] = True
        try:
            if self._admitted.is_set():
                self._events.read(self._gpus, self._session)
        finally:
            self._reading[_EVENTS] = False
        return ()

    def _stay_released(self, now: float) -> None:
        """Release the driver if requested.

        Raises:
            NotPresent: it is released.
            DriverError: a call that has not returned prevents the release.
        """
        until = self._released_until
        if until is None:
            self._held_by = frozenset()
            return
        if now >= until:
            self._released_until = None
            return
        if self._open:
            # Wait only once: if each reading waited for a second, this reader would count as hung.
            if not self._quiet(0.0 if self._held_by else _QUIET_SECONDS):
                self._held_by = frozenset(key for key, busy in list(self._reading.items()) if busy)
                stuck = ", ".join(sorted(self._held_by))
                raise DriverError("busy", f"the driver can't be released: calls have not returned: {stuck}")
            self._held_by = frozenset()
            self._disconnect()
            _logger.info("the driver was released for %.0f s", until - now)
        raise NotPresent("the driver is released on request")

    def _quiet(self, seconds: float = _QUIET_SECONDS) -> bool:
        """Wait up to `seconds` for calls in progress; return whether all of them have returned."""
        self._admitted.clear()
        pause = threading.Event()
        for _ in range(20):
            if not any(list(self._reading.values())):
                return True
            if not seconds:
                break
            pause.wait(seconds / 20)
        return False

    def _reopen_due(self, now: float) -> bool:
        """Return True if a new session is needed: for a new GPU, or for a GPU that has been lost for a long time."""
        if now >= self._enumerate_at and self.hardware() != self._hardware:
            return True
        lost = [gpu.lost_at for gpu in self._gpus.values() if gpu.listed and gpu.lost_at is not None]
        if not lost:
            self._reopen_pause, self._reopen_at = _REOPEN_LOST_SECONDS[0], 0.0
            return False
        self._reopen_at = self._reopen_at or min(lost) + self._reopen_pause
        return now >= self._reopen_at

    def _reopen(self, now: float) -> None:
        """Begin a new session, while readings wait briefly. Do nothing while a call hangs: this call would hang too."""
        self._reopen_pause = min(2 * self._reopen_pause, _REOPEN_LOST_SECONDS[1])
        self._reopen_at = now + self._reopen_pause
        self._reopening = True
        try:
            if self._quiet():
                _logger.info("opening the driver again to list its GPUs")
                self._disconnect()
                self._connect(now)
                self._enumerate(now)
        except DriverUnavailable as problem:
            self._disconnect()
            self._fail(problem, now)
        finally:
            self._reopening = False
            if self._open:
                self._admitted.set()

    def _connect(self, now: float) -> None:
        if self._problem is not None and now < self._retry_at:
            self._fail(self._problem)
        try:
            self._driver.open()
        except DriverUnavailable as problem:
            self._fail(problem, now)
        self._open = True
        self._problem = None
        self._session += 1
        self._events.forget()
        self._hardware = self.hardware()
        self._enumerate_at = now

    def _disconnect(self) -> None:
        if self._quiet():
            self._events.stop()  # no thread uses the events now, and they must be closed before the session
        self._open = False
        self._driver.close()

    def _fail(self, problem: DriverUnavailable, now: float | None = None) -> NoReturn:
        """Raise the problem with the driver. With a time, also schedule the next attempt."""
        if now is not None:
            self._absent = not self._gpus and self.is_absent(problem)
            longest = _RETRY_ABSENT_SECONDS if self._absent else _RETRY_KNOWN_SECONDS
            self._pause = min(2 * self._pause or self.environment.interval, longest)
            self._retry_at = now + self._pause
            self._problem = problem
        if self._absent:
            hint = f", although the kernel lists GPUs; {remedy(problem.reason)}" if self.has_hardware() else ""
            raise NotPresent(f"{str(problem).rstrip('.')}{hint}") from problem
        # A new exception each time, because the traceback of one that is raised repeatedly would grow without limit.
        raise DriverUnavailable(problem.reason, f"{str(problem).rstrip('.')}; {remedy(problem.reason)}") from problem

    def _instances(self) -> frozenset[int]:
        """Return the MIG instances that GPUs reported since the driver was opened."""
        return frozenset(
            id(instance)
            for gpu in self._gpus.values()
            if gpu.met_in == self._session and gpu.listed
            for instance in gpu.instances or ()
        )

    def _enumerate(self, now: float) -> None:
        """Bring the known GPUs in line with the driver's list."""
        devices = list(self._driver.devices())
        if not devices and not self._gpus and self.has_hardware():
            raise DriverUnavailable("no_devices", "the driver responds, but lists none of this machine's GPUs")
        system = self._driver.system()
        self._pause = 0.0
        self._enumerated = self._instances()
        known = self._of_session(self._gpus.values())
        # Of MIG instances, those that the last readings of their GPUs found.
        devices += [
            instance
            for device in tuple(devices)
            if id(device) in known
            for instance in known[id(device)].instances or ()
        ]
        met, silent = self._introductions.make([device for device in devices if id(device) not in known])
        gpus = self._with_identified(met, system)
        listed = {known[id(device)].identity.uuid for device in devices if id(device) in known}
        listed.update(identity.uuid for _, identity in met)
        # An unidentified GPU may be any of the missing ones.
        _mark_listed(gpus, listed, now, keep_missing=bool(silent))
        remembered = self._remembered(gpus, now)
        for uuid in gpus.keys() - remembered.keys():
            self._forget(uuid, gpus[uuid])
        self._gpus = remembered
        missing = sum(not gpu.identity.mig and uuid not in listed for uuid, gpu in remembered.items())
        # An unidentified GPU can be a missing known GPU, whose own series report it.
        self._unidentified = (
            f"{len(silent)} of the GPUs can't be identified: {'; '.join(silent)}" if len(silent) > missing else ""
        )
        self._enumerate_at = now + (_INCOMPLETE_SECONDS if silent else _ENUMERATION_SECONDS)
        self._admitted.set()

    def _of_session(self, gpus: Iterable[Gpu]) -> dict[int, Gpu]:
        """Return the GPUs that were seen since the driver was opened, by the identity of their device objects."""
        return {id(gpu.session.device): gpu for gpu in gpus if gpu.met_in == self._session}

    def _with_identified(self, met: Iterable[tuple[Device, Identity]], system: SystemInfo) -> dict[str, Gpu]:
        """Return the known GPUs by UUID, and those that have been identified now."""
        gpus = dict(self._gpus)
        for device, identity in met:
            gpu = gpus[identity.uuid] = gpus.get(identity.uuid) or Gpu(self.environment)
            # Another object for the same GPU in the same session changes nothing.
            if gpu.met_in != self._session or gpu.identity != identity:
                gpu.meet(identity, system, device)
                gpu.met_in = self._session
        for gpu in self._of_session(gpus.values()).values():
            gpu.identify(gpu.identity, system)
        return gpus

    def _remembered(self, gpus: Mapping[str, Gpu], now: float) -> dict[str, Gpu]:
        """Drop GPUs that have been missing longer than the retention time, oldest first once over the limit."""
        since = {uuid: gpu.gone_at for uuid, gpu in gpus.items() if gpu.gone_at is not None}
        newest = set(sorted(since, key=since.__getitem__, reverse=True)[:_GONE_AT_MOST])
        return {
            uuid: gpu
            for uuid, gpu in gpus.items()
            if gpu.gone_at is None or (uuid in newest and now - gpu.gone_at <= _remembered_seconds(gpu))
        }

    def _forget(self, uuid: str, gpu: Gpu) -> None:
        """Add the counts of a dropped GPU to the exporter's own counters."""
        self._calls_forgotten += gpu.calls
        self._rejected_forgotten.update(gpu.rejected)
        if not self._reading.get(uuid):
            self._reading.pop(uuid, None)


def _mark_listed(gpus: Mapping[str, Gpu], listed: set[str], now: float, *, keep_missing: bool) -> None:
    """Record which GPUs the driver lists, and since when the others are missing."""
    for uuid, gpu in gpus.items():
        gpu.listed = uuid in listed or (gpu.listed and keep_missing)
        if not gpu.listed and gpu.gone_at is None:
            gpu.rest()
        gpu.gone_at = None if gpu.listed else gpu.gone_at or now


def _remembered_seconds(gpu: Gpu) -> float:
    return _INSTANCE_REMEMBERED_SECONDS if gpu.identity.mig else _GPU_REMEMBERED_SECONDS
