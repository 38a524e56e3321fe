"""How the program of this process ends: recorded when it happens, for the last reports of its runs.

Imported once a step has ended, an exporter has accepted a report, or the program ends with an error.
"""

from __future__ import annotations

import gc
import sys
import weakref
from types import TracebackType

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol.vocabulary import TERMINATION_STATUSES
from stallscope.training.shim.endings import (
    in_signal_handler,
    is_failure,
    is_interrupted,
    is_termination,
    signal_handlers,
    status_of_child,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stallscope.training.shim.session import Session

_failed = False
_terminated = False
_failure: BaseException | None = None
_steps_at_end: weakref.WeakKeyDictionary[Session, int] = weakref.WeakKeyDictionary()
"""Steps of each run when an end of the program was recorded."""
_left: tuple[weakref.ref[Session], float, bool] | None = None
"""The run whose loop SystemExit has left, the time up to which its phases were counted, and whether for a signal."""


def note_error(error: BaseException, runs: Sequence[Session]) -> None:
    """Record the exception, or SystemExit, with which the program of this process ended.

    Args:
        error: the exception.
        runs: the open runs.
    """
    global _failed, _failure, _terminated
    _note_steps(runs)
    _terminated = is_termination(error)
    _failed, _failure = (is_failure(error.code), None) if isinstance(error, SystemExit) else (True, error)


def note_status(status: object, runs: Sequence[Session]) -> None:
    """Record the status with which the program is about to end, where this is the main thread.

    Args:
        status: the argument of `sys.exit`.
        runs: the open runs.
    """
    global _failed, _terminated
    with standard_library():
        import threading

    if threading.current_thread() is threading.main_thread():  # another thread would end only itself
        _note_steps(runs)
        _failed = is_failure(status)
        _terminated = (
            (type(status) is int and status in TERMINATION_STATUSES)
            or is_interrupted(sys.exc_info()[1])
            or in_signal_handler()
        )


def finish(runs: Sequence[Session]) -> None:
    """Finish runs, because the process ends."""
    error = sys.exc_info()[1]  # before Python 3.13, multiprocessing calls this while the exception is handled
    terminated = _terminated or is_termination(error)
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        error = _failure
    status = status_of_child()
    failed = _failed or error is not None or status != 0
    for run in runs:
        left = _was_left(run)
        if run.is_resting or (_has_continued(run) and not left and error in (None, _failure) and status == 0):
            run.finish()
        elif terminated or status in TERMINATION_STATUSES or (left and _left is not None and _left[2]):
            run.finish("terminated")
        elif failed or left:
            run.fail(None if isinstance(error, SystemExit) else error)
        else:
            run.finish()


def _note_steps(runs: Sequence[Session]) -> None:
    """Record how far each run is: if it goes on, the end that is recorded now was not the program's."""
    _steps_at_end.clear()
    _steps_at_end.update((run, run.steps_done) for run in runs)


def _has_continued(run: Session) -> bool:
    """Return whether a run has taken steps since the recorded end, as after an exception in an interactive console."""
    return run.steps_done > _steps_at_end.get(run, -1)


def _was_left(run: Session) -> bool:
    """Return whether SystemExit left the loop of this run, and no time was counted since."""
    if _left is None or _left[0]() is not run:
        return False
    run.timeline.settle()
    return run.timeline.mark == _left[1]


def loop_left(run: Session) -> bool:
    """Return whether an exception has left a loop of this run, and record one of SystemExit that ends the program.

    When the process ends, the exception is no longer known. It can't be queried here either, but it was just created,
    and is among the youngest objects.
    """
    global _left
    handlers = signal_handlers()
    left = terminated = False
    by_exception = _failed and not _has_continued(run)
    for found in gc.get_objects(generation=0):
        kind = type(found)
        if issubclass(kind, SystemExit):
            terminated = terminated or is_termination(found)
            left = left or terminated or is_failure(found.code)
        elif handlers and kind is TracebackType and found.tb_frame.f_code in handlers:
            terminated = True  # up to Python 3.11, an exception that is being raised has no traceback yet
        by_exception = by_exception or (issubclass(kind, BaseException) and kind is not GeneratorExit)
    if left or terminated:
        _left = (weakref.ref(run), run.timeline.mark, terminated)
    return by_exception
