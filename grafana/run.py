"""Dashboard of one training run: its losses by cause, the remedies, and the possible gain.

The first screen uses only recorded series. The rows below have the evidence: steps and GPU activity, a comparison of
ranks, hosts, memory.
"""

from __future__ import annotations

from grafana.builders.annotations import alert_marks, moments
from grafana.builders.choices import RUN, cluster, namespace, rank, run
from grafana.builders.dashboard import Dashboard
from grafana.builders.field import BLUE, ORANGE
from grafana.builders.variables import datasource, labels_of
from grafana.run_rows import code, hosts, learning, memory, ranks, ranks_over_time, run_summary, steps
from grafana.run_rows.run_queries import RUN_HERE


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
            # Without a value for All, Grafana lists the run's nodes, so queries of hosts and GPUs read only these.
            labels_of(
                "instance",
                "instance",
                f"stallscope_training_rank_info{{{RUN}}}",
                title="instance",
                description="Nodes of the run, as the addresses of their exporters.",
                all_value="",
                hide=True,
            ),
            rank(),
            run_summary.answer(),
        ),
        annotations=(
            alert_marks(run_summary.ALERTS, "run", colour=ORANGE),
            moments(
                "Starts and restarts",
                f'1000 * max by (run) (stallscope_training_start_timestamp_seconds{{{RUN_HERE}, rank="0"}})',
                title="{{run}} began a session",
                colour=BLUE,
                at_value=True,
            ),
        ),
        rows=(
            run_summary.row(),
            run_summary.evidence(),
            code.row(),
            steps.row(),
            ranks.row(),
            ranks_over_time.row(),
            learning.row(),
            hosts.row(),
            memory.row(),
        ),
    )
