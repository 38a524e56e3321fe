"""Servers on a simulated run, whose interruptions two tests compare: each in a file, so that they run side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.end_to_end.training_stack import FACTOR, TrainingStack

PATIENCE = 120.0
"""Seconds until a verdict or an alert must be there; a calm machine needs a third of it."""
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
