"""The signals of a GPU that are plain numbers, a row each.

A driver reads the signals of one query together: `Device.read("power_limits")` returns both power limits by name. Which
NVML call or field serves a signal is in `nvidia/signals.py`, which file of amdgpu in `amd/signals.py`. Signals that
are more than numbers (sample buffers, activity, processes, events) have methods of `Device` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EVERY_READING, SECONDS_2, SECONDS_5, SECONDS_10, MINUTE = 0.0, 2.0, 5.0, 10.0, 60.0
"""Poll intervals, seconds."""
_MIB, _TIB = 1 << 20, 1 << 40
_MOST_COUNT = 1 << 62


@dataclass(frozen=True)
class Signal:
    """One signal of one query."""

    name: str
    """Name of its metric family without `stallscope_gpu_`, which ends in its unit."""
    query: str
    """The query that reads it."""
    every: float
    """Seconds between two polls; the same for all signals of a query."""
    least: float
    """Smallest plausible value, in the signal's unit."""
    most: float | str
    """Largest plausible value; the name of an earlier signal of the query where that one is the limit."""
    most_per_second: float | None = None
    """For counters: the fastest plausible growth. The exported total never goes back, whatever the driver counts."""
    combined: bool = False
    """True if a module of `collectors/gpu` makes the series from this and other sources."""


SIGNALS = (
    Signal("energy_joules_total", "counters", EVERY_READING, 0, 1e13, most_per_second=1e5, combined=True),
    Signal("throttled_seconds_total", "counters", EVERY_READING, 0, 1e9, most_per_second=1, combined=True),
    Signal("temperature_celsius", "counters", EVERY_READING, -40, 150),
    Signal("pcie_transmit_bytes_total", "counters", EVERY_READING, 0, _MOST_COUNT, most_per_second=1e12, combined=True),
    Signal("pcie_receive_bytes_total", "counters", EVERY_READING, 0, _MOST_COUNT, most_per_second=1e12, combined=True),
    Signal("nvlink_transmit_bytes_total", "counters", EVERY_READING, 0, 1 << 72, most_per_second=1e13, combined=True),
    Signal("nvlink_receive_bytes_total", "counters", EVERY_READING, 0, 1 << 72, most_per_second=1e13, combined=True),
    Signal("memory_total_bytes", "memory", EVERY_READING, _MIB, 16 * _TIB),
    Signal("memory_used_bytes", "memory", EVERY_READING, 0, "memory_total_bytes"),
    Signal("memory_reserved_bytes", "memory", EVERY_READING, 0, "memory_total_bytes"),
    Signal("power_watts", "power", EVERY_READING, 0, 10_000),
    Signal("temperature_celsius", "temperature", SECONDS_2, 1, 150),
    Signal("clock_hertz", "clocks", SECONDS_5, 0, 50e9),
    Signal("fan_speed_ratio", "fans", SECONDS_10, 0, 2),  # over the maximum that the board was designed for
    Signal("ecc_errors_total", "health", SECONDS_10, 0, _MOST_COUNT, most_per_second=1e6),
    Signal("remapped_rows", "health", SECONDS_10, 0, 1 << 24),
    Signal("row_remap_pending", "health", SECONDS_10, 0, 1),
    Signal("row_remap_failed", "health", SECONDS_10, 0, 1),
    Signal("retired_pages", "health", SECONDS_10, 0, 1 << 24),
    Signal("pcie_replays_total", "health", SECONDS_10, 0, _MOST_COUNT, most_per_second=1e6),
    Signal("nvlink_errors_total", "health", SECONDS_10, 0, _MOST_COUNT, most_per_second=1e12),
    Signal("nvlink_links", "health", SECONDS_10, 1, 72),
    Signal("nvlink_links_active", "health", SECONDS_10, 0, "nvlink_links"),
    Signal("pcie_link_generation", "pcie_link", SECONDS_10, 1, 16),
    Signal("pcie_link_generation_max", "pcie_link", SECONDS_10, 1, 16),
    Signal("pcie_link_width", "pcie_link", SECONDS_10, 1, 32),
    Signal("pcie_link_width_max", "pcie_link", SECONDS_10, 1, 32),
    Signal("power_limit_watts", "power_limits", SECONDS_10, 0.001, 10_000),
    Signal("power_limit_default_watts", "power_limits", SECONDS_10, 0.001, 10_000),
    Signal("bar1_total_bytes", "bar1", MINUTE, _MIB, 16 * _TIB),
    Signal("bar1_used_bytes", "bar1", MINUTE, 0, "bar1_total_bytes"),
    Signal("clock_configured_hertz", "clocks_configured", MINUTE, 0, 50e9),
    Signal("temperature_limit_celsius", "temperature_limits", MINUTE, 0, 150),
    Signal("clock_max_hertz", "clocks_max", MINUTE, 0, 50e9),
    Signal("persistence_mode", "persistence_mode", MINUTE, 0, 1),
)


def _by_query() -> Mapping[str, Mapping[str, Signal]]:
    found: dict[str, dict[str, Signal]] = {}
    for signal in SIGNALS:
        found.setdefault(signal.query, {})[signal.name] = signal
    return found


QUERIES: Mapping[str, Mapping[str, Signal]] = _by_query()
"""The signals of each query by name, in their order."""
