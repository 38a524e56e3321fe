"""Build the report: run the queries of every section in reading order.

    document = build(of_run(prometheus, run), prometheus, Options(gpu_hour_price=2.5, currency="EUR"))

A section whose query fails says so in its place; the other sections are complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TypeVar

from stallscope.model.clients.prometheus import PrometheusError
from stallscope.model.view.phase_shares import LEAST_STEPS, largest_loss
from stallscope.model.view.verdicts import CodeLine, OddRank
from stallscope.tools.report import alerts as alerts_of
from stallscope.tools.report import (
    considered,
    dips,
    hosts,
    lost_time,
    missing,
    phases,
    ranks,
    recommendations,
    scaling_section,
    steps,
    summary,
    timeline,
    utilisation,
    why,
)
from stallscope.tools.report.affected import affected, listed, verdict_causes
from stallscope.tools.report.culprits import Blamed, code_lines, culprits, odd_ranks
from stallscope.tools.report.document import Block, Document, Notice, Section, unavailable
from stallscope.tools.report.options import Options
from stallscope.tools.report.queries import Queries, Server
from stallscope.tools.report.subject import Subject

PARTS = 24
"""Maximum number of calls of `progress` for a report."""

_OPEN = frozenset({summary.KEY, recommendations.KEY, lost_time.KEY})
"""Sections that a page shows unfolded: the answer, before the evidence."""
_Answer = TypeVar("_Answer")
Progress = Callable[[str], object]
"""Called with a short name of the next query."""


def build(
    subject: Subject,
    server: Server,
    options: Options | None = None,
    progress: Progress = lambda _what: None,
) -> Document:
    """Build a report.

    Args:
        subject: the run, nodes or server to report on, and the time range.
        server: the server to query; heavy queries may take it a minute.
        options: prices, number of rows and other choices.
        progress: called with the name of each part before its query.

    Raises:
        PrometheusError: lost time can't be queried, or the server is gone.
    """
    queries = Queries(server, subject, options or Options())
    failures: list[missing.Failure] = []

    def attempt(title: str, query: Callable[[], _Answer], otherwise: Callable[[str], _Answer]) -> _Answer:
        """Run a query; on failure, record the error and return a placeholder."""
        progress(title)
        try:
            return query()
        except PrometheusError as problem:
            server.query("vector(1)")  # fail now if the server is gone, rather than once per section
            failures.append(missing.Failure(title, str(problem)))
            return otherwise(str(problem))

    progress("Lost time")
    lost = lost_time.lost_time(queries)
    if lost.unit == "rank":  # the price of a GPU-hour does not apply to ranks
        queries.options = replace(queries.options, gpu_hour_price=None)
    run = subject.run
    found = None
    if run is not None:
        this = run
        found = attempt("Ranks of the run", lambda: ranks.ranks(queries, this), lambda _: ranks.UNKNOWN_RANKS)
    fired = attempt("Alerts", lambda: alerts_of.alerts(queries, found), alerts_of.unknown_alerts)
    where = attempt("Affected ranks and GPUs", lambda: affected(queries, found), lambda _: {})
    verdicts = attempt("Verdicts of ranks and GPUs", lambda: verdict_causes(queries), lambda _: set())
    blamed: dict[str, Blamed] = {}
    lines: dict[str, CodeLine] = {}
    odd: dict[str, tuple[OddRank, ...]] = {}
    if run is not None:
        blamed = attempt("Culprits", lambda: culprits(queries), lambda _: {})
        lines = attempt("Lines of code", lambda: code_lines(queries), lambda _: {})
        odd = attempt("Places of ranks", lambda: odd_ranks(queries), lambda _: {})
    number = len(found.places) if found is not None else round(lost.gpu_seconds / max(1.0, lost.seconds))
    is_known = run is not None and queries.totals.steps >= LEAST_STEPS * queries.totals.ranks
    largest = largest_loss(queries.totals.shares) if is_known else ""
    advice = recommendations.Evidence(lost, fired, where, verdicts, number, blamed, lines, odd, largest)

    sections = [
        Section(
            part.KEY,
            part.TITLE,
            tuple(attempt(part.TITLE, blocks, lambda reason: [unavailable(reason)])),
            folded=part.KEY not in _OPEN,
        )
        for part, blocks in _parts(queries, advice, found)
    ]
    gaps = attempt(
        missing.TITLE,
        lambda: missing.blocks(queries, found, fired, failures),
        lambda _: missing.failure_notices(failures),
    )
    sections.append(Section(missing.KEY, missing.TITLE, tuple(gaps), folded=not failures))
    warnings = server.take_warnings()
    if warnings:
        sections[0] = replace(sections[0], blocks=(_partial(warnings), *sections[0].blocks))
    return Document(
        title=subject.title,
        subtitle=_subtitle(queries, lost),
        made_at=time.time(),
        start=subject.start,
        end=subject.end,
        sections=tuple(sections),
        highlights=summary.highlights(queries, lost, blamed),
        live=subject.live,
        standstill_timestamp_seconds=attempt("Standstill", lambda: queries.standstill, lambda _: None),
        zone=queries.options.zone,
        currency=queries.options.currency,
        incomplete=tuple(map(str, failures)),
    )


def _parts(
    queries: Queries, advice: recommendations.Evidence, found: ranks.Ranks | None
) -> list[tuple[ModuleType, Callable[[], list[Block]]]]:
    """Return the module of each section in order, with a function that returns its blocks."""
    lost, fired = advice.lost, advice.alerts
    advised = recommendations.recommendations(queries, advice)
    named = {each.cause for each in advised}
    unnamed = {cause: blamed for cause, blamed in advice.blamed.items() if cause not in named}
    parts: list[tuple[ModuleType, Callable[[], list[Block]]]] = [
        (summary, lambda: summary.blocks(queries, lost, found, unnamed)),
        (recommendations, lambda: recommendations.blocks(advice, advised)),
        (lost_time, lambda: lost_time.blocks(queries, lost)),
        (timeline, lambda: timeline.blocks(queries, lost, found)),
        (alerts_of, lambda: alerts_of.blocks(queries, fired, lost)),
    ]
    run = queries.subject.run
    if run is not None:
        parts += [(why, lambda: why.blocks(queries)), (considered, lambda: considered.blocks(queries, lost))]
    if run is not None and found is not None:
        parts += [
            (steps, lambda: steps.blocks(queries, found)),
            (phases, lambda: phases.blocks(queries, found)),
        ]
    parts += [
        (utilisation, lambda: utilisation.blocks(queries, found)),
        (dips, lambda: dips.blocks(queries, found)),
    ]
    if run is not None and found is not None:
        parts += [
            (ranks, lambda: ranks.blocks(queries, found)),
            (scaling_section, lambda: scaling_section.blocks(queries)),
        ]
    return [*parts, (hosts, lambda: hosts.blocks(queries))]


def _partial(warnings: Sequence[str]) -> Notice:
    """Return a warning that precedes all numbers."""
    text = "The server returned warnings: numbers in this report may be too low or missing"
    return Notice("warning", f"{text}. {listed(warnings)}.")


def _subtitle(queries: Queries, lost: lost_time.LostTime) -> str:
    number = lost.gpu_seconds / lost.seconds if lost.seconds else 0.0
    nodes = len(queries.subject.instances)
    where = f" on {nodes} {'node' if nodes == 1 else 'nodes'}" if nodes else ""
    unit = lost.unit if round(number) == 1 else f"{lost.unit}s"
    size = f"{number:.0f} {unit}{where}, " if number else ""
    return f"{size}data from {queries.server.name}"
