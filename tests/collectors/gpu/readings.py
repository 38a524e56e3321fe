"""A GPU that is read once a second on a scripted clock."""

from __future__ import annotations

from typing import Any

from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.gpu.gpu import Gpu
from stallscope.node.drivers.device import SystemInfo
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.reading import Distribution
from tests.collectors.gpu.scripted_driver import ScriptedDevice


class Readings:
    """A GPU read once a second on a scripted clock."""

    def __init__(self, device: ScriptedDevice, **environment: Any) -> None:
        self.clock = ScriptedClock()
        self.environment = Environment(clock=self.clock, **environment)
        self.gpu = Gpu(self.environment)
        self.device = device
        self.gpu.meet(device.identity(), SystemInfo("590.48.01", "13.1"), device)

    def reopen(self) -> None:
        """Begin a new session with the driver."""
        self.gpu.meet(self.device.identity(), SystemInfo("590.48.01", "13.1"), self.device)
        self.gpu.met_in += 1

    def after(self, seconds: float = 1.0) -> dict[tuple[str, ...], float]:
        """Let time pass, read each second, and return the last reading: name and own labels to value."""
        found: dict[tuple[str, ...], float] = {}
        for _ in range(max(1, round(seconds))):
            self.clock.advance(1.0)
            found = {}
            for sample in self.gpu.read():
                value = sample.value.count if isinstance(sample.value, Distribution) else sample.value
                key = (sample.family.signal, *sample.labels[2:])
                found[key] = value
        return found
