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
    "library_unusable": "The driver's library is installed, but can't be loaded: install the driver again.",
    "no_devices": "The driver responds, but lists no GPU: see dmesg; usually only a reboot helps.",
    "released": "It was released on request.",
    "mig_reconfigured": "The instance was taken apart.",
    "suspended": "The kernel put it to sleep.",
}
"""Meaning and remedy by reason; `explained` has a text for all other reasons."""

HARDWARE = frozenset({"gpu_lost", "gpu_not_found", "reset_required", "not_enumerated", "no_devices"})
"""Reasons of a GPU that the driver reports as gone or unusable, while the driver itself works."""

_REMEDIES: Mapping[str, str] = {
    "binding_missing": "pip install nvidia-ml-py",
    "binding_incompatible": "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py",
    "driver_not_loaded": "load the kernel module (modprobe nvidia, or modprobe amdgpu), and see dmesg for its messages",
    "library_not_found": "install the driver's library, or start the container with its GPUs",
    "library_unusable": "install the driver again, in the version of its kernel module",
    "no_devices": "see dmesg for the missing GPUs; usually only a reboot helps",
    "no_permission": "let the exporter's user open the GPUs' device files; start a container with its GPUs",
    "operating_system": "let the exporter's cgroup open /dev/nvidia*; start a container with its GPUs",
    "version_mismatch": "the driver was upgraded: reload its kernel module or reboot, and restart the exporter",
}


def remedy(reason: str) -> str:
    """Return what to do about a driver that does not respond, for `DriverUnavailable.reason`."""
    return _REMEDIES.get(reason, "`nvidia-smi` must work first: see dmesg for the driver's messages")


def explained(reason: str) -> str:
    """Return the meaning and the remedy in a sentence."""
    return LOSSES.get(reason, "The exporter's log has the driver's own words.")
