"""Share memory with the workers of a loader, before they are forked, so that their stacks can be sampled."""

from __future__ import annotations

import os

from stallscope.common.standard_library import loaded, standard_library
from stallscope.training.shim.tolerance import switched_on, tolerate

_forks_of = 0
"""The process whose workers are sampled; 0 for none."""
_has_handler = False


def sample_workers() -> None:
    """Share memory with workers that are forked from now on while `multiprocessing` is in use."""
    global _forks_of, _has_handler
    _forks_of = os.getpid()
    if switched_on("STALLSCOPE_AUTO"):  # workers that are spawned find the memory in the environment
        _share_memory()
    elif not _has_handler and hasattr(os, "register_at_fork"):
        _has_handler = True
        os.register_at_fork(before=_before_fork)


def _before_fork() -> None:
    # The import is complete before the fork, so that the child does not import.
    if os.getpid() == _forks_of and loaded("multiprocessing.connection") is not None:
        _share_memory()


def _share_memory() -> None:
    try:
        with standard_library():
            from stallscope.training.shim import worker_samples

        worker_samples.prepare()
    except Exception as error:
        tolerate(error, "sharing memory with workers")
