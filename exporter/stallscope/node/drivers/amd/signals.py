"""Which files of amdgpu hold the signals of `drivers/signals.py`.

Signals that take more than one file (fans, errors by block, the firmware's table) are code in `kernel.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Folder = Literal["device", "sensors", "link"]
"""The GPU's own; that of its sensors, whose name changes when the driver is loaded again; that of its link's end."""


@dataclass(frozen=True)
class File:
    """The first of these files that the GPU has, with one number."""

    names: tuple[str, ...]
    per_unit: int = 1
    """The file's number for one base unit."""
    folder: Folder = "device"
    zero_is_missing: bool = False
    parse: Callable[[bytes], int] = int
    """Extracts the number from the file's text; raises ValueError without one."""


def _sensor(*names: str, per_unit: int = 1, zero_is_missing: bool = False) -> File:
    return File(names, per_unit, "sensors", zero_is_missing)


def _highest_level(text: bytes) -> int:
    """Return the hertz of the highest of lines such as `1: 2100Mhz *`."""
    return max(int(level) for level in re.findall(rb"^\w+:\s*(\d+)Mhz", text, re.MULTILINE | re.IGNORECASE)) * 10**6


def _generation(text: bytes) -> int:
    """Return the PCIe generation of a speed such as `16.0 GT/s PCIe`."""
    speed = text.partition(b" GT/s")[0]
    return {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}.get(float(speed), 0)


_MILLI, _MICRO = 10**3, 10**6

FILES: Mapping[str, Mapping[str, File | Mapping[str, File]]] = {
    "counters": {"temperature_celsius": {"memory": _sensor("temp3_input", per_unit=_MILLI)}},
    "memory": {
        "memory_total_bytes": File(("mem_info_vram_total",)),
        "memory_used_bytes": File(("mem_info_vram_used",)),
    },
    # The part of the frame buffer that the CPU sees: all of it, with a resizable BAR.
    "bar1": {
        "bar1_total_bytes": File(("mem_info_vis_vram_total",)),
        "bar1_used_bytes": File(("mem_info_vis_vram_used",)),
    },
    # The mean of the last milliseconds, where the firmware makes one, else the newest value.
    "power": {"power_watts": _sensor("power1_average", "power1_input", per_unit=_MICRO)},
    "power_limits": {  # partitions show a limit of zero
        "power_limit_watts": _sensor("power1_cap", per_unit=_MICRO, zero_is_missing=True),
        "power_limit_default_watts": _sensor("power1_cap_default", per_unit=_MICRO, zero_is_missing=True),
    },
    # The hottest spot of the chip (junction), which is what clocks are held down for; else its edge.
    "temperature": {"temperature_celsius": {"gpu": _sensor("temp2_input", "temp1_input", per_unit=_MILLI)}},
    "clocks": {"clock_hertz": {"sm": _sensor("freq1_input"), "memory": _sensor("freq2_input")}},
    "health": {"pcie_replays_total": File(("pcie_replay_count",))},
    "temperature_limits": {
        "temperature_limit_celsius": {
            "slowdown": _sensor("temp2_crit", "temp1_crit", per_unit=_MILLI, zero_is_missing=True),
            "shutdown": _sensor("temp2_emergency", "temp1_emergency", per_unit=_MILLI, zero_is_missing=True),
            "memory_max": _sensor("temp3_crit", per_unit=_MILLI, zero_is_missing=True),
        }
    },
    "clocks_max": {
        "clock_max_hertz": {
            "sm": File(("pp_dpm_sclk",), parse=_highest_level),
            "memory": File(("pp_dpm_mclk",), parse=_highest_level),
        }
    },
    "pcie_link": {
        "pcie_link_generation": File(("current_link_speed",), folder="link", parse=_generation),
        "pcie_link_generation_max": File(("max_link_speed",), folder="link", parse=_generation),
        "pcie_link_width": File(("current_link_width",), folder="link"),
        "pcie_link_width_max": File(("max_link_width",), folder="link"),
    },
}
"""By query and signal; for a signal with a label of its own, by its value."""
