"""What a panel asks Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

from grafana.builders import DATASOURCE, Json


@dataclass(frozen=True)
class Query:
    """One query of a panel.

    Several queries of one panel are told apart by letters in their order (`A`, `B`, …), which overrides refer to.
    """

    expression: str
    """PromQL. Rates are taken over `$__rate_interval`, recorded series are read as they are."""
    legend: str = ""
    """Name of each series, with its labels in braces: `{{rank}}`."""
    instant: bool = False
    """Only the value at the end of the time shown, as a table or a single figure has it."""
    table: bool = False
    """One row a series, one column a label."""
    heat_map: bool = False
    """Histogram buckets, one a series."""
    least_step: str = ""
    """No finer steps than this: `1m`."""
    exemplars: bool = False

    def json(self, letter: str) -> Json:
        """Return the target of that letter."""
        target: Json = {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": dedent(self.expression).strip(),
            "format": "table" if self.table else "heatmap" if self.heat_map else "time_series",
            "instant": self.instant or self.table,
            "legendFormat": self.legend or "__auto",
            "range": not (self.instant or self.table),
            "refId": letter,
        }
        if self.least_step:
            target["interval"] = self.least_step
        if self.exemplars:
            target["exemplar"] = True
        return target


def threshold(name: str, legend: str) -> Query:
    """Ask for one of the thresholds that the rules judge by, to be drawn as a line.

    Args:
        name: as in `stallscope:threshold{name="…"}`.
        legend: what the line is called; overrides find it by this.
    """
    return Query(f'max(stallscope:threshold{{name="{name}"}})', legend)
