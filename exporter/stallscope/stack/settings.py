"""What `stallscope up` was asked for, and what is always so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stallscope.simulation.scenarios import Scenario
from stallscope.stack.ports import Port

RUN = "numpy-classifier"
"""The run that the training job reports as."""
WATCHDOG = "Watchdog"
"""The bundle's alert that always fires: that it arrives shows that the way of alerts works."""
THRESHOLDS = {"warmup_seconds": 30.0}
"""Thresholds that differ on this stack, so that a demonstration is judged within minutes."""


@dataclass(frozen=True)
class Settings:
    """What `stallscope up` was asked for."""

    exporter: Port
    prometheus: Port
    alertmanager: Port
    grafana: Port
    scenario: Scenario
    """Played where no NVIDIA driver answers."""
    training_job: bool
    webhook: str | None
    """Where Alertmanager posts its notifications; None for nowhere."""
    data_folder: Path | None
    """Takes everything that is written, and is kept; None for a temporary one."""
    install: bool
    once: bool
    timeout: float
    """Seconds until data must flow."""
