"""Which files of amdgpu hold the signals of `drivers/signals.py`.

Signals that take more than one number of one file (fans, limits, levels of clocks, links) are code in `kernel.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """The first of these files that the GPU has, with one number."""

    names: tuple[str, ...]
    per_unit: int = 1
    """The file's number for one base unit."""
    sensor: bool = False
    """Whether it is in the folder of sensors, whose name changes when the driver is loaded again."""
    zero_is_none: bool = False


def _sensor(*names: str, per_unit: int = 1, zero_is_none: bool = False) -> File:
    return File(names, per_unit, sensor=True, zero_is_none=zero_is_none)


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
        "power_limit_watts": _sensor("power1_cap", per_unit=_MICRO, zero_is_none=True),
        "power_limit_default_watts": _sensor("power1_cap_default", per_unit=_MICRO, zero_is_none=True),
    },
    # The hottest spot of the chip (junction), which is what clocks are held down for; else its edge.
    "temperature": {"temperature_celsius": {"gpu": _sensor("temp2_input", "temp1_input", per_unit=_MILLI)}},
    "clocks": {"clock_hertz": {"sm": _sensor("freq1_input"), "memory": _sensor("freq2_input")}},
    "health": {"pcie_replays_total": File(("pcie_replay_count",))},
}
"""By query and signal; for a signal with a label of its own, by its value."""
