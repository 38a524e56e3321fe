"""Collectors on the status page: the state and the error of each collector."""

from __future__ import annotations

from stallscope.common.formatting import time_since
from stallscope.node.sampling.sampler import CollectorStatus
from stallscope.node.web.status.exporter_state import ExporterState
from stallscope.node.web.status.markup import foreign

_ERROR_LENGTH = 300


def source_section(look: ExporterState, now: float) -> str:
    """Return the table of collectors, below the receivers of training reports that are not open."""
    rows = "".join(_row(status, now) for status in look.statuses)
    if not rows:
        body = '<p class="quiet">No collector is enabled.</p>'
    else:
        body = (
            '<table><caption class="hidden">Collectors</caption><thead><tr><th scope="col">Collector</th>'
            '<th scope="col">State</th><th scope="col">Last reading</th></tr></thead>'
            f"<tbody>{rows}</tbody></table>"
        )
    closed = "".join(f'<p class="bad">{foreign(problem, _ERROR_LENGTH)}</p>' for problem in look.closed_receivers)
    return f'<section aria-labelledby="sources"><h2 id="sources">Collectors</h2>{closed}{body}</section>'


def _row(status: CollectorStatus, now: float) -> str:
    css, word = {
        True: ("good", "up"),
        False: ("bad", "down"),
        None: ("quiet", "not present" if status.error else "not read yet"),
    }[status.up]
    last = time_since(now, status.last_success) or "never"
    why = f' <span class="why">{foreign(status.error, _ERROR_LENGTH)}</span>' if status.error else ""
    return f'<tr><th scope="row">{foreign(status.name)}{why}</th><td class="{css}">{word}</td><td>{last}</td></tr>'
