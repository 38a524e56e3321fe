"""The report by owner: GPU-hours that users, namespaces, teams or runs hold, use and lose, with cost and savings.

    document = build(prometheus, Period(start, end), Grouping("user"), Options(gpu_hour_price=2.5))

Rules record the GPUs of each owner; this module sums them over time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from stallscope.model.analysis import over_time
from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.clients.expressions import quoted
from stallscope.model.clients.prometheus import Series
from stallscope.tools.report.document import (
    Bars,
    Block,
    Column,
    Document,
    Fact,
    Facts,
    Figure,
    Notice,
    Recommendation,
    Section,
    Table,
    Value,
)
from stallscope.tools.report.document import Series as Part
from stallscope.tools.report.lost_time import bars_by_cause
from stallscope.tools.report.options import Options
from stallscope.tools.report.queries import Server
from stallscope.tools.report.words import percent, plain

By = Literal["user", "namespace", "team", "run"]
_INTERVAL = 120.0
"""Seconds between two evaluations of the rules that record owners."""
_SAVINGS = 10
_BARS = 12
"""Maximum number of owners with a bar."""
_IDLE = "idle_allocated"
_PLACE = ("cluster", "namespace", "run", "user")


class Period(NamedTuple):
    """A time range in Unix time."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return max(1.0, self.end - self.start)

    def before(self, seconds: float) -> Period:
        """Return the period of equal length that ended `seconds` earlier."""
        return Period(self.start - seconds, self.end - seconds)


class Grouping(NamedTuple):
    """The grouping of owners."""

    by: By
    team_label: str = ""
    """Label with the team; needed to group by it."""
    team_series: str = ""
    """Series that have this label, and `namespace` or `user`."""
    cluster: str | None = None
    """The only cluster to include; None for all."""


@dataclass
class _Use:
    """The use of GPUs by one owner."""

    held: float = 0.0
    """GPU-seconds, as all times."""
    busy: float = 0.0
    lost: float = 0.0
    lost_in_serving: float = 0.0
    """Of GPUs of inference servers, whose time not in use is no part of `lost`."""
    joules: float | None = None
    causes: dict[str, float] = field(default_factory=dict)

    @property
    def lost_share(self) -> float | None:
        return self.lost / self.held if self.held else None


_Uses = dict[tuple[str, ...], _Use]


def build(
    server: Server,
    period: Period,
    grouping: Grouping,
    options: Options | None = None,
    *,
    compare_to: float | None = None,
    rows: int | None = 50,
) -> Document:
    """Build the report.

    Args:
        server: the server to query.
        period: the time range.
        grouping: what an owner is.
        options: prices and time zone.
        compare_to: seconds by which the period to compare with is earlier; None for no comparison.
        rows: maximum number of owners in the table, the largest first; None for all.

    Raises:
        PrometheusError: the server gave no valid response.
    """
    options = options or Options()
    teams = _teams(server, period, grouping) if grouping.by == "team" else {}
    uses = _uses(server, period, grouping, teams)
    earlier = None if compare_to is None else _uses(server, period.before(compare_to), grouping, teams)
    known = _known(server, period, grouping)
    blocks: list[Block] = []
    if not uses:
        blocks.append(
            Notice("warning", "No GPU was held in this time, or the rules that record owners are not loaded.")
        )
    if grouping.by == "team" and not teams:
        blocks.append(
            Notice(
                "warning",
                f"No series {grouping.team_series} has the label {grouping.team_label}: teams are unknown. Allow the "
                "label in kube-state-metrics (--metric-labels-allowlist=namespaces=[team]), or set --team-label.",
            )
        )
    if earlier is not None and not earlier:
        blocks.append(Notice("warning", "No GPU was held in the period compared with, or it is no longer stored."))
    blocks += [_totals(uses, known, options)]
    if uses:
        blocks += [*_bars(uses, grouping), _table(uses, earlier, grouping, options, rows)]
    losses = _losses(uses)
    return Document(
        title=f"GPU time by {grouping.by}",
        subtitle=f"data from {server.name}",
        made_at=time.time(),
        start=period.start,
        end=period.end,
        sections=(
            Section("owners", "GPU time of owners", tuple(blocks)),
            Section("savings", "Largest savings", tuple(_savings(losses, uses, grouping, options))),
        ),
        highlights=_highlights(losses, uses, grouping, options) if uses else (),
        zone=options.zone,
        currency=options.currency,
        incomplete=tuple(server.take_warnings()),
    )


def _uses(server: Server, period: Period, grouping: Grouping, teams: Mapping[tuple[str, str], str]) -> _Uses:
    """Return the use of each owner by its name."""
    found: _Uses = {}

    def of(each: Series) -> _Use:
        return found.setdefault(_owner(each.labels, grouping, teams), _Use())

    for each in _integrals(server, period, grouping, "owner:gpus_held:sum"):
        of(each).held += each.value
    for each in _integrals(server, period, grouping, "owner:gpus_busy:sum5m"):
        of(each).busy += each.value
    for each in _integrals(server, period, grouping, "owner:gpus_lost:sum5m"):
        of(each).lost += each.value
    for each in _integrals(server, period, grouping, "serving_owner:gpus_lost:sum5m"):
        of(each).lost_in_serving += each.value
    for each in _integrals(server, period, grouping, "owner:power:watts5m"):
        use = of(each)
        use.joules = (use.joules or 0.0) + each.value
    for each in _integrals(server, period, grouping, "owner_cause:gpus_lost:sum5m", "cause"):
        causes, cause = of(each).causes, each.labels.get("cause", "")
        causes[cause] = causes.get(cause, 0.0) + each.value
    return found


def _integrals(server: Server, period: Period, grouping: Grouping, record: str, *more: str) -> list[Series]:
    """Return the integral of a record over time by the labels of owners that the grouping needs."""
    labels = {"user": ("user",), "namespace": ("cluster", "namespace"), "run": ("cluster", "namespace", "run")}
    by = ", ".join((*labels.get(grouping.by, ("cluster", "namespace", "user")), *more))
    points = max(_INTERVAL, over_time.resolution(period.seconds))
    summed = f"sum by ({by}) ({record}{{{_matchers(grouping)}}})"
    integral = over_time.over_time("sum_over_time", summed, period.seconds - 1, points)
    return server.query(f"{integral} * {points:.0f}", at=period.end)


def _known(server: Server, period: Period, grouping: Grouping) -> float | None:
    """Return the GPU-seconds of all known GPUs."""
    points = max(_INTERVAL, over_time.resolution(period.seconds))
    known = f"sum(cluster:gpus_known:count{{{_matchers(grouping)}}})"
    integral = over_time.over_time("sum_over_time", known, period.seconds - 1, points)
    return next((each.value for each in server.query(f"{integral} * {points:.0f}", at=period.end)), None)


def _matchers(grouping: Grouping) -> str:
    return "" if grouping.cluster is None else f"cluster={quoted(grouping.cluster)}"


def _teams(server: Server, period: Period, grouping: Grouping) -> dict[tuple[str, str], str]:
    """Return the team of each namespace and user, as (label, value)."""
    selector = f'{grouping.team_series}{{{grouping.team_label}!=""}}'
    found = {}
    for each in server.query(f"last_over_time({selector}[{period.seconds:.0f}s])", at=period.end):
        team = each.labels[grouping.team_label]
        # Prometheus renames the label of a target that has one of its own, unless honor_labels is set.
        namespace = each.labels.get("exported_namespace") or each.labels.get("namespace")
        for label, value in (("user", each.labels.get("user")), ("namespace", namespace)):
            if value:
                found[label, value] = team
                break
    return found


def _owner(labels: Mapping[str, str], grouping: Grouping, teams: Mapping[tuple[str, str], str]) -> tuple[str, ...]:
    """Return the cells that name an owner."""
    place = {name: labels.get(name, "") for name in _PLACE}
    if grouping.by == "team":
        by_user = teams.get(("user", place["user"]))
        return (by_user or teams.get(("namespace", place["namespace"]), ""),)
    if grouping.by == "user":
        return (place["user"],)
    own = (place["namespace"], place["cluster"])
    return own if grouping.by == "namespace" else (place["run"], *own)


def _columns(grouping: Grouping) -> tuple[Column, ...]:
    named = (Column(grouping.by.capitalize(), key=grouping.by),)
    if grouping.by in ("user", "team"):
        return named
    cluster = Column("Cluster", key="cluster")
    return (*named, cluster) if grouping.by == "namespace" else (*named, Column("Namespace", key="namespace"), cluster)


def _named(owner: tuple[str, ...], grouping: Grouping) -> tuple[str, ...]:
    return (owner[0] or ("no run" if grouping.by == "run" else "unknown"), *owner[1:])


def _totals(uses: _Uses, known: float | None, options: Options) -> Facts:
    held = sum(use.held for use in uses.values())
    idle = sum(use.causes.get(_IDLE, 0.0) for use in uses.values())
    joules = [use.joules for use in uses.values() if use.joules is not None]
    energy = sum(joules) if joules else None
    facts = [
        Fact("Known", None if known is None else known / 3600, "gpu_hours", "all GPUs", key="known_gpu_hours"),
        Fact("Held", held / 3600, "gpu_hours", "by a run, a process or an orchestrator", key="held_gpu_hours"),
        Fact(
            "Busy", _hours(uses, "busy"), "gpu_hours", "of those held, with a kernel on the GPU", key="busy_gpu_hours"
        ),
        Fact("Lost", _hours(uses, "lost"), "gpu_hours", "of those held, to all causes", key="lost_gpu_hours"),
        Fact("Held but idle", idle / 3600, "gpu_hours", "no work for longer than the threshold", key="idle_gpu_hours"),
        Fact(
            "Free",
            None if known is None else max(0.0, known - held) / 3600,
            "gpu_hours",
            "not held: capacity, not waste",
            key="free_gpu_hours",
        ),
        Fact("Energy", energy, "joules", "of held GPUs", key="energy_joules"),
    ]
    cost = options.money(held / 3600, energy)
    if cost is not None:
        facts.append(
            Fact(
                "Cost",
                cost,
                "money",
                f"of the held GPU-hours, and of the energy if it has a price{options.currency_note}",
                key="cost",
            )
        )
    return Facts(tuple(facts))


def _hours(uses: _Uses, what: Literal["busy", "lost"]) -> float:
    return sum(use.busy if what == "busy" else use.lost for use in uses.values()) / 3600


def _table(uses: _Uses, earlier: _Uses | None, grouping: Grouping, options: Options, rows: int | None) -> Table:
    has_cost = options.money(1.0, 1.0) is not None
    serves = any(use.lost_in_serving for use in uses.values())
    columns = [
        *_columns(grouping),
        Column("Held", "gpu_hours", "GPU-hours", key="held_gpu_hours"),
        Column("Busy", "gpu_hours", "of them", key="busy_gpu_hours"),
        Column("Lost", "gpu_hours", "of them", key="lost_gpu_hours"),
        Column("Lost share", "share", "of the hours held", key="lost_ratio"),
        Column("Held but idle", "gpu_hours", "without work for longer than the threshold", key="idle_gpu_hours"),
        *(
            [Column("Lost in serving", "gpu_hours", "not in use, apart from Lost", key="serving_lost_gpu_hours")]
            if serves
            else []
        ),
        Column("Energy", "joules", key="energy_joules"),
        *([Column("Cost", "money", key="cost"), Column("Cost of loss", "money", key="lost_cost")] if has_cost else []),
    ]
    if earlier is not None:
        columns += [
            Column("Held before", "gpu_hours", "in the period compared with", key="held_gpu_hours_before"),
            Column("Held, change", "gpu_hours", key="held_gpu_hours_change"),
            Column("Lost share before", "share", key="lost_ratio_before"),
        ]
    names = {**uses, **(earlier or {})}  # an owner that held GPUs in either period
    order = sorted(names, key=lambda owner: (-uses.get(owner, _Use()).held, owner))
    table: list[tuple[Value, ...]] = []
    for owner in order[:rows]:
        use = uses.get(owner, _Use())
        held, lost = use.held / 3600, use.lost / 3600
        row: list[Value] = [*_named(owner, grouping), held, use.busy / 3600, lost, use.lost_share]
        row += [use.causes.get(_IDLE, 0.0) / 3600, *([use.lost_in_serving / 3600] if serves else []), use.joules]
        if has_cost:
            row += [options.money(held, use.joules), options.money(lost, None)]
        if earlier is not None:
            before = earlier.get(owner, _Use())
            row += [before.held / 3600, held - before.held / 3600, before.lost_share]
        table.append(tuple(row))
    left = order[len(table) :]
    others = sum(uses[owner].held for owner in left if owner in uses) / 3600
    note = f"{len(left)} more owners held {plain(others)} GPU-hours together." if left else ""
    return Table(tuple(columns), tuple(table), title=f"GPU-hours by {grouping.by}", note=note, key="owners")


class _Loss(NamedTuple):
    """The loss of one owner to one cause."""

    seconds: float
    owner: tuple[str, ...]
    cause: str


def _losses(uses: _Uses) -> list[_Loss]:
    """Return the losses to known causes, the largest first."""
    losses = [
        _Loss(seconds, owner, cause)
        for owner, use in uses.items()
        for cause, seconds in use.causes.items()
        if cause in CAUSES and seconds > 0
    ]
    return sorted(losses, key=lambda each: (-each.seconds, each.owner, each.cause))


def _highlights(losses: list[_Loss], uses: _Uses, grouping: Grouping, options: Options) -> tuple[Fact, ...]:
    """Return the main numbers for the top of the report."""
    held, lost = sum(use.held for use in uses.values()), sum(use.lost for use in uses.values())
    facts = [
        Fact("Lost", lost / held if held else None, "share", "of the GPU time held", key="lost_ratio"),
        Fact("GPU-hours lost", lost / 3600, "gpu_hours", f"of {plain(held / 3600)}"),
    ]
    if losses:
        largest = losses[0]
        name = " ".join(filter(None, _named(largest.owner, grouping)))
        facts.insert(0, Fact("Largest saving", largest.cause, "cause", f"{grouping.by} {name}"))
    cost = options.money(lost / 3600, None)
    if cost is not None:
        facts.append(Fact("Cost of lost time", cost, "money", f"of these GPU-hours{options.currency_note}"))
    return tuple(facts)


def _bars(uses: _Uses, grouping: Grouping) -> list[Block]:
    """Return bars of the hours held by owner, and of those lost by cause."""
    owners = sorted(uses, key=lambda owner: (-uses[owner].held, owner))[:_BARS]
    rows = tuple(" ".join(filter(None, _named(owner, grouping))) for owner in owners)
    lost = [min(uses[owner].lost, uses[owner].held) / 3600 for owner in owners]
    held = [uses[owner].held / 3600 for owner in owners]
    said = [f"{row} {plain(all_)} h, {plain(part)} h lost" for row, all_, part in zip(rows, held, lost, strict=True)]
    parts = (
        Part("held", tuple(all_ - part for all_, part in zip(held, lost, strict=True)), "not lost"),
        Part("lost", tuple(lost), "lost"),
    )
    blocks: list[Block] = [
        Figure(f"GPU-hours held, by {grouping.by}", Bars(rows, parts, "gpu_hours"), f"{'; '.join(said)}.")
    ]
    causes: dict[str, float] = {}
    for each in _losses(uses):
        causes[each.cause] = causes.get(each.cause, 0.0) + each.seconds
    if causes:
        blocks.append(bars_by_cause("GPU", sorted(causes.items(), key=lambda each: -each[1])))
    return blocks


def _savings(losses: list[_Loss], uses: _Uses, grouping: Grouping, options: Options) -> list[Block]:
    """Return the largest losses of one owner to one cause, each with its remedy."""
    if not losses:
        return [Notice("good", "No GPU time was lost to a known cause.")]
    has_cost = options.gpu_hour_price is not None
    rows: list[tuple[Value, ...]] = []
    for number, (seconds, owner, cause) in enumerate(losses[:_SAVINGS], 1):
        cost: list[Value] = [options.money(seconds / 3600, None)] if has_cost else []
        rows.append((float(number), *_named(owner, grouping), cause, seconds / 3600, *cost, CAUSES[cause].remedy))
    return [
        _first(losses[0], uses, grouping, options),
        Table(
            (
                Column("No.", "count", key="number"),
                *_columns(grouping),
                Column("Cause", "cause", key="cause"),
                Column("Lost", "gpu_hours", "GPU-hours, an upper limit of the saving", key="lost_gpu_hours"),
                *([Column("Cost", "money", key="lost_cost")] if has_cost else []),
                Column("What to change", key="remedy"),
            ),
            tuple(rows),
            title=f"Top {len(rows)} savings",
            note="Causes overlap, so savings do not add up.",
            key="savings",
        ),
    ]


def _first(loss: _Loss, uses: _Uses, grouping: Grouping, options: Options) -> Recommendation:
    """Return the advice with the largest saving."""
    hours, held = loss.seconds / 3600, uses[loss.owner].held / 3600
    name = " ".join(filter(None, _named(loss.owner, grouping)))
    share = hours / held if held else None
    gain = [
        Fact("Time", share, "share", f"of the GPU time of {name}", key="lost_ratio"),
        Fact("GPU-hours", hours, "gpu_hours", key="lost_gpu_hours"),
    ]
    cost = options.money(hours, None)
    if cost is not None:
        gain.append(Fact("Cost", cost, "money", key="lost_cost"))
    words = "" if share is None else f"{plain(hours)} of {plain(held)} GPU-hours = {percent(share)}."
    return Recommendation(
        1, loss.cause, tuple(gain), words, f"{grouping.by.capitalize()} {name}: {CAUSES[loss.cause].remedy}"
    )
