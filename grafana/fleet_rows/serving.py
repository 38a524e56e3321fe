"""Row of the fleet dashboard: GPUs of inference servers, if `prometheus/serving/serving.yml` is loaded."""

from __future__ import annotations

from grafana.builders.choices import CLUSTER
from grafana.builders.dashboard import Row
from grafana.builders.field import by_name
from grafana.builders.panel import Panel, table, time_series
from grafana.builders.query import Query
from grafana.fleet_rows.economics import PRICE, by_owner, money

_NOT_LOADED = "No inference server is known: prometheus/serving is not loaded, or no server is scraped."

_WIDTHS = (
    by_name("Server", custom__minWidth=120),
    by_name("Owner", custom__minWidth=120),
    by_name("Cause", custom__width=160),
    by_name("GPU-hours", unit="locale", decimals=1, custom__width=115),
    money("Cost"),
)


def _gpus() -> Panel:
    return time_series(
        "GPUs of inference servers, by cause",
        "GPUs that serve models. Idle: too few requests, scale down or share. Starved: requests wait, look at the "
        "host. KV full: the cache is too small.",
        [Query(f"sum by (cause) (serving:gpus:count{{{CLUSTER}}})", "{{cause}}", least_step="1m")],
        unit="short",
        width=24,
        no_value=_NOT_LOADED,
    )


def _lost() -> Panel:
    hours = (
        f"sum by (server, cause) (sum_over_time(serving:gpus_lost:sum5m{{{CLUSTER}}}[$__range:$__interval]))"
        " * $__interval_ms / 3600000"
    )
    return table(
        "GPU-hours lost in serving",
        "GPU-hours of inference servers in which the GPU was not busy, over the time range, and their cost. They are "
        "not part of the losses of training above.",
        [
            Query(f"{hours} > 0", table=True, least_step="2m"),
            Query(f"{PRICE} * {hours} > 0", table=True, least_step="2m"),
        ],
        columns={"server": "Server", "cause": "Cause", "Value #A": "GPU-hours", "Value #B": "Cost"},
        height=8,
        sort="GPU-hours",
        overrides=_WIDTHS,
        no_value=_NOT_LOADED,
    )


def _lost_by_owner() -> Panel:
    hours = f"{by_owner('serving_owner:gpus_lost:sum5m', 'cause')} > 0"
    return table(
        "GPU-hours lost in serving, by owner",
        "The same by user, namespace or team, as selected above. They are not part of the losses of owners in the row "
        "GPU time of owners.",
        [
            Query(hours, table=True, least_step="2m"),
            Query(f"{PRICE} * {hours}", table=True, least_step="2m"),
        ],
        columns={"owner": "Owner", "cause": "Cause", "Value #A": "GPU-hours", "Value #B": "Cost"},
        height=8,
        sort="GPU-hours",
        overrides=_WIDTHS,
        no_value=_NOT_LOADED,
    )


def row() -> Row:
    """Return the row."""
    return Row("Serving", (_gpus(), _lost(), _lost_by_owner()), collapsed=True)
