"""Comparison of ranks over time."""

from __future__ import annotations

from grafana.builders.choices import HOST, RANK
from grafana.builders.dashboard import Row
from grafana.builders.panel import Panel, state_timeline, status_history
from grafana.builders.query import Query
from grafana.builders.verdicts import by_code, coded
from grafana.run_rows.run_queries import BY_RANK, MANY, RANK_HERE, TO_RANK, among_worst, of_gpus, of_ranks, worst


def _rank_verdicts() -> Panel:
    chosen = f"rank:verdict:ratio5m{{{RANK}}} and on ({BY_RANK}) {worst(MANY, ' @ end()')}"
    return state_timeline(
        "Verdict of ranks over time",
        f"Costliest cause of each of the {MANY} ranks that the others wait for most. The straggler differs.",
        [Query(coded(f"({chosen})", "cluster", "namespace", "run", "rank"), "rank {{rank}}")],
        mappings=by_code(),
        height=10,
        links=[TO_RANK],
    )


def _ranks_over_time(title: str, description: str, expression: str, unit: str, maximum: float | None = None) -> Panel:
    return status_history(
        title,
        description,
        [Query(among_worst(expression), "{{rank}}", least_step="30s")],
        unit=unit,
        maximum=maximum,
        minimum=None if maximum is None else 0,
        width=12,
        height=10,
        links=[TO_RANK],
    )


def row() -> Row:
    """Return the row."""
    return Row(
        "Ranks over time",
        (
            _rank_verdicts(),
            _ranks_over_time(
                "Step time by rank",
                f"Mean step time of the {MANY} ranks that the others wait for most. Darker rows are slower.",
                of_ranks(
                    f"rate(stallscope_training_step_seconds_sum{{{RANK_HERE}}}[$__rate_interval])"
                    f" / (rate(stallscope_training_step_seconds_count{{{RANK_HERE}}}[$__rate_interval]) > 0)"
                ),
                "s",
            ),
            _ranks_over_time(
                "Communication by rank",
                "Share of the loop in collectives. The straggler's row stays pale while the others are dark, because "
                "they wait for it.",
                f"run_rank:communication:ratio5m{{{RANK}}}",
                "percentunit",
                1,
            ),
            _ranks_over_time(
                "Data wait by rank",
                "Share of the loop in which a rank waits for data. One dark row: that rank's shard or host is slow.",
                f"rank:data_wait:ratio5m{{{RANK_HERE}}}",
                "percentunit",
                1,
            ),
            _ranks_over_time(
                "GPU busy by rank",
                "Share of time with a kernel resident. Pale rows idle.",
                of_gpus(f"gpu:busy:ratio5m{{{HOST}}}"),
                "percentunit",
                1,
            ),
        ),
        collapsed=True,
    )
