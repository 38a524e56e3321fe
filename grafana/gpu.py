"""Dashboard of one or a few GPUs of a node, for readers of a GPU alert: the causes that slow them, and all signals."""

from __future__ import annotations

from grafana.builders import choices
from grafana.builders.annotations import alert_marks, moments
from grafana.builders.choices import GPU
from grafana.builders.dashboard import Dashboard
from grafana.builders.field import ORANGE, RED
from grafana.builders.variables import datasource
from grafana.gpu_rows import detail, errors, gpu_summary, interconnect, owners, signals, sm_activity, utilisation
from grafana.gpu_rows.gpu_queries import MILLISECONDS


def dashboard() -> Dashboard:
    """Return the dashboard of GPUs."""
    return Dashboard(
        uid="stallscope-gpu",
        title="Stallscope / GPU",
        description="Causes that slow a GPU, its holders, and all its signals.",
        variables=(
            datasource(),
            choices.cluster(),
            choices.instance(everything=False),
            choices.gpu(),
            gpu_summary.answer(),
        ),
        rows=(
            gpu_summary.row(),
            utilisation.row(),
            sm_activity.row(),
            interconnect.row(),
            errors.row(),
            owners.row(),
            detail.row(),
            signals.row(),
        ),
        annotations=(
            alert_marks(gpu_summary.ALERTS, "instance", "gpu", colour=ORANGE),
            moments(
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
