"""Report the end of a process: its exit, or a failure. Forked processes send no report."""

from __future__ import annotations

import atexit
import builtins
import os
import sys

from stallscope.common.standard_library import loaded, standard_library
from stallscope.training.protocol.vocabulary import TERMINATION_STATUSES
from stallscope.training.shim.tolerance import tolerate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, NoReturn

    from stallscope.training.shim.session import Session

_open: list[Session] = []
_inherited: tuple[Session, ...] = ()
_has_fork_handler = False
_watching = 0
_observed = 0
_status: object = None
"""Status with which the program ends before its first step, and before an exporter has accepted a report."""
_END = "stallscope.training.shim.program_end"
_MAX_RESTING = 8
"""Runs that may continue after their loop was over; older ones are finished, and their sockets closed."""


def observe() -> None:
    """Do not wrap `sys.exit` and `sys.excepthook` in this process: the caller runs the program and calls `note_end`."""
    global _observed
    _observed = os.getpid()


def note_end(error: BaseException) -> None:
    """Record the exception, or SystemExit, with which the program of this process ended."""
    try:
        _program_end().note_error(error, watched())
    except Exception as problem:
        tolerate(problem, "recording the end of the program")


def watch(run: Session) -> None:
    """Finish this run when the process ends, as failed if an uncaught exception ended it; silence it in a fork."""
    global _has_fork_handler, _watching
    if not _has_fork_handler and hasattr(os, "register_at_fork"):
        _has_fork_handler = True
        os.register_at_fork(after_in_child=_after_fork_in_child)
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
            atexit.register(_finish_at_exit)
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


def prepare_for_end() -> None:
    """Import now what the end of the process needs: nothing is imported while Python exits."""
    _program_end()


def finish_all() -> None:
    """Finish all open runs: the process, or a process of multiprocessing, ends."""
    if _open:
        try:
            _program_end().finish(watched())
        except Exception as error:
            _finish_by_status()
            tolerate(error, "reporting the end of the program")


def _finish_at_exit() -> None:
    if _END in sys.modules:
        finish_all()
    else:
        _finish_by_status()


def _finish_by_status() -> None:
    if _status is None or (type(_status) is int and _status == 0):
        state = "finished"
    else:
        state = "terminated" if type(_status) is int and _status in TERMINATION_STATUSES else "failed"
    for run in watched():
        run.finish(state)


def _program_end() -> Any:
    with standard_library():
        from stallscope.training.shim import program_end

    return program_end


def _after_fork_in_child() -> None:
    global _inherited
    inherited = watched()
    _inherited = (*_inherited, *inherited)
    _open.clear()
    for run in inherited:
        run.silence()


def _chain_exception_hook() -> None:
    previous = sys.excepthook

    def note_failure(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note_end(error)
        previous(kind, error, trace)

    sys.excepthook = note_failure


def _note_status(status: object) -> None:
    global _status
    try:
        threading: Any = loaded("threading")
        if _END in sys.modules:
            _program_end().note_status(status, watched())
        elif threading is None or threading.current_thread() is threading.main_thread():
            _status = status  # nothing is imported: a handler of a signal may call this
    except Exception as error:
        tolerate(error, "recording the end of the program")


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
