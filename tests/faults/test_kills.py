"""An exporter that is killed under training: a real Prometheus counts each step once."""

from __future__ import annotations

import pytest

from tests.faults.kills import RESTARTED, STEADY, Count, counted

pytestmark = [pytest.mark.nightly, pytest.mark.slow(45), pytest.mark.timed]

KILLS = 15
"""Of each of two exporters; `python -m tests.faults.kills 100` for more."""
MOST_ERROR = 0.03
WITH_AND_WITHOUT = pytest.mark.parametrize("exporter", ["with a state file", "without a state file"])


@pytest.fixture(scope="module")
def counts() -> dict[str, Count]:
    return counted(KILLS)


@WITH_AND_WITHOUT
def test_every_step_of_a_run_that_outlives_kills_counts_once(counts: dict[str, Count], exporter: str) -> None:
    count = counts[exporter]
    assert count.kills == KILLS
    assert count.last[STEADY] == count.steps[STEADY]
    assert abs(count.error(STEADY)) < MOST_ERROR


@WITH_AND_WITHOUT
def test_no_counter_of_a_session_falls(counts: dict[str, Count], exporter: str) -> None:
    count = counts[exporter]
    assert count.scrapes > KILLS / 5
    assert count.falls[STEADY] == 0
    assert count.falls[RESTARTED] < count.sessions[RESTARTED]


@WITH_AND_WITHOUT
def test_a_run_that_restarts_between_kills_never_counts_twice(counts: dict[str, Count], exporter: str) -> None:
    """Less may be counted: the end of a session that no exporter received, and a session that none was there for."""
    count = counts[exporter]
    assert count.sessions[RESTARTED] > 1
    assert count.error(RESTARTED) < MOST_ERROR
