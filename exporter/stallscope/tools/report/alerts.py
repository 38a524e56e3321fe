"""The alerts that fired: how often, how long, and their worst time.

Read from the server's `ALERTS` series. Alerts muted by another alert count too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stallscope.common.formatting import duration, gpu_name
from stallscope.model.catalogue.causes import CAUSES, EVERYTHING
from stallscope.model.clients.expressions import any_of
from stallscope.tools.report.document import Block, Column, Notice, Paragraph, Table, unavailable
from stallscope.tools.report.lost_time import LostTime
from stallscope.tools.report.queries import Queries, highest
from stallscope.tools.report.ranks import Ranks

KEY = "alerts"
TITLE = "Alerts that fired"
_LABELS = "alertname, severity, cause, cluster, namespace, run, rank, instance, gpu, uuid"
_SEVERITIES = ("critical", "warning", "info")
_ROWS = 40


class FiredAlert(NamedTuple):
    """An alert on one subject."""

    name: str
    severity: str
    cause: str
    subject: str
    """Description of the labels; empty for the run itself."""
    times: int
    """Number of times it began to fire."""
    seconds: float
    """Total time it fired."""
    first: float
    """Unix time at which it was first firing."""
    last: float
    """Unix time at which it was last firing."""
    gpu_loss: GpuLoss | None = None
    """The loss of its GPU; None if it names no GPU, or no loss is recorded."""


class GpuLoss(NamedTuple):
    """The time that a cause cost one GPU."""

    cluster: str
    instance: str
    gpu: str
    gpu_seconds: float
    worst_share: float | None
    """Share of its time in the worst interval."""
    worst_at: float | None
    """Unix time at the end of that interval."""


@dataclass(frozen=True)
class Alerts:
    """All alerts that fired."""

    fired: tuple[FiredAlert, ...]
    """By severity, then by time."""
    rules_loaded: bool
    """True if the server has the alert rules, whose alert StallscopeWatchdog always fires."""
    problem: str = ""
    """Reason why alerts are unknown; empty if they are known."""

    def causes(self, *severities: str) -> set[str]:
        """Return the causes whose alert fired with one of these severities."""
        return {alert.cause for alert in self.fired if alert.severity in severities and alert.cause}

    def muted(self, cause: str) -> bool:
        """Return whether each alert on a cause names a GPU on which an alert fired that mutes all others."""
        lost = {each.subject for each in self.fired if EVERYTHING in _mutes(each.cause) and each.cause != cause}
        return all(each.subject in lost for each in self.fired if each.cause == cause)

    def gpu_seconds(self, cause: str) -> float:
        """Return the GPU time that a cause cost the GPUs named by its alerts."""
        # Alerts name a GPU differently while a rank uses it and afterwards: count each GPU once.
        losses = {alert.gpu_loss for alert in self.fired if alert.cause == cause and alert.gpu_loss is not None}
        return sum(loss.gpu_seconds for loss in losses)


def _mutes(cause: str) -> tuple[str, ...]:
    return CAUSES[cause].mutes if cause in CAUSES else ()


def unknown_alerts(problem: str) -> Alerts:
    """Return the placeholder for alerts whose query failed."""
    return Alerts((), rules_loaded=True, problem=problem)


def alerts(queries: Queries, found: Ranks | None) -> Alerts:
    """Query the alerts that fired for the subject.

    Args:
        queries: queries for the subject.
        found: the run's ranks; None if the subject is not a run.
    """

    def values(function: str, expression: str) -> dict[frozenset[tuple[str, str]], float]:
        """Return the values of an `_over_time` function by labels."""
        found = queries.instant(queries.over_time(function, expression))
        return {_key(each.labels): each.value for each in found}

    firing = f"max by ({_LABELS}) ({_selected(queries)})"
    resolution = f"{queries.resolution:.0f}s"
    own = found.uuids if found is not None else frozenset()
    seconds = {
        _key(each.labels): each
        for each in queries.instant(queries.seconds_present(firing))
        # Ignore other GPUs of the run's nodes.
        if not own or each.labels.get("run") or each.labels.get("uuid", "") in own | {""}
    }
    # Times at which it fires and did not fire one resolution earlier.
    begins = values("count_over_time", f"{firing} unless max by ({_LABELS}) ({_selected(queries, resolution)})")
    first = values("min_over_time", f"time() * ({firing})")
    last = values("max_over_time", f"time() * ({firing})")
    losses = _gpu_losses(queries, [series.labels for series in seconds.values() if series.labels.get("gpu")])
    fired = [
        FiredAlert(
            name=series.labels.get("alertname", ""),
            severity=series.labels.get("severity", ""),
            cause=series.labels.get("cause", ""),
            subject=_subject(queries, series.labels),
            times=max(1, round(begins.get(key, 1.0))),
            seconds=series.value,
            first=first.get(key, queries.subject.start),
            last=last.get(key, queries.subject.end),
            gpu_loss=losses.get(_gpu_key(series.labels)),
        )
        for key, series in seconds.items()
    ]
    fired.sort(key=lambda alert: (_severity_order(alert.severity), -alert.seconds, alert.name, alert.subject))
    watchdog = queries.instant(queries.seconds_present('ALERTS{cause="watchdog", alertstate="firing"}'))
    return Alerts(tuple(fired), rules_loaded=bool(watchdog))


def _gpu_losses(queries: Queries, named: Sequence[Mapping[str, str]]) -> dict[tuple[str, str, str, str], GpuLoss]:
    """Return the losses of the GPUs that alerts name, by cause, cluster, node and index."""
    if not named:
        return {}
    among = ", ".join(
        f"{label}=~{any_of(sorted({labels.get(label, '') for labels in named}))}"
        for label in ("cause", "cluster", "instance", "gpu")
    )
    share = f"max by (cause, cluster, instance, gpu) (gpu_cause:share:ratio5m{{{among}}})"
    seconds = {
        _gpu_key(each.labels): each.value
        for each in queries.instant(queries.integral(share, resolution=queries.coarse))
    }
    result = queries.over_range(queries.over_time("avg_over_time", share, queries.step, queries.coarse))
    worst = {_gpu_key(each.labels): highest(each, result.times) for each in result.series}
    return {key: GpuLoss(*key[1:], lost, *worst.get(key, (None, None))) for key, lost in seconds.items() if lost > 0}


def _gpu_key(labels: Mapping[str, str]) -> tuple[str, str, str, str]:
    return labels.get("cause", ""), labels.get("cluster", ""), labels.get("instance", ""), labels.get("gpu", "")


def blocks(queries: Queries, found: Alerts, lost: LostTime) -> list[Block]:
    """Return the blocks of the section."""
    if found.problem:
        return [unavailable(found.problem)]
    if not found.fired and not found.rules_loaded:
        return [
            Notice(
                "warning",
                "Alerts are unknown: Stallscope's alert rules are not loaded (StallscopeWatchdog never fired).",
            )
        ]
    if not found.fired:
        return [Paragraph("No alert fired.")]
    rows = []
    for alert in found.fired[:_ROWS]:
        # For an alert on a GPU, the loss of that GPU; else the loss of the whole subject.
        worst = alert.gpu_loss or lost.by_cause.get(alert.cause)
        rows.append(
            (
                alert.name,
                alert.severity,
                alert.subject or queries.subject.title,
                alert.times,
                alert.seconds,
                worst.worst_share if worst is not None else None,
                worst.worst_at if worst is not None else None,
                alert.first,
                alert.last,
            )
        )
    left = found.fired[_ROWS:]
    note = (
        f"Evaluated every {queries.resolution:.0f} s; shorter alerts are not counted. Alerts muted by another alert "
        "are counted. If an alert names a GPU, the worst time is that GPU's."
    )
    if left:
        note += f" {len(left)} less severe or shorter alerts are omitted."
    columns = (
        Column("Alert", key="alert"),
        Column("Severity", key="severity"),
        Column("Subject", key="subject"),
        Column("Fired", "count", "number of times", key="fired"),
        Column("Duration", "seconds", "total", key="firing_seconds"),
        Column(
            "Worst",
            "share",
            f"of {lost.unit} time lost to its cause, over {duration(queries.step)}",
            key="worst_lost_ratio",
        ),
        Column("Worst at", "time", key="worst_timestamp_seconds"),
        Column("First", "time", key="first_timestamp_seconds"),
        Column("Last", "time", key="last_timestamp_seconds"),
    )
    return [Table(columns, tuple(rows), title="Alerts by severity", note=note, key="alerts")]


def _selected(queries: Queries, before: str = "") -> str:
    offset = f" offset {before}" if before else ""
    subject = queries.subject
    if subject.run is None:
        on_nodes = f", {subject.node_matchers}" if subject.instances else ""
        return f'ALERTS{{alertstate="firing", cause!="", cause!="watchdog"{on_nodes}}}{offset}'
    nodes = f"run_node:known:info{{{subject.run_matchers}}}{offset}"
    return (
        f'ALERTS{{alertstate="firing", cause!="", {subject.run_matchers}}}{offset} or '
        f'(ALERTS{{alertstate="firing", cause!="", run="", {subject.node_matchers}}}{offset}'
        f" and on (cluster, instance) {nodes})"
    )


def _key(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def _subject(queries: Queries, labels: Mapping[str, str]) -> str:
    words = []
    if queries.subject.run is None and labels.get("run"):
        words.append(f"run {labels['run']}")
    if labels.get("rank"):
        words.append(f"rank {labels['rank']}")
    instance = labels.get("instance", "")
    if labels.get("gpu"):
        words.append(gpu_name(labels["gpu"], labels.get("mig", "")) + (f" of {instance}" if instance else ""))
    elif instance:
        words.append(instance)
    return ", ".join(words)


def _severity_order(severity: str) -> int:
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)
