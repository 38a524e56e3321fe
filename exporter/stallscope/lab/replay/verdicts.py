"""Evaluate the bundle's rules on the pages of a recording, and follow the verdicts over time."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from stallscope.lab.replay import rule_engine
from stallscope.lab.replay.pages import Recording, RecordingError
from stallscope.lab.replay.rule_engine import Answers
from stallscope.lab.replay.rule_files import group_of, rule_files
from stallscope.lab.replay.series import Series
from stallscope.lab.stack.configuration import with_thresholds
from stallscope.model.clients.exposition import labels_of

INTERVAL = 15
"""Seconds between two scrapes, and between two evaluations, as in the bundle's `prometheus.yml`."""
_WATCHDOG = "StallscopeWatchdog"
"""The alert that always fires."""
_START = 1.0
"""Unix time at the first page: 0 stands for an unknown time."""
_TIMES = ("timestamp_seconds", "_start_time_seconds")
"""Ends of the names of metrics that are Unix times."""
_RECORDED = '{__name__=~".+:.+"} or ALERTS{alertstate="firing"}'
_VERDICTS = '{__name__=~"run:verdict:ratio5m|gpu:verdict:ratio5m|run:culprit:info"} or ALERTS{alertstate="firing"}'
_TOLERANCE_SECONDS = 1.0
"""A recording of 60 s has a scrape at 60 s even if its last page is from 59.99 s."""
_LEAST_SCRAPES = 2
"""After the first one: rates need two scrapes."""
_LATE_SECONDS = 3.0
"""A page that comes at most this much after the page before is late: the recording process waited for a CPU."""


class Span(NamedTuple):
    """A time during which a run or a GPU had one verdict, or an alert fired."""

    begin: float
    """Seconds since the start of the recording."""
    end: float
    """The last evaluation with it."""
    cause: str
    lowest: float
    """Smallest share of time lost; NaN for an alert."""
    highest: float


Subject = tuple[tuple[str, str], ...]
"""Labels that identify a run, a GPU or an alert."""


@dataclass(frozen=True)
class Replayed:
    """Results of the rules on a recording."""

    seconds: float
    """Length of the recording."""
    missing: int
    """Scrapes without a page."""
    runs: Mapping[Subject, Sequence[Span]]
    gpus: Mapping[Subject, Sequence[Span]]
    alerts: Mapping[Subject, Sequence[Span]]
    series: Sequence[Series]
    """Scraped series."""
    answers: Answers
    """All recorded series and firing alerts at each evaluation; only verdicts and alerts unless `everything`."""


def replay(
    recording: Recording,
    promtool: str,
    *,
    thresholds: Mapping[str, float] | None = None,
    interval: int = INTERVAL,
    everything: bool = False,
    rules: Path | None = None,
) -> Replayed:
    """Evaluate the rules.

    Args:
        recording: an opened file.
        promtool: path of the program.
        thresholds: other values of thresholds, by name.
        interval: seconds between two scrapes, and between two evaluations.
        everything: keep all recorded series.
        rules: a changed copy of the bundle's folders `prometheus` and `alerts`; None for the bundle's own.

    Raises:
        RecordingError: the recording is damaged, or too short for any verdict.
        rule_engine.EngineError: promtool refused the rules.
        StackError: there is no threshold of that name.
    """
    series, seconds = scraped(recording, interval)
    moments = range(0, len(series[0].values) * interval, interval)
    expression = _RECORDED if everything else _VERDICTS
    files = rule_files(rules)
    with tempfile.TemporaryDirectory() as folder:
        said = rule_engine.evaluate(
            series,
            {expression: moments},
            promtool=promtool,
            rule_files=[_adjusted(file, Path(folder), thresholds or {}) for file in files],
            groups=[group_of(file) for file in files],
            scrape_seconds=interval,
            evaluation_seconds=interval,
        )
    answers = said.samples[expression]
    return Replayed(
        seconds=seconds,
        missing=sum(value == 0 for each in series if each.name == "up" for value in each.values),
        runs=_spans(answers, "run:verdict:ratio5m", ("namespace", "run"), interval),
        gpus=_spans(answers, "gpu:verdict:ratio5m", ("gpu", "uuid", "mig"), interval),
        alerts=_spans(answers, "ALERTS", ("alertname", "severity", "run", "rank", "gpu", "cause"), interval),
        series=series,
        answers=answers,
    )


def scraped(recording: Recording, interval: int) -> tuple[list[Series], float]:
    """Return the series that a scraper would have stored, and the length of the recording in seconds.

    Unix times are moved so that the recording begins at 1.

    Args:
        recording: an opened file.
        interval: seconds between two scrapes. Each scrape gets the newest page.

    Raises:
        RecordingError: the recording is damaged, or too short for any verdict.
    """
    pages: list[Mapping[str, float] | None] = []
    newest: Mapping[str, float] | None = None
    seconds = -math.inf
    for page in recording.pages():
        while len(pages) * interval < page.time and seconds >= 0:
            is_current = len(pages) * interval - seconds < max(interval, _LATE_SECONDS)
            pages.append(newest if is_current else None)
        seconds = page.time
        newest = None if page.error else {name: float(value) for name, value in page.samples.items()}
    if len(pages) * interval <= seconds + _TOLERANCE_SECONDS:
        pages.append(newest)
    least = _LEAST_SCRAPES * interval
    if seconds < least:
        raise RecordingError(
            f"{recording.path}: {max(seconds, 0):.0f} s of pages; rules need at least {least} s, record longer"
        )
    offset = float(recording.header["start"]) - _START
    target = {"job": "stallscope", "instance": str(recording.header.get("instance") or "recorded")}
    values: dict[str, list[float | None]] = {}
    for place, found in enumerate(pages):
        for text, value in (found or {}).items():
            values.setdefault(text, [None] * len(pages))[place] = value
    series = [Series("up", target, [float(found is not None) for found in pages])]
    for text, column in values.items():
        name, _, labels = text.removesuffix("}").partition("{")
        if is_unix_time(name):
            column = [None if value is None else value - offset for value in column]
        # As with `honor_labels`, the labels of the page take precedence over those of the target.
        series.append(Series(name, {**target, **labels_of(labels)}, column))
    return series, seconds


def is_unix_time(name: str) -> bool:
    """Return whether a metric's value is a Unix time."""
    return name.endswith(_TIMES)


def _adjusted(file: Path, folder: Path, thresholds: Mapping[str, float]) -> Path:
    return with_thresholds(file, folder, thresholds) if thresholds and file.name == "thresholds.yml" else file


def _spans(answers: Answers, name: str, identity: Iterable[str], interval: int) -> Mapping[Subject, Sequence[Span]]:
    found: dict[Subject, list[Span]] = {}
    for moment, samples in sorted(answers.items()):
        for sample in samples:
            if sample.name != name:
                continue
            subject = tuple((label, sample.labels[label]) for label in identity if sample.labels.get(label))
            spans = found.setdefault(subject, [])
            _extend(spans, moment, sample.labels.get("cause", ""), sample.value, interval)
    return found


def _extend(spans: list[Span], moment: float, cause: str, share: float, interval: int) -> None:
    if spans and spans[-1].cause == cause and moment - spans[-1].end <= interval:
        last = spans[-1]
        spans[-1] = Span(last.begin, moment, cause, min(last.lowest, share), max(last.highest, share))
    else:
        spans.append(Span(moment, moment, cause, share, share))


def lines(replayed: Replayed) -> Iterator[str]:
    """Yield the verdicts as text. GPUs with the same verdicts at the same times share their lines."""
    for subject, spans in sorted(replayed.runs.items()):
        yield f"run {dict(subject)['run']}"
        yield from _span_lines(spans)
    alike: dict[tuple[tuple[float, float, str], ...], list[Subject]] = {}
    for subject, spans in sorted(replayed.gpus.items()):
        alike.setdefault(tuple((span.begin, span.end, span.cause) for span in spans), []).append(subject)
    for subjects in alike.values():
        yield f"GPU {', '.join(_gpu(dict(subject)) for subject in subjects)}"
        columns = zip(*(replayed.gpus[subject] for subject in subjects), strict=True)
        yield from _span_lines([reduce(_joined, column) for column in columns])
    alerts = [
        (dict(subject), span)
        for subject, spans in sorted(replayed.alerts.items())
        for span in spans
        if ("alertname", _WATCHDOG) not in subject
    ]
    yield "alerts" if alerts else "no alerts"
    for labels, span in alerts:
        place = ", ".join(f"{name} {labels[name]}" for name in ("run", "rank", "gpu") if name in labels)
        title = f"{labels['alertname']} ({labels.get('severity', '')})"
        yield f"  {_clock(span.begin)} to {_clock(span.end)}  {title}{': ' if place else ''}{place}"


def _gpu(labels: Mapping[str, str]) -> str:
    mig = f" MIG {labels['mig']}" if "mig" in labels else ""
    return (labels.get("gpu") or labels.get("uuid", "")) + mig


def _span_lines(spans: Iterable[Span]) -> Iterator[str]:
    for span in spans:
        yield f"  {_clock(span.begin)} to {_clock(span.end)}  {span.cause}{_shares(span)}"


def _joined(one: Span, other: Span) -> Span:
    return one._replace(lowest=min(one.lowest, other.lowest), highest=max(one.highest, other.highest))


def _shares(span: Span) -> str:
    low, high = round(100 * span.lowest), round(100 * span.highest)
    if math.isnan(span.highest) or high <= 0:
        return ""
    return f", {high} % lost" if low == high else f", {low} to {high} % lost"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"
