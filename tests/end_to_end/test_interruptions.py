"""Prometheus restarts, its database is lost, an exporter does not answer: what is said of the runs does not change.

Exporter, Prometheus with the bundle's rules and Alertmanager are real, the GPUs and their run are simulated. Time runs
thirty times as fast for the rules: an interruption of a minute takes two seconds here.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from stallscope.lab.replay.pages import Recording
from stallscope.lab.replay.verdicts import replay
from stallscope.lab.stack.programs import find_programs
from stallscope.model.clients.exporter import ExporterClient
from stallscope.tools.cli._record_pages import header, write_pages
from tests.end_to_end.training_stack import FACTOR, THRESHOLDS, TrainingStack

pytestmark = [pytest.mark.slow, pytest.mark.timed, pytest.mark.timeout(600)]

PATIENCE = 120.0
"""Seconds until a verdict or an alert must be there; a calm machine needs a third of it."""
HEALTHY = "simulated-healthy"
LOST_GPU = "5"
WELL = {"healthy", "compute_bound"}
VERDICTS = '{__name__=~"(run|rank|gpu):verdict:ratio5m"}'
ALERTS = 'ALERTS{alertname=~"(Training|Gpu).+", alertname!="TrainingTelemetryMissing", severity!="info"}'
"""Pending ones too. Host alerts are about the machine that the test runs on. Where a start of Prometheus takes longer
than three seconds (90 s for the rules), reports are missing until the first scrape."""


@contextmanager
def playing(folder: Path, scenario: str, **given: str) -> Iterator[TrainingStack]:
    flags = [f"--simulation.{name}={value}" for name, value in {"scenario": scenario, **given}.items()]
    stack = TrainingStack(folder, *flags)
    try:
        yield stack
    finally:
        stack.close()


def pause(minutes: float) -> None:
    """Let time pass that is minutes for the rules."""
    time.sleep(60 * minutes / FACTOR)


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


def test_a_healthy_run_stays_healthy_on_an_empty_database_after_a_restart_and_after_an_outage(tmp_path: Path) -> None:
    with playing(tmp_path, "healthy") as stack:
        pause(10)  # the run is past its warm-up when the database is empty
        stack.stop_prometheus()
        began = time.time()
        stack.start_prometheus(fresh=True)
        await_health(stack, began)
        assert_nothing_wrong(stack, began)

        stack.stop_prometheus()
        pause(1)
        restarted = time.time()
        stack.start_prometheus()
        await_health(stack, restarted)
        assert_nothing_wrong(stack, restarted)

        stack.signal_exporter(signal.SIGSTOP)
        outage = time.time()
        pause(4)
        stack.signal_exporter(signal.SIGCONT)
        answers_again = time.time()
        await_health(stack, answers_again)
        assert_nothing_wrong(stack, outage)


def firing(stack: TrainingStack) -> float | None:
    """Return since when the alert on the lost GPU of the run has been active; None unless it fires now."""
    labels = 'alertname="GpuLost", run="simulated-gpu-lost"'
    if not stack.values(f'ALERTS{{{labels}, alertstate="firing"}}', "gpu"):
        return None
    return stack.values(f"ALERTS_FOR_STATE{{{labels}}}", "gpu")[LOST_GPU]


@contextmanager
def recording(stack: TrainingStack, file: Path) -> Iterator[None]:
    """Record the exporter's pages during the block, as `stallscope record --pages` does."""
    client = ExporterClient(stack.exporter)
    stop = threading.Event()
    with file.open("wb") as out, closing(client), ThreadPoolExecutor(1) as thread:
        about = header(client, masked=False, capture="")
        written = thread.submit(write_pages, out, client, about, duration=3600.0, stop=stop)
        try:
            yield
        finally:
            stop.set()
        assert written.result().pages


def outcome(samples: Iterable[tuple[float, Mapping[str, str]]]) -> dict[str, str]:
    """Return the last verdict on the run and on its lost GPU, from verdicts with their times.

    A verdict before it may last for one scrape alone, and other GPUs change theirs at about the end of the recording.
    """
    found: dict[str, str] = {}
    for _, labels in sorted(samples, key=lambda each: each[0]):
        name = labels.get("__name__")
        if name == "run:verdict:ratio5m" or (name == "gpu:verdict:ratio5m" and labels["gpu"] == LOST_GPU):
            found[name] = labels["cause"]
    return found


def raised(samples: Iterable[Mapping[str, str]]) -> set[str]:
    """Return the names of alerts on the lost GPU that fired."""
    firing = (labels for labels in samples if labels.get("alertstate") == "firing" and labels.get("gpu") == LOST_GPU)
    return {labels["alertname"] for labels in firing}


def assert_same_on_recording(file: Path, stack: TrainingStack, since: float) -> None:
    """Assert that the rules on a recording give the verdicts and alerts that Prometheus has recorded."""
    live = [(moment, labels) for labels, moments in stack.history(VERDICTS, since) for moment in moments]
    alerts = [labels for labels, _ in stack.history(ALERTS, since)]
    promtool = find_programs().promtool or ""
    replayed = replay(Recording(file), promtool, thresholds=THRESHOLDS, interval=1, rules=stack.rules)
    again = [(moment, sample.labels) for moment, samples in replayed.answers.items() for sample in samples]
    assert outcome(again) == outcome(live) == {"run:verdict:ratio5m": "lost", "gpu:verdict:ratio5m": "lost"}
    assert "GpuLost" in raised(alerts) & raised(labels for _, labels in again)


def test_the_alert_of_a_lost_gpu_fires_on_a_recording_too_and_on_after_a_restart_without_another_cause(
    tmp_path: Path,
) -> None:
    file = tmp_path / "pages.gz"
    with playing(tmp_path, "gpu_lost", onset="20s") as stack:
        stack.wait_for(stack.ready, PATIENCE, "data does not flow")
        began = time.time()
        with recording(stack, file):
            run = "simulated-gpu-lost"
            stack.wait_for(lambda: stack.verdict(run) == "lost", PATIENCE, "the run has not lost its GPU")
            active = stack.wait_for(lambda: firing(stack), PATIENCE, "GpuLost does not fire")
            pause(2)
        assert_same_on_recording(file, stack, began)
        stack.stop_prometheus()
        pause(1)
        restarted = time.time()
        stack.start_prometheus()
        assert stack.wait_for(lambda: firing(stack), PATIENCE, "GpuLost does not fire again") == active
        causes = {labels["cause"] for labels, _ in stack.history("run:verdict:ratio5m", restarted)}
        assert causes <= {"lost", "insufficient_data"}
