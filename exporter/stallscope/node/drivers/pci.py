"""GPUs on the PCI bus, as the kernel lists them with or without a driver."""

from __future__ import annotations

from pathlib import Path

_MAKERS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""Display controllers, and AMD's processing accelerators."""
_PASSED_ON = "vfio-pci"
"""Kernel driver of a device that belongs to a virtual machine, not to this machine."""


def pci_gpus(root: Path) -> dict[str, int]:
    """Return the number of this machine's GPUs on the PCI bus by maker, with or without a driver.

    Args:
        root: folder that contains `sys`.
    """
    found: dict[str, int] = {}
    for device in (root / "sys/bus/pci/devices").glob("*"):
        maker = _MAKERS.get(_text_of(device / "vendor"))
        if maker and _text_of(device / "class").startswith(_GPU_CLASSES) and _driver_of(device) != _PASSED_ON:
            found[maker] = found.get(maker, 0) + 1
    return found


def _driver_of(device: Path) -> str:
    try:
        return (device / "driver").readlink().name
    except OSError:
        return ""


def _text_of(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip("\n")
    except OSError:
        return ""
