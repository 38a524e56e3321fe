"""Reads that the disk itself has to answer, past the page cache."""

from __future__ import annotations

import mmap
import os
import random
import time
from pathlib import Path

BLOCK = 1 << 20


def read(file: str, seconds: float) -> int:
    """Read random blocks of the file from the disk for that long, and return how many bytes.

    Raises:
        OSError: its file system has no way past the page cache.
    """
    blocks = Path(file).stat().st_size // BLOCK
    opened = os.open(file, os.O_RDONLY | os.O_DIRECT)
    done = 0
    try:
        with mmap.mmap(-1, BLOCK) as buffer:  # on a page's boundary, as the kernel wants it
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                done += os.preadv(opened, [buffer], BLOCK * random.randrange(blocks))
    finally:
        os.close(opened)
    return done
