"""Comparison of ranks over time: the ranks that differ most from the median of their run, in numeric order."""

from __future__ import annotations

from grafana.builders.choices import RANK, RUN
from grafana.builders.dashboard import Row
from grafana.builders.panel import Panel, deviation, state_timeline, time_series
from grafana.builders.query import Query
from grafana.builders.verdicts import by_code, coded
from grafana.run_rows.run_queries import BY_RANK, BY_RUN, MANY, RANK_HERE, TO_RANK, few, in_order, worst


def _rank_verdicts() -> Panel:
    chosen = f"rank:verdict:ratio5m{{{RANK}}} and on ({BY_RANK}) {worst(MANY, ' @ end()')}"
    return state_timeline(
        "Verdict of ranks over time",
        f"Costliest cause of each of the {MANY} ranks that the others wait for most. The straggler differs.",
        [Query(in_order(coded(f"({chosen})", "cluster", "namespace", "run", "rank")), "rank {{rank}}")],
        mappings=by_code(),
        height=11,
        links=[TO_RANK],
    )


def _ranks_over_time(title: str, description: str, expression: str) -> Panel:
    """Draw the difference to the median of the run, in percentage points, of the ranks with the largest one."""

    def difference(at: str) -> str:
        values = f"max by ({BY_RANK}) ({expression.replace('@@', at)})"
        return f"{values} - on ({BY_RUN}) group_left () quantile by ({BY_RUN}) (0.5, {values})"

    most = f"topk by ({BY_RUN}) ({MANY}, abs({difference(' @ end()')}))"
    return deviation(
        title,
        description,
        [Query(in_order(f"({difference('')}) and on ({BY_RANK}) {most}"), "rank {{rank}}", least_step="30s")],
        width=12,
        height=11,
        links=[TO_RANK],
    )


def _collectives() -> tuple[Panel, Panel]:
    """Draw what NCCL Inspector's files show."""
    late = few(f"nccl_rank:late:ratio5m{{{RANK_HERE}}}@@", "cluster, communicator, comm_rank")
    slow = few(
        f"nccl_communicator:bandwidth_of_peers:ratio5m{{{RUN}}}@@", "cluster, communicator, operation", lowest=True
    )
    return (
        time_series(
            "Ranks that arrive last in collectives",
            "Share of the others' time in a communicator's collectives for which they wait for a rank (NCCL "
            "Inspector). A line that stays high is a late rank: look at its own work, and at its host.",
            [Query(late, "rank {{rank}} in {{communicator}}")],
            unit="percentunit",
            links=[TO_RANK],
        ),
        time_series(
            "Bandwidth of communicators, compared with their peers",
            "Bus bandwidth of the slowest communicators, over the median of those with as many ranks and nodes (NCCL "
            "Inspector). A line that stays low has a slow link between its ranks.",
            [Query(slow, "{{operation}} in {{communicator}}")],
            unit="percentunit",
            maximum=1.5,
        ),
    )


def row() -> Row:
    """Return the row."""
    return Row(
        "Ranks over time",
        (
            _rank_verdicts(),
            _ranks_over_time(
                "Communication, difference from the median rank",
                f"Share of the loop in collectives, of the {MANY} ranks that differ most from the median of the run. "
                "A blue row communicates less than the others, because they wait for it: the straggler.",
                f"run_rank:communication:ratio5m{{{RANK}}}@@",
            ),
            _ranks_over_time(
                "Data wait, difference from the median rank",
                f"Share of the loop in which a rank waits for data, of the {MANY} ranks that differ most. One orange "
                "row: that rank's shard or host is slow.",
                f"rank:data_wait:ratio5m{{{RANK_HERE}}}@@",
            ),
            *_collectives(),
        ),
        collapsed=True,
    )
