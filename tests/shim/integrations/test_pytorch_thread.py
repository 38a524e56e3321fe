"""Tests of the thread that a PyTorch loop belongs to: each transition by name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stallscope.training.integrations.pytorch_thread import LoopThread

HERE, ELSEWHERE = "the thread that created the loop", "another thread"


def called(function: Callable[[], object], where: str) -> Any:
    """Return the result of a function that is called in one of the two threads."""
    if where == HERE:
        return function()
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(60)
    return found[0]


@pytest.mark.parametrize(
    ("before", "taken_in", "is_taken", "moves"),
    [
        (None, HERE, True, 0),
        (None, ELSEWHERE, True, 1),
        (HERE, HERE, True, 0),
        (HERE, ELSEWHERE, False, 0),
        (ELSEWHERE, HERE, False, 1),
    ],
)
def test_the_first_thread_that_trains_is_the_loops(
    before: str | None, taken_in: str, is_taken: bool, moves: int
) -> None:
    moved: list[int] = []
    thread = LoopThread(SimpleNamespace(silent=False), lambda: moved.append(1))  # type: ignore[arg-type]
    if before is not None:
        called(thread.take, before)
    assert called(thread.take, taken_in) == is_taken
    assert thread.is_certain
    assert len(moved) == moves
    assert thread.is_elsewhere() == (ELSEWHERE in (before, taken_in) and before != HERE)


def test_a_silent_run_has_no_thread() -> None:
    thread = LoopThread(SimpleNamespace(silent=True), lambda: None)  # type: ignore[arg-type]
    assert not thread.take()
    assert thread.is_elsewhere()
    assert not thread.is_certain


def test_a_thread_that_trains_a_model_of_its_own_is_excluded() -> None:
    thread = LoopThread(SimpleNamespace(silent=False), lambda: None)  # type: ignore[arg-type]
    is_excluded = [thread.is_excluded()]
    thread.exclude()
    is_excluded.append(thread.is_excluded())
    assert is_excluded == [False, True]
    assert not called(thread.is_excluded, ELSEWHERE)
