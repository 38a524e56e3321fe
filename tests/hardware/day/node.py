"""The GPU of the day: a real one, or the stand-in driver's, which plays the load that a program would cause."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hardware.day import child
from tests.hardware.day.machine import StepError

_PROBE_SECONDS = 60.0
_GIB = 1 << 30


@dataclass(frozen=True)
class Load:
    """A load of the stand-in's GPU. Ratios from 0 to 1, of a GPU that is busy for `busy` of the time."""

    busy: float = 0.0
    sm: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    fp32: float = 0.0
    watts: float = 80.0
    memory: float = 2.0
    """GiB that programs hold."""
    received: float = 1e6
    """Bytes a second over PCIe, to the GPU."""
    transmitted: float = 1e6


IDLE = Load(memory=0.0)


class Node:
    """A real GPU."""

    is_stand_in = False

    def __init__(self, folder: Path) -> None:
        """Choose a GPU: the first that no process uses.

        Raises:
            StepError: the driver reports none.
        """
        self._folder = folder
        self.driver = self._probe()
        if not self.driver["gpus"]:
            raise StepError("driver: no GPU; give this machine or container a GPU (docker run --gpus all)")
        gpus = self.driver["gpus"]
        self.gpu: dict[str, Any] = next((each for each in gpus if not each["processes"] and not each["mig"]), gpus[0])
        instances = self.gpu["instances"]
        self.device = instances[0] if instances else self.gpu["uuid"]
        """The GPU or MIG instance that programs use."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of programs that use the driver."""
        return {}

    @property
    def cuda(self) -> dict[str, str]:
        """Environment variables of programs that use CUDA."""
        return {**self.variables, "CUDA_VISIBLE_DEVICES": self.device}

    @property
    def problems(self) -> list[str]:
        """Lines about what makes this GPU unlike an empty one with all signals."""
        name = f"GPU {self.gpu['index']}"
        found = []
        if self.gpu["mig"]:
            found.append(
                f"{name}: MIG is on; programs use the instance {self.device}, signals of the whole GPU are not "
                "comparable: switch MIG off for a day that is"
            )
        if others := self.gpu["processes"]:
            found.append(
                f"{name}: others use it (PID {', '.join(map(str, others[:5]))}, {len(others)} in all); signals "
                "include their load: end them for a day that is comparable"
            )
        if not self.gpu["gpm"]:
            found.append(
                f"{name}: the driver has no GPM; activity of SMs, tensor cores and DRAM is unknown: use Hopper or newer"
            )
        return found

    def play(self, load: Load, pids: Sequence[int] = ()) -> None:
        """Let the stand-in's GPU have this load; a real one has its own."""

    def _probe(self) -> dict[str, Any]:
        log = self._folder / "gpus.log"
        found = child.run("driver", ["-m", "tests.hardware.day.gpus"], log, self.variables, _PROBE_SECONDS)
        if found.status:
            raise StepError(found.last_line())
        content: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
        return content


class StandInNode(Node):
    """The stand-in driver of `tests/nvml_library`, with one H100."""

    is_stand_in = True

    def __init__(self, folder: Path) -> None:
        """Build the library.

        Raises:
            StepError: that is impossible here.
        """
        from tests.nvml_library.stand_in import NvmlStandIn

        try:
            self._node = NvmlStandIn(folder, gpus=1)
        except RuntimeError as problem:
            raise StepError(f"stand-in driver: {problem}") from None
        super().__init__(folder)
        self.play(IDLE)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables with which a program finds the library."""
        variables = self._node.environment
        if path := os.environ.get("LD_LIBRARY_PATH"):
            variables["LD_LIBRARY_PATH"] += f":{path}"
        return variables

    def play(self, load: Load, pids: Sequence[int] = ()) -> None:
        """Let the GPU have this load, held by these processes."""
        from tests.nvml_library.stand_in import Activity

        gpu = self._node.gpu[0]
        gpu.wave_period_us = 0
        gpu.utilization = round(100 * load.busy)
        gpu.memory_utilization = round(100 * load.dram)
        # GPM's ratios are of the time, the stand-in's are of the load.
        scale = 1 / load.busy if load.busy else 0.0
        for place, share in (
            (Activity.GRAPHICS, load.busy),
            (Activity.SM, load.sm),
            (Activity.OCCUPANCY, load.sm / 2),
            (Activity.TENSOR, load.tensor),
            (Activity.TENSOR_HMMA, load.tensor),
            (Activity.DRAM, load.dram),
            (Activity.FP32, load.fp32),
        ):
            gpu.activity[place] = share * scale
        gpu.power_milliwatts = round(1000 * load.watts)
        gpu.temperature = 35 + round(load.watts / 20)
        gpu.clock_mhz[:] = [1755, 1755, 2619, 1500] if load.busy else [345, 345, 2619, 765]
        gpu.pcie_received_rate, gpu.pcie_transmitted_rate = load.received, load.transmitted
        gpu.memory_used = round(load.memory * _GIB)
        gpu.run(*((pid, round(load.memory * _GIB / len(pids)), False) for pid in pids))
