"""Alerts as the bundle's rules create them: names and severities of the causes, and labels of their subjects."""

from __future__ import annotations

from stallscope.model.catalogue.causes import CAUSES
from tests.alerting.alertmanager import Labels

SEVERITIES: dict[str, str] = {
    **{cause.alert: cause.severity for cause in CAUSES.values() if cause.alert and cause.severity},
    "TrainingTelemetryMissing": "warning",
    "StallscopeExporterDown": "critical",
    "StallscopeSourceFailing": "warning",
    "StallscopeSourceStuck": "warning",
    "StallscopeReportsRejected": "warning",
    "StallscopeRequestsRefused": "info",
    "StallscopeValuesRejected": "info",
    "StallscopeSeriesDropped": "warning",
    "StallscopeVerdictMissing": "warning",
}
"""Every alert on a run, a GPU or a node, with its highest severity."""
OF_THE_SERVER = frozenset(
    (
        *("StallscopeWatchdog", "StallscopeThresholdMissing", "StallscopeRulesMissing", "StallscopeRulesFailing"),
        "StallscopeExporterUnusable",
    )
)
"""Alerts on Prometheus, its rules and its targets."""

RUN = {"namespace": "vision", "run": "bert"}
NODE = {"instance": "n1:19400"}
GPU = {**NODE, "gpu": "3", "uuid": "GPU-n1-3"}


def on_run(name: str, **labels: str) -> Labels:
    """Return the alert on a run, or on one of its ranks if it names a straggler."""
    rank = {"rank": "7"} if "Straggler" in name else {}
    return {"alertname": name, "severity": SEVERITIES[name], **RUN, **rank, **labels}


def on_gpu(name: str, **labels: str) -> Labels:
    """Return the alert on a GPU that no run uses."""
    return {"alertname": name, "severity": SEVERITIES[name], **GPU, **labels}


def on_node(name: str, **labels: str) -> Labels:
    """Return the alert on a node or its exporter."""
    return {"alertname": name, "severity": SEVERITIES[name], **NODE, **labels}


def on_the_same(name: str, **labels: str) -> Labels:
    """Return the alert on a run, on the GPU of its rank 7, or on their node, depending on its subject."""
    if name.startswith("Training"):
        return on_run(name, **labels)
    if name.startswith("Gpu"):
        return on_gpu(name, **{**RUN, "rank": "7", **labels})
    # An exporter that is gone names the runs that wait for its node, and a kill the run that it harms.
    names_runs = name in ("StallscopeExporterDown", "HostOomKill")
    return on_node(name, **{**(RUN if names_runs else {}), **labels})


def on_another(name: str, **labels: str) -> Labels:
    """Return the alert on another run, GPU or node."""
    others = {"run": "gpt", "rank": "8", "gpu": "4", "uuid": "GPU-n2-4", "instance": "n2:19400"}
    had = on_the_same(name)
    return {**had, **{key: value for key, value in others.items() if key in had}, **labels}
