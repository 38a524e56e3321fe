"""File descriptors of the shim, in a program that may close and open any."""

from __future__ import annotations

import os
import socket
import sys

from stallscope.common.standard_library import standard_library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stallscope.training.shim.address import Address


def above_standard(descriptor: int) -> int:
    """Return the descriptor, moved above those of standard input, output and error.

    A program that was started without them has these numbers free, and native code writes to them.
    """
    if descriptor > 2:
        return descriptor
    with standard_library():
        import fcntl

    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def is_same_file(descriptor: int, inode: int) -> bool:
    """Return whether a descriptor still belongs to its file: a program may close all, and open others instead."""
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False


def send_with(descriptor: int, sender: socket.socket, payload: bytes, address: Address) -> None:
    """Send a report with a descriptor, or without it if it was closed, or too many are in flight."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))
    try:
        sender.sendmsg([payload], [rights], 0, address)
    except (BlockingIOError, FileNotFoundError, ConnectionError):
        raise  # the next report has the descriptor
    except OSError:
        sender.sendto(payload, address)
