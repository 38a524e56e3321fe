"""Sample the stacks, or the lines of code, that are requested of a running rank. Imported with the first request."""

from __future__ import annotations

import _thread
import sys
import time

from stallscope.training.protocol import stack_request
from stallscope.training.protocol.stack_file import LINES, SAMPLE
from stallscope.training.shim.tolerance import tolerate, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.training.protocol.stack_request import StackRequest
    from stallscope.training.shim.hot_lines import HotLines
    from stallscope.training.shim.stack_memory import StackMemory

KEPT_SECONDS = 5.0
"""Seconds for which requested stacks and lines are kept; the exporter reads them once a second."""
_LONGEST_BURST = 60.0
"""Maximum seconds to wait for the result of a burst."""
_LONGEST_WAIT = 120.0
"""Maximum seconds until the first sample of a request."""
_GOLDEN_RATIO = 0.6180339887498949
"""The fractional parts of its multiples are spread evenly."""


def take(memory: StackMemory, data: bytes, name: str, rank: int, hot_lines: Callable[[], HotLines] | None) -> None:
    """Start to sample what is requested in another thread, because this thread is about to report.

    Args:
        memory: receives the stacks.
        data: the request.
        name: of the run.
        rank: its rank.
        hot_lines: returns what samples the lines of code; None if samples are disabled.
    """
    try:
        request = stack_request.parse(data)
    except ValueError as problem:
        warn(f"a request for stacks is invalid: {problem}", "stack request")
        return
    if request.run != name or (request.ranks and rank not in request.ranks) or time.time() > request.expires:
        return
    memory.clear()
    now, wall = time.monotonic(), time.time()
    if not request.lines:
        due = [now + moment - wall for moment in moments(request, wall)]
        memory.keep_until = due[-1] + KEPT_SECONDS
        _thread.start_new_thread(_sample, (memory, _thread.get_ident(), due))
    elif hot_lines is not None:
        memory.keep_until = now + _LONGEST_BURST + KEPT_SECONDS
        hot_lines().begin(now, lambda lines: _write_lines(memory, lines))


def _write_lines(memory: StackMemory, lines: str) -> None:
    if memory.is_open():
        memory.clear()
        memory.append(f"{LINES} {lines}\n")
        memory.keep_until = time.monotonic() + KEPT_SECONDS


def _sample(memory: StackMemory, thread: int, due: list[float]) -> None:
    try:
        for moment in due:
            time.sleep(max(moment - time.monotonic(), 0.0))
            if not memory.is_open():
                return
            memory.write(SAMPLE, sys._current_frames().get(thread))  # noqa: SLF001 - no public function has it
    except Exception as error:
        tolerate(error, "taking requested stacks")


def moments(request: StackRequest, now: float) -> list[float]:
    """Return the Unix times of the samples. They are the same for all ranks; a late rank starts with a later sample.

    Each interval has one sample, each time at another offset. Otherwise a loop with steps of a constant length could be
    at the same line in all samples.
    """
    interval = request.interval
    begins = request.begins if request.begins < now + _LONGEST_WAIT else 0.0
    first = max(round(begins / interval), int(now / interval) + 1)
    return [(number + number * _GOLDEN_RATIO % 1.0) * interval for number in range(first, first + request.samples)]
