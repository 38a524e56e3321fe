"""The pipeline stage, tensor and data parallel rank of this process, from the libraries that are imported."""

from __future__ import annotations

import sys
from contextlib import suppress

from stallscope.training.shim.identity import MEGATRON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

KEYS = ("pipeline_stage", "tensor_rank", "data_rank")
"""Keys of a report's `info`, one for each dimension."""
_METHODS = {
    "pipeline_stage": ("get_pipe_parallel", "get_pipeline_model_parallel"),
    "tensor_rank": ("get_slice_parallel", "get_tensor_model_parallel"),
    "data_rank": ("get_data_parallel",),
}
"""Methods of DeepSpeed's grid, and of Megatron: each with `_rank` and `_world_size`."""
_GROUPS = {
    "pipeline_stage": (
        "PIPELINE_MODEL_PARALLEL_GROUP",
        "mesh_pp",
        "mesh_pipe",
        "mesh_pipeline",
        "mesh_pipeline_parallel",
    ),
    "tensor_rank": ("TENSOR_MODEL_PARALLEL_GROUP", "mesh_tp", "mesh_tensor", "mesh_tensor_parallel"),
    "data_rank": ("DATA_PARALLEL_GROUP", "mesh_dp", "mesh_data", "mesh_data_parallel"),
}
"""Descriptions of process groups: Megatron's, and those of a DeviceMesh, by the name of the dimension."""

position: tuple[int, int] | None = None
"""Rank and size of the group of the newest stage of `torch.distributed.pipelining`, which need not have a group of its
own; None if there is no such stage."""


def positions() -> dict[str, str]:
    """Return the number of the stage, and the ranks among the tensor and data parallel ranks, by their keys.

    A dimension that is unknown, or has only one rank, is missing.
    """
    found: dict[str, str] = {}
    with suppress(Exception):  # of a library
        for key, rank, size in _known():
            if 0 <= rank < size and size > 1:
                found.setdefault(key, str(rank))
    return found


def fill_positions(info: dict[str, str]) -> bool:
    """Add the positions that are unknown so far; return whether there are any."""
    found = {key: position for key, position in positions().items() if not info[key]}
    info.update(found)
    return bool(found)


def note(made: Any) -> None:
    """Take note of a stage of `torch.distributed.pipelining`."""
    global position
    with suppress(Exception):
        position = int(made.group_rank), int(made.group_size)


def _known() -> Iterator[tuple[str, int, int]]:
    """Yield the rank of this process in a dimension, and the size of the dimension, by each library."""
    if position is not None:
        yield ("pipeline_stage", *position)
    grids = [sys.modules.get(name) for name in MEGATRON]
    grids.append(getattr(sys.modules.get("deepspeed.utils.groups"), "mpu", None))
    for grid in grids:
        for key, methods in _METHODS.items():
            for method in methods:
                with suppress(Exception):  # its groups do not exist yet
                    yield key, int(getattr(grid, f"{method}_rank")()), int(getattr(grid, f"{method}_world_size")())
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    for group in list(getattr(getattr(distributed, "_world", None), "pg_group_ranks", ())):
        for key, descriptions in _GROUPS.items():
            if getattr(group, "group_desc", "") in descriptions:
                yield key, group.rank(), group.size()
