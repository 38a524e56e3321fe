"""One training run, for whoever trains: where its GPU time goes, what to change, and what that would gain.

The first screen answers, from recorded series alone. Below it lies the evidence: steps against the GPU's activity,
ranks against each other, hosts, memory.
"""

from __future__ import annotations

from grafana.builders.choices import RUN, cluster, namespace, rank, run
from grafana.builders.dashboard import Dashboard
from grafana.builders.variables import datasource, labels_of
from grafana.run_rows import answer, events, gpus, hosts, learning, memory, ranks, ranks_over_time, steps


def dashboard() -> Dashboard:
    """Return the dashboard of a run."""
    return Dashboard(
        uid="stallscope-run",
        title="Stallscope / Run",
        description="One training run: its losses by cause, the remedies, and the possible gain.",
        variables=(
            datasource(),
            cluster(),
            namespace(),
            run(everything=False),
            # No value for all: Grafana then lists the run's nodes, and queries of hosts and GPUs read no others.
            labels_of(
                "instance",
                "instance",
                f"stallscope_training_rank_info{{{RUN}}}",
                title="instance",
                description="Nodes of the run, as the addresses of their exporters.",
                all_value="",
            ),
            rank(),
        ),
        annotations=events.marks(),
        rows=(
            answer.row(),
            steps.row(),
            learning.row(),
            ranks.row(),
            ranks_over_time.row(),
            gpus.row(),
            hosts.row(),
            memory.row(),
        ),
    )
