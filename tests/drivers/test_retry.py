"""When a refused query is due again."""

from __future__ import annotations

import itertools

from stallscope.node.drivers.retry import EARLY, FIRST_PAUSE, LONGEST_PAUSE, Retry


def refusals(retry: Retry, seconds: int, start: int = 0) -> list[int]:
    """Make a query that is always refused, each second that it is due; return when."""
    found = []
    for now in range(start, start + seconds):
        if retry.due("power", now):
            retry.refused("power", now)
            found.append(now)
    return found


def answered() -> Retry:
    """Queries that were answered before."""
    retry = Retry()
    retry.answered("power", "energy", "memory")
    return retry


def test_pauses_double_up_to_the_longest() -> None:
    made = refusals(answered(), 2000)
    pauses = [later - earlier for earlier, later in itertools.pairwise(made)]
    assert pauses[:8] == [2, 4, 8, 16, 32, 64, 128, 256]
    assert set(pauses[8:]) == {LONGEST_PAUSE}


def test_a_query_that_was_never_answered_is_repeated_rarely_from_the_beginning() -> None:
    made = refusals(Retry(), 2000)
    pauses = [later - earlier for earlier, later in itertools.pairwise(made)]
    assert pauses[:4] == [60, 120, 240, 300]


def test_a_query_that_was_never_refused_is_due() -> None:
    retry = answered()
    retry.refused("power", 0.0)
    assert not retry.due("power", FIRST_PAUSE - 1)
    assert retry.due("energy", 0.0)
    assert retry.select(("energy", "power", "memory"), 1.0) == ("energy", "memory")
    assert retry.select(("energy", "power", "memory"), FIRST_PAUSE) == ("energy", "power", "memory")
    assert ("power" in retry, "energy" in retry) == (True, False)


def test_an_answer_ends_the_refusal() -> None:
    retry = Retry()
    retry.refused("power", 0.0)
    retry.answered("power", "energy")
    assert retry.due("power", 0.0)
    assert "power" not in retry


def test_a_query_that_is_refused_again_soon_keeps_its_pause_and_later_starts_over() -> None:
    retry = answered()
    made = refusals(retry, 200)
    retry.answered("power")
    retry.refused("power", made[-1] + 1)
    assert not retry.due("power", made[-1] + 100)
    retry.answered("power")
    retry.refused("power", 5000.0)
    assert retry.due("power", 5000.0 + FIRST_PAUSE)


def test_an_early_retry_comes_before_the_one_around_it() -> None:
    inner, outer = Retry(early=EARLY), Retry()
    inner.answered("sm clock")
    outer.answered("clocks")
    outer.refused("clocks", 0.0)
    inner.refused("sm clock", 0.4)
    assert outer.due("clocks", FIRST_PAUSE)
    assert inner.due("sm clock", FIRST_PAUSE)


def test_what_is_forgotten_is_due() -> None:
    retry = Retry()
    retry.refused("power", 0.0)
    retry.forget()
    assert retry.due("power", 0.0)


def test_what_was_answered_before_the_driver_was_opened_again_is_repeated_soon() -> None:
    retry = answered()
    retry.forget()
    retry.refused("power", 0.0)
    assert retry.due("power", FIRST_PAUSE)
