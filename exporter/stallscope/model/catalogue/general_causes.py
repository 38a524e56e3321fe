"""Causes by phase and by reason of throttling, for the summary of a program.

Without a verdict, it shows the title and the remedy of the cause for the largest phase, and for a GPU that was slowed.
"""

from __future__ import annotations

from collections.abc import Mapping

PHASE_CAUSES: Mapping[str, str] = {
    "data_wait": "input_bound",
    "host_copy": "h2d_bound",
    "communication": "comm_bound",
    "checkpoint": "checkpoint_stall",
    "evaluation": "evaluation_overhead",
    "logging": "callback_stall",
    "rollout": "rollout_wait",
    "reward": "rollout_wait",
    "weight_sync": "rollout_wait",
    "restore": "long_init",
    "other": "sync_stall",
}
"""The general cause of time in a phase, whose remedy applies whatever the special one is."""

THROTTLE_CAUSES: Mapping[str, str] = {
    "sw_thermal": "thermal_throttle",
    "hw_thermal": "thermal_throttle",
    "power_brake": "power_brake",
}
"""Causes by the reasons of throttling that are faults. A GPU at its power limit has none."""


def cause_of_phase(phase: str) -> str:
    """Return the general cause of time in a phase; phases of the program's own are callbacks."""
    return PHASE_CAUSES.get(phase, "callback_stall")
