"""Code of the training that costs time: phases of the step, and work that recurs.

The groups of stacks belong to this row, too.
"""

from __future__ import annotations

from grafana.builders.bands import OTHER_COLOUR, bands
from grafana.builders.choices import HOST, RUN
from grafana.builders.dashboard import Row
from grafana.builders.field import ABSENT, by_name, fixed_colours
from grafana.builders.panel import Panel, table, time_series
from grafana.builders.phases import shares
from grafana.builders.query import Query
from grafana.run_rows.run_queries import (
    BY_RUN,
    CELL_TO_GPU,
    CELL_TO_HOST,
    CELL_TO_RANK,
    MANY,
    RANK_HERE,
    TO_COMPARE,
    of_gpus,
)
from stallscope.model.catalogue.causes import PHASE_COLOURS

_BY_PHASE = f"{BY_RUN}, phase"


def _phases(title: str, description: str, record: str, no_value: str = ABSENT) -> Panel:
    return time_series(
        title,
        description,
        bands(shares(f"{record}{{{RUN}}}"), "phase"),
        unit="percentunit",
        stacked=True,
        overrides=fixed_colours(PHASE_COLOURS | OTHER_COLOUR),
        links=[TO_COMPARE],
        no_value=no_value,
    )


def _lines() -> Panel:
    seconds = f"max by ({_BY_PHASE}, location, function) (run_code:time:rate2m{{{RUN}}})"
    phase = f"max by ({_BY_PHASE}) (run_phase:sampled_time:rate2m{{{RUN}}})"
    return table(
        "Lines of code by phase",
        "Lines in which the ranks spend the time of a phase, with the library's function that a line calls. Samples of "
        "stacks are taken once a phase of the host takes 10 % of a minute, and again every ten minutes. Start with the "
        "phase of the verdict.",
        [Query(f"{seconds} / on ({_BY_PHASE}) group_left () ({phase} > 0)", table=True)],
        columns={
            "run": "Run",
            "phase": "Phase",
            "location": "Line",
            "function": "Function",
            "Value": "Share of the phase",
        },
        height=7,
        sort="Share of the phase",
        overrides=[
            by_name("Run", custom__minWidth=140),
            by_name("Phase", custom__width=120),
            by_name("Line", custom__minWidth=200),
            by_name("Function", custom__minWidth=400),
            by_name("Share of the phase", unit="percentunit", decimals=0, custom__width=170),
        ],
        no_value="No samples: no phase of the host takes much time, or STALLSCOPE_STACKS=0.",
    )


def _comes_back() -> Panel:
    slow = f"increase(stallscope_training_slow_steps_total{{{RANK_HERE}}}[$__range])"
    steps = f"avg by (run) (increase(stallscope_training_step_seconds_count{{{RANK_HERE}}}[$__range]))"
    dips = of_gpus(f"increase(stallscope_gpu_dips_total{{{HOST}}}[$__range])")
    phases = 'phase!~"data_wait|host_copy|forward|backward|communication|optimizer|other|initialization|restore"'
    occurrences = f"increase(stallscope_training_phase_occurrences_total{{{RANK_HERE}, {phases}}}[$__range])"
    work = " or ".join(
        f'label_replace({every}, "work", "{name}", "{label}", "(.*)")'
        for every, name, label in (
            (f"{steps} / (avg by (run) ({dips}) > 0)", "GPU dip", ""),
            (f"{steps} / (avg by (run) ({slow}) > 0)", "slow step", ""),
            (f"{steps} / on (run) group_right () (max by (run, phase) ({occurrences}) > 0)", "$1", "phase"),
        )
    )
    return table(
        "Work that recurs every N steps",
        "Number of steps, over the time range, per GPU dip, per slow step, and per occurrence of a phase that not "
        "every step has. A phase with the same number as the dips causes them: do it less often, or outside the loop.",
        [Query(f"max by (run, work) ({work})", table=True)],
        columns={"run": "Run", "work": "Work", "Value": "Every … steps"},
        width=8,
        height=6,
        sort="Every … steps",
        overrides=[
            by_name("Run", custom__minWidth=100),
            by_name("Work", custom__minWidth=100),
            by_name("Every … steps", unit="none", decimals=0, custom__width=135),
        ],
        no_value="No work recurs.",
    )


def _regular_dips() -> Panel:
    steps, seconds = (f"gpu:dip_period:{unit}30m{{{HOST}}}" for unit in ("steps", "seconds"))
    busy = f"gpu:regular_dips:ratio5m{{{HOST}}}"
    labels = "cluster, namespace, run, rank, instance, gpu"
    return table(
        "GPUs with regular dips",
        "Regular dips by GPU, with the share of time in which utilisation is below 10 %. The cause is work that the "
        "loop does at that interval (logging, saving, evaluating, reading a loss): do it less often, or "
        "asynchronously.",
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
            "Value #C": "Time below 10 %",
        },
        width=16,
        height=6,
        sort="Time below 10 %",
        overrides=[
            by_name("Run", custom__minWidth=100),
            by_name("Rank", links=[CELL_TO_RANK], custom__width=60),
            by_name("Node", links=[CELL_TO_HOST], custom__minWidth=140),
            by_name("GPU", links=[CELL_TO_GPU], custom__width=55),
            by_name("Every … steps", unit="none", decimals=0, custom__width=120),
            by_name("Every … seconds", unit="s", decimals=1, custom__width=140),
            by_name("Time below 10 %", unit="percentunit", decimals=1, custom__width=160),
        ],
        no_value="No GPU has regular dips.",
    )


def row() -> Row:
    """Return the row."""
    return Row(
        "Code",
        (
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
                "No phase is measured on the GPU.",
            ),
            _lines(),
            _comes_back(),
            _regular_dips(),
        ),
    )
