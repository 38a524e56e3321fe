"""Readers never wait: the last state stays, with its age and the error of the latest poll."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from stallscope.model.clients.exporter import ExporterError
from stallscope.tools.terminal.feed import Feed
from tests.terminal.pages import text


class Pages:
    """A source of scripted pages and errors."""

    name = "node1:19400"
    timeout = 5.0

    def __init__(self, *answers: str | Exception | Callable[[], str]) -> None:
        self._answers = iter(answers)
        self.closed = threading.Event()

    def read(self) -> str:
        answer = next(self._answers, "")
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    def close(self) -> None:
        self.closed.set()


def test_before_the_first_page_the_state_is_empty() -> None:
    seen = Feed(Pages(), 2).look()
    assert (seen.name, seen.node, seen.age, seen.problem) == ("node1:19400", None, None, "")


def test_the_last_node_stays_with_its_age_when_the_exporter_is_lost() -> None:
    now = 100.0
    feed = Feed(Pages(text(), ExporterError("no answer within 5 s"), text(1004)), 2, monotonic=lambda: now)
    feed.poll()
    first = feed.look()
    now = 114.0
    feed.poll()
    lost = feed.look()
    assert (lost.node, lost.age, lost.problem) == (first.node, 14.0, "no answer within 5 s")
    feed.poll()
    assert (feed.look().age, feed.look().problem) == (0.0, "")


@pytest.mark.parametrize("nonsense", ["", "<html>hello</html>", "node_load1 0.3\n"])
def test_a_page_without_stallscope_metrics_is_an_error(nonsense: str) -> None:
    feed = Feed(Pages(nonsense), 2)
    feed.poll()
    assert feed.look().node is None
    assert feed.look().problem == "no Stallscope metrics on its page; check what listens at that address"


def test_a_hanging_poll_is_reported_with_its_age() -> None:
    now = 0.0
    requested, released = threading.Event(), threading.Event()

    def hang() -> str:
        requested.set()
        released.wait(60)
        raise ExporterError("no answer within 5 s")

    feed = Feed(Pages(hang), 2, monotonic=lambda: now)
    thread = threading.Thread(target=feed.poll)
    thread.start()
    assert requested.wait(60)
    assert feed.look().problem == ""
    now = 7.0
    assert feed.look().problem == "no answer for 7 s"
    released.set()
    thread.join()


def test_an_unexpected_error_does_not_stop_the_feed() -> None:
    feed = Feed(Pages(RuntimeError("odd"), text()), 2)
    feed.poll()
    assert feed.look().problem == "its page can't be read: RuntimeError: odd"
    feed.poll()
    assert feed.look().problem == ""


def test_it_polls_until_it_is_stopped() -> None:
    pages = Pages(text(), ExporterError("gone"), text(1004))
    feed = Feed(pages, 0.001)
    answers = []
    done = threading.Event()

    def note() -> None:
        answers.append(feed.look().problem)
        if len(answers) == 3:
            feed.stop()
            done.set()

    feed.start(note)
    assert done.wait(60)
    assert pages.closed.wait(60)
    assert answers == ["", "gone", ""]
