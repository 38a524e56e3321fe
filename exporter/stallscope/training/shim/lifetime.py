"""Report the end of a process: its exit, or a failure. Forked processes send no report."""

from __future__ import annotations

import atexit
import builtins
import gc
import os
import sys
import weakref
from types import TracebackType

from stallscope.common.standard_library import loaded, standard_library
from stallscope.training.shim.endings import (
    TERMINATION_STATUSES,
    in_signal_handler,
    is_failure,
    is_interrupted,
    is_termination,
    signal_handlers,
    status_of_child,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from stallscope.training.shim.session import Session

_open: list[Session] = []
_inherited: tuple[Session, ...] = ()
_everyone: weakref.WeakSet[Session] = weakref.WeakSet()
_has_fork_handler = False
_watching = 0
_observed = 0
_failed = False
_terminated = False
_failure: BaseException | None = None
_steps_at_end: weakref.WeakKeyDictionary[Session, int] = weakref.WeakKeyDictionary()
"""Steps of each run when an end of the program was recorded."""
_left: tuple[weakref.ref[Session], float, bool] | None = None
_MAX_RESTING = 8
"""Runs that may continue after their loop was over; older ones are finished, and their sockets closed."""


def know(run: Session) -> None:
    """Silence this run in processes forked from this one."""
    global _has_fork_handler
    if not _has_fork_handler and hasattr(os, "register_at_fork"):
        _has_fork_handler = True
        os.register_at_fork(after_in_child=_after_fork_in_child)
    _everyone.add(run)


def observe() -> None:
    """Do not wrap `sys.exit` and `sys.excepthook` in this process: the caller runs the program and calls `note_end`."""
    global _observed
    _observed = os.getpid()


def note_end(error: BaseException) -> None:
    """Record the exception, or SystemExit, with which the program of this process ended."""
    global _failed, _failure, _terminated
    _note_steps()
    _terminated = is_termination(error)
    if isinstance(error, SystemExit):
        _failed, _failure = is_failure(error.code), None
    else:
        _failed, _failure = True, error


def _note_steps() -> None:
    """Record how far each run is: if it goes on, the end that is recorded now was not the program's."""
    _steps_at_end.clear()
    _steps_at_end.update((run, run.steps_done) for run in _open)


def _has_continued(run: Session) -> bool:
    """Return whether a run has taken steps since the recorded end, as after an exception in an interactive console."""
    return bool(_steps_at_end) and run.steps_done > _steps_at_end.get(run, -1)


def watch(run: Session) -> None:
    """Finish this run when the process ends; as failed if an uncaught exception ended it."""
    global _watching
    if _watching != os.getpid():
        _watching = os.getpid()
        if _observed != os.getpid():
            _chain_exception_hook()
            _chain_exit()
            _chain_quitters()
        # A child of multiprocessing exits without atexit, but calls its finalizers.
        util: Any = loaded("multiprocessing.util")
        process: Any = loaded("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, finish_all, exitpriority=100)
        else:
            atexit.register(finish_all)
    _open.append(run)


def forget(run: Session) -> None:
    """Remove a run that has ended."""
    if run in _open:
        _open.remove(run)


def watched() -> tuple[Session, ...]:
    """Return the open runs of this process."""
    return tuple(_open)


def current_session() -> Session | None:
    """Return the open run of this process; if there are several, the oldest one that has not finished its loop."""
    return open_session(None) if any(not run.silent for run in _open) else None


def open_session(name: str | None) -> Session | None:
    """Return the open run of that name; without a name, the oldest open run that has not finished its loop.

    In a forked worker that is the run of its parent, which is silent: another one would replace it at the exporter.
    """
    own = sorted([run for run in _open if not run.silent], key=lambda run: run.is_resting)
    runs = (*own, *_inherited_runs())
    return next((run for run in runs if name in (None, run.name)), None)


def _inherited_runs() -> tuple[Session, ...]:
    """Return the runs that were open when this process was forked, if it works for them.

    A process that multiprocessing started without `daemon` may be a rank, launched by a program with an open run.
    """
    process: Any = loaded("multiprocessing.process")
    if process is not None and process.parent_process() is not None and not process.current_process().daemon:
        return ()
    return _inherited


def importing_for_parent() -> bool:
    """Return True while multiprocessing imports the program in a worker that was spawned, not forked.

    The code at the top level of the program was already executed in the parent process.
    """
    process: Any = loaded("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)


def rest_others(run: Session) -> None:
    """Report the runs whose loop is over as finished: another run begins. They continue if their loop does."""
    resting = [other for other in watched() if other is not run and not other.silent and other.rest()]
    for oldest in resting[:-_MAX_RESTING]:
        oldest.finish()


def finish_all() -> None:
    """Finish all open runs; called when the process ends."""
    error = sys.exc_info()[1]  # before Python 3.13, multiprocessing calls this while the exception is handled
    terminated = _terminated or is_termination(error)
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        error = _failure
    status = status_of_child()
    failed = _failed or error is not None or status != 0
    for run in watched():
        left = _was_left(run)
        if run.is_resting or (_has_continued(run) and not left and error in (None, _failure) and status == 0):
            run.finish()
        elif terminated or status in TERMINATION_STATUSES or (left and _left is not None and _left[2]):
            run.finish("terminated")
        elif failed or left:
            run.fail(None if isinstance(error, SystemExit) else error)
        else:
            run.finish()


def _was_left(run: Session) -> bool:
    """Return whether SystemExit left the loop of this run, and no time was counted since."""
    return _left is not None and _left[0]() is run and run.moment == _left[1]


def _after_fork_in_child() -> None:
    global _inherited
    _inherited = (*_inherited, *_open)
    _open.clear()
    for run in list(_everyone):
        run.silence()


def _chain_exception_hook() -> None:
    previous = sys.excepthook

    def note_failure(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note_end(error)
        previous(kind, error, trace)

    sys.excepthook = note_failure


def _note_status(status: object) -> None:
    global _failed, _terminated
    with standard_library():
        import threading

    if threading.current_thread() is threading.main_thread():  # another thread would end only itself
        _note_steps()
        _failed = is_failure(status)
        _terminated = (
            (type(status) is int and status in TERMINATION_STATUSES)
            or is_interrupted(sys.exc_info()[1])
            or in_signal_handler()
        )


def _chain_exit() -> None:
    # The interpreter clears a SystemExit before it calls atexit, and most programs raise it with sys.exit. The function
    # has the name, module and signature of the original, so that it is pickled, documented and called in the same way.
    previous = sys.exit

    def exit(status: object = None, /) -> NoReturn:  # noqa: A001 - its name is seen by the program
        _note_status(status)
        previous(status)  # type: ignore[arg-type]  # whatever it takes

    exit.__module__, exit.__qualname__, exit.__doc__ = "sys", "exit", previous.__doc__
    exit.__annotations__ = {}
    sys.exit = exit


def _chain_quitters() -> None:
    """Record the status given to `exit()` and `quit()`, which raise SystemExit without `sys.exit`."""
    kind = type(getattr(builtins, "exit", None))
    if kind.__module__ != "_sitebuiltins":  # absent, or that of a notebook, which does not end the process
        return
    previous = kind.__call__

    def quit_noted(quitter: object, code: object = None) -> None:
        _note_status(code)
        previous(quitter, code)

    kind.__call__ = quit_noted  # type: ignore[method-assign]


def loop_left(run: Session, moment: float) -> bool:
    """Return whether an exception has left a loop early, and record one of SystemExit that ends the program.

    When the process ends, the exception is no longer known. It can't be queried here either, but it was just created,
    and is among the youngest objects.

    Args:
        run: the run of the loop.
        moment: time up to which the phases of the run are counted; it changes if the run continues.
    """
    global _left
    handlers = signal_handlers()
    by_exception = left = terminated = False
    for found in gc.get_objects(generation=0):
        kind = type(found)
        if issubclass(kind, SystemExit):
            terminated = terminated or is_termination(found)
            left = left or terminated or is_failure(found.code)
        elif handlers and kind is TracebackType and found.tb_frame.f_code in handlers:
            terminated = True  # up to Python 3.11, an exception that is being raised has no traceback yet
        by_exception = by_exception or _failed or (issubclass(kind, BaseException) and kind is not GeneratorExit)
    if left or terminated:
        _left = (weakref.ref(run), moment, terminated)
    return by_exception
