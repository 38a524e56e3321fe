"""Prometheus restarts while the alert of a lost GPU fires, and the rules find the same on a recording.

Exporter, Prometheus with the bundle's rules and Alertmanager are real, the GPUs and their run are simulated. Time runs
thirty times as fast for the rules.
"""

from __future__ import annotations

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
from tests.end_to_end.interruptions import ALERTS, PATIENCE, VERDICTS, pause, playing
from tests.end_to_end.training_stack import THRESHOLDS, TrainingStack

pytestmark = [pytest.mark.slow(60), pytest.mark.timed, pytest.mark.timeout(600)]

LOST_GPU = "5"


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
