"""NVIDIA GPUs through their driver."""

from __future__ import annotations

from typing import ClassVar

from stallscope.node.collectors.base import Environment, register
from stallscope.node.collectors.gpu.source import GpuCollector
from stallscope.node.drivers.device import Driver
from stallscope.node.drivers.nvidia.nvml import NvmlDriver
from stallscope.node.drivers.pci import pci_gpus


@register
class NvidiaCollector(GpuCollector):
    """See the module."""

    name: ClassVar[str] = "nvidia"
    summary: ClassVar[str] = "NVIDIA GPUs through their driver (NVML)."

    def make_driver(self, environment: Environment) -> Driver:
        """Return the real driver, or that of a simulation."""
        return environment.driver() if environment.driver is not None else NvmlDriver()

    def has_hardware(self) -> bool:
        """Return True if NVIDIA's kernel module or the PCI bus lists a GPU of this machine."""
        return super().has_hardware() or bool(pci_gpus(self.environment.root).get("NVIDIA"))

    def hardware(self) -> frozenset[str]:
        """Return the bus addresses of the GPUs that NVIDIA's kernel module lists."""
        try:
            return frozenset(each.name for each in (self.environment.root / "proc/driver/nvidia/gpus").iterdir())
        except FileNotFoundError:
            return frozenset()
        except OSError:  # out of file descriptors, for instance: no GPU came or went
            return self._hardware
