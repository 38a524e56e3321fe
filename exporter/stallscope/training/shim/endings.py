"""Find out how a program ends: by an exception, by a signal, or with a status."""

from __future__ import annotations

import signal
import sys

from stallscope.training.protocol.vocabulary import MAX_LABEL_LENGTH, TERMINATION_STATUSES
from stallscope.training.shim.tolerance import label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals whose default action ends a process, and by which schedulers and terminals end one."""

_OUT_OF_MEMORY_TYPES = ("OutOfMemoryError", "ResourceExhaustedError")
"""PyTorch's and TensorFlow's."""
_OUT_OF_MEMORY_MESSAGES = ("out of memory", "RESOURCE_EXHAUSTED")
"""Of errors with a type for everything: older PyTorch's RuntimeError, JAX's XlaRuntimeError."""
_MAX_CONTEXT = 16
"""Exceptions that are followed to the one in whose handling they were raised."""
_LIGHTNING_TERMINATION = "SIGTERMException"
"""Type of the exception that PyTorch Lightning raises in its loop after SIGTERM."""


def failure_of(error: BaseException | None) -> str:
    """Return an exception's type, as in the report; empty for none."""
    return "" if error is None else label(type(error).__name__, MAX_LABEL_LENGTH)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if the GPU's memory was exhausted. Exhausted host memory raises MemoryError instead.

    Types are compared by name, since no framework may be imported for this.
    """
    if error is None:
        return False
    if any(kind.__name__ in _OUT_OF_MEMORY_TYPES for kind in type(error).__mro__):
        return True
    if not isinstance(error, RuntimeError) or not error.args:
        return False
    message = error.args[0]
    return type(message) is str and any(words in message[:1000] for words in _OUT_OF_MEMORY_MESSAGES)


def is_termination(error: BaseException | None) -> bool:
    """Return whether this exception ends a program because of SIGTERM, SIGHUP or SIGINT.

    Either the program's handler of the signal has raised it, or it is the exit status of the signal, such as
    `sys.exit(143)`, or it is Ctrl-C, also where the program handles KeyboardInterrupt and exits.
    """
    if error is None:
        return False
    if type(error).__name__ == _LIGHTNING_TERMINATION or isinstance(error, KeyboardInterrupt):
        return True
    if isinstance(error, SystemExit) and is_interrupted(error.__context__):
        return True
    if isinstance(error, SystemExit) and type(error.code) is int and error.code in TERMINATION_STATUSES:
        return True
    handlers = signal_handlers()
    trace = error.__traceback__ if handlers else None
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def state_after(error: BaseException | None) -> str:
    """Return the last state of a run that this exception ends."""
    if is_termination(error):
        return "terminated"
    return "finished" if isinstance(error, SystemExit) and not is_failure(error.code) else "failed"


def is_interrupted(handled: BaseException | None) -> bool:
    """Return whether the exception that is being handled, or one that led to it, is Ctrl-C."""
    for _ in range(_MAX_CONTEXT):
        if handled is None or isinstance(handled, KeyboardInterrupt):
            break
        handled = handled.__context__
    return isinstance(handled, KeyboardInterrupt)


def signal_handlers() -> set[CodeType]:
    """Return the code of the program's own functions that handle SIGTERM, SIGHUP and SIGINT."""
    found = set()
    for number in (*SIGNALS, signal.SIGINT):
        handler = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # functools.partial
        if callable(handler):
            code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
            if code is not None:
                found.add(code)
    return found


def status_of_child() -> int:
    """Return the exit status of a child of multiprocessing, which catches its exception earlier since Python 3.13.

    Only the frame that is about to end the process has it.
    """
    frame = sys._getframe()  # noqa: SLF001 - no public function has it
    while frame is not None and frame.f_code.co_name != "_bootstrap":  # in _bootstrap the status is not yet known
        if frame.f_globals.get("__name__") in ("multiprocessing.popen_fork", "multiprocessing.forkserver"):
            code = frame.f_locals.get("code")
            if isinstance(code, int):
                return code
        frame = frame.f_back  # type: ignore[assignment]
    return 0


def is_failure(status: object) -> bool:
    """Return whether an exit status reports a failure."""
    return status is not None and not (isinstance(status, int) and status == 0)


def in_signal_handler() -> bool:
    """Return whether the program's handler of SIGTERM, SIGHUP or SIGINT is running in this thread."""
    handlers = signal_handlers()
    frame: FrameType | None = sys._getframe() if handlers else None  # noqa: SLF001 - no public function has it
    while frame is not None:
        if frame.f_code in handlers:
            return True
        frame = frame.f_back
    return False
