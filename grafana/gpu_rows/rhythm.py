"""What a mean hides: dips and idle moments."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import Override
from grafana.builders.panel import Panel, heat_map, time_series
from grafana.builders.query import Query
from grafana.gpu_rows.asking import CURVE, MINUTE, NAME, rate, share


def row() -> Row:
    """Return the row."""
    return Row("Rhythm: dips and idle moments", (_histogram(), _below(), _dips(), _dip_period()), collapsed=True)


def _histogram() -> Panel:
    return heat_map(
        "Utilisation, sample by sample",
        "How the driver's own samples are distributed, several a second: a band at 0 beside one at 100 % is a GPU "
        "that waits and computes in turn, which a mean hides.",
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
        "Time under a level of utilisation",
        "Share of time in samples of utilisation 0, and under 0.1 and 0.5. Time at 0 is time paid for and not used.",
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
        "Dips a minute",
        "How often utilisation fell under 0.1 after at least a second above 0.5. Something outside of the step "
        "interrupts training: checkpoints, logging, validation, slow batches.",
        [Query(f"{MINUTE} * {rate('stallscope_gpu_dips_total')}", NAME)],
        unit="short",
        links=CURVE,
    )


def _dip_period() -> Panel:
    return time_series(
        "Period of dips",
        "Time between dips, in seconds and in steps of the run there, where they come regularly; a period of fifty "
        "steps points at what the code does every fifty steps. Nothing here: no regular dips.",
        [
            Query(f"gpu:dip_period:seconds30m{{{GPU}}}", f"{NAME} seconds"),
            Query(f"gpu:dip_period:steps30m{{{GPU}}}", f"{NAME} steps"),
        ],
        unit="s",
        overrides=[Override(("byRegexp", "/ steps$/"), {"unit": "none", "custom.axisPlacement": "right"})],
        links=CURVE,
    )
