"""Find the GPU of an orchestrator's device name.

| name | used by |
|---|---|
| `GPU-…`, `MIG-…`, `MIG-GPU-…/1/0` | NVIDIA's device plugin: the driver's own UUIDs |
| `GPU-…::2` | the same, where a GPU is handed out several times (time slicing or MPS) |
| `nvidia0`, `nvidia0/gi1`, `nvidia0/vgpu1` | Google's device plugin: number of the device file, GPU instance, replica |
| `gpu-0`, `…-gpu-0` | NVIDIA's driver for dynamic resource allocation, and its CDI names |
| `gpu-0-mig-1g5gb-19-4`, `gpu-0-mig-19-4-1` | the same: an instance by profile and start, or by start and size |
| `0000:19:00.0`, `amdgpu_xcp_3` | AMD's device plugin: PCI address, partition of a GPU |
| `gpu-1-129` | AMD's driver for dynamic resource allocation: numbers of the card's and of the render node's file |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from stallscope.node.drivers.device import Identity

_UUID = re.compile(r"(?:^|-|=)((?:MIG-)?GPU-[0-9a-fA-F-]{36}(?:/\d+/\d+)?|MIG-[0-9a-fA-F-]{36})$")
_LEGACY = re.compile(r"MIG-(GPU-.*)/(\d+)/\d+", re.IGNORECASE)
_NUMBERED = re.compile(r"nvidia(\d+)(?:/gi(\d+))?(?:/vgpu\d+)?")
_ALLOCATED = re.compile(r"(?:.*-)?gpu-(\d+)(?:-mig-(.+))?")
_PROFILED = re.compile(r"(\d+g\.?\d+gb.*)-\d+-\d+")
_PARTITION = re.compile(r"amdgpu_xcp_\d+")
_RENDERED = re.compile(r"(?:gpu-\d+-|renderD)(\d+)")
_PROPERTY = re.compile(r"^(drm_render_minor|location_id|domain) (\d+)$", re.MULTILINE)
_PCI = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)
_PciAddress = tuple[int, ...]


def handed_out_again(name: str) -> bool:
    """Return True if the name is one of several replicas of a GPU."""
    return "::" in name or "/vgpu" in name


class Devices:
    """The GPUs of this node by every name."""

    def __init__(self, root: Path, identities: Iterable[Identity]) -> None:
        """Index the GPUs by name.

        Args:
            root: folder that contains `proc`, where NVIDIA's driver lists each GPU's device file.
            identities: the GPUs and MIG instances.
        """
        self._root = root
        self._instances: dict[str, list[Identity]] = {}
        self._by_uuid: dict[str, str] = {}
        self._by_index: dict[int, str] = {}
        self._by_pci: dict[_PciAddress, str] = {}
        self._by_minor: dict[int, str] | None = None
        self._by_render_node: dict[int, str] | None = None
        for identity in identities:
            self._by_uuid[identity.uuid.lower()] = identity.uuid
            if identity.parent_uuid:
                self._instances.setdefault(identity.parent_uuid, []).append(identity)
            else:
                self._by_index[identity.index] = identity.uuid
                address = _pci_address(identity.pci_bus_id)
                if address is not None:
                    self._by_pci[address] = identity.uuid

    def find(self, names: Sequence[str]) -> str | None:
        """Return the UUID of the GPU or MIG instance that one of the names identifies, or None."""
        return next((uuid for name in names if (uuid := self._find(name.partition("::")[0])) is not None), None)

    def find_number(self, number: int) -> str | None:
        """Return the UUID of the GPU with that number in Slurm; None if unknown.

        Slurm numbers GPUs in the order of its configuration: by device file, or by PCI address with AutoDetect. The
        number is of a GPU only if both orders agree. With MIG instances, it counts them too.
        """
        if self._instances:
            return None
        uuid = self._by_index.get(number)
        return uuid if uuid == self._numbered(number) else None

    def _find(self, name: str) -> str | None:
        exact = self._by_uuid.get(name.lower())
        if exact is not None:
            return exact
        inside = _UUID.search(name)
        if inside:
            return self._by_uuid.get(inside[1].lower()) or self._legacy(inside[1])
        address = _pci_address(name)
        if address is not None:
            return self._by_pci.get(address)
        numbered = _NUMBERED.fullmatch(name)
        if numbered:
            whole = self._numbered(int(numbered[1]))
            return whole if whole is None or numbered[2] is None else self._in_gpu_instance(whole, int(numbered[2]))
        rendered = _RENDERED.fullmatch(self._render_node(name) if _PARTITION.fullmatch(name) else name)
        if rendered:
            if self._by_render_node is None:
                self._by_render_node = self._read_render_nodes()
            return self._by_render_node.get(int(rendered[1]))
        allocated = _ALLOCATED.fullmatch(name)
        if allocated:
            whole = self._numbered(int(allocated[1]))
            return whole if whole is None or allocated[2] is None else self._allocated(whole, allocated[2])
        return None

    def _legacy(self, name: str) -> str | None:
        """Return the instance with this name in drivers before 470."""
        reported = _LEGACY.fullmatch(name)
        whole = self._by_uuid.get(reported[1].lower()) if reported else None
        return self._in_gpu_instance(whole, int(reported[2])) if reported and whole else None

    def _in_gpu_instance(self, whole: str, number: int) -> str | None:
        """Return the instance in the GPU instance, unless there are several."""
        return _only(each for each in self._instances.get(whole, ()) if each.gpu_instance in (number, None))

    def _allocated(self, whole: str, reported: str) -> str | None:
        """Return the instance of that profile, unless there are several: the driver does not report their positions."""
        profile = _PROFILED.fullmatch(reported)
        instances = self._instances.get(whole, ())
        return _only(each for each in instances if profile is None or _bare(each.mig) == _bare(profile[1]))

    def _numbered(self, number: int) -> str | None:
        """Return the GPU of `/dev/nvidia<number>`. The driver chooses the number; usually it is the index."""
        if self._by_minor is None:
            self._by_minor = self._read_minors()
        return self._by_minor.get(number) if self._by_minor else self._by_index.get(number)

    def _render_node(self, partition: str) -> str:
        """Return the name of a partition's render node; empty if there is no such partition."""
        nodes = (self._root / "sys/devices/platform" / partition / "drm").glob("renderD*")
        return next((each.name for each in nodes), "")

    def _read_render_nodes(self) -> dict[int, str]:
        """Return the GPUs by the numbers of their render nodes, of which each partition has one, from AMD's KFD."""
        found: dict[int, str] = {}
        for file in (self._root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
            try:
                properties = dict(_PROPERTY.findall(file.read_text(errors="replace")))
            except OSError:
                continue  # hidden from this container
            location = int(properties.get("location_id", 0))
            # The uppermost bits number the partition.
            address = (int(properties.get("domain", 0)), location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7)
            if (uuid := self._by_pci.get(address)) is not None:
                found[int(properties.get("drm_render_minor", 0))] = uuid
        return found

    def _read_minors(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for address, uuid in self._by_pci.items():
            folder = "{:04x}:{:02x}:{:02x}.{:x}".format(*address)
            try:
                reported = (self._root / "proc/driver/nvidia/gpus" / folder / "information").read_text(errors="replace")
            except OSError:
                continue
            minor = _MINOR.search(reported)
            if minor:
                found[int(minor[1])] = uuid
        return found


def _pci_address(text: str) -> _PciAddress | None:
    """Return domain, bus, device and function; NVML writes the domain with eight digits, the kernel with four."""
    match = _PCI.fullmatch(text)
    return tuple(int(part, 16) for part in match.groups()) if match else None


def _only(instances: Iterable[Identity]) -> str | None:
    """Return the UUID of the only instance; None without one, or with several."""
    found = [each.uuid for each in instances]
    return found[0] if len(found) == 1 else None


def _bare(profile: str) -> str:
    """Return a profile without the characters that are invalid in Kubernetes' names."""
    return re.sub(r"[^0-9a-z]", "", profile.lower())
