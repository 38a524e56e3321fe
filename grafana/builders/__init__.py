"""What dashboards are made of: queries, panels, rows, variables, links, annotations, in Grafana's classic model."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
"""A JSON object of Grafana's dashboard model."""

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
"""Whatever the reader has chosen in the variable `datasource`."""
