"""Sample the stacks of worker processes: a data loader's, and others of `multiprocessing`.

The training process and its workers share a memory file (`memfd_create`, Linux). It begins with the number of the
requested burst, or 0. A worker reads the number whenever it has received or sent something, as for each batch: without
a burst there is no thread and no wait. If the number is new, the worker starts a thread for the burst, which appends
its counts to the memory every second.

A worker opens the memory through `/proc`, which the kernel permits only for the same user. A forked worker inherits the
path from its parent. A spawned worker reads it from the environment, which `stallscope run` prepares.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident, start_new_thread
from contextlib import suppress
from math import inf

from stallscope.common.standard_library import loaded, standard_library
from stallscope.training.protocol.vocabulary import MAX_LABEL_LENGTH
from stallscope.training.shim.descriptors import above_standard, is_same_file
from stallscope.training.shim.tolerance import label, switched_off, switched_on, tolerate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any

    from stallscope.training.shim.code_location import Spot

    Entry = tuple[str, str, str]
    """Location, function, and the library's function that the line called; the last one may be empty."""
    Counts = dict[Entry, tuple[float, int]]
    """Seconds and number of workers by entry."""

VARIABLE = "STALLSCOPE_STACKS_MEMORY"
"""Environment variable with the path of the shared memory, for workers that `stallscope run` prepares."""
SECONDS = 10.0
"""Length of a burst."""
INTERVAL = 0.05
"""Seconds between two samples."""
_NAME = "stallscope-stacks"
_PAGE = 4096
"""Bytes before the counts; the first byte is the number of the burst."""
_MOST_BYTES = 1 << 20
"""Maximum bytes of counts that all workers append in a burst."""
_WRITE_EVERY = 1.0
_MOST_LINES = 20
"""Maximum number of lines that a worker appends at a time."""
_MOST_THREADS = 64
"""Maximum number of threads that are sampled while a process waits for them."""
_METHODS = ("_recv_bytes", "_send_bytes")
"""Methods of a connection through which `multiprocessing` receives and sends everything."""


class Channel:
    """The shared memory, as used by the training process."""

    def __init__(self) -> None:
        """Create the memory.

        Raises:
            OSError: there are too many open files.
        """
        self.owner = os.getpid()
        self._file = above_standard(os.memfd_create(_NAME))
        self._inode = os.fstat(self._file).st_ino
        self._number = 0
        os.ftruncate(self._file, _PAGE)
        self.path = f"/proc/{self.owner}/fd/{self._file}"

    def begin(self) -> None:
        """Start a burst in the workers."""
        if self._is_open():
            self._number = self._number % 255 + 1
            os.ftruncate(self._file, _PAGE)
            os.pwrite(self._file, bytes([self._number]), 0)

    def end(self) -> None:
        """End the burst."""
        if self._is_open():
            os.pwrite(self._file, b"\0", 0)

    def counts(self) -> Counts:
        """Return the counts of the workers since the burst began."""
        with standard_library():
            import json

        found: Counts = {}
        workers: dict[Entry, set[int]] = {}
        data = os.pread(self._file, _MOST_BYTES, _PAGE) if self._is_open() else b""
        for line in data.split(b"\n"):
            try:
                pid, entries = json.loads(line)
                for *names, seconds in entries:
                    location, function, beneath = (label(name, MAX_LABEL_LENGTH) for name in names)
                    key = (location, function, beneath)
                    if location and 0.0 <= seconds < inf:
                        workers.setdefault(key, set()).add(pid)
                        found[key] = (found.get(key, (0.0, 0))[0] + seconds, len(workers[key]))
            except (ValueError, TypeError, RecursionError):  # the end of the file, or a worker that was killed
                continue
        return found

    def _is_open(self) -> bool:
        return is_same_file(self._file, self._inode)


class Follower:
    """The shared memory, as used by a worker."""

    def __init__(self, path: str) -> None:
        """Open it.

        Raises:
            OSError: the training process is gone, or has closed the memory.
        """
        with standard_library():
            import mmap

        self.path = path
        file = self._opened(os.O_RDWR)
        try:
            self._memory = mmap.mmap(file, _PAGE, prot=mmap.PROT_READ)
        finally:
            os.close(file)
        self.newest = self.number
        """Number of the last burst in which this worker took part."""

    @property
    def number(self) -> int:
        """Number of the requested burst, or 0."""
        return self._memory[0]

    def append(self, counted: dict[Spot, float]) -> None:
        """Append the seconds of each line."""
        with standard_library():
            import json

        with standard_library():
            from stallscope.training.shim.code_location import entry_of

        if not counted:
            return
        spots = sorted(counted, key=counted.__getitem__, reverse=True)[:_MOST_LINES]
        entries = [(*entry_of(spot), round(counted[spot], 3)) for spot in spots]
        file = self._opened(os.O_WRONLY | os.O_APPEND)
        try:
            if os.fstat(file).st_size < _MOST_BYTES:
                os.write(file, json.dumps([os.getpid(), entries]).encode() + b"\n")
        finally:
            os.close(file)

    def _opened(self, flags: int) -> int:
        file = os.open(self.path, flags | os.O_CLOEXEC)
        # The training process may have closed the file, and opened another file with the same number.
        if not os.readlink(f"/proc/self/fd/{file}").startswith(f"/memfd:{_NAME}"):
            os.close(file)
            raise FileNotFoundError(self.path)
        return file


_SWITCH_INTERVAL = 1e-5
"""Switch interval during a burst: seconds that a sample waits before it interrupts Python code.

With 0.1 ms, lines that release the GIL were found four times too often. The CPU time of threads that compete for the
GIL was the same as with Python's default of 5 ms.
"""
_usual_switch_interval = 0.0
"""The interval of the program, during a burst; otherwise 0."""
_channel: Channel | None = None
_followed: Follower | None = None
_is_observing = False


def channel() -> Channel | None:
    """Return the memory that this process shares with its workers, or None."""
    return _channel if _channel is not None and _channel.owner == os.getpid() else None


def prepare() -> None:
    """Share memory with the workers that this process starts from now on. A second call does nothing."""
    global _channel
    if not hasattr(os, "memfd_create") or switched_off("STALLSCOPE_STACKS"):
        return
    try:
        if channel() is None:
            if _channel is None:
                os.register_at_fork(after_in_child=_after_fork_in_child)
            _channel = Channel()
            if switched_on("STALLSCOPE_AUTO"):
                os.environ[VARIABLE] = _channel.path
    except OSError as error:
        tolerate(error, "sharing memory with workers")


def is_spawned() -> bool:
    """Return whether `multiprocessing` has spawned this process, or the server that forks its workers."""
    arguments = " ".join(sys.orig_argv)
    return "--multiprocessing-fork" in arguments or "multiprocessing.forkserver" in arguments


def follow(_: float = 0.0) -> None:
    """Take part in the bursts of the process that spawned this one. Called when a process imports `multiprocessing`."""
    path = os.environ.get(VARIABLE, "")
    if path and is_spawned():
        _follow(path)


def _after_fork_in_child() -> None:
    _switch_as_usual()  # the thread of a burst is not in the child
    path = _channel.path if _channel is not None else "" if _followed is None else _followed.path
    if path:
        _follow(path)


def _follow(path: str) -> None:
    """Read the number of the burst whenever a connection of `multiprocessing` has received or sent something."""
    global _followed, _is_observing
    connection = getattr(loaded("multiprocessing.connection"), "Connection", None)
    if connection is None:
        return
    try:
        _followed = Follower(path)
        for name in () if _is_observing else _METHODS:
            setattr(connection, name, _observed(getattr(connection, name)))
        if not _is_observing and _channel is None:
            os.register_at_fork(after_in_child=_after_fork_in_child)
        _is_observing = True
    except (OSError, ValueError, AttributeError):  # the process is gone, or another version of Python
        _followed = None


def _observed(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if _followed is not None and _followed.number != _followed.newest:
            _begin(_followed)
        return result

    return method


def _begin(followed: Follower) -> None:
    followed.newest = number = followed.number
    if number:
        with suppress(RuntimeError):  # too many threads
            start_new_thread(_burst, (followed, number))


def _burst(followed: Follower, number: int) -> None:
    """Sample the threads of this process for the length of a burst."""
    with standard_library():
        from threading import main_thread

    try:
        main = main_thread().ident or 0
        counted: dict[Spot, float] = {}
        due = time.monotonic() + _WRITE_EVERY
        for now, seconds in ticks():
            if followed.number != number:
                break
            for spot in _spots(sys._current_frames(), main):  # noqa: SLF001 - no public function returns the stacks
                counted[spot] = counted.get(spot, 0.0) + seconds
            if now >= due:
                followed.append(counted)
                counted.clear()
                due = now + _WRITE_EVERY
        followed.append(counted)
    except OSError:  # the training process has ended
        return
    except Exception as error:
        tolerate(error, "sampling a worker")


def _spots(frames: dict[int, FrameType], main: int) -> list[Spot]:
    """Return the line of a worker's main thread; if that one waits, the lines of the threads that it waits for."""
    with standard_library():
        from stallscope.training.shim.code_location import is_waiting, spot_of

    frame = frames.get(main)
    if frame is None or is_waiting(frame):
        return spots_of_others(frames, main)
    found = spot_of(frame, or_library=True)
    return [] if found is None else [found]


def spots_of_others(frames: dict[int, FrameType], main: int) -> list[Spot]:
    """Return the lines that threads execute, except this thread and the main thread."""
    with standard_library():
        from stallscope.training.shim.code_location import is_waiting, spot_of

    own = get_ident()
    others = [frames[thread] for thread in frames if thread not in (main, own)][:_MOST_THREADS]
    return [spot for frame in others if not is_waiting(frame) and (spot := spot_of(frame)) is not None]


def ticks() -> Iterator[tuple[float, float]]:
    """Sleep from one sample of a burst to the next; yield the time, and the seconds that the sample represents.

    A sample that is late because native code has held the GIL also represents the delay.
    """
    _switch_fast()
    try:
        before = due = time.monotonic()
        end = before + SECONDS
        while due < end:
            due += INTERVAL
            time.sleep(max(due - time.monotonic(), 0.0))
            now = time.monotonic()
            yield now, now - before
            before = now
            due = max(due, now)
    finally:
        _switch_as_usual()


def _switch_fast() -> None:
    """Let a sample interrupt Python code soon.

    Otherwise it would wait for 5 ms, or until a function releases the GIL, and sample such functions too often.
    """
    global _usual_switch_interval
    interval = sys.getswitchinterval()
    if interval > _SWITCH_INTERVAL and not _usual_switch_interval:
        _usual_switch_interval = interval
        sys.setswitchinterval(_SWITCH_INTERVAL)


def _switch_as_usual() -> None:
    """Undo `_switch_fast`, unless the program has set another interval since."""
    global _usual_switch_interval
    if _usual_switch_interval and abs(sys.getswitchinterval() - _SWITCH_INTERVAL) < _SWITCH_INTERVAL / 10.0:
        sys.setswitchinterval(_usual_switch_interval)
    _usual_switch_interval = 0.0
