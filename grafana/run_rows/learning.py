"""Throughput, and the values that the training reports."""

from __future__ import annotations

from grafana.builders.choices import RUN
from grafana.builders.dashboard import Row
from grafana.builders.field import ORANGE, Override, limit_line
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query, threshold
from grafana.run_rows.run_queries import RANK_HERE, TO_COMPARE


def _samples() -> Panel:
    return time_series(
        "Throughput",
        "Samples and tokens per second, of all ranks. If it falls at the same batch size, find the phase that grew.",
        [
            Query(f"max by (run) (run:samples:rate5m{{{RUN}}})", "samples a second, {{run}}"),
            Query(f"max by (run) (run:tokens:rate5m{{{RUN}}})", "tokens a second, {{run}}"),
        ],
        unit="short",
        width=8,
        overrides=[Override(("byRegexp", "/^tokens/"), {"custom.axisPlacement": "right"})],
        links=[TO_COMPARE],
    )


def _batch() -> Panel:
    return time_series(
        "Batch size and epoch",
        "Samples per step over all ranks; right: epoch.",
        [
            Query(f"max by (run) (run:batch_size:sum{{{RUN}}})", "batch, {{run}}"),
            Query(f"max by (run) (stallscope_training_epoch{{{RANK_HERE}}})", "epoch, {{run}}"),
        ],
        unit="short",
        width=8,
        overrides=[Override(("byRegexp", "/^epoch/"), {"custom.axisPlacement": "right", "unit": "none"})],
    )


def _mfu() -> Panel:
    return time_series(
        "Model FLOPs utilisation (MFU)",
        "Model FLOP/s relative to the GPUs' peak in the model's precision. Below the line: check precision, kernels "
        "and parallel layout. Empty if the code reports no FLOPs.",
        [Query(f"max by (run) (run:mfu:ratio5m{{{RUN}}})", "{{run}}"), threshold("mfu_low", "low below this line")],
        unit="percentunit",
        width=8,
        overrides=limit_line("low below this line", colour=ORANGE),
        links=[TO_COMPARE],
    )


def _learning(title: str, description: str, name: str) -> Panel:
    series = f"stallscope_training_{name}{{{RANK_HERE}}}"
    return time_series(
        title,
        description,
        [
            Query(f"avg by (run) ({series})", "{{run}}, mean of ranks"),
            Query(f"max by (run) ({series})", "{{run}}, most"),
        ],
        unit="short",
        width=6,
        minimum=None,
        show_legend=False,
        links=[TO_COMPARE],
    )


def _values() -> Panel:
    return time_series(
        "Custom values",
        "Values reported with report(name=value), mean over the ranks.",
        [Query(f"avg by (run, name) (stallscope_training_value{{{RANK_HERE}}})", "{{name}}, {{run}}")],
        unit="short",
        width=6,
        minimum=None,
    )


def row() -> Row:
    """Return the row."""
    return Row(
        "Throughput and learning",
        (
            _samples(),
            _batch(),
            _mfu(),
            _learning(
                "Loss",
                "Last reported value. A gap may be a NaN loss: check the alerts.",
                "loss",
            ),
            _learning("Learning rate", "Last reported value.", "learning_rate"),
            _learning(
                "Gradient norm",
                "Last reported value. A peak before the loss jumps: clip gradients, or lower the learning rate.",
                "gradient_norm",
            ),
            _values(),
        ),
    )
