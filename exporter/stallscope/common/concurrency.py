"""Runs several calls concurrently, with a time limit: a GPU that hangs never answers, and must not hide the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Answer = TypeVar("_Answer")


@dataclass
class Attempt(Generic[_Answer]):
    """Result of one call; `answer` and `error` are valid once it has ended."""

    answer: _Answer | None = None
    error: Exception | None = None
    ended: threading.Event = field(default_factory=threading.Event)


def run_concurrently(
    questions: Mapping[str, Callable[[], _Answer]], limit: float, purpose: str
) -> dict[str, Attempt[_Answer]]:
    """Run all calls, each on its own thread, and return when they have ended or the time is over.

    Args:
        questions: the functions to call, by name.
        limit: seconds for all calls together; slower calls continue, and their attempts end later or never.
        purpose: prefix of the thread names.
    """
    attempts: dict[str, Attempt[_Answer]] = {key: Attempt() for key in questions}

    def call(key: str) -> None:
        attempt = attempts[key]
        try:
            attempt.answer = questions[key]()
        except Exception as error:  # noqa: BLE001 - reported to the caller
            attempt.error = error
        attempt.ended.set()

    for key in questions:
        threading.Thread(target=call, args=(key,), name=f"{purpose} {key}", daemon=True).start()
    deadline = time.monotonic() + limit
    for attempt in attempts.values():
        attempt.ended.wait(max(0.0, deadline - time.monotonic()))
    return attempts
