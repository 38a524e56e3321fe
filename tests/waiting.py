"""Wait for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from stallscope.common.concurrency import Attempt, run_concurrently

_Found = TypeVar("_Found")


def giving_up_on(hanging: str) -> Callable[..., dict[str, Attempt[object]]]:
    """Return a replacement of `run_concurrently` that gives up on one call at once, and waits for all others.

    The time limit of the original would also end other calls where the machine pauses.
    """

    def run(calls: Mapping[str, Callable[[], object]], _limit: float, purpose: str) -> dict[str, Attempt[object]]:
        attempts = run_concurrently(calls, 0.0, purpose)
        assert all(attempt.ended.wait(60) for name, attempt in attempts.items() if name != hanging)
        return attempts

    return run


def until(
    condition: Callable[[], _Found | None],
    complaint: str | Callable[[], str] = "the condition never held",
    *,
    seconds: float = 60.0,
    pause: float = 0.02,
    errors: tuple[type[Exception], ...] = (OSError, ValueError),
) -> _Found:
    """Return the condition's first true value.

    Args:
        condition: called again and again until its value is true.
        complaint: message of the error, or a function that returns it.
        seconds: how long to wait; generous, since others use the machine too.
        pause: seconds between two calls.
        errors: exceptions of the condition that count as false: no file yet, no connection, half a document.

    Raises:
        AssertionError: the condition was not true in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        error = None
        try:
            if found := condition():
                return found
        except errors as raised:
            error = raised
        if time.monotonic() > deadline:
            message = complaint if isinstance(complaint, str) else complaint()
            raise AssertionError(f"{message} within {seconds:g} s") from error
        time.sleep(pause)
