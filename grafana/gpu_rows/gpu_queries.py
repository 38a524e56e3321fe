"""Queries, columns, links and series names that the rows of the GPU dashboard share."""

from __future__ import annotations

from typing import Any

from grafana.builders.choices import GPU
from grafana.builders.field import by_name
from grafana.builders.lines import lines
from grafana.builders.links import to_dashboard
from grafana.builders.panel import Panel

ONE = "cluster, job, instance, gpu, uuid, mig"
"""Labels that identify a GPU or a MIG instance."""
OWNER = "namespace, pod, container, slurm_job, user"
NAME = "{{instance}} GPU {{gpu}} {{mig}}"
HOLDER = "{{user}} {{namespace}} {{pod}} {{container}} {{slurm_job}}"
MINUTE = 60
MILLISECONDS = 1000
"""Grafana's times are in milliseconds, those of Prometheus in seconds."""

TO_RUN = to_dashboard("stallscope-run", "The run", {"run": "${__data.fields.Run}"})
TO_RANK = to_dashboard(
    "stallscope-run", "Open rank in its run", {"run": "${__data.fields.Run}", "rank": "${__data.fields.Rank}"}
)
TO_HOST = to_dashboard("stallscope-host", "The node", {"instance": "${__data.fields.Node}"})
TO_GPU = to_dashboard(
    "stallscope-gpu",
    "Filter by this GPU",
    {"instance": "${__data.fields.Node}", "gpu": "${__data.fields.GPU}"},
)
CURVE = (
    to_dashboard(
        "stallscope-gpu",
        "Filter by this GPU",
        {"instance": "${__field.labels.instance}", "gpu": "${__field.labels.gpu}"},
    ),
    to_dashboard("stallscope-host", "Open node", {"instance": "${__field.labels.instance}"}),
)
PLACE = {"instance": "Node", "gpu": "GPU", "mig": "MIG"}
PLACE_LINKS = [
    by_name("Node", links=[TO_HOST], custom__width=145),
    by_name("GPU", links=[TO_GPU], custom__width=50),
    by_name("MIG", custom__width=85),
]


ROWS = 16
"""Rows of a timeline."""


def rate(counter: str, labels: str = "") -> str:
    """Return the rate of a counter per second."""
    return f"rate({counter}{{{GPU}{labels}}}[$__rate_interval])"


def share(counter: str, labels: str = "") -> str:
    """Return the share of time of a counter of seconds."""
    return f"clamp_max({rate(counter, labels)}, 1)"


def line(title: str, description: str, expression: str, *, name: str = NAME, **options: Any) -> Panel:
    """Draw one value of the GPUs with the highest or lowest of it; options as for `lines`."""
    return lines(title, description, {name: expression}, links=CURVE, **options)
