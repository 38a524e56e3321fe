"""Ranks against each other."""

from __future__ import annotations

from grafana.builders.choices import HOST, RANK, RUN
from grafana.builders.dashboard import Row
from grafana.builders.field import GREY, absent_as, by_name, fixed_colours, limit_line
from grafana.builders.panel import Panel, table, time_series
from grafana.builders.query import Query, threshold
from grafana.builders.verdicts import in_colour, title_column
from grafana.run_rows.asking import (
    BY_RANK,
    CELL_TO_GPU,
    CELL_TO_HOST,
    CELL_TO_RANK,
    MANY,
    RANK_HERE,
    SHARE_COLOURS,
    TO_COMPARE,
    among_worst,
    of_gpus,
    of_ranks,
    worst,
)
from grafana.run_rows.spread import spread


def _stragglers() -> Panel:
    def by_rank(expression: str) -> Query:
        return Query(among_worst(expression), table=True)

    where = f"{BY_RANK}, instance, gpu"
    step = "rate(stallscope_training_step_seconds_{}{{{}}}[$__rate_interval])"
    return table(
        "Ranks, those first that the others wait for",
        f"The {MANY} ranks of each run with the greatest straggler score: the share of the others' step that they "
        "wait for this one. Look along its row for what differs: data, clock, or activity. The straggler itself waits "
        "least.",
        [
            Query(
                f"max by ({where}) (rank_gpu:claim:info{{{RANK_HERE}}} or on ({BY_RANK}) rank:live:info{{{RANK_HERE}}})"
                f" and on ({BY_RANK}) {worst(MANY)}",
                table=True,
            ),
            Query(
                f"max by ({BY_RANK}, cause) (rank:verdict:ratio5m{{{RANK}}}) and on ({BY_RANK}) {worst(MANY)}",
                table=True,
            ),
            by_rank(f"run_rank:straggler_score:ratio5m{{{RANK}}}"),
            by_rank(of_ranks(f"{step.format('sum', RANK_HERE)} / ({step.format('count', RANK_HERE)} > 0)")),
            by_rank(f"rank:data_wait:ratio5m{{{RANK_HERE}}}"),
            by_rank(f"run_rank:communication:ratio5m{{{RANK}}}"),
            by_rank(of_gpus(f"gpu:busy:ratio5m{{{HOST}}}")),
            by_rank(of_gpus(f"gpu:sm_active:ratio5m{{{HOST}}}")),
            by_rank(of_gpus(f"gpu:sm_clock:ratio5m{{{HOST}}}")),
        ],
        columns={
            "run": "Run",
            "rank": "Rank",
            "instance": "Node",
            "gpu": "GPU",
            "cause": "Verdict",
            "Value #C": "Straggler score",
            "Value #D": "Step time",
            "Value #E": "Data wait",
            "Value #F": "Communication",
            "Value #G": "GPU busy",
            "Value #H": "SMs active",
            "Value #I": "SM clock",
        },
        unit="percentunit",
        height=10,
        sort="Straggler score",
        overrides=[
            title_column("Verdict"),
            by_name("Rank", links=[CELL_TO_RANK], custom__width=60),
            by_name("Node", links=[CELL_TO_HOST]),
            by_name("GPU", links=[CELL_TO_GPU], custom__width=55),
            by_name("Step time", unit="s", decimals=3),
            *(
                by_name(
                    name,
                    decimals=1,
                    min=0,
                    max=1,
                    mappings=absent_as("n/a"),
                    color=SHARE_COLOURS,
                    **in_colour(),
                )
                for name in ("Straggler score", "Data wait", "Communication")
            ),
            *(by_name(name, decimals=1, mappings=absent_as("n/a")) for name in ("GPU busy", "SMs active", "SM clock")),
        ],
        no_value="No live rank.",
    )


def _step_spread() -> Panel:
    step = "rate(stallscope_training_step_seconds_{}{{{}}}[$__rate_interval])"
    return spread(
        "Step time across ranks",
        "Ranks that train together take equally long: curves that part mean that steps are not in step, or that a rank "
        "is lost.",
        f"{step.format('sum', RANK_HERE)} / ({step.format('count', RANK_HERE)} > 0)",
        "s",
    )


def _scaling() -> Panel:
    return time_series(
        "Scaling efficiency and load",
        "Work of each GPU here over that of one GPU alone, where the code tells single_gpu_samples_per_second; and how "
        "far the GPUs' activity lies apart. Under or over its line: look at communication, or at how work is divided.",
        [
            Query(f"max by (run) (run:scaling_efficiency:ratio5m{{{RUN}}})", "efficiency"),
            Query(f"max by (run) (run:load_spread:ratio5m{{{RUN}}})", "load apart by"),
            threshold("scaling_warning", "efficiency too low"),
            threshold("load_spread", "load too uneven"),
        ],
        unit="percentunit",
        width=12,
        overrides=[
            *fixed_colours({"efficiency": "#37872D", "load apart by": "#E0B400"}),
            *limit_line("efficiency too low", colour="#37872D"),
            *limit_line("load too uneven", colour="#E0B400"),
        ],
        links=[TO_COMPARE],
    )


def _states() -> Panel:
    return time_series(
        "Ranks by state",
        "Processes that start, run, have ended, were terminated by a signal, or are lost. One that is gone holds the "
        "others up in their next collective: restart from the last checkpoint.",
        [Query(f"count by (state) (stallscope_training_state{{{RANK_HERE}}} == 1)", "{{state}}")],
        unit="locale",
        stacked="normal",
        width=12,
        overrides=fixed_colours(
            {
                "starting": "#3274D9",
                "running": "#37872D",
                "finished": GREY,
                "failed": "#C4162A",
                "terminated": "#8F3BB8",
                "lost": "#FF780A",
            }
        ),
    )


def row() -> Row:
    """Return the comparison of ranks."""
    return Row(
        "Ranks compared",
        (
            _stragglers(),
            _step_spread(),
            spread(
                "Waiting for data across ranks",
                "Share of the loop in which ranks wait for data. One far over the others holds all of them up.",
                f"rank:data_wait:ratio5m{{{RANK_HERE}}}",
                "percentunit",
                threshold("input_notice", "worth a look"),
            ),
            spread(
                "Communication across ranks",
                "Share of the loop in collectives, waiting for other ranks included. The lowest is whom the "
                "others wait for; all of them high: the network, or too little work between collectives.",
                f"run_rank:communication:ratio5m{{{RANK}}}",
                "percentunit",
                threshold("comm_warning", "too much"),
            ),
            _scaling(),
            _states(),
        ),
    )
