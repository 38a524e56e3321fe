"""Steps and GPU activity."""

from __future__ import annotations

from grafana.builders.choices import HOST, RUN
from grafana.builders.dashboard import Row
from grafana.builders.field import Override, by_name, fixed_colours
from grafana.builders.panel import Panel, heat_map, stat, table, time_series
from grafana.builders.phases import shares
from grafana.builders.query import Query
from grafana.run_rows.run_queries import (
    BY_RANK,
    BY_RUN,
    CELL_TO_GPU,
    CELL_TO_HOST,
    CELL_TO_RANK,
    MANY,
    RANK_HERE,
    TO_COMPARE,
    of_gpus,
)
from stallscope.catalogue.causes import PHASE_COLOURS


def _activity_against_steps() -> Panel:
    dips = "rate(stallscope_gpu_dip_interval_seconds_{}{{{}}}[$__rate_interval])"
    interval = (
        f"sum by ({BY_RUN}) ({of_gpus(dips.format('sum', HOST))})"
        f" / (sum by ({BY_RUN}) ({of_gpus(dips.format('count', HOST))}) > 0)"
    )
    sample = of_gpus(f"stallscope_gpu_utilization_ratio{{{HOST}}}")
    dipping = of_gpus(f'rate(stallscope_gpu_below_seconds_total{{{HOST}, level="0.1"}}[$__rate_interval] @ end())')
    return time_series(
        "GPU activity and steps between dips",
        "Left: GPU utilisation, and the share of time below 10 %, from the driver's own samples, so dips between two "
        "scrapes are included. Right: number of steps between two dips. If it is constant, look for work that the loop "
        "does every N steps.",
        [
            Query(
                f"avg by (run) ({of_gpus(f'rate(stallscope_gpu_busy_seconds_total{{{HOST}}}[$__rate_interval])')})",
                "kernel resident",
            ),
            Query(
                "avg by (run) ("
                + of_gpus(f'rate(stallscope_gpu_below_seconds_total{{{HOST}, level="0.1"}}[$__rate_interval])')
                + ")",
                "under 10 %",
            ),
            Query(
                f"({sample}) and on ({BY_RANK}) topk by ({BY_RUN}) (4, max by ({BY_RANK}) ({dipping}))",
                "sample, rank {{rank}}",
            ),
            Query(f"({interval}) / on ({BY_RUN}) run:step:seconds5m{{{RUN}}}", "steps between dips"),
            Query(
                f"min by (run) ({of_gpus(f'gpu:dip_period:steps30m{{{HOST}}}')})",
                "steps between regular dips",
            ),
            Query(f"max by (run) (run:step:max{{{RUN}}})", "step"),
        ],
        unit="percentunit",
        maximum=1,
        width=24,
        height=10,
        legend=["mean", "lastNotNull"],
        overrides=[
            *fixed_colours({"kernel resident": "#37872D", "under 10 %": "#C4162A", "steps between dips": "#3274D9"}),
            by_name("under 10 %", custom__fillOpacity=40),
            Override(("byRegexp", "/^sample/"), {"custom.drawStyle": "points", "custom.pointSize": 4}),
            *(
                by_name(
                    name,
                    unit="none",
                    decimals=0,
                    max=None,
                    custom__axisPlacement="right",
                    custom__axisLabel="steps",
                    custom__drawStyle=style,
                )
                for name, style in (("steps between dips", "points"), ("steps between regular dips", "line"))
            ),
            by_name("steps between regular dips", custom__lineStyle={"fill": "dash", "dash": [8, 8]}),
            # The step's scale would flatten the rest; its place is the tooltip, from which Grafana hides what it hides
            # from view.
            by_name(
                "step",
                unit="locale",
                decimals=0,
                max=None,
                custom__lineWidth=0,
                custom__showPoints="never",
                custom__axisPlacement="hidden",
            ),
        ],
    )


def _comes_back() -> Panel:
    slow = f"increase(stallscope_training_slow_steps_total{{{RANK_HERE}}}[$__range])"
    steps = f"avg by (run) (increase(stallscope_training_step_seconds_count{{{RANK_HERE}}}[$__range]))"
    dips = of_gpus(f"increase(stallscope_gpu_dips_total{{{HOST}}}[$__range])")
    phases = 'phase!~"data_wait|host_copy|forward|backward|communication|optimizer|other|initialization|restore"'
    occurrences = f"increase(stallscope_training_phase_occurrences_total{{{RANK_HERE}, {phases}}}[$__range])"
    return stat(
        "Work that recurs every N steps",
        "Number of steps, over the time range, per GPU dip, per slow step, and per occurrence of a phase that not "
        "every step has. A phase with the same number as the dips causes them: do it less often, or outside the loop.",
        [
            Query(f"{steps} / (avg by (run) ({dips}) > 0)", "GPU dip", instant=True),
            Query(f"{steps} / (avg by (run) ({slow}) > 0)", "slow step", instant=True),
            Query(
                f"{steps} / on (run) group_right () (max by (run, phase) ({occurrences}) > 0)",
                "{{phase}}",
                instant=True,
            ),
        ],
        unit="locale",
        decimals=0,
        width=12,
        height=5,
        text_of="value_and_name",
        no_value="none",
    )


def _regular_dips() -> Panel:
    steps, seconds = (f"gpu:dip_period:{unit}30m{{{HOST}}}" for unit in ("steps", "seconds"))
    busy = f"gpu:regular_dips:ratio5m{{{HOST}}}"
    labels = "cluster, namespace, run, rank, instance, gpu"
    return table(
        "GPUs with regular dips",
        "Regular dips by GPU, with the time they cost. The cause is work that the loop does at that interval (logging, "
        "saving, evaluating, reading a loss): do it less often, or asynchronously.",
        [
            Query(f"topk({MANY}, max by ({labels}) ({of_gpus(expression)}))", table=True)
            for expression in (steps, seconds, busy)
        ],
        columns={
            "run": "Run",
            "rank": "Rank",
            "instance": "Node",
            "gpu": "GPU",
            "Value #A": "Every … steps",
            "Value #B": "Every … seconds",
            "Value #C": "Time below 10 % utilisation",
        },
        width=12,
        height=5,
        sort="Time below 10 % utilisation",
        overrides=[
            by_name("Rank", links=[CELL_TO_RANK]),
            by_name("Node", links=[CELL_TO_HOST]),
            by_name("GPU", links=[CELL_TO_GPU]),
            by_name("Every … steps", unit="none", decimals=0),
            by_name("Every … seconds", unit="s", decimals=1),
            by_name("Time below 10 % utilisation", unit="percentunit", decimals=1),
        ],
        no_value="No GPU has regular dips.",
    )


def _step_times() -> Panel:
    bucket = f"run:step_seconds_bucket:rate5m{{{RUN}}}"
    return time_series(
        "Step time",
        "Quantiles over all ranks in five minutes, and the mean. A 99th percentile far above the median means slow "
        "steps: compare with saves and dips. A rising mean means drift.",
        [
            *(
                Query(f"histogram_quantile({share}, sum by (run, le) ({bucket}))", name)
                for share, name in ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))
            ),
            Query(f"max by (run) (run:step:seconds5m{{{RUN}}})", "mean"),
            Query(
                "max by (run) ("
                f"rate(stallscope_training_slow_step_excess_seconds_total{{{RANK_HERE}}}[$__rate_interval])"
                f" / (rate(stallscope_training_slow_steps_total{{{RANK_HERE}}}[$__rate_interval]) > 0))",
                "loss per slow step, mean",
            ),
        ],
        unit="s",
        legend=["mean", "max"],
        overrides=[
            *fixed_colours({"median": "#37872D", "95 %": "#E0B400", "99 %": "#C4162A", "mean": "#3274D9"}),
            by_name("loss per slow step, mean", custom__drawStyle="points"),
        ],
        links=[TO_COMPARE],
    )


def _step_heat() -> Panel:
    return heat_map(
        "Step time distribution",
        "Steps per second by duration. One band is a steady run. A second band above it is another kind of step, for "
        "example one that saves or logs.",
        Query(f"sum by (le) (run:step_seconds_bucket:rate5m{{{RUN}}})", "{{le}}", heat_map=True),
        unit="s",
    )


def _phases(title: str, description: str, record: str) -> Panel:
    return time_series(
        title,
        description,
        [Query(shares(f"{record}{{{RUN}}}", "run"), "{{phase}}")],
        unit="percentunit",
        stacked=True,
        legend=["mean", "lastNotNull"],
        overrides=fixed_colours(PHASE_COLOURS),
        links=[TO_COMPARE],
    )


def row() -> Row:
    """Return the row."""
    return Row(
        "Steps and GPU activity",
        (
            _activity_against_steps(),
            _comes_back(),
            _regular_dips(),
            _step_times(),
            _step_heat(),
            _phases(
                "Time by phase",
                "Share of the ranks' time in each phase, by the host's clock. The growing phase is where time goes. "
                "Asynchronous copies and kernels appear only as far as the host waits for them.",
                "run_phase:time:rate5m",
            ),
            _phases(
                "Time by phase, GPU clock",
                "Phases as measured on the device, if the integration supports it. A copy that is long here but short "
                "on the left delays the GPU unnoticed.",
                "run_phase:gpu_time:rate5m",
            ),
        ),
    )
