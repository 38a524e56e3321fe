"""Which rank of which job this process is, by what its launcher left in the environment.

Most programs are started by no launcher: what launchers set is read in `launched`, imported upon need.
"""

from __future__ import annotations

import sys

from stallscope.common.standard_library import standard_library
from stallscope.training.shim.launch_variables import OTHER_VARIABLES, RANK_VARIABLES, RESTART_VARIABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_VARIABLES = (*RANK_VARIABLES, "LOCAL_RANK", "WORLD_SIZE", *OTHER_VARIABLES, *RESTART_VARIABLES)
_MODULES = ("torch.distributed", "ray.train")
"""Modules that know the ranks of a program that starts them itself."""


def ranks(environment: Mapping[str, str]) -> tuple[int, int | None, int]:
    """Find the global rank, the local rank (None if unknown) and the world's size.

    A process that no launcher started is rank 0 of 1. Variables that contradict each other are warned of, once.
    """
    launched = _launched(environment)
    return (0, None, 1) if launched is None else launched.ranks(environment)


def restarts(environment: Mapping[str, str]) -> int:
    """Return how often the launcher says that it restarted this rank."""
    launched = _launched(environment)
    return 0 if launched is None else launched.restarts(environment)


def _launched(environment: Mapping[str, str]) -> Any:
    """Return the module that reads what launchers set; None if there is nothing to read."""
    is_launched = any(environment.get(variable) for variable in _VARIABLES)
    if not is_launched and not any(module in sys.modules for module in _MODULES):
        return None
    with standard_library():
        from stallscope.training.shim import launched

    return launched
