"""The driver's events: Xid errors, and changes of the MIG configuration."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from stallscope.node.drivers.device import DeviceLost, DriverError, DriverUnavailable, Event, Unsupported
from stallscope.node.drivers.nvidia.device import NvmlDevice
from stallscope.node.drivers.nvidia.library import Handle
from stallscope.node.drivers.nvidia.session import TIMEOUT, Session

_logger = logging.getLogger(__name__)

_XID = 0x8
_MIG_CONFIGURATION = 0x100
_MOST_XID = 1 << 16
_MOST_AT_ONCE = 64
"""Events returned by one wait; the rest stays queued in the driver."""


class NvmlListener:
    """An event set; implements `stallscope.node.drivers.device.Listener`. The driver allows one thread to use it."""

    def __init__(self, session: Session, query: Callable[..., Any], devices: Sequence[NvmlDevice]) -> None:
        """Register for the events that each GPU supports; GPUs without events are skipped.

        Raises:
            Unsupported: none of them reports any event.
            DriverError: the driver returns no event set.
        """
        self._session = session
        self._query = query
        self._using = threading.Lock()
        self._devices: dict[Handle, NvmlDevice] = {}
        self._set: Handle | None = query("nvmlEventSetCreate")
        self._failure: DriverError | None = None
        session.keep(self, self.close)
        try:
            for device in devices:
                self._register(device)
        except DriverUnavailable:
            self.close()
            raise
        if not self._devices:
            self.close()
            raise Unsupported("no GPU reports events")

    @property
    def devices(self) -> Sequence[NvmlDevice]:
        """See `Listener`."""
        return list(self._devices.values())

    def wait(self, timeout: float) -> Sequence[Event]:
        """See `Listener`.

        Raises:
            DriverError: the set is unusable, and freed; listen again.
        """
        with self._using:
            found: list[Event] = []
            milliseconds = max(0, round(timeout * 1000))
            while len(found) < _MOST_AT_ONCE and self._failure is None:
                if self._set is None:
                    raise DriverUnavailable("uninitialized", "the listener is closed")
                try:
                    received = self._query("nvmlEventSetWait", self._set, milliseconds)
                except DriverError as problem:
                    if problem.reason == TIMEOUT:
                        break
                    self._failure = problem
                    self._free()
                    break
                milliseconds = 0
                event = self._event(*received)
                if event is not None:
                    found.append(event)
            if self._failure is not None and not found:
                raise self._failure
            return found

    def close(self) -> None:
        """Free the set, unless a wait in progress still uses it; that wait frees it when it fails."""
        if self._using.acquire(blocking=False):
            self._free()
            self._using.release()

    def _free(self) -> None:
        event_set, self._set = self._set, None
        self._session.drop(self)
        if event_set is not None:
            self._session.free("nvmlEventSetFree", event_set)

    def _register(self, device: NvmlDevice) -> None:
        try:
            kinds = self._query("nvmlDeviceGetSupportedEventTypes", device.handle) & (_XID | _MIG_CONFIGURATION)
            if not kinds:
                raise Unsupported("it reports neither Xid errors nor changes of the MIG configuration")
            try:
                self._query("nvmlDeviceRegisterEvents", device.handle, kinds, self._set)
            except Unsupported:
                # Some drivers report MIG events only to root.
                if kinds == _XID or not kinds & _XID:
                    raise
                self._query("nvmlDeviceRegisterEvents", device.handle, _XID, self._set)
        except DriverUnavailable:
            raise
        except (DeviceLost, DriverError) as problem:
            _logger.debug("no events from GPU %d: %s", device.index, problem)
        else:
            self._devices[device.handle] = device

    def _event(self, handle: Handle, kind: int, data: int) -> Event | None:
        device = self._devices.get(handle)
        if kind & _XID:
            if 0 <= data <= _MOST_XID:
                return Event(device, data)
            if device is not None:
                device.reject("out_of_range")
            return None
        return Event(device, None) if kind & _MIG_CONFIGURATION else None
