"""The report's contents: asks for every section, in the order in which they are read.

    document = build(of_run(prometheus, run), prometheus, Options(gpu_hour_price=2.5, currency="EUR"))

A section that can't be asked for says so in its place, and the others are there all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from stallscope.clients.prometheus import PrometheusError
from stallscope.report import alerts as alerts_of
from stallscope.report import (
    dips,
    hosts,
    lost_time,
    missing,
    phases,
    ranks,
    recommendations,
    scaling,
    steps,
    summary,
    timeline,
    utilisation,
)
from stallscope.report.asking import Asker, Server
from stallscope.report.culprits import Blamed, culprits
from stallscope.report.document import Document, Notice, Section
from stallscope.report.options import Options
from stallscope.report.subject import Subject
from stallscope.report.whereabouts import listed, verdicts_of_each, whereabouts

PARTS = 19
"""How often `progress` is called for a whole report, at most."""

_Answer = TypeVar("_Answer")
Progress = Callable[[str], object]
"""Called with what is asked for next, in a few words."""


def build(
    subject: Subject,
    server: Server,
    options: Options | None = None,
    progress: Progress = lambda _what: None,
    *,
    now: Callable[[], float] = time.time,
) -> Document:
    """Ask for a report.

    Args:
        subject: whom and what time it tells of.
        server: whom to ask; long questions may take it a minute.
        options: prices, rows and the like.
        progress: told what is asked for next.
        now: the clock that dates the report.

    Raises:
        PrometheusError: the server did not even tell of lost time, or is gone.
    """
    asker = Asker(server, subject, options or Options())
    failures: list[missing.Failure] = []

    def attempt(title: str, ask: Callable[[], _Answer], otherwise: Callable[[str], _Answer]) -> _Answer:
        """Ask; where there is no answer, remember why, and go on with something else."""
        progress(title)
        try:
            return ask()
        except PrometheusError as problem:
            server.query("vector(1)")  # who is gone or hangs would keep every other section waiting for nothing
            failures.append(missing.Failure(title, str(problem)))
            return otherwise(str(problem))

    progress("Lost time")
    lost = lost_time.lost_time(asker)
    if lost.unit == "rank":  # what has no GPU has no price of a GPU
        asker.options = replace(asker.options, gpu_hour_price=None)
    run = subject.run
    found = None
    if run is not None:
        this = run
        found = attempt("Ranks of the run", lambda: ranks.ranks(asker, this), lambda _: ranks.NOT_TOLD)
    fired = attempt("Alerts", lambda: alerts_of.alerts(asker, found), alerts_of.not_told)
    where = attempt("Where causes show", lambda: whereabouts(asker, found), lambda _: {})
    verdicts = attempt("Verdicts of each", lambda: verdicts_of_each(asker), lambda _: set())
    blamed: dict[str, Blamed] = {}
    if run is not None:
        blamed = attempt("Who is to blame", lambda: culprits(asker), lambda _: {})
    number = len(found.places) if found is not None else round(lost.gpu_seconds / max(1.0, lost.seconds))
    advice = recommendations.Found(lost, fired, where, verdicts, number, blamed)

    sections = [attempt(title, ask, partial(_failed, key, title)) for key, title, ask in _parts(asker, advice, found)]
    sections.append(
        attempt(
            missing.TITLE,
            lambda: missing.section(asker, found, fired, failures),
            lambda _: Section(missing.KEY, missing.TITLE, missing.told(failures)),
        )
    )
    warnings = server.take_warnings()
    if warnings:
        sections[0] = replace(sections[0], blocks=(_partial(warnings), *sections[0].blocks))
    return Document(
        title=subject.title,
        subtitle=_subtitle(asker, lost),
        made_at=now(),
        start=subject.start,
        end=subject.end,
        sections=tuple(sections),
        highlights=summary.highlights(asker, lost, blamed),
        live=subject.live,
        zone=asker.options.zone,
        currency=asker.options.currency,
        incomplete=tuple(map(str, failures)),
    )


def _parts(
    asker: Asker, advice: recommendations.Found, found: ranks.Ranks | None
) -> list[tuple[str, str, Callable[[], Section]]]:
    """Key, title and content of every section, in order."""
    lost, fired = advice.lost, advice.alerts
    advised = recommendations.recommendations(asker, advice)
    parts: list[tuple[str, str, Callable[[], Section]]] = [
        (summary.KEY, "Summary", lambda: summary.section(asker, lost, found, advice.blamed)),
        (recommendations.KEY, "What to change", lambda: recommendations.section(advice, advised)),
        (lost_time.KEY, "Where GPU time went", lambda: lost_time.section(asker, lost)),
        (timeline.KEY, "Verdicts over time", lambda: timeline.section(asker, lost, found)),
        (alerts_of.KEY, "Alerts that fired", lambda: alerts_of.section(asker, fired, lost)),
    ]
    run = asker.subject.run
    if run is not None and found is not None:
        parts += [
            (steps.KEY, "Steps", lambda: steps.section(asker, found)),
            (phases.KEY, "Phases", lambda: phases.section(asker, found)),
        ]
    parts += [
        (utilisation.KEY, "Use of each GPU", lambda: utilisation.section(asker, found)),
        (dips.KEY, "Dips and steps", lambda: dips.section(asker, found)),
    ]
    if run is not None and found is not None:
        parts += [
            (ranks.KEY, "Ranks", lambda: ranks.section(asker, found)),
            (scaling.KEY, "Scaling", lambda: scaling.section(asker, run)),
        ]
    return [*parts, (hosts.KEY, "Hosts", lambda: hosts.section(asker))]


def _partial(warnings: Sequence[str]) -> Notice:
    """What makes every number doubtful stands before them all."""
    text = "The server warns of its own answers, so that any number here may be too low, or missing"
    return Notice("warning", f"{text}: {listed(warnings)}.")


def _failed(key: str, title: str, reason: str) -> Section:
    return Section(key, title, (Notice("critical", f"This could not be asked for: {reason}"),))


def _subtitle(asker: Asker, lost: lost_time.LostTime) -> str:
    number = lost.gpu_seconds / lost.seconds if lost.seconds else 0.0
    nodes = len(asker.subject.instances)
    where = f" on {nodes} {'node' if nodes == 1 else 'nodes'}" if nodes else ""
    unit = lost.unit if round(number) == 1 else f"{lost.unit}s"
    size = f"{number:.0f} {unit}{where}, " if number else ""
    return f"{size}read from {asker.server.name}"
