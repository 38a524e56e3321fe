"""Restrict the choice of GPUs to those in `CUDA_VISIBLE_DEVICES`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stallscope.tools.capacity.gpu import GpuNow

_LEGACY = re.compile(r"MIG-(GPU-[0-9a-f-]+)/(\d+)/\d+", re.IGNORECASE)


def visible(setting: str | None, gpus: Sequence[GpuNow], order: str | None = None) -> frozenset[str] | None:
    """UUIDs of the GPUs and instances that programs may see; None for all.

    CUDA reads the list up to the first entry that fits nothing, and so is it read here.

    Args:
        setting: `CUDA_VISIBLE_DEVICES`; None where it is not set.
        gpus: all that the driver shows.
        order: `CUDA_DEVICE_ORDER`.

    Raises:
        ValueError: its numbers do not identify GPUs unambiguously.
    """
    if setting is None:
        return None
    found: set[str] = set()
    for entry in (each.strip() for each in setting.split(",")):
        if entry.isdecimal():
            _require_one_order(gpus, order)
        fits = _fitting(entry, gpus)
        if not fits:
            break
        found |= fits
    return frozenset(found)


def _fitting(entry: str, gpus: Sequence[GpuNow]) -> set[str]:
    legacy = _LEGACY.fullmatch(entry)
    if legacy:
        return {
            gpu.identity.uuid
            for gpu in gpus
            if gpu.identity.parent_uuid == legacy[1] and gpu.identity.gpu_instance == int(legacy[2])
        }
    if entry.isdecimal():
        # An index stands for the GPU, and so for all that it is cut into.
        return {gpu.identity.uuid for gpu in gpus if gpu.identity.index == int(entry)}
    if not entry.startswith(("GPU-", "MIG-")):
        return set()
    meant = {gpu.identity.uuid for gpu in gpus if gpu.identity.uuid.startswith(entry)}
    if len(meant) != 1:
        return set()
    return meant | {gpu.identity.uuid for gpu in gpus if gpu.identity.parent_uuid in meant}


def _require_one_order(gpus: Sequence[GpuNow], order: str | None) -> None:
    if order != "PCI_BUS_ID" and len({gpu.identity.model for gpu in gpus}) > 1:
        raise ValueError(
            "CUDA_VISIBLE_DEVICES holds numbers, and CUDA counts GPUs of several models fastest first: "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID"
        )
