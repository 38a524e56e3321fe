"""One GPU or a few of a node: what holds them back, and every signal that says so. For whoever got an alert of one."""

from __future__ import annotations

from grafana.builders import choices
from grafana.builders.annotations import events
from grafana.builders.choices import GPU
from grafana.builders.dashboard import Dashboard
from grafana.builders.field import ORANGE, RED
from grafana.builders.variables import datasource
from grafana.gpu_rows import answer, detail, errors, inside, links, owners, rhythm, signals, usual
from grafana.gpu_rows.asking import MILLISECONDS


def dashboard() -> Dashboard:
    """Return the dashboard of GPUs."""
    return Dashboard(
        uid="stallscope-gpu",
        title="Stallscope / GPU",
        description="Causes that slow a GPU, its holders, and all its signals.",
        variables=(datasource(), choices.cluster(), choices.instance(everything=False), choices.gpu()),
        rows=(
            answer.row(),
            usual.row(),
            inside.row(),
            rhythm.row(),
            links.row(),
            errors.row(),
            owners.row(),
            detail.row(),
            signals.row(),
        ),
        annotations=(
            events(
                "Alerts",
                # Alerts of the node have no GPU.
                'ALERTS{cluster=~"$cluster", instance=~"$instance", gpu=~"$gpu|", alertstate="firing", cause!=""}',
                title="{{alertname}}",
                text="{{severity}}: GPU {{gpu}} of {{instance}}",
                colour=ORANGE,
                labels="severity,instance,gpu",
            ),
            events(
                "Xids",
                f"{MILLISECONDS} * stallscope_gpu_xid_last_timestamp_seconds{{{GPU}}}",
                title="Xid {{xid}}",
                text="GPU {{gpu}} of {{instance}}",
                colour=RED,
                labels="instance,gpu,xid",
                at_value=True,
            ),
        ),
    )
