"""Settings of `stallscope up`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stallscope.lab.simulation.scenarios import Scenario
from stallscope.lab.stack.ports import Port

RUN = "numpy-classifier"
"""Name of the training job's run."""
WATCHDOG = "StallscopeWatchdog"
"""The bundle's alert that always fires. Its arrival shows that alerts reach Alertmanager."""


@dataclass(frozen=True)
class Settings:
    """Settings from the command line of `stallscope up`."""

    exporter: Port
    prometheus: Port
    alertmanager: Port
    grafana: Port
    scenario: Scenario
    """Simulated if no NVIDIA driver responds."""
    training_job: bool
    webhook: str | None
    """URL of Alertmanager's notifications; None for no notifications."""
    data_folder: Path | None
    """Folder for all files, which is kept; None for a temporary one."""
    install: bool
    once: bool
    timeout: float
    """Time limit until data flows, in seconds."""
