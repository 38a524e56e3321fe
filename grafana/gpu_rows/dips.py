"""Dips and idle time, which a mean hides."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import Override
from grafana.builders.panel import Panel, heat_map, time_series
from grafana.builders.query import Query
from grafana.gpu_rows.gpu_queries import CURVE, MINUTE, NAME, rate, share


def row() -> Row:
    """Return the row."""
    return Row("Utilisation dips and idle time", (_histogram(), _below(), _dips(), _dip_period()), collapsed=True)


def _histogram() -> Panel:
    return heat_map(
        "Distribution of utilisation samples",
        "Distribution of the driver's own samples, several per second. A band at 0 and one at 100 % show a GPU that "
        "alternates between waiting and computing, which a mean hides.",
        Query(
            f"sum by (le) (rate(stallscope_gpu_utilization_samples_bucket{{{GPU}}}[$__rate_interval]))",
            "{{le}}",
            heat_map=True,
            least_step="30s",
        ),
        unit="percentunit",
        width=12,
    )


def _below() -> Panel:
    return time_series(
        "Time at low utilisation",
        "Share of time with utilisation 0, below 0.1 and below 0.5. At 0, the GPU is paid for but not used.",
        [
            Query(share("stallscope_gpu_idle_seconds_total"), f"{NAME} at 0"),
            Query(share("stallscope_gpu_below_seconds_total"), f"{NAME} under {{{{level}}}}"),
        ],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )


def _dips() -> Panel:
    return time_series(
        "Dips per minute",
        "Number of times that utilisation fell below 0.1 after at least a second above 0.5. Work outside the step "
        "interrupts training: checkpoints, logging, validation, slow batches.",
        [Query(f"{MINUTE} * {rate('stallscope_gpu_dips_total')}", NAME)],
        unit="short",
        links=CURVE,
    )


def _dip_period() -> Panel:
    return time_series(
        "Interval of regular dips",
        "Time between dips, in seconds and in steps of the run, if they are regular. An interval of fifty steps points "
        "to work that the code does every fifty steps. Empty: no regular dips.",
        [
            Query(f"gpu:dip_period:seconds30m{{{GPU}}}", f"{NAME} seconds"),
            Query(f"gpu:dip_period:steps30m{{{GPU}}}", f"{NAME} steps"),
        ],
        unit="s",
        overrides=[Override(("byRegexp", "/ steps$/"), {"unit": "none", "custom.axisPlacement": "right"})],
        links=CURVE,
    )
