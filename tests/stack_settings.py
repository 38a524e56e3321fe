"""Settings of a stack that no test starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stallscope.lab.simulation.scenarios import SCENARIOS
from stallscope.lab.stack.ports import Port
from stallscope.lab.stack.settings import Settings

_SETTINGS = Settings(
    exporter=Port("the exporter", 1, "--exporter.port"),
    prometheus=Port("Prometheus", 2, "--prometheus.port"),
    alertmanager=Port("Alertmanager", 3, "--alertmanager.port"),
    grafana=Port("Grafana", 4, "--grafana.port"),
    scenario=SCENARIOS["coupled"],
    training_job=False,
    webhook=None,
    data_folder=None,
    install=False,
    once=True,
    timeout=1.0,
)


def stack_settings(**changes: Any) -> Settings:
    """Return settings with these changes: simulated GPUs, without a training job or notifications."""
    return replace(_SETTINGS, **changes)
