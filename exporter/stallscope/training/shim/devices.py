"""Which GPU this rank computes on.

A GPU has two names outside this process: its UUID, and its index in the driver's list, which goes by PCI address. A
number in CUDA_VISIBLE_DEVICES is neither: it counts the GPUs that this process may open, in an order of CUDA's choice.
`/proc/driver/nvidia/gpus` lists addresses, UUIDs and device files without the driver's library, in containers too.
An ambiguous GPU stays unknown: a wrong GPU is worse than none, since its losses would be attributed to another's.
"""

from __future__ import annotations

import os
from contextlib import suppress

from stallscope.training.shim.identity import gpu_framework

_UUID_LENGTH = len("GPU-01234567-89ab-cdef-0123-456789abcdef")
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

Gpus = list[dict[str, str]]
"""As the report has them: `gpu`, the driver's index, and `uuid`; one of the two may be empty."""


class Known:
    """One NVIDIA GPU as the kernel driver lists it."""

    __slots__ = ("model", "place", "usable", "uuid")

    def __init__(self, uuid: str, model: str, place: str, usable: bool) -> None:
        self.uuid = uuid
        self.model = model
        self.place = place
        """Its place in the driver's list; empty in a container, which may show fewer."""
        self.usable = usable
        """True if this process may open its device file; the cgroup denies those of other jobs."""


def gpus(environment: Mapping[str, str], local_rank: int | None, root: str = "/") -> Gpus:
    """Find the GPU this rank computes on; empty where that would be a guess.

    The framework knows best, once it uses a GPU. Before, CUDA_VISIBLE_DEVICES counts: its only entry, or the one at the
    local rank. Without the variable a launched rank has the GPU of its local rank, and a process in a container the
    only one that the container was given.
    """
    position = local_rank
    if torch := gpu_framework():
        position = torch.cuda.current_device()
    if _of_amd(root):
        return _amd(environment, torch, position, root)
    visible = _entries(environment, "CUDA_VISIBLE_DEVICES")
    if torch is not None:
        uuid = _torch_uuid(torch, position)
        if visible is not None and position is not None and position < len(visible):
            entry = visible[position]
            if entry.startswith("MIG-"):
                return _gpu(uuid=entry)
        if uuid:
            index = next((each.place for each in _known(environment, root) if each.uuid == uuid), "")
            return _gpu(index, uuid)
    if visible is None:
        return _granted(environment, position, root)
    if len(visible) == 1:
        position = 0
    if position is None or position >= len(visible):
        return []
    entry = visible[position]
    return _numbered(environment, int(entry), root) if entry.isdecimal() else _named(environment, entry, root)


def _gpu(index: str = "", uuid: str = "") -> Gpus:
    return [{"gpu": index, "uuid": uuid}]


def _entries(environment: Mapping[str, str], variable: str) -> list[str] | None:
    """The variable's entries up to the first invalid one, as CUDA reads them; None if it isn't set."""
    text = environment.get(variable)
    if text is None:
        return None
    entries: list[str] = []
    for entry in text.split(","):
        entry = entry.strip()
        if not ((entry.isascii() and entry.isdecimal() and len(entry) < 5) or entry.startswith(("GPU-", "MIG-"))):
            break
        entries.append(entry)
    return entries


def _numbered(environment: Mapping[str, str], number: int, root: str) -> Gpus:
    """The GPU that CUDA counts at this place among those that this process may open."""
    known = _known(environment, root)
    if known:
        usable = [each for each in known if each.usable]
        by_address = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        # Else the fastest comes first; alike ones keep the order of their addresses.
        if number >= len(usable) or not (by_address or len({each.model for each in usable}) == 1):
            return []
        found = usable[number]
        return _gpu(found.place, found.uuid) if found.place or found.uuid else []
    given = _given(environment)
    if given is None:
        return [] if _in_container(environment, root) else _gpu(str(number))
    if all(entry.isdecimal() for entry in given):  # places in the host's list; here they count from 0, in its order
        given.sort(key=int)
        return _gpu(given[number]) if number < len(given) else []
    return _gpu(uuid=given[0]) if len(given) == 1 and number == 0 and _whole_name(given[0]) else []


def _named(environment: Mapping[str, str], entry: str, root: str) -> Gpus:
    """The GPU of a UUID, which may be cut short as far as only one begins with it."""
    if entry.startswith("MIG-"):
        return _gpu(uuid=entry)
    matches = [each for each in _known(environment, root) if each.uuid.startswith(entry)]
    if len(matches) == 1:
        return _gpu(matches[0].place, matches[0].uuid)
    return _gpu(uuid=entry) if len(entry) == _UUID_LENGTH else []


def _granted(environment: Mapping[str, str], position: int | None, root: str) -> Gpus:
    """The GPU at this place of all that this process may use."""
    given = _given(environment)
    if given is not None:
        if len(given) == 1 and _whole_name(given[0]):
            return _named(environment, given[0], root)
        if any(entry.startswith("MIG-") or ":" in entry for entry in given):
            return []
        if len(given) == 1:
            position = 0
    if position is None:
        return []
    if given is None and not _known(environment, root):
        # Device files are numbered differently from GPUs only if there are several; here they show that there is one.
        return _numbered(environment, position, root) if os.path.exists(_device(root, str(position))) else []
    return _numbered(environment, position, root)


def _given(environment: Mapping[str, str]) -> list[str] | None:
    """GPUs given to the container by name or number; None for all, none, or unknown."""
    text = environment.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    if text in ("", "all", "void", "none") or "=" in text or "/" in text:
        return None
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _whole_name(entry: str) -> bool:
    return entry.startswith("MIG-") or (entry.startswith("GPU-") and len(entry) == _UUID_LENGTH)


def _in_container(environment: Mapping[str, str], root: str) -> bool:
    return (
        environment.get("NVIDIA_VISIBLE_DEVICES", "") not in ("", "all")
        or bool(environment.get("KUBERNETES_SERVICE_HOST"))
        or any(os.path.exists(os.path.join(root, name)) for name in _CONTAINER_FILES)
    )


def _known(environment: Mapping[str, str], root: str) -> list[Known]:
    """Every GPU that the kernel driver lists here, by PCI address."""
    folder = os.path.join(root, "proc/driver/nvidia/gpus")
    found: list[Known] = []
    whole_machine = not _in_container(environment, root)
    with suppress(OSError):
        for address in sorted(os.listdir(folder)):
            with open(os.path.join(folder, address, "information"), encoding="utf-8", errors="replace") as file:
                properties = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in file)}
            if properties.get("GPU Excluded") == "Yes":
                continue
            uuid = properties.get("GPU UUID", "")
            found.append(
                Known(
                    uuid="" if "?" in uuid else uuid,  # not used since the driver was loaded
                    model=properties.get("Model", ""),
                    place=str(len(found)) if whole_machine else "",
                    # Checks the device cgroup as well; opening the file would wake the GPU.
                    usable=os.access(_device(root, properties.get("Device Minor", "?")), os.R_OK | os.W_OK),
                )
            )
    return found


def _device(root: str, minor: str) -> str:
    return os.path.join(root, f"dev/nvidia{minor}")


def _torch_uuid(torch: Any, position: int | None) -> str:
    uuid = str(getattr(torch.cuda.get_device_properties(position), "uuid", ""))
    return uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _of_amd(root: str) -> bool:
    return os.path.exists(os.path.join(root, "dev/kfd")) and not os.path.exists(os.path.join(root, "dev/nvidiactl"))


def _amd(environment: Mapping[str, str], torch: Any, position: int | None, root: str) -> Gpus:
    """The runtime sees what ROCR_VISIBLE_DEVICES lists; HIP_VISIBLE_DEVICES, or CUDA's, chooses among those."""
    if torch is not None:
        with suppress(ValueError):  # the 16 bytes of its UUID are the digits of the number in the kernel's file
            number = bytes.fromhex(_torch_uuid(torch, position).removeprefix("GPU-").replace("-", "")).decode("ascii")
            if len(number) == 16 and int(number, 16):
                return _gpu(uuid=f"GPU-{number.lower()}")
    chosen = _entries(environment, "HIP_VISIBLE_DEVICES")
    if chosen is None:
        chosen = _entries(environment, "CUDA_VISIBLE_DEVICES")
    present = _entries(environment, "ROCR_VISIBLE_DEVICES")
    visible = present if chosen is None else chosen
    if visible is None:
        entry = "" if position is None else str(position)
    else:
        if len(visible) == 1:
            position = 0
        entry = visible[position] if position is not None and position < len(visible) else ""
        if present is not None and chosen is not None and entry.isdecimal():
            entry = present[int(entry)] if int(entry) < len(present) else ""
    if entry.startswith("GPU-"):
        return _gpu(uuid=f"GPU-{entry[4:].lower()}")
    # A container counts the GPUs that it was given, whichever they are.
    return _gpu(entry) if entry.isdecimal() and not _in_container(environment, root) else []
