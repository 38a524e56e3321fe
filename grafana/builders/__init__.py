"""Builders for dashboards in Grafana's classic model: queries, panels, rows, variables, links, annotations."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
"""A JSON object of Grafana's dashboard model."""

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
"""The data source selected in the variable `datasource`."""
