"""AMD GPUs through the files of their kernel driver."""

from __future__ import annotations

from typing import ClassVar

from stallscope.collectors.base import Environment, register
from stallscope.collectors.gpu.source import GpuCollector
from stallscope.drivers.amd.kernel import AmdDriver
from stallscope.drivers.device import Driver


@register
class AmdCollector(GpuCollector):
    """See the module."""

    name: ClassVar[str] = "amd"
    summary: ClassVar[str] = "AMD GPUs through their kernel driver (amdgpu)."

    def make_driver(self, environment: Environment) -> Driver:
        """The kernel's files under the environment's root."""
        return AmdDriver(environment.root, environment.clock.monotonic)
