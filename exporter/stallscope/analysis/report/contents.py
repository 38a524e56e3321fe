"""The report's contents: asks for every section, in the order in which they are read.

    document = build(of_run(prometheus, run), prometheus, Options(gpu_hour_price=2.5, currency="EUR"))

A section that can't be asked for says so in its place, and the others are there all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stallscope.analysis.prometheus import PrometheusError
from stallscope.analysis.report import alerts as alerts_of
from stallscope.analysis.report import (
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
from stallscope.analysis.report.asking import Asker, Server
from stallscope.analysis.report.document import Document, Notice, Section
from stallscope.analysis.report.options import Options
from stallscope.analysis.report.subject import Subject
from stallscope.analysis.report.whereabouts import verdicts_of_each, whereabouts

PARTS = 17
"""How often `progress` is called for a whole report, at most."""

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
    progress("lost time")
    lost = lost_time.lost_time(asker)
    run = subject.run
    found = None
    if run is not None:
        progress("ranks")
        found = ranks.ranks(asker, run)
    progress("alerts")
    fired = alerts_of.alerts(asker)
    progress("recommendations")
    number = len(found.places) if found is not None else round(lost.gpu_seconds / max(1.0, lost.seconds))
    advice = recommendations.Found(lost, fired, whereabouts(asker, found), verdicts_of_each(asker), number)
    advised = recommendations.recommendations(asker, advice)

    parts: list[tuple[str, str, Callable[[], Section]]] = [
        (summary.KEY, "Summary", lambda: summary.section(asker, lost, found)),
        (recommendations.KEY, "What to change", lambda: recommendations.section(lost, advised)),
        (lost_time.KEY, "Where GPU time went", lambda: lost_time.section(asker, lost)),
        (timeline.KEY, "Verdicts over time", lambda: timeline.section(asker, lost, found)),
        (alerts_of.KEY, "Alerts that fired", lambda: alerts_of.section(asker, fired, lost)),
    ]
    if run is not None and found is not None:
        known = found
        parts += [
            (steps.KEY, "Steps", lambda: steps.section(asker, known)),
            (phases.KEY, "Phases", lambda: phases.section(asker, known)),
        ]
    parts.append((utilisation.KEY, "Use of each GPU", lambda: utilisation.section(asker, found)))
    parts.append((dips.KEY, "Dips and steps", lambda: dips.section(asker, found)))
    if run is not None and found is not None:
        known, this = found, run
        parts += [
            (ranks.KEY, "Ranks", lambda: ranks.section(asker, known)),
            (scaling.KEY, "Scaling", lambda: scaling.section(asker, this)),
        ]
    parts.append((hosts.KEY, "Hosts", lambda: hosts.section(asker)))

    sections: list[Section] = []
    failures: list[missing.Failure] = []
    for key, title, ask in parts:
        progress(title)
        try:
            sections.append(ask())
        except PrometheusError as problem:
            failures.append(missing.Failure(title, str(problem)))
            sections.append(Section(key, title, (Notice("critical", f"This could not be asked for: {problem}"),)))
    progress("what was missing")
    sections.append(missing.section(asker, found, fired, failures))
    return Document(
        title=subject.title,
        subtitle=_subtitle(asker),
        made_at=now(),
        start=subject.start,
        end=subject.end,
        sections=tuple(sections),
        highlights=summary.highlights(asker, lost),
        live=subject.live,
        zone=asker.options.zone,
        currency=asker.options.currency,
    )


def _subtitle(asker: Asker) -> str:
    subject = asker.subject
    until = "until now" if subject.live else f"until {asker.moment(subject.end)}"
    return f"From {asker.moment(subject.start)} {until} ({asker.options.zone}), as {asker.server.name} tells it"
