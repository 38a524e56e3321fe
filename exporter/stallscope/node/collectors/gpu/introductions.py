"""Queries new devices for their identity side by side, each on a thread of its own, since it may never answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from stallscope.node.drivers.device import Device, DriverUnavailable, Identity
from stallscope.node.sampling.clock import Clock

_SECONDS = 1.0
"""Seconds for all new GPUs together; a later enumeration queries the others."""
_AT_MOST = 64
"""Maximum number of threads that wait for devices; a thread that hangs never ends."""


class Introductions:
    """The queries under way."""

    def __init__(self, clock: Clock) -> None:
        """Start without queries."""
        self._clock = clock
        self._known: dict[int, _Introduction] = {}

    def make(self, strangers: Sequence[Device]) -> tuple[list[tuple[Device, Identity]], list[str]]:
        """Query these devices.

        Returns:
            Identities of the devices that responded in time, and the errors of the others.

        Raises:
            DriverUnavailable: the session is over.
        """
        pending = {id(each.device): each for each in self._known.values() if each.thread.is_alive()}
        room = _AT_MOST - len(pending)
        new = [device for device in strangers if id(device) not in pending]
        made = {id(device): _Introduction(device) for device in new[:room]}
        made.update({key: each for key, each in pending.items() if any(each.device is one for one in strangers)})
        self._known = {**pending, **made}
        deadline = self._clock.monotonic() + _SECONDS
        met: list[tuple[Device, Identity]] = []
        for key, introduction in made.items():
            if key not in pending:  # one that let its first deadline pass is not waited for again
                introduction.thread.join(max(0.0, deadline - self._clock.monotonic()))
            if isinstance(introduction.error, DriverUnavailable):
                raise introduction.error
            if introduction.identity is not None:
                met.append((introduction.device, introduction.identity))
        silent = [str(each.error or "no answer") for each in made.values() if each.identity is None]
        return met, silent + ["too many GPUs have not answered before"] * len(new[room:])


class _Introduction:
    """One device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.identity: Identity | None = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._query, name="identify GPU", daemon=True)
        self.thread.start()

    def _query(self) -> None:
        try:
            self.identity = self.device.identity()
        except Exception as problem:  # noqa: BLE001 - the main reader reports what became of it
            self.error = problem
