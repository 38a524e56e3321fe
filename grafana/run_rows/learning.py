"""Values that the training reports."""

from __future__ import annotations

from grafana.builders.dashboard import Row
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query
from grafana.run_rows.run_queries import RANK_HERE, TO_COMPARE


def _learning(title: str, description: str, name: str) -> Panel:
    return time_series(
        title,
        description,
        [Query(f"avg by (run) (stallscope_training_{name}{{{RANK_HERE}}})", "{{run}}")],
        unit="short",
        width=8,
        minimum=None,
        show_legend=False,
        links=[TO_COMPARE],
    )


def _values() -> Panel:
    return time_series(
        "Custom values",
        "The first eight values reported with report(name=value), mean over the ranks.",
        [Query(f"topk(8, avg by (run, name) (stallscope_training_value{{{RANK_HERE}}}))", "{{name}}, {{run}}")],
        unit="short",
        width=8,
        minimum=None,
    )


def row() -> Row:
    """Return the row."""
    return Row(
        "Learning",
        (
            _learning(
                "Loss",
                "Last reported value, mean of the ranks. A gap may be a NaN loss: check the alerts.",
                "loss",
            ),
            _learning(
                "Gradient norm",
                "Last reported value, mean of the ranks. A peak before the loss jumps: clip gradients, or lower the "
                "learning rate.",
                "gradient_norm",
            ),
            _values(),
        ),
        collapsed=True,
    )
