"""Which alerts fired, how often, for how long, and when it was worst.

Read from the server's own record of alerts, `ALERTS`. An alert that another one mutes fires as well, and counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stallscope.clients.expressions import any_of
from stallscope.common.formatting import duration
from stallscope.report.asking import Asker, highest
from stallscope.report.document import Block, Column, Notice, Paragraph, Section, Table
from stallscope.report.lost_time import LostTime
from stallscope.report.ranks import Ranks

KEY = "alerts"
_LABELS = "alertname, severity, cause, cluster, namespace, run, rank, instance, gpu, uuid"
_SEVERITIES = ("critical", "warning", "info")
_ROWS = 40


class Fired(NamedTuple):
    """One alert on one subject."""

    name: str
    severity: str
    cause: str
    subject: str
    """Whom it names, in words; empty for the run itself."""
    times: int
    """How often it began to fire."""
    seconds: float
    """For how long it fired, altogether."""
    first: float
    """Unix time at which it was first seen to fire."""
    last: float
    """Unix time at which it was last seen to fire."""
    card: Card | None = None
    """What it cost its GPU; None where it names none, or where no loss is recorded."""


class Card(NamedTuple):
    """What a cause cost one GPU."""

    cluster: str
    instance: str
    gpu: str
    gpu_seconds: float
    worst_share: float | None
    """Of its time, in the worst step of a curve."""
    worst_at: float | None
    """Unix time at which that step ended."""


@dataclass(frozen=True)
class Alerts:
    """All that fired."""

    fired: tuple[Fired, ...]
    """The gravest first, and of these whatever fired longest."""
    rules_loaded: bool
    """Whether the server has the alert rules: the one that always fires, did."""
    problem: str = ""
    """Why nothing is known of them; empty where all is well."""

    def causes(self, *severities: str) -> set[str]:
        """Those whose alert fired with one of these severities."""
        return {alert.cause for alert in self.fired if alert.severity in severities and alert.cause}

    def gpu_seconds(self, cause: str) -> float:
        """What a cause cost the GPUs that its alerts name."""
        # Once each: while a rank uses a GPU, and after, alerts name the same one differently.
        cards = {alert.card for alert in self.fired if alert.cause == cause and alert.card is not None}
        return sum(card.gpu_seconds for card in cards)


def not_told(problem: str) -> Alerts:
    """What stands for alerts that could not be asked for."""
    return Alerts((), rules_loaded=True, problem=problem)


def alerts(asker: Asker, found: Ranks | None) -> Alerts:
    """Ask what fired for the subject.

    Args:
        asker: of the subject.
        found: the run's ranks; None where it is no run.
    """
    firing = f"max by ({_LABELS}) ({_selected(asker)})"
    resolution = f"{asker.resolution:.0f}s"
    own = found.uuids if found is not None else frozenset()
    seconds = {
        _key(each.labels): each
        for each in asker.ask(asker.seconds_there(firing))
        # Other GPUs of a run's nodes are no matter of the run.
        if not own or each.labels.get("run") or each.labels.get("uuid", "") in own | {""}
    }
    # At a moment of the sum at which it fires and did not the moment before.
    begins = {
        _key(each.labels): each.value
        for each in asker.ask(
            asker.over_time("count_over_time", f"{firing} unless max by ({_LABELS}) ({_selected(asker, resolution)})")
        )
    }
    first = {_key(each.labels): each.value for each in asker.ask(_moment_of(asker, "min_over_time", firing))}
    last = {_key(each.labels): each.value for each in asker.ask(_moment_of(asker, "max_over_time", firing))}
    cards = _cards(asker, [series.labels for series in seconds.values() if series.labels.get("gpu")])
    fired = [
        Fired(
            name=series.labels.get("alertname", ""),
            severity=series.labels.get("severity", ""),
            cause=series.labels.get("cause", ""),
            subject=_subject(asker, series.labels),
            times=max(1, round(begins.get(key, 1.0))),
            seconds=series.value,
            first=first.get(key, asker.subject.start),
            last=last.get(key, asker.subject.end),
            card=cards.get(_card(series.labels)),
        )
        for key, series in seconds.items()
    ]
    fired.sort(key=lambda alert: (_gravity(alert.severity), -alert.seconds, alert.name, alert.subject))
    watchdog = asker.ask(asker.seconds_there('ALERTS{alertname="Watchdog", alertstate="firing"}'))
    return Alerts(tuple(fired), rules_loaded=bool(watchdog))


def _cards(asker: Asker, named: Sequence[Mapping[str, str]]) -> dict[tuple[str, str, str, str], Card]:
    """What causes cost the GPUs that alerts name, by cause, cluster, node and index."""
    if not named:
        return {}
    among = ", ".join(
        f"{label}=~{any_of(sorted({labels.get(label, '') for labels in named}))}"
        for label in ("cause", "cluster", "instance", "gpu")
    )
    share = f"max by (cause, cluster, instance, gpu) (gpu_cause:share:ratio5m{{{among}}})"
    seconds = {_card(each.labels): each.value for each in asker.ask(asker.integral(share, resolution=asker.coarse))}
    curves = asker.curves(asker.over_time("avg_over_time", share, asker.step, asker.coarse))
    worst = {_card(curve.labels): highest(curve, curves.times) for curve in curves.curves}
    return {key: Card(*key[1:], lost, *worst.get(key, (None, None))) for key, lost in seconds.items() if lost > 0}


def _card(labels: Mapping[str, str]) -> tuple[str, str, str, str]:
    return labels.get("cause", ""), labels.get("cluster", ""), labels.get("instance", ""), labels.get("gpu", "")


def section(asker: Asker, found: Alerts, lost: LostTime) -> Section:
    """Tell it."""
    return Section(KEY, "Alerts that fired", tuple(_blocks(asker, found, lost)))


def _blocks(asker: Asker, found: Alerts, lost: LostTime) -> list[Block]:
    if found.problem:
        return [Notice("critical", f"This could not be asked for: {found.problem}")]
    if not found.fired and not found.rules_loaded:
        return [
            Notice(
                "warning",
                "The server has no alert rules of Stallscope (its Watchdog never fired): what would have fired is not "
                "known.",
            )
        ]
    if not found.fired:
        return [Paragraph("No alert fired.")]
    rows = []
    for alert in found.fired[:_ROWS]:
        # Of a GPU's alert the GPU's own, else that of all the subject.
        worst = alert.card or lost.by_cause.get(alert.cause)
        rows.append(
            (
                alert.name,
                alert.severity,
                alert.subject or asker.subject.title,
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
        f"Seen every {asker.resolution:.0f} s: what came and went in between is not counted. An alert that another one "
        "mutes is counted as well. Where an alert names a GPU, the worst moment is that GPU's."
    )
    if left:
        note += f" {len(left)} more, less grave or shorter, are left out."
    columns = (
        Column("Alert"),
        Column("Severity"),
        Column("On"),
        Column("Fired", "count", "how often it began to fire"),
        Column("For", "seconds", "altogether"),
        Column("Worst", "share", f"of GPU time lost to its cause, in {duration(asker.step)}"),
        Column("Worst at", "time"),
        Column("First", "time"),
        Column("Last", "time"),
    )
    return [Table(columns, tuple(rows), title="Alerts, the gravest first", note=note)]


def _selected(asker: Asker, before: str = "") -> str:
    offset = f" offset {before}" if before else ""
    subject = asker.subject
    if subject.run is None:
        on_nodes = f", {subject.told_by_nodes}" if subject.instances else ""
        return f'ALERTS{{alertstate="firing", alertname!="Watchdog", cause!=""{on_nodes}}}{offset}'
    nodes = f"run_node:known:info{{{subject.told_by_run}}}{offset}"
    return (
        f'ALERTS{{alertstate="firing", cause!="", {subject.told_by_run}}}{offset} or '
        f'(ALERTS{{alertstate="firing", cause!="", run="", {subject.told_by_nodes}}}{offset}'
        f" and on (cluster, instance) {nodes})"
    )


def _moment_of(asker: Asker, function: str, firing: str) -> str:
    return asker.over_time(function, f"time() * ({firing})")


def _key(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def _subject(asker: Asker, labels: Mapping[str, str]) -> str:
    words = []
    if asker.subject.run is None and labels.get("run"):
        words.append(f"run {labels['run']}")
    if labels.get("rank"):
        words.append(f"rank {labels['rank']}")
    if labels.get("gpu"):
        words.append(f"GPU {labels['gpu']}")
    if labels.get("instance"):
        words.append(("of " if labels.get("gpu") else "") + labels["instance"])
    return " ".join(words)


def _gravity(severity: str) -> int:
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)
