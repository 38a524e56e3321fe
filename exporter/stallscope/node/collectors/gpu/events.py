"""Events that the driver reports of its own accord: Xid errors, and changes of the MIG configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from stallscope.node.collectors.gpu.gpu import SIGNAL_SUPPORTED, XID_EVENTS, XID_LAST, Gpu
from stallscope.node.drivers.device import Driver, DriverError, Listener, Unsupported
from stallscope.node.drivers.retry import Retry
from stallscope.node.sampling.clock import Clock
from stallscope.node.sampling.reading import Sample

_logger = logging.getLogger(__name__)

_WAIT_SECONDS = 0.001
"""Seconds to wait at each reading: the driver queues events, so a short wait misses none."""
_ALL = "events"


class Events:
    """Listens to all GPUs of a source. `read` and the listener belong to one thread."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        """Start without a listener."""
        self._driver = driver
        self._clock = clock
        self._listener: Listener | None = None
        self._session = 0
        """Number of the session that the listener belongs to."""
        self._offered: frozenset[str] = frozenset()
        """GPUs for which the listener was registered or refused."""
        self._listened: frozenset[str] = frozenset()
        """Those of `_offered` that report events."""
        self._retry: Retry = Retry()
        """Refusals: by the driver (`_ALL`), and for single GPUs by UUID."""
        self._reports: dict[str, bool] = {}
        """True if the GPU reports events, by UUID, as last logged."""

    @property
    def due(self) -> bool:
        """True if the driver may be queried for events now."""
        return self._retry.due(_ALL, self._clock.monotonic())

    def forget(self) -> None:
        """Register again: the session is new."""
        self._retry.forget()

    def read(self, gpus: Mapping[str, Gpu], session: int) -> None:
        """Receive the driver's events of these GPUs in this session.

        Raises:
            DriverError: the listener failed.
        """
        try:
            self._listen(gpus, session)
            self._take(gpus)
        except Unsupported as refusal:
            self._retry.refused(_ALL, self._clock.monotonic())
            self._log({uuid: False for uuid, gpu in gpus.items() if not gpu.identity.mig}, gpus, refusal)
        except DriverError:
            # Whatever it was, a set that failed once is not to be trusted; the next reading makes a new one.
            self.stop()
            raise

    def stop(self) -> None:
        """Stop listening."""
        listener, self._listener = self._listener, None
        self._offered, self._listened, self._session = frozenset(), frozenset(), 0
        if listener is not None:
            listener.close()

    def support(self, gpu: Gpu) -> Iterable[Sample]:
        """Return whether the GPU reports events, where that is known; a MIG instance reports none of its own."""
        uuid = gpu.identity.uuid
        if not gpu.identity.mig and (uuid in self._offered or _ALL in self._retry):
            for each in (XID_EVENTS, XID_LAST):
                yield from gpu.one(SIGNAL_SUPPORTED, int(uuid in self._listened), each.signal)

    def _listen(self, gpus: Mapping[str, Gpu], session: int) -> None:
        """Register for the events of every GPU that is up."""
        now = self._clock.monotonic()
        well = {
            gpu.identity.uuid: gpu.session.device
            for gpu in gpus.values()
            if gpu.listed and gpu.met_in == session and not gpu.identity.mig and not gpu.lost_reason
        }
        due = any(self._retry.due(uuid, now) for uuid in self._offered - self._listened)
        if self._session == session and well.keys() <= self._offered and not due:
            return
        if self._session == session:
            self._take(gpus)  # what it has not reported yet would go with it
            self.stop()
        self._listener, self._offered, self._listened = None, frozenset(), frozenset()
        if well:
            self._listener = self._driver.listen(list(well.values()))
            accepted = {id(device) for device in self._listener.devices}
            self._offered = frozenset(well)
            self._listened = frozenset(uuid for uuid, device in well.items() if id(device) in accepted)
        self._retry.answered(_ALL, *self._listened)
        for uuid in self._offered - self._listened:
            self._retry.refused(uuid, now)
        self._log({uuid: uuid in self._listened for uuid in self._offered}, gpus)
        self._session = session

    def _take(self, gpus: Mapping[str, Gpu]) -> None:
        """Count the events that have just arrived."""
        if self._listener is None:
            return
        for event in self._listener.wait(_WAIT_SECONDS):
            for gpu in gpus.values():
                if event.xid is None:  # the MIG configuration of some GPU has changed
                    gpu.look_again = True
                elif gpu.met_in and gpu.session.device is event.device:
                    gpu.note_xid(event.xid, self._clock.time())
                    _logger.warning("GPU %s (%s): Xid %s", *gpu.labels, event.xid)

    def _log(self, reports: Mapping[str, bool], gpus: Mapping[str, Gpu], refusal: object = "none") -> None:
        """Log which GPUs report events, where that has changed."""
        for uuid, does in reports.items():
            before = self._reports.get(uuid)
            if does and before is False:
                _logger.info("GPU %s: the driver reports events again", uuid)
            elif before and not does:
                _logger.warning("GPU %s: the driver no longer reports events; the newest refusal: %s", uuid, refusal)
            elif before is None and not does:
                _logger.info("GPU %s: the driver reports no events; the refusal: %s", uuid, refusal)
        self._reports = {uuid: does for uuid, does in {**self._reports, **reports}.items() if uuid in gpus}
