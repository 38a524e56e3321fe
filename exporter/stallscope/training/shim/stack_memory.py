"""The memory file in which a process leaves its stacks for the exporter, in the format of faulthandler."""

from __future__ import annotations

import _thread
import os

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol.stack_file import STACKS_HEADER, STACKS_SIZE
from stallscope.training.shim.descriptors import above_standard, is_same_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_MAX_FRAMES = 100
_MAX_TEXT = 500
_DESCRIPTOR = 200
"""Lowest number that the memory file's descriptor may have."""
_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 1, 2, 4


class StackMemory:
    """The memory file of this process: a first line with the thread that trains, then stacks."""

    def __init__(self) -> None:
        """Create the file.

        Raises:
            OSError: the system does not support memory files.
        """
        self.descriptor = memory_file()
        self.thread = 0
        """Identifier of the thread that trains."""
        self.keep_until = 0.0
        """Time until which the requested stacks are kept for the exporter."""
        self._inode = os.fstat(self.descriptor).st_ino
        self._header = b""

    def begin(self, now: float) -> None:
        """Remove the stacks unless they are kept; from now on, this thread trains."""
        thread = _thread.get_ident()
        if now >= self.keep_until or thread != self.thread:
            self.thread = thread
            self.clear()

    def clear(self) -> None:
        """Write the first line, and remove the stacks after it."""
        header = STACKS_HEADER % self.thread
        end = os.lseek(self.descriptor, 0, os.SEEK_CUR)
        if header != self._header or end > len(header):
            os.pwrite(self.descriptor, header + bytes(max(end - len(header), 0)), 0)
            os.lseek(self.descriptor, len(header), os.SEEK_SET)
            self._header = header

    def write(self, mark: str, frame: FrameType | None) -> None:
        """Write a stack.

        Args:
            mark: the line before it, of `protocol.stack_file`.
            frame: the innermost frame.
        """
        lines = [mark, f"Thread 0x{self.thread:016x} (most recent call first):"]
        while frame is not None and len(lines) < _MAX_FRAMES:
            code = frame.f_code
            lines.append(f'  File "{_escaped(code.co_filename)}", line {frame.f_lineno} in {_escaped(code.co_name)}')
            frame = frame.f_back
        self.append("\n".join(lines) + "\n\n")

    def append(self, text: str) -> None:
        """Write text after the stacks."""
        os.write(self.descriptor, text.encode("ascii", "backslashreplace"))

    def is_open(self) -> bool:
        """Return whether the descriptor is still this file: a program may close all, and open others instead."""
        return is_same_file(self.descriptor, self._inode)

    def close(self) -> None:
        """Close the file."""
        if self.is_open():
            os.close(self.descriptor)
        self.descriptor = -1


def memory_file() -> int:
    """Create a memory file of constant size. The exporter relies on the size, and it limits the output of faulthandler.

    Raises:
        OSError: the system does not support memory files.
    """
    with standard_library():
        import fcntl

    file = above_standard(os.memfd_create("stallscope-stacks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        os.ftruncate(file, STACKS_SIZE)
        fcntl.fcntl(file, _F_ADD_SEALS, _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW)
        # A high number, because a program that closes all descriptors and opens new ones must not get this number while
        # faulthandler may still write to it.
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _DESCRIPTOR)
    finally:
        os.close(file)


def _escaped(text: str) -> str:
    return text[:_MAX_TEXT].replace("\n", "\\n").replace("\0", "\\0")
