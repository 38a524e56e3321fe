"""Row of the fleet dashboard: GPU time, cost and savings of owners, as in `stallscope report --by`."""

from __future__ import annotations

from collections.abc import Sequence

from grafana.builders import Json, variables, verdicts
from grafana.builders.choices import CLUSTER
from grafana.builders.dashboard import Row
from grafana.builders.field import Override, by_name
from grafana.builders.panel import Panel, stat, table
from grafana.builders.query import Query

_SAVINGS = 10
_RECORDED_EVERY = "2m"
"""Interval of the rules that record owners: a shorter step reads each value twice."""
_BEFORE = " offset $__range"
_KNOWN = "cluster:gpus_known:count"
_HELD = "owner:gpus_held:sum"
_BUSY = "owner:gpus_busy:sum5m"
_LOST = "owner:gpus_lost:sum5m"
_LOST_BY_CAUSE = "owner_cause:gpus_lost:sum5m"
_IDLE = 'cause="idle_allocated"'
_POWER = "owner:power:watts5m"
PRICE = "$price_per_gpu_hour"
_HOURS: dict[str, object] = {"unit": "locale", "decimals": 1}
_SHARE: dict[str, object] = {"unit": "percentunit", "decimals": 0}


def variable() -> Json:
    """Return the variable that selects the kind of owner."""
    return variables.choice(
        "owner",
        ("user", "namespace", "label_team"),
        title="owner",
        description="User, namespace, or team: the label label_team of kube_namespace_labels or user:team:info. Enter "
        "another label of these two series if your teams have one.",
        texts={"label_team": "team"},
    )


def money(heading: str, *, width: int = 100) -> Override:
    """Return the override of a column of costs, whose heading then names the currency."""
    return by_name(heading, displayName=f"{heading}, $currency", unit="locale", decimals=2, custom__width=width)


def _sum(record: str, by: Sequence[str] = (), *, matchers: str = "", offset: str = "") -> str:
    """Return PromQL for the sum of a record over the time range, in hours."""
    selector = f"{record}{{{', '.join(filter(None, (CLUSTER, matchers)))}}}"
    # The sum over time comes first: a sum by labels at each step takes twice as long.
    return (
        f"sum by ({', '.join(by)}) (sum_over_time({selector}[$__range:$__interval]{offset})) * $__interval_ms / 3600000"
    )


def by_owner(record: str, *more: str, matchers: str = "", offset: str = "") -> str:
    """Return PromQL for the sum of a record over the time range, in hours, of each owner.

    Args:
        record: with the labels `namespace` and `user`.
        more: further labels to keep.
        matchers: of the record.
        offset: of the time range.
    """
    place = ("namespace", "user", *more)
    hours = f"({_sum(record, place, matchers=matchers, offset=offset)})"
    labels = ", ".join(place)
    of_user = _teams("user", 'user:team:info{$owner!="", user!=""}')
    named = 'label_replace(kube_namespace_labels{$owner!=""}, "namespace", "$1", "exported_namespace", "(.+)")'
    # The team of a user takes precedence, as in the report.
    found = (
        f"{hours} * on (user) group_left (owner) {of_user}"
        f" or on ({labels}) {hours} * on (namespace) group_left (owner) {_teams('namespace', named)}"
        f' or on ({labels}) label_replace({hours}, "owner", "$1", "$owner", "(.*)")'
    )
    by = ", ".join(("owner", *more))
    return f'sum by ({by}) (label_replace({found}, "owner", "unknown", "owner", ""))'


def _teams(label: str, series: str) -> str:
    """Return PromQL for a series of value 1 with the label `owner`, for each value of `label`."""
    owned = f'label_replace({series}, "owner", "$1", "$owner", "(.+)")'
    return f"topk by ({label}) (1, group by ({label}, owner) ({owned}))"


def _query(expression: str) -> Query:
    return Query(expression, table=True, least_step=_RECORDED_EVERY)


def _totals() -> Panel:
    held = f"({_sum(_HELD)})"
    idle = _sum(_LOST_BY_CAUSE, matchers=_IDLE)
    return stat(
        "GPU-hours in the time range",
        "GPU-hours of all known GPUs; of those that an owner holds; and, of these, busy, lost to all causes, and held "
        "without work for longer than the threshold. Free GPUs have no owner: they are capacity, not waste.",
        [
            Query(expression, name, instant=True, least_step=_RECORDED_EVERY)
            for name, expression in (
                ("known", _sum(_KNOWN)),
                ("held", held),
                ("busy", _sum(_BUSY)),
                ("lost", f"{_sum(_LOST)} or 0 * {held}"),
                ("held but idle", f"{idle} or 0 * {held}"),
                ("free", f"clamp_min(({_sum(_KNOWN)}) - ({held} or 0 * ({_sum(_KNOWN)})), 0)"),
            )
        ],
        unit="locale",
        decimals=1,
        width=24,
        height=5,
        text_of="value_and_name",
        no_value="No GPU is known.",
    )


def _owners() -> Panel:
    held, busy, before = by_owner(_HELD), by_owner(_BUSY), by_owner(_HELD, offset=_BEFORE)
    # Without a loss there is no series; without a value of busy, losses are unknown too.
    lost = f"({by_owner(_LOST)} or 0 * {busy})"
    idle = f"({by_owner(_LOST_BY_CAUSE, matchers=_IDLE)} or 0 * {busy})"
    lost_before = f"({by_owner(_LOST, offset=_BEFORE)} or 0 * {by_owner(_BUSY, offset=_BEFORE)})"
    columns = (
        ("Lost", lost, by_name("Lost", **_HOURS, custom__width=85)),
        ("Held", held, by_name("Held", **_HOURS, custom__width=90)),
        ("Busy", busy, by_name("Busy", **_HOURS, custom__width=90)),
        ("Held but idle", idle, by_name("Held but idle", **_HOURS, custom__width=110)),
        ("Lost share", f"{lost} / {held}", by_name("Lost share", **_SHARE, custom__width=95)),
        (
            "Lost share before",
            f"{lost_before} / {before}",
            by_name("Lost share before", **_SHARE, custom__width=145),
        ),
        # An owner without GPUs before has all of its hours as the change; without data, a change is unknown.
        (
            "Held, change",
            f"({held} - {before} or {held}) and on () count({_KNOWN}{{{CLUSTER}}} offset $__range)",
            by_name("Held, change", **_HOURS, custom__width=110),
        ),
        ("Energy", by_owner(_POWER), by_name("Energy", unit="watth", decimals=1, custom__width=95)),
        ("Cost", f"{PRICE} * {held}", money("Cost")),
        ("Cost of loss", f"{PRICE} * {lost}", money("Cost of loss", width=140)),
    )
    return table(
        "GPU-hours by owner",
        "GPU-hours that each owner holds over the time range: of these, the hours that are busy, lost to all causes, "
        "and idle for longer than the threshold. Changes are relative to the preceding period of equal length. Select "
        "user, namespace or team above; a name in several clusters is one row. Contact the owner in the first row: the "
        "table below has the remedies. stallscope report --by shows the same values.",
        [_query(expression) for _heading, expression, _override in columns],
        columns={
            "owner": "Owner",
            **{f"Value #{letter}": column[0] for letter, column in zip("ABCDEFGHIJ", columns, strict=True)},
        },
        height=9,
        sort="Lost",
        overrides=[
            by_name("Owner", custom__minWidth=120),
            *(override for _heading, _expression, override in columns),
        ],
        no_value="No GPU was held in this time range.",
    )


def losses(title: str, description: str, hours: str, *, height: int, of_owners: bool = False) -> Panel:
    """Return the table of GPU-hours lost to each cause, with their cost and remedy.

    Args:
        title: of the panel.
        description: of the panel.
        hours: PromQL for the GPU-hours by cause, and by owner where the losses are of owners.
        height: of the panel, in rows of Grafana's grid.
        of_owners: True for a row for each owner and cause.
    """
    expressions = (verdicts.with_remedy(f"({hours})"), f"{PRICE} * {hours}")
    return table(
        title,
        description,
        [_query(each) if of_owners else Query(each, table=True) for each in expressions],
        columns={
            **({"owner": "Owner"} if of_owners else {}),
            "cause": "Verdict",
            "Value #A": "GPU-hours",
            "Value #B": "Cost",
            "remedy": "What to change",
        },
        height=height,
        sort="GPU-hours",
        overrides=[
            *verdicts.columns(),
            *([by_name("Owner", custom__width=110)] if of_owners else ()),
            by_name("GPU-hours", **_HOURS, custom__width=115),
            money("Cost"),
        ],
        no_value="No loss is recorded in this time range.",
    )


def _savings() -> Panel:
    return losses(
        "Largest savings",
        f"The {_SAVINGS} largest losses of one owner to one cause over the time range, with the remedy. Causes "
        "overlap: do not sum them.",
        f"topk({_SAVINGS}, {by_owner(_LOST_BY_CAUSE, 'cause')} > 0)",
        height=9,
        of_owners=True,
    )


def row() -> Row:
    """Return the row."""
    return Row("GPU time of owners", (_totals(), _owners(), _savings()))
