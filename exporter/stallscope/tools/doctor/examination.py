"""All parts, in the order in which to look for a problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stallscope.tools.doctor import cluster, exporter, node, prometheus, reports
from stallscope.tools.doctor.checkup import Part

PARTS: Mapping[str, Part[Any]] = {
    each.name: each for each in (node.PART, exporter.PART, reports.PART, prometheus.PART, cluster.PART)
}
