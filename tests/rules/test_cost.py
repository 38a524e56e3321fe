"""Cost of the rules for a server, independent of the machine; `make bench` measures seconds."""

from __future__ import annotations

from collections.abc import Mapping

from tests.benchmarks.cluster import GPUS_A_NODE, HOUR, Cluster
from tests.promql_names import names_in
from tests.rules.layers import groups_of
from tests.rules.rulebook import INTERVAL, RULE_FILES, Rulebook, Story

_MOST_SERIES = 48
"""Recorded for each healthy GPU and the rank on it."""


def _healthy_node(length: int) -> Story:
    names = {
        name
        for path in RULE_FILES
        for group in groups_of(path)
        for rule in group["rules"]
        for name in names_in(rule["expr"]).metrics
    }
    cluster = Cluster(GPUS_A_NODE, names, now=length * INTERVAL)
    return [
        (_selector(column.name, labels), f"{start - rate * length * INTERVAL:.10g}+{rate * INTERVAL:.10g}x{length}")
        for column in cluster.columns
        for labels, start, rate in zip(column.labels, column.start, column.rate, strict=True)
    ]


def _selector(name: str, labels: Mapping[str, str]) -> str:
    matchers = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{matchers}}}"


def test_a_healthy_gpu_has_few_recorded_series(rulebook: Rulebook) -> None:
    story = _healthy_node(HOUR // 2 // INTERVAL)
    # The cluster's second node is idle; thresholds and what belongs to Stallscope itself don't grow with GPUs.
    recorded = '{__name__=~".+:.+", __name__!~"stallscope:.+", instance!="node0001:19400"}'
    healthy = 'run:verdict:ratio5m{cause=~"healthy|compute_bound"}'
    rulebook.check(
        story,
        {
            f"count({recorded}) > {_MOST_SERIES * GPUS_A_NODE}": [],
            f"count({healthy})": [({}, 1)],
        },
        at="29m",
    )
