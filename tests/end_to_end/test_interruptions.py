"""Prometheus restarts, its database is lost, an exporter does not answer: what is said of the runs does not change.

Exporter, Prometheus with the bundle's rules and Alertmanager are real, the GPUs and their run are simulated. Time runs
thirty times as fast for the rules: an interruption of a minute takes two seconds here.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.end_to_end.interruptions import ALERTS, PATIENCE, VERDICTS, pause, playing
from tests.end_to_end.training_stack import TrainingStack

pytestmark = [pytest.mark.nightly, pytest.mark.slow(80), pytest.mark.timed, pytest.mark.timeout(600)]

HEALTHY = "simulated-healthy"
WELL = {"healthy", "compute_bound"}


def settled(stack: TrainingStack, since: float) -> bool:
    """Return True once the run's verdict is that it is well, and has been recorded since a time."""
    history = stack.history(f'run:verdict:ratio5m{{run="{HEALTHY}"}}', since)
    return max(((moments[-1], labels["cause"]) for labels, moments in history), default=(0.0, ""))[1] in WELL


def await_health(stack: TrainingStack, since: float) -> None:
    """Wait until the run is judged, and as long again as the longest mean of a share: five minutes for the rules."""
    stack.wait_for(lambda: settled(stack, since), PATIENCE, "the healthy run is not judged")
    pause(6)


def assert_nothing_wrong(stack: TrainingStack, since: float) -> None:
    """Assert that at no evaluation since then a verdict named a cause, and no alert was pending."""
    history = stack.history(VERDICTS, since)
    assert {labels["__name__"].partition(":")[0] for labels, _ in history} == {"run", "rank", "gpu"}
    assert [labels for labels, _ in history if labels["cause"] not in WELL | {"insufficient_data"}] == []
    assert stack.history('ALERTS{alertname="StallscopeWatchdog"}', since)
    assert [labels for labels, _ in stack.history(ALERTS, since)] == []


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TrainingStack, dict[str, float]]]:
    """Interrupt a healthy run three times; yield the servers, and when each interruption began or ended."""
    since: dict[str, float] = {}
    with playing(tmp_path_factory.mktemp("healthy"), "healthy") as stack:
        pause(10)  # the run is past its warm-up when the database is empty
        stack.stop_prometheus()
        since["on an empty database"] = time.time()
        stack.start_prometheus(fresh=True)
        await_health(stack, since["on an empty database"])

        stack.stop_prometheus()
        pause(1)
        since["after a restart"] = time.time()
        stack.start_prometheus()
        await_health(stack, since["after a restart"])

        stack.signal_exporter(signal.SIGSTOP)
        since["after an outage"] = time.time()
        pause(4)
        stack.signal_exporter(signal.SIGCONT)
        await_health(stack, time.time())
        yield stack, since


@pytest.mark.parametrize("when", ["on an empty database", "after a restart", "after an outage"])
def test_a_healthy_run_stays_healthy(when: str, interrupted: tuple[TrainingStack, dict[str, float]]) -> None:
    stack, since = interrupted
    assert_nothing_wrong(stack, since[when])
