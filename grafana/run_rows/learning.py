"""Throughput, and what the training itself tells."""

from __future__ import annotations

from grafana.builders.choices import RUN
from grafana.builders.dashboard import Row
from grafana.builders.field import ORANGE, Override, limit_line
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query, threshold
from grafana.run_rows.asking import RANK_HERE, TO_COMPARE


def _samples() -> Panel:
    return time_series(
        "Throughput",
        "Samples and tokens a second, of all ranks. A fall with an unchanged batch size is lost time: see which phase "
        "grew.",
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
        "Samples in a step of all ranks, and the epoch on the right.",
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
        "Model FLOP/s used",
        "Useful arithmetic over what the GPUs could do in the model's precision. Under the line: check precision, "
        "kernels and parallel layout. Missing where the code tells no FLOPs.",
        [Query(f"max by (run) (run:mfu:ratio5m{{{RUN}}})", "{{run}}"), threshold("mfu_low", "low from here down")],
        unit="percentunit",
        width=8,
        overrides=limit_line("low from here down", colour=ORANGE),
        links=[TO_COMPARE],
    )


def _learning(title: str, description: str, name: str, *, logarithmic: bool = False) -> Panel:
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
        logarithmic=logarithmic,
        show_legend=False,
        links=[TO_COMPARE],
    )


def _values() -> Panel:
    return time_series(
        "The code's own values",
        "What the training tells by report(name=figure), a mean over its ranks.",
        [Query(f"avg by (run, name) (stallscope_training_value{{{RANK_HERE}}})", "{{name}}, {{run}}")],
        unit="short",
        width=6,
        minimum=None,
    )


def row() -> Row:
    """Return throughput, and what the code tells."""
    return Row(
        "Throughput and learning",
        (
            _samples(),
            _batch(),
            _mfu(),
            _learning(
                "Loss",
                "As the code told it last. A gap may be a loss that is not a number: alerts tell.",
                "loss",
            ),
            _learning("Learning rate", "As the code told it last.", "learning_rate", logarithmic=True),
            _learning(
                "Gradient norm",
                "As the code told it last. A peak before the loss jumps: clip gradients, or lower the learning rate.",
                "gradient_norm",
                logarithmic=True,
            ),
            _values(),
        ),
    )
