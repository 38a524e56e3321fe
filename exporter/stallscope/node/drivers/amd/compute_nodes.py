"""The compute side of the driver, KFD: its node of each GPU, and the processes with memory on the GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from stallscope.node.drivers.amd.device_files import DeviceFiles
from stallscope.node.drivers.device import DeviceLost, DriverError, GpuProcess, Unsupported

_KFD = "sys/class/kfd/kfd"
_MOST_BYTES = 1 << 60


class ComputeNodes(NamedTuple):
    """A GPU in KFD: one node, or one for each partition."""

    ids: tuple[str, ...]
    """The `gpu_id` of each node."""
    instruction_set: str
    """Such as `gfx942`; empty if unknown."""


def compute_nodes(root: str, files: DeviceFiles) -> Mapping[str, ComputeNodes]:
    """KFD's nodes of each GPU, by its PCI bus address; empty without KFD."""
    folder = f"{root}/{_KFD}/topology/nodes"
    found: dict[str, ComputeNodes] = {}
    for node in sorted(_entries(folder), key=lambda name: (len(name), name)):
        try:
            identifier = files.read(f"{folder}/{node}/gpu_id").decode(errors="replace").strip()
            properties = _properties(files.read(f"{folder}/{node}/properties"))
        except DriverError:
            continue  # hidden from this container, or gone this moment
        if not identifier.isdecimal() or identifier == "0" or "location_id" not in properties:
            continue  # a CPU
        address = _address(properties)
        known = found.get(address, ComputeNodes((), ""))
        found[address] = ComputeNodes(
            (*known.ids, identifier), known.instruction_set or _instruction_set(properties.get("gfx_target_version", 0))
        )
    return found


def compute_processes(root: str, files: DeviceFiles, ids: tuple[str, ...]) -> list[GpuProcess]:
    """Processes that hold memory of the GPU: KFD lists every process that opened it on every GPU that it may use.

    Raises:
        Unsupported: KFD does not know this GPU.
    """
    folder = f"{root}/{_KFD}/proc"
    if not ids or not os.path.isdir(folder):  # noqa: PTH112 - on the sampling path
        raise Unsupported("the compute driver (KFD) does not report which processes use this GPU")
    found = []
    for name in _entries(folder):
        if not name.isdecimal():
            continue
        memory = sum(_held(files, f"{folder}/{name}/vram_{identifier}") for identifier in ids)
        if memory:
            found.append(GpuProcess(int(name), memory))
    return found


def _held(files: DeviceFiles, path: str) -> int:
    try:
        return files.number(path, _MOST_BYTES)
    except DeviceLost:
        raise
    except DriverError:
        return 0  # the process ended meanwhile, or is another container's


def _address(properties: Mapping[str, int]) -> str:
    # The uppermost bits number a partition; the rest is bus, device and function.
    location = properties["location_id"] & 0xFFFF
    return f"{properties.get('domain', 0):04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _instruction_set(version: int) -> str:
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{step:x}" if major else ""


def _properties(content: bytes) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in re.findall(rb"^(\w+) (\d+)$", content, re.MULTILINE)}


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - on the sampling path
    except OSError:
        return []
