"""Lines of code in which the run loses its time."""

from __future__ import annotations

from grafana.builders.choices import RUN
from grafana.builders.dashboard import Row
from grafana.builders.field import by_name
from grafana.builders.panel import Panel, table
from grafana.builders.query import Query
from grafana.run_rows.run_queries import BY_RUN

_BY_PHASE = f"{BY_RUN}, phase"


def _lines() -> Panel:
    seconds = f"max by ({_BY_PHASE}, location, function) (run_code:time:rate2m{{{RUN}}})"
    phase = f"max by ({_BY_PHASE}) (run_phase:sampled_time:rate2m{{{RUN}}})"
    return table(
        "Lines of code by phase",
        "Lines in which the ranks spend the time of a phase, with the library's function that a line calls. Samples of "
        "stacks are taken once a phase of the host takes 10 % of a minute, and again every ten minutes. Start with the "
        "phase of the verdict.",
        [Query(f"{seconds} / on ({_BY_PHASE}) group_left () ({phase} > 0)", table=True)],
        columns={
            "run": "Run",
            "phase": "Phase",
            "location": "Line",
            "function": "Function",
            "Value": "Share of the phase",
        },
        height=7,
        sort="Share of the phase",
        overrides=[
            by_name("Run", custom__width=140),
            by_name("Phase", custom__width=120),
            by_name("Share of the phase", unit="percentunit", decimals=0, custom__width=140),
        ],
        no_value="No samples: no phase of the host takes much time, or STALLSCOPE_STACKS=0.",
    )


def row() -> Row:
    """Return the row."""
    return Row("Lines of code", (_lines(),), collapsed=True)
