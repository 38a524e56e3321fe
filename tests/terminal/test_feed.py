"""Who looks never waits: what was known stays, with its age and why there is nothing newer."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from stallscope.clients.exporter import ExporterError
from stallscope.terminal.feed import Feed
from tests.terminal.pages import text


class Pages:
    """Pages, or errors, that a test hands out one by one."""

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


def test_before_the_first_answer_nothing_is_known() -> None:
    seen = Feed(Pages(), 2).look()
    assert (seen.name, seen.node, seen.age, seen.problem) == ("node1:19400", None, None, "")


def test_what_was_known_stays_when_the_exporter_is_lost_and_grows_old() -> None:
    now = 100.0
    feed = Feed(Pages(text(), ExporterError("no answer within 5 s"), text(1004)), 2, monotonic=lambda: now)
    feed.ask()
    first = feed.look()
    now = 114.0
    feed.ask()
    lost = feed.look()
    assert (lost.node, lost.age, lost.problem) == (first.node, 14.0, "no answer within 5 s")
    feed.ask()
    assert (feed.look().age, feed.look().problem) == (0.0, "")


@pytest.mark.parametrize("nonsense", ["", "<html>hello</html>", "node_load1 0.3\n"])
def test_an_answer_without_our_metrics_is_told_from_an_idle_node(nonsense: str) -> None:
    feed = Feed(Pages(nonsense), 2)
    feed.ask()
    assert feed.look().node is None
    assert feed.look().problem == "no Stallscope metrics on its page; check what listens at that address"


def test_while_a_question_hangs_who_looks_is_told_so() -> None:
    now = 0.0
    asked, let_go = threading.Event(), threading.Event()

    def hang() -> str:
        asked.set()
        let_go.wait(60)
        raise ExporterError("no answer within 5 s")

    feed = Feed(Pages(hang), 2, monotonic=lambda: now)
    thread = threading.Thread(target=feed.ask)
    thread.start()
    assert asked.wait(60)
    assert feed.look().problem == ""
    now = 7.0
    assert feed.look().problem == "no answer for 7 s"
    let_go.set()
    thread.join()


def test_an_unforeseen_failure_does_not_end_it() -> None:
    feed = Feed(Pages(RuntimeError("odd"), text()), 2)
    feed.ask()
    assert feed.look().problem == "its page can't be read: RuntimeError: odd"
    feed.ask()
    assert feed.look().problem == ""


def test_it_asks_again_and_again_until_it_is_stopped() -> None:
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
