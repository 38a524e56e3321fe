"""Queries of panels."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

from grafana.builders import DATASOURCE, Json


@dataclass(frozen=True)
class Query:
    """One query of a panel.

    The queries of one panel get letters in their order (`A`, `B`, …), to which overrides refer.
    """

    expression: str
    """PromQL. Rates are taken over `$__rate_interval`, recorded series are read as they are."""
    legend: str = ""
    """Name of each series, with labels in braces: `{{rank}}`."""
    instant: bool = False
    """Read only the value at the end of the time range, for a table or a single value."""
    table: bool = False
    """One row per series, one column per label."""
    least_step: str = ""
    """Minimum step, such as `1m`."""

    def json(self, letter: str) -> Json:
        """Return the Grafana target with this letter as its reference."""
        target: Json = {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": dedent(self.expression).strip(),
            "format": "table" if self.table else "time_series",
            "instant": self.instant or self.table,
            "legendFormat": self.legend or "__auto",
            "range": not (self.instant or self.table),
            "refId": letter,
        }
        if self.least_step:
            target["interval"] = self.least_step
        return target


def level(name: str) -> str:
    """Return PromQL for a threshold of the rules, as in `stallscope:threshold{name="…"}`."""
    return f'max(stallscope:threshold{{name="{name}"}})'


def threshold(name: str, legend: str) -> Query:
    """Return a query for a threshold of the rules, to be drawn as a line.

    Args:
        name: as in `stallscope:threshold{name="…"}`.
        legend: what the line is called; overrides find it by this.
    """
    return Query(level(name), legend)
