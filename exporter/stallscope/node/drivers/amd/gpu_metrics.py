"""The table of the GPU's power management firmware, which the kernel hands over as one binary file, `gpu_metrics`.

Its layout goes by a version in its header. Known here are those of `kgd_pp_interface.h` in the kernel whose units the
kernel states and that discrete GPUs use: 1.3 (Radeon, MI100, MI200) and 1.4 to 1.8 (MI300 and later). A field that
the firmware does not fill has all its bits set.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

_HEADER = struct.Struct("<HBB")  # size of the table, version, revision
_ACTIVITY = struct.Struct("<HH")  # graphics, memory controller; percent
_ENERGY = struct.Struct("<Q")
_THROTTLING = struct.Struct("<Q")
_CLOCK = struct.Struct("<Q")  # nanoseconds, the driver's
_RESIDENCIES = struct.Struct("<IIIIII")  # rounds of the firmware; of them: PROCHOT, power, socket, regulators, HBM hot
_JOULES = 2.0**-16
_PERCENT_MOST = 100

_SIZE_1_3 = 120
_ACTIVITY_AT = {3: 16, 4: 12, 5: 12, 6: 12, 7: 12, 8: 12}
_ENERGY_AT = {4: 24, 5: 88, 6: 16, 7: 24, 8: 24}
_CLOCK_AT = {6: 24, 7: 32, 8: 32}
_RESIDENCIES_AT = {6: 32, 7: 40, 8: 40}
_THROTTLING_AT = 112

# Bits of indep_throttle_status (SMU_THROTTLER_* of amdgpu_smu.h) in the catalogue's words. Power and current limits
# are the power cap; temperatures slow the GPU down softly; hot regulators and PROCHOT are the board's emergency brake.
_POWER_BITS = (*range(8), *range(16, 24))
_TEMPERATURE_BITS = tuple(range(32, 44))
_HOT_BITS = (44, 45, 46, 47)
_REASONS = {
    "power_cap": sum(1 << bit for bit in _POWER_BITS),
    "sw_thermal": sum(1 << bit for bit in _TEMPERATURE_BITS),
    "hw_thermal": sum(1 << bit for bit in _HOT_BITS),
}
_NAMED_BITS = sum(_REASONS.values()) | 1 << 56 | 1 << 57
"""The last two (PPM, FIT) are not throttling. Bits that only newer kernels have are `other`."""
_ROUNDS_MOST = 1 << 31
_LONGEST = 3600.0


class Residencies(NamedTuple):
    """How many of the firmware's rounds were spent in each throttler, since it started; 32 bits each."""

    clock: int
    """Nanoseconds, the driver's clock."""
    rounds: int
    prochot: int
    power: int
    socket: int
    regulator: int
    memory: int


class GpuMetrics(NamedTuple):
    """Values of the table; None where unknown."""

    memory_activity: float | None = None
    """How busy the memory controller is, a ratio."""
    energy: float | None = None
    """Joules since the driver was loaded."""
    throttle_reasons: frozenset[str] | None = None
    """In force now, in the catalogue's words."""
    residencies: Residencies | None = None


def parse(table: bytes) -> GpuMetrics | None:
    """Read the table; None where it is of a version that is not known here, or cut off."""
    if len(table) < _HEADER.size:
        return None
    size, version, revision = _HEADER.unpack_from(table)
    if version != 1 or revision not in _ACTIVITY_AT or size != len(table):
        return None
    if size < (_SIZE_1_3 if revision == 3 else _ENERGY_AT[revision] + 64):
        return None
    memory = _ACTIVITY.unpack_from(table, _ACTIVITY_AT[revision])[1]
    activity = memory / 100 if memory <= _PERCENT_MOST else None
    if revision == 3:
        return GpuMetrics(activity, throttle_reasons=_reasons(_THROTTLING.unpack_from(table, _THROTTLING_AT)[0]))
    energy = _ENERGY.unpack_from(table, _ENERGY_AT[revision])[0]
    return GpuMetrics(
        activity,
        None if energy == _all_set(8) else energy * _JOULES,
        residencies=_residencies(table, revision),
    )


class ThrottledTime:
    """Sums up the seconds for which each reason held clocks down, from successive tables."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(("power_cap", "sw_thermal", "hw_thermal"), 0.0)
        self._last: Residencies | None = None

    def add(self, now: Residencies) -> Mapping[str, float]:
        """Seconds by reason since the first table. Time during which the firmware restarted is left out."""
        last, self._last = self._last, now
        if last is not None:
            rounds = _growth(last.rounds, now.rounds)
            elapsed = (now.clock - last.clock) / 1e9
            spent = {
                "power_cap": _growth(last.power, now.power),
                # Side by side, not one after the other: the longest of them is surely throttled time.
                "sw_thermal": max(
                    _growth(last.socket, now.socket),
                    _growth(last.regulator, now.regulator),
                    _growth(last.memory, now.memory),
                ),
                "hw_thermal": _growth(last.prochot, now.prochot),
            }
            if 0 < rounds < _ROUNDS_MOST and 0 < elapsed < _LONGEST and max(spent.values()) <= rounds:
                for reason, each in spent.items():
                    self._seconds[reason] += elapsed * each / rounds
        return dict(self._seconds)


def _residencies(table: bytes, revision: int) -> Residencies | None:
    if revision not in _CLOCK_AT:
        return None
    numbers = _RESIDENCIES.unpack_from(table, _RESIDENCIES_AT[revision])
    if _all_set(4) in numbers:
        return None
    return Residencies(_CLOCK.unpack_from(table, _CLOCK_AT[revision])[0], *numbers)


def _reasons(bits: int) -> frozenset[str] | None:
    if bits == _all_set(8):
        return None
    found = {reason for reason, mask in _REASONS.items() if bits & mask}
    return frozenset(found | {"other"} if bits & ~_NAMED_BITS else found)


def _growth(before: int, after: int) -> int:
    return (after - before) % (1 << 32)


def _all_set(size: int) -> int:
    return int((1 << 8 * size) - 1)
