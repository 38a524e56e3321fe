"""The pipeline stage of this process, as the libraries know it that the program has imported."""

from __future__ import annotations

import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_MEGATRON = ("megatron.core.parallel_state", "megatron.mpu.initialize")
"""The second is Megatron-LM's before Megatron Core."""
_METHODS = ("get_pipe_parallel", "get_pipeline_model_parallel")
"""Methods of DeepSpeed's grid, and of Megatron: each with `_rank` and `_world_size`."""
_GROUPS = frozenset(
    {"PIPELINE_MODEL_PARALLEL_GROUP", "mesh_pp", "mesh_pipe", "mesh_pipeline", "mesh_pipeline_parallel"}
)
"""Descriptions of process groups: Megatron's, and those of a DeviceMesh, by the name of the dimension."""

position: tuple[int, int] | None = None
"""Rank and size of the group of the newest stage of `torch.distributed.pipelining`, which need not have a group of its
own; None if there is no such stage."""


def stage() -> str:
    """Return the number of the stage; empty if it is unknown, or if there is only one."""
    with suppress(Exception):  # of a library
        for rank, size in _positions():
            if 0 <= rank < size and size > 1:
                return str(rank)
    return ""


def note(made: Any) -> None:
    """Take note of a stage of `torch.distributed.pipelining`."""
    global position
    with suppress(Exception):
        position = int(made.group_rank), int(made.group_size)


def _positions() -> Iterator[tuple[int, int]]:
    """Yield the rank of this process among the stages of one pipeline, and their number, by each library."""
    if position is not None:
        yield position
    grids = [sys.modules.get(name) for name in _MEGATRON]
    grids.append(getattr(sys.modules.get("deepspeed.utils.groups"), "mpu", None))
    for grid in grids:
        for method in _METHODS:
            with suppress(Exception):  # its groups do not exist yet
                yield int(getattr(grid, f"{method}_rank")()), int(getattr(grid, f"{method}_world_size")())
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    for group in list(getattr(getattr(distributed, "_world", None), "pg_group_ranks", ())):
        if getattr(group, "group_desc", "") in _GROUPS:
            yield group.rank(), group.size()
