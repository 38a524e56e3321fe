"""Steps: their duration, throughput, and the activity of the GPUs."""

from __future__ import annotations

from grafana.builders.choices import HOST, RUN
from grafana.builders.dashboard import Row
from grafana.builders.field import Override, fixed_colours, limit_line
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query, threshold
from grafana.run_rows.run_queries import RANK_HERE, TO_COMPARE, of_gpus
from grafana.run_rows.spread import spread
from stallscope.model.catalogue.causes import colour_of


def _step_time() -> Panel:
    step = "rate(stallscope_training_step_seconds_{}{{{}}}[$__rate_interval])"
    excess = "rate(stallscope_training_slow_step{}_total{{{}}}[$__rate_interval])"
    slow = f"{excess.format('_excess_seconds', RANK_HERE)} / ({excess.format('s', RANK_HERE)} > 0)"
    return spread(
        "Step time",
        "Mean step time of each rank: lowest, median and highest. Ranks that train together have equal step times. "
        "Points: the extra time of a slow step, mean; compare them with checkpoints and dips. A rising median means "
        "drift.",
        f"{step.format('sum', RANK_HERE)} / ({step.format('count', RANK_HERE)} > 0)",
        "s",
        points=Query(f"max by (run) ({slow})", "extra time of a slow step"),
        width=12,
    )


def _activity() -> Panel:
    below = f'rate(stallscope_gpu_below_seconds_total{{{HOST}, level="0.1"}}[$__rate_interval])'
    return time_series(
        "GPU activity",
        "Share of time with a kernel resident, and with utilisation below 10 %, mean of the run's GPUs, from the "
        "driver's own samples, so dips between two scrapes are included. Below 10 %, the GPU waits for the host.",
        [
            Query(f"max by (run) (run:gpu_busy:ratio5m{{{RUN}}})", "kernel resident"),
            Query(f"avg by (run) ({of_gpus(below)})", "below 10 %"),
        ],
        unit="percentunit",
        overrides=fixed_colours({"kernel resident": colour_of("healthy"), "below 10 %": colour_of("input_bound")}),
    )


def _samples() -> Panel:
    return time_series(
        "Throughput",
        "Samples and (right axis) tokens per second, of all ranks. If it falls at the same batch size, find the phase "
        "that grew.",
        [
            Query(f"max by (run) (run:samples:rate5m{{{RUN}}})", "samples a second, {{run}}"),
            Query(f"max by (run) (run:tokens:rate5m{{{RUN}}})", "tokens a second, {{run}}"),
        ],
        unit="short",
        overrides=[Override(("byRegexp", "/^tokens/"), {"custom.axisPlacement": "right"})],
        links=[TO_COMPARE],
    )


def _mfu() -> Panel:
    return time_series(
        "Model FLOPs utilisation (MFU)",
        "Model FLOP/s relative to the GPUs' peak in the model's precision. Below the line: check precision, kernels "
        "and parallel layout. Empty if the code reports no FLOPs.",
        [Query(f"max by (run) (run:mfu:ratio5m{{{RUN}}})", "{{run}}"), threshold("mfu_low", "low below this line")],
        unit="percentunit",
        overrides=limit_line("low below this line"),
        links=[TO_COMPARE],
    )


def row() -> Row:
    """Return the row."""
    return Row("Steps and throughput", (_step_time(), _activity(), _samples(), _mfu()))
