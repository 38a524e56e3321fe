"""Supported and unsupported signals of these GPUs."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.panel import Panel, table
from grafana.builders.query import Query
from grafana.gpu_rows.gpu_queries import ONE, PLACE, PLACE_LINKS


def row() -> Row:
    """Return the row."""
    return Row("Signals and MIG instances", (_unsupported(), _mig()), collapsed=True)


def _unsupported() -> Panel:
    return table(
        "Signals not supported by this GPU and driver",
        "Signals that a model does not support with its driver, and the number of GPUs. Panels of these signals are "
        "empty, and nothing is wrong.",
        [
            Query(
                f"""
                count by (model, driver_version, signal) (
                    (stallscope_gpu_signal_supported{{{GPU}}} == 0)
                  + on ({ONE}) group_left (model, driver_version)
                    stallscope_gpu_info{{{GPU}}}
                )
                """,
                table=True,
            )
        ],
        columns={"model": "Model", "driver_version": "Driver", "signal": "Signal", "Value": "GPUs"},
        unit="none",
        width=12,
        sort="GPUs",
        no_value="All signals are supported.",
    )


def _mig() -> Panel:
    return table(
        "MIG instances",
        "GPU partitions that are allocated separately. Each has its own verdicts and lines in all panels.",
        [
            Query(
                f'max by (cluster, instance, gpu, mig, uuid, model) (stallscope_gpu_info{{{GPU}, mig!=""}})', table=True
            )
        ],
        columns={**PLACE, "model": "Model", "uuid": "UUID"},
        unit="none",
        width=12,
        overrides=PLACE_LINKS,
        no_value="No selected GPU has MIG instances.",
    )
