"""Comparison of ranks."""

from __future__ import annotations

from grafana.builders.bands import OTHER_COLOUR, bands
from grafana.builders.choices import HOST, RANK, RUN
from grafana.builders.dashboard import Row
from grafana.builders.field import absent_as, by_name, fixed_colours, limit_line
from grafana.builders.panel import Panel, table, time_series
from grafana.builders.query import Query, threshold
from grafana.builders.verdicts import title_column
from grafana.run_rows.run_queries import (
    BY_RANK,
    CELL_TO_GPU,
    CELL_TO_HOST,
    CELL_TO_RANK,
    MANY,
    RANK_HERE,
    TO_COMPARE,
    among_worst,
    of_gpus,
    worst,
)
from grafana.run_rows.spread import spread
from stallscope.model.catalogue.causes import colour_of


def _stragglers() -> Panel:
    def by_rank(expression: str) -> Query:
        return Query(among_worst(expression), table=True)

    where = f"{BY_RANK}, instance, gpu"
    return table(
        "Ranks by straggler score",
        f"The {MANY} ranks of each run with the highest straggler score: the share of their step that the other ranks "
        "wait for this rank. Compare its row for differences: data, clock, or activity. The straggler itself waits "
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
            by_rank(f"rank:step:seconds5m{{{RANK_HERE}}}"),
            by_rank(f"rank:data_wait:ratio5m{{{RANK_HERE}}}"),
            by_rank(f"run_rank:communication:ratio5m{{{RANK}}}"),
            by_rank(of_gpus(f"gpu:busy:ratio5m{{{HOST}}}")),
            by_rank(of_gpus(f"gpu:sm_clock:ratio5m{{{HOST}}}")),
            by_rank(f"run_rank:work:ratio5m{{{RANK}}}"),
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
            "Value #H": "SM clock",
            "Value #I": "Work in pipeline",
        },
        unit="percentunit",
        height=10,
        sort="Straggler score",
        overrides=[
            title_column("Verdict"),
            by_name("Rank", links=[CELL_TO_RANK], custom__width=60),
            by_name("Node", links=[CELL_TO_HOST], custom__minWidth=145),
            by_name("GPU", links=[CELL_TO_GPU], custom__width=55),
            by_name("Run", custom__minWidth=90),
            by_name("Step time", unit="s", custom__width=85),
            *(
                by_name(name, decimals=1, mappings=absent_as("n/a"), custom__width=width)
                for name, width in (
                    ("Straggler score", 145),
                    ("Data wait", 85),
                    ("Communication", 125),
                    ("GPU busy", 85),
                    ("SM clock", 85),
                    ("Work in pipeline", 125),
                )
            ),
        ],
        no_value="No active rank.",
    )


def _scaling() -> Panel:
    return time_series(
        "Scaling efficiency and load",
        "Work per GPU relative to a single GPU, if the code reports single_gpu_samples_per_second, the spread of "
        "the GPUs' activity, and the share of time that ranks wait because work differs from step to step. Beyond its "
        "line: check communication, or the distribution of work.",
        [
            Query(f"max by (run) (run:scaling_efficiency:ratio5m{{{RUN}}})", "efficiency"),
            Query(f"max by (run) (run:load_spread:ratio5m{{{RUN}}})", "load spread"),
            Query(f"max by (run) (run:uneven_work:ratio5m{{{RUN}}})", "uneven work"),
            threshold("scaling_warning", "efficiency threshold"),
            threshold("load_spread", "load spread threshold"),
            threshold("uneven_warning", "uneven work threshold"),
        ],
        unit="percentunit",
        soft_maximum=1,
        overrides=[
            *fixed_colours(
                {
                    "efficiency": colour_of("healthy"),
                    "load spread": colour_of("straggler_rank"),
                    "uneven work": colour_of("uneven_work"),
                }
            ),
            *limit_line("efficiency threshold", "load spread threshold", "uneven work threshold"),
        ],
        links=[TO_COMPARE],
    )


def _activities() -> Panel:
    return time_series(
        "Ranks by activity",
        "Ranks by what they do now. If a few ranks have another activity, the other ranks wait for them. If the sum "
        "falls, ranks are lost: restart from the last checkpoint.",
        bands(f"sum by (activity) (run_activity:ranks:count{{{RUN}}})", "activity"),
        unit="locale",
        stacked=True,
        overrides=fixed_colours(OTHER_COLOUR),
    )


def row() -> Row:
    """Return the row."""
    return Row(
        "Comparison of ranks",
        (
            _stragglers(),
            spread(
                "Data wait across ranks",
                "Share of the loop in which ranks wait for data. If one is far above the others, all wait for it.",
                f"rank:data_wait:ratio5m{{{RANK_HERE}}}",
                "percentunit",
                threshold("input_notice", "notable"),
                width=12,
            ),
            spread(
                "Communication across ranks",
                "Share of the loop in collectives, including waiting for other ranks. The others wait for the lowest "
                "rank. If all are high: the network is slow, or there is too little work between collectives.",
                f"run_rank:communication:ratio5m{{{RANK}}}",
                "percentunit",
                threshold("comm_warning", "too much"),
                width=12,
            ),
            _scaling(),
            _activities(),
        ),
    )
