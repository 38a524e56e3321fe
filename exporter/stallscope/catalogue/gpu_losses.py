"""Meaning and remedy of each reason in `stallscope_gpu_lost_info`."""

from __future__ import annotations

from collections.abc import Mapping

LOSSES: Mapping[str, str] = {
    "gpu_lost": "It fell off the bus: drain the node and reboot.",
    "gpu_not_found": "It fell off the bus: drain the node and reboot.",
    "reset_required": "It needs a reset: end what uses it, then nvidia-smi --gpu-reset.",
    "not_enumerated": "The driver no longer lists it.",
    "hung": "A driver call does not come back; if it hangs again, reboot.",
    "driver_not_loaded": "The driver is not loaded; GPUs come back by themselves when it is.",
    "library_not_found": "The driver's library is gone; GPUs come back by themselves when it is there.",
    "version_mismatch": "The driver was upgraded: reload its kernel module or reboot, and restart the exporter.",
    "no_permission": "The exporter may not open the device files.",
    "released": "It was released on request.",
    "mig_reconfigured": "The instance was taken apart.",
    "suspended": "The kernel put it to sleep.",
}
"""Meaning and remedy by reason; `explained` has a text for all other reasons."""


def explained(reason: str) -> str:
    """Return the meaning and the remedy in a sentence."""
    return LOSSES.get(reason, "The exporter's log has the driver's own words.")
