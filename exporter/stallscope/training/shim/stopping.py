"""End a run early on request: SIGTERM to this process at a step's end, or a function of the program instead.

The program has to allow it with STALLSCOPE_ALLOW_STOP=1. SIGTERM is what schedulers send, so frameworks that save a
checkpoint then do so here too, and without a handler the process ends. All ranks get the same step.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, TypeVar

from stallscope.common.standard_library import standard_library
from stallscope.training.shim.step_requests import requests_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.training.protocol.step_request import StepRequest
    from stallscope.training.shim.session import Session

_Function = TypeVar("_Function", bound="Callable[[], object]")

_callback: Callable[[], object] | None = None


def on_stop(callback: _Function) -> _Function:
    """Call this in place of SIGTERM when a stop is requested, once, between two steps.

        stopping = threading.Event()
        stallscope.on_stop(stopping.set)

    All ranks call it before the same step, so the program may save a checkpoint and leave its loop. What it raises
    reaches the program. Requests count only with STALLSCOPE_ALLOW_STOP=1 in the environment of every rank.

    Args:
        callback: takes nothing. A later one takes its place.

    Returns:
        The callback, so that this is also a decorator.
    """
    global _callback
    _callback = callback
    return callback


class Stopper:
    """Waits for a stop request to one run, and for its step."""

    def __init__(self, run: Session) -> None:
        self._run = run
        self._began = run.wall_time()
        self._step: int | None = None
        requests_of(run).handle("stop", self._request)

    def _request(self, request: StepRequest) -> None:
        if request.created < self._began:
            return  # made for an earlier life of this rank, which the launcher has restarted
        if self._step is None:
            self._run.on_step(self._boundary)
        self._step = request.first_step

    def _boundary(self, step: int) -> bool:
        """Called where one step ends and the step of that number begins; returns True to be called again."""
        if self._step is None or step < self._step:
            return True
        self._step = None
        with standard_library():
            import logging  # only where there is something to log

        how = "calling the function of on_stop" if _callback is not None else "sending SIGTERM to this process"
        logging.getLogger("stallscope").warning(
            "a stop of run %s was requested through the exporter: %s before step %d", self._run.name, how, step
        )
        self._run.timeline.after_step = _stop
        return False


def _stop() -> None:
    if _callback is not None:
        _callback()
    else:
        signal.raise_signal(signal.SIGTERM)
