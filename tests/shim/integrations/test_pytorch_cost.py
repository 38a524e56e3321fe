"""Tests of the measurement of what observing a loop costs."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from stallscope.training.integrations.pytorch_cost import TimedLoop


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Observer:
    """A fake loop whose calls take a second each."""

    run = None
    processing_seconds = 0.0

    def __init__(self, clock: Clock) -> None:
        self.optimizer_steps = 0
        self._clock = clock

    def next_batch(self, iterator: Any, following: Any) -> Any:
        self._clock.now += 1.0
        return following(iterator)

    def end_optimizer(self, optimizer: object) -> None:
        self.optimizer_steps += 1
        self._clock.now += 1.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def observer(clock: Clock) -> Any:
    return Observer(clock)


@pytest.fixture
def timed(clock: Clock, observer: Any, monkeypatch: pytest.MonkeyPatch) -> TimedLoop:
    monkeypatch.setattr("stallscope.training.integrations.pytorch_cost.time", SimpleNamespace(thread_time=clock))
    timed = TimedLoop(observer, lambda observer: None)
    timed.added(observer)
    for _ in range(2):  # in which the caches lack this code
        timed.end_optimizer(None)
    return timed


def test_a_steps_cost_is_that_of_its_calls_without_what_they_contain(
    timed: TimedLoop, observer: Any, clock: Clock
) -> None:
    def following(iterator: Any) -> str:
        clock.now += 100.0
        return "batch"

    for _ in range(4):
        assert timed.next_batch(None, following) == "batch"
        timed.end_optimizer(None)
    assert timed.added(observer) == pytest.approx(6 * 2.0)


def test_a_fetch_in_another_thread_takes_nothing_from_the_cost(timed: TimedLoop, observer: Any, clock: Clock) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow(iterator: Any) -> None:
        began.set()
        assert may_end.wait(60)

    def fetch_meanwhile(iterator: Any) -> None:
        clock.now += 100.0
        may_end.set()
        thread.join(60)

    thread = threading.Thread(target=timed.next_batch, args=(None, slow))
    thread.start()
    assert began.wait(60)
    timed.next_batch(None, fetch_meanwhile)
    timed.end_optimizer(None)
    assert timed.added(observer) >= 0.0
