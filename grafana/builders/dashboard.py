"""A dashboard: rows of panels, laid out from left to right, in the format of Grafana's file provisioning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from grafana.builders import Json
from grafana.builders.annotations import actions, built_in
from grafana.builders.links import TAG, menu
from grafana.builders.panel import COLUMNS, Panel

SCHEMA = 39
"""Version of the classic model: Grafana 9.4 uses it unchanged, later versions migrate it on loading."""


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    """Empty for the first row, which has no heading."""
    panels: tuple[Panel, ...]
    collapsed: bool = False
    """The row is closed at first. Grafana runs its queries only once it is opened."""
    repeat: str = ""
    """Variable whose values each get their own copy of the row."""


@dataclass(frozen=True)
class Dashboard:
    """A whole dashboard."""

    uid: str
    title: str
    description: str
    variables: tuple[Json, ...]
    rows: tuple[Row, ...]
    annotations: tuple[Json, ...] = ()
    links: tuple[Json, ...] = ()
    since: str = "now-1h"
    refresh: str = "30s"

    @property
    def panels(self) -> Iterator[Panel]:
        """Every panel, in order."""
        for row in self.rows:
            yield from row.panels

    def json(self) -> Json:
        """Return the dashboard in the classic model."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": SCHEMA,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "timezone": "browser",
            "time": {"from": self.since, "to": "now"},
            "timepicker": {},
            "refresh": self.refresh,
            "fiscalYearStartMonth": 0,
            "liveNow": False,
            "weekStart": "",
            "links": [menu(), *self.links],
            "templating": {"list": list(self.variables)},
            "annotations": {"list": [built_in(), *self.annotations, actions()]},
            "panels": list(self._placed()),
        }

    def _placed(self) -> Iterator[Json]:
        """Assign each panel a number and the next free position, from left to right and from top to bottom."""
        number, top = 0, 0
        for row in self.rows:
            heading: Json | None = None
            if row.title:
                number += 1
                heading = {
                    "id": number,
                    "type": "row",
                    "title": row.title,
                    "collapsed": row.collapsed,
                    "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
                    "panels": [],
                }
                if row.repeat:
                    heading["repeat"] = row.repeat
                top += 1
            left, line = 0, 0
            placed: list[Json] = []
            for panel in row.panels:
                # A panel that is repeated from left to right takes whole lines.
                width = COLUMNS if panel.repeat else panel.width
                if left + width > COLUMNS:
                    left, top, line = 0, top + line, 0
                number += 1
                placed.append(panel.json(number, left, top))
                left, line = left + width, max(line, panel.height)
            top += line
            if heading is not None and row.collapsed:
                heading["panels"] = placed
                yield heading
            else:
                if heading is not None:
                    yield heading
                yield from placed
