"""AMD GPUs through the files of their kernel driver."""

from __future__ import annotations

from typing import ClassVar

from stallscope.node.collectors.base import Environment, register
from stallscope.node.collectors.gpu.source import GpuCollector
from stallscope.node.drivers.amd.kernel import AmdDriver
from stallscope.node.drivers.device import Driver
from stallscope.node.drivers.pci import pci_gpus


@register
class AmdCollector(GpuCollector):
    """See the module."""

    name: ClassVar[str] = "amd"
    summary: ClassVar[str] = "AMD GPUs through their kernel driver (amdgpu)."

    def has_hardware(self) -> bool:
        """Return True if amdgpu is loaded and the PCI bus lists an AMD GPU; older ones have another driver."""
        root = self.environment.root
        return (root / "sys/module/amdgpu").exists() and bool(pci_gpus(root).get("AMD"))

    def make_driver(self, environment: Environment) -> Driver:
        """The kernel's files under the environment's root."""
        return AmdDriver(environment.root, environment.clock.monotonic)
