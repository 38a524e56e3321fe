"""Write the stack of a rank at a standstill, for the exporter.

A rank that sends no report may never execute Python again. So two timers are set in advance, and reset by each report:

1. A POSIX timer sends SIGURG to the main thread, a signal that is ignored by default. If the main thread executes
   Python, or waits in a call that a signal interrupts, the handler writes the stack, and sets both timers again, to
   twice the time.
2. Otherwise the main thread is in native code, and cannot cancel the second timer, which is that of `faulthandler`. It
   writes the stacks of all threads from C, without the GIL.

The second timer alone would be dangerous. It reads frames that other threads may be changing: with a busy main thread,
about one dump in a hundred ends the process with a segmentation fault (CPython issues 116008, 131580, 140815). With
the first timer, the second one only expires if the main thread executes no Python.

The stacks are written to a memory file, whose descriptor is sent with reports through the UNIX socket
(`protocol.stacks`). No timer is set if the program uses the timer of `faulthandler` itself, handles or blocks the
signal, or begins its first run outside the main thread; nor with STALLSCOPE_STACKS=0, or without the GIL.

A forked child would wait forever for the thread of faulthandler's timer when it exits, so that timer is cancelled
before a fork. POSIX timers are not inherited. `exec` ends both.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol.request_name import STACKS, request_name
from stallscope.training.protocol.stack_file import STANDSTILL
from stallscope.training.shim.request_file import RequestFile
from stallscope.training.shim.stack_memory import StackMemory
from stallscope.training.shim.termination import is_default
from stallscope.training.shim.tolerance import switched_off, tolerate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from stallscope.training.shim.hot_lines import HotLines

    Lines = Callable[[], HotLines] | None
    """Returns what samples the lines of code; None if samples are disabled."""

EVERY = 5.0
"""Seconds between two settings of the timers, and between two reports with the descriptor."""
STANDSTILL_SECONDS = 60.0
"""Minimum seconds without a report before a rank in its loop is at a standstill; `stall_seconds` of the rules."""
OTHER_SECONDS = 300.0
"""Minimum outside the loop: during the start, evaluation and checkpoints."""
SIGNAL = signal.SIGURG
_FACTOR = 3.0
"""The time without a report must also be this many times the longest recent time between two reports."""
_DECAY = 0.9
"""Factor for the longest recent time at each setting of the timers."""
_NATIVE_SECONDS = 5.0
"""Seconds that the signal's handler has before faulthandler writes the stacks."""
_LONGEST = 86400.0
_MAX_REQUEST = 8192
"""Maximum bytes of a request, as in `protocol.step_request`, whose import would take longer than that of the shim."""
_CLOCK_MONOTONIC = 1
_SIGEV_THREAD_ID = 4

_had_faulthandler = "faulthandler" in sys.modules
import faulthandler  # noqa: E402 - the line above must come first

_later = faulthandler.dump_traceback_later
_cancel = faulthandler.cancel_dump_traceback_later
_watch: Watch | None = None
_is_off = False
_has_hooks = False
_programs_timer = False
"""True if the program itself has set faulthandler's timer."""


def attach(session: str, activity: str, name: str, rank: int, hot_lines: Lines = None) -> int:
    """Set the timers if they are due. Called before each report.

    Args:
        session: identifier of the session that reports.
        activity: one of the report's activities.
        name: of its run.
        rank: its rank.
        hot_lines: returns what samples the lines of code on request; None if samples are disabled.

    Returns:
        The descriptor to send with the report, or -1 for none.
    """
    global _watch, _is_off
    if _is_off:
        return -1
    try:
        if _watch is None:
            if not _is_possible():
                _is_off = True
                return -1
            _watch = Watch()
        return _watch.attach(session, activity, name, rank, hot_lines)
    except (OSError, AttributeError, ValueError):  # a sandbox without memory files, or without these timers
        _is_off = True
    except Exception as error:
        _is_off = True
        tolerate(error, "preparing for a standstill")
    return -1


def release(session: str) -> None:
    """Stop watching a session; if it was the last one, stop both timers."""
    global _watch
    if _watch is not None and _watch.release(session):
        watch, _watch = _watch, None
        try:
            watch.close()
        except Exception as error:
            tolerate(error, "ending the timers of a standstill")


class Watch:
    """Both timers of this process, and the memory file in which they leave its stack."""

    def __init__(self) -> None:
        self._sessions: dict[str, RequestFile] = {}
        self._due = 0.0
        self._set_at: float | None = None
        self._gap = 0.0
        self._timeout = OTHER_SECONDS
        self._memory = StackMemory()
        signal.signal(SIGNAL, self._handle)
        self._timer = _timer(SIGNAL)
        _install_hooks()

    def attach(self, session: str, activity: str, name: str, rank: int, hot_lines: Lines) -> int:
        """Set the timers at most once in `EVERY` seconds; return the file's descriptor if they were set, else -1."""
        now = time.monotonic()
        if now < self._due and session in self._sessions:
            return -1
        if session not in self._sessions:
            self._sessions[session] = RequestFile(request_name(STACKS, name), _MAX_REQUEST, "stacks")
        if _programs_timer or not self._is_intact():
            self.suspend()
            return -1
        if self._set_at is not None:
            self._gap = max(now - self._set_at, self._gap * _DECAY)
        self._due, self._set_at = now + EVERY, now
        least = STANDSTILL_SECONDS if activity == "training" else OTHER_SECONDS
        self._timeout = min(max(least, _FACTOR * self._gap), _LONGEST)
        self._memory.begin(now)
        self._set()
        # A request that arrives while the result of another one waits for the exporter is read afterwards.
        if now >= self._memory.keep_until and (data := self._sessions[session].read()):
            with standard_library():
                from stallscope.training.shim.requested_stacks import take

            take(self._memory, data, name, rank, hot_lines)
        return self._memory.descriptor

    def release(self, session: str) -> bool:
        """Forget a session; return True if no session remains."""
        self._sessions.pop(session, None)
        return not self._sessions

    def suspend(self) -> None:
        """Stop both timers until the next report."""
        self._timer(0.0)
        self.suspend_native()

    def suspend_native(self) -> None:
        """Stop the timer of faulthandler, unless it is the program's own."""
        if not _programs_timer:
            _cancel()

    def resume_native(self) -> None:
        """Set the timer of faulthandler again, after a fork."""
        if not _programs_timer and self._set_at is not None and self._is_intact():
            # The timer's thread blocks all signals only once it runs; until then, it could receive one instead of the
            # main thread.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                _later(self._timeout + _NATIVE_SECONDS, file=self._memory.descriptor)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def close(self) -> None:
        """Stop both timers, close the file, and restore the signal's action."""
        self.suspend()
        if self._is_intact() and _thread.get_native_id() == os.getpid():
            signal.signal(SIGNAL, signal.SIG_DFL)
        self.forget()

    def forget(self) -> None:
        """Close the file only: a forked child has no timers."""
        self._memory.close()
        self._set_at = None

    def _set(self) -> None:
        self._timer(self._timeout)
        self.resume_native()

    def _is_intact(self) -> bool:
        """Return whether the descriptor is still this file, and the signal is handled here."""
        return self._memory.is_open() and signal.getsignal(SIGNAL) == self._handle

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        """Handle the signal of the first timer: write the stack of the training thread."""
        try:
            if _watch is not self or self._set_at is None or not self._is_intact() or _programs_timer:
                return
            self.suspend_native()
            if self._memory.thread != _thread.get_ident():
                frame = sys._current_frames().get(self._memory.thread)  # noqa: SLF001 - no public function has it
            self._memory.clear()
            self._memory.write(STANDSTILL, frame)
            self._timeout = min(2.0 * self._timeout, _LONGEST)
            self._set()
        except Exception as error:
            tolerate(error, "writing the stack of a standstill")


def _is_possible() -> bool:
    """Return whether this process can have both timers."""
    if switched_off("STALLSCOPE_STACKS"):
        return False
    if not hasattr(os, "memfd_create") or sys.implementation.name != "cpython":
        return False
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    if _thread.get_native_id() != os.getpid():
        return False
    if SIGNAL in signal.pthread_sigmask(signal.SIG_BLOCK, ()) or not is_default(SIGNAL):
        return False
    # With hooks, a timer of the program is known. Such a thread is then that of an earlier run, which is about to end.
    return not (_had_faulthandler and not _has_hooks and _has_thread_without_signals())


def _has_thread_without_signals() -> bool:
    """Return whether a thread blocks every signal, as the thread of faulthandler's timer does."""
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/status", "rb") as file:
                blocked = [int(line.split()[1], 16) for line in file if line.startswith(b"SigBlk")]
        except OSError:
            continue  # the thread has ended
        if blocked and all(blocked[0] >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)):
            return True
    return False


def _timer(number: int) -> Callable[[float], None]:
    """Create a POSIX timer that sends a signal to this thread; return a function that sets its seconds, 0 to stop it.

    Raises:
        OSError: the system does not support such timers.
        AttributeError: the C library does not have the functions.
    """
    with standard_library():
        import ctypes
        import struct

    library = ctypes.CDLL(None, use_errno=True)
    settime = library.timer_settime
    event = ctypes.create_string_buffer(struct.pack("Piii", 0, number, _SIGEV_THREAD_ID, _thread.get_native_id()), 64)
    timer = ctypes.c_void_p()
    if library.timer_create(_CLOCK_MONOTONIC, event, ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "no timer")

    def start(seconds: float) -> None:
        settime(timer, 0, struct.pack("llll", 0, 0, int(seconds), int(seconds % 1.0 * 1e9)), None)

    return start


def _install_hooks() -> None:
    """Detect forks, and the program's own use of faulthandler's timer."""
    global _has_hooks
    if not _has_hooks:
        _has_hooks = True
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
        faulthandler.dump_traceback_later = _dump_traceback_later
        faulthandler.cancel_dump_traceback_later = _cancel_dump_traceback_later


def _dump_traceback_later(*arguments: Any, **options: Any) -> None:
    """Replace `faulthandler.dump_traceback_later`: the program uses the timer itself from now on."""
    global _programs_timer
    _later(*arguments, **options)
    _programs_timer = True


def _cancel_dump_traceback_later() -> None:
    global _programs_timer
    _cancel()
    _programs_timer = False


def _before_fork() -> None:
    if _watch is not None:
        _watch.suspend_native()


def _after_fork() -> None:
    if _watch is not None:
        _watch.resume_native()


def _after_fork_in_child() -> None:
    global _watch
    watch, _watch = _watch, None
    if watch is not None:
        watch.forget()
