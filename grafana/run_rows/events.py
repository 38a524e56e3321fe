"""Events of a run, as annotations on every panel with a time axis.

Rank 0 represents the run: it saves, starts and ends together with the other ranks.
"""

from __future__ import annotations

from grafana.builders import Json
from grafana.builders.annotations import events
from grafana.builders.choices import HOST, RUN
from grafana.run_rows.run_queries import BY_GPU, RANK_HERE, RUN_HERE


def marks() -> tuple[Json, ...]:
    """Return the annotations."""
    saves = f'stallscope_training_phase_occurrences_total{{{RUN_HERE}, rank="0", phase="checkpoint"}}[2m]'
    start = f'stallscope_training_start_timestamp_seconds{{{RUN_HERE}, rank="0"}}'
    on_gpus = f"and on ({BY_GPU}) rank_gpu:claim:info{{{RANK_HERE}}}"
    verdict = f"run:verdict:ratio5m{{{RUN}}}"
    return (
        events(
            "Checkpoints",
            f"max by (run) (changes({saves}) - resets({saves})) > 0",
            title="Checkpoint of {{run}}",
            colour="#FF780A",
        ),
        events(
            "Starts and restarts",
            f"1000 * max by (run) ({start})",
            title="{{run}} began a session",
            colour="#37872D",
            at_value=True,
        ),
        events(
            "Xids",
            "1000 * max by (instance, gpu, xid, action) ("
            f"gpu:xid_hw:timestamp_seconds{{{HOST}}} {on_gpus} or gpu:xid_app:timestamp_seconds{{{HOST}}} {on_gpus})",
            title="Xid {{xid}} on GPU {{gpu}} of {{instance}}",
            text="{{action}}",
            colour="#C4162A",
            labels="instance,gpu,xid",
            at_value=True,
        ),
        events(
            "Alerts",
            f'max by (alertname, severity, run) (ALERTS{{alertstate="firing", cause!="", {RUN}}})',
            title="{{alertname}}",
            text="{{severity}}, run {{run}}",
            colour="#E0B400",
            labels="alertname,severity",
        ),
        events(
            "Verdict changes",
            f"max by (run, cause) (({verdict} >= bool 0) unless {verdict} offset 2m)",
            title="{{run}}: {{cause}}",
            colour="#A352CC",
            labels="cause",
            shown=False,
        ),
    )
