"""AMD GPUs through the files of their kernel driver."""

from __future__ import annotations

from typing import ClassVar

from stallscope.amd.kernel import AmdDriver
from stallscope.gpus.driver import Driver
from stallscope.gpus.source import GpuSource
from stallscope.sources.base import Environment, register


@register
class AmdSource(GpuSource):
    """See the module."""

    name: ClassVar[str] = "amd"
    summary: ClassVar[str] = "AMD GPUs through their kernel driver (amdgpu)."

    def make_driver(self, environment: Environment) -> Driver:
        """The kernel's files under the environment's root."""
        return AmdDriver(environment.root, environment.clock.monotonic)
