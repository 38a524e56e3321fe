"""Supported and unsupported signals of these GPUs."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.panel import Panel, table
from grafana.builders.query import Query
from grafana.gpu_rows.gpu_queries import ONE


def row() -> Row:
    """Return the row."""
    return Row("Unsupported signals", (_unsupported(),), collapsed=True)


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
        sort="GPUs",
        no_value="All signals are supported.",
    )
