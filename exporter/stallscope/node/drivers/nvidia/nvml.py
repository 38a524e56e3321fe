"""The NVIDIA driver behind the driver interface.

The library stays loaded once it was; what is opened and closed here is the session with it. After a driver was
reloaded every call says "uninitialized" until the session is opened again, which `NvmlDriver.open` does; a new session
forgets all that was learnt in the one before.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from stallscope.node.drivers.device import Device, DriverError, DriverUnavailable, Listener, SystemInfo, Unsupported
from stallscope.node.drivers.nvidia.device import NvmlDevice, Surroundings
from stallscope.node.drivers.nvidia.events import NvmlListener
from stallscope.node.drivers.nvidia.library import Library, PynvmlLibrary
from stallscope.node.drivers.nvidia.mig import NvmlInstance
from stallscope.node.drivers.nvidia.session import Session
from stallscope.node.drivers.plausibility import Plausibility
from stallscope.node.drivers.retry import EARLY, Retry

_MOST_GPUS = 1024


class NvmlDriver:
    """A session with the NVIDIA driver; implements `stallscope.node.drivers.device.Driver`."""

    def __init__(
        self,
        library: Library | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; nothing is loaded before `open`.

        Args:
            library: receives the calls; None for the real library.
            monotonic: clock for the time between samples, in seconds.
            wall: clock that timestamps of the driver's may be held against, seconds.
        """
        self._library = library if library is not None else PynvmlLibrary()
        self._monotonic = monotonic
        self._wall = wall
        self._session: Session | None = None
        self._devices: tuple[NvmlDevice, ...] = ()
        self._retries: dict[int, Retry] = {}
        """Refusals by index of the GPU; kept for the next session, with what was supported before."""
        self._calls = 0

    @property
    def simulated(self) -> bool:
        """Always False."""
        return False

    def open(self) -> None:
        """Load the library if necessary, and begin a session; do nothing during a session.

        Raises:
            DriverUnavailable: with the reason `binding_missing`, `binding_incompatible`, `library_not_found`,
                `library_unusable`, `driver_not_loaded`, `no_permission`, `version_mismatch`, or `driver_error`.
        """
        if self._session is not None and not self._session.over:
            return
        self.close()
        self._calls += 1
        self._session = Session(self._library)

    def close(self) -> None:
        """End the session, so that the driver can be unloaded."""
        session, self._session, self._devices = self._session, None, ()
        if session is not None:
            self._calls += 1
            session.close()

    def system(self) -> SystemInfo:
        """Versions of driver and CUDA."""
        try:
            version = int(self._call("nvmlSystemGetCudaDriverVersion_v2"))
        except Unsupported:
            version = int(self._call("nvmlSystemGetCudaDriverVersion"))
        return SystemInfo(
            driver_version=Plausibility(self._monotonic, self._wall).text(self._call("nvmlSystemGetDriverVersion")),
            cuda_version=f"{version // 1000}.{version % 1000 // 10}",
        )

    def devices(self) -> Sequence[Device]:
        """The GPUs, by index; each is opened at its first query, so that a hanging one does not hide the others."""
        try:
            count = int(self._call("nvmlDeviceGetCount"))
        except Unsupported as refused:
            raise DriverUnavailable("no_permission", str(refused)) from None
        if not 0 <= count <= _MOST_GPUS:
            raise DriverError("implausible", f"the driver says that it has {count} GPUs")
        session = self._session
        changed = count != len(self._devices) or any(device.replaced for device in self._devices)
        if changed and session is not None:
            # Indices move when a GPU comes or goes, so none of the old handles is to be trusted.
            for device in self._devices:
                device.retire()
            surroundings = Surroundings(session, self._monotonic, self._wall)
            for index in range(count):
                self._retries.setdefault(index, Retry(early=EARLY))
            self._devices = tuple(NvmlDevice(surroundings, index, self._retries[index]) for index in range(count))
        return self._devices

    def listen(self, devices: Sequence[Device]) -> Listener:
        """Register for Xid errors and changes of the MIG configuration of these GPUs."""
        gpus = [each for each in devices if isinstance(each, NvmlDevice) and not isinstance(each, NvmlInstance)]
        session = self._live()
        return NvmlListener(session, functools.partial(self._query, session), gpus)

    @property
    def calls(self) -> int:
        """Driver calls so far that concern no particular GPU."""
        return self._calls

    def _live(self) -> Session:
        if self._session is None:
            raise DriverUnavailable("uninitialized", "there is no open session with the NVIDIA driver")
        return self._session

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._query(self._live(), name, *arguments)

    def _query(self, session: Session, name: str, *arguments: Any) -> Any:
        self._calls += 1
        return session.call(name, *arguments)
