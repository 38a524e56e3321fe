"""Evaluate the rules on replayed recordings, and compare verdicts with the published answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan

from stallscope.lab.replay.rule_engine import Answers, Sample
from stallscope.lab.replay.series import Series
from tests.external.recording import Recording
from tests.external.replay import BEGIN, MINUTES, played
from tests.scenarios import runner

JUDGED_SECONDS = 600
"""The last seconds of a replay, in which the verdict counts that holds for most evaluations."""
TOLERANCE = 0.03
"""Greatest error of a lost share that is right."""
_RECORDED = (
    "run:verdict:ratio5m",
    "run_cause:time_lost:ratio5m",
    "run:culprit:info",
    "run_rank:straggler_score:ratio5m",
)
_EXPRESSION = f'{{__name__=~"{"|".join(_RECORDED)}"}} or ALERTS{{alertstate="firing"}}'
_OF_ONE_RANK = ("straggler_rank", "straggler_input", "straggler_hw", "stage_imbalance")
"""Verdicts about the rank with the highest score."""


@dataclass(frozen=True)
class Trial:
    """A recording as the shim sees it."""

    recording: Recording
    measured: bool
    """False if the shim does not measure communication."""

    @property
    def name(self) -> str:
        """Name of the recording, with the variant where there are two."""
        if not self.recording.measures_communication:
            return self.recording.name
        return f"{self.recording.name}, communication {'measured' if self.measured else 'not measured'}"


@dataclass(frozen=True)
class Finding:
    """Verdict, culprit, shares and alerts of the rules on a trial."""

    trial: Trial
    verdict: str
    """The verdict of most evaluations at the end; empty without any."""
    culprit: str
    """Rank of the culprit; empty if the rules name none."""
    lost: float | None
    """Mean share of the verdict."""
    time_lost: Mapping[str, float]
    """Mean share of time lost by cause."""
    delay: float | None
    """Seconds from the start, or from the stop, to the first right verdict."""
    alerts: tuple[str, ...]
    """Names of all alerts that fired, in their order."""

    @property
    def is_right(self) -> bool | None:
        """True if the verdict is the published cause; None without a published answer."""
        published = self.trial.recording.published
        if published is None:
            return None
        return self.verdict in published.causes or (bool(published.alert) and published.alert in self.alerts)

    @property
    def is_culprit_right(self) -> bool | None:
        """True if the culprit is a published one; None if the source names none."""
        published = self.trial.recording.published
        if published is None or not published.ranks:
            return None
        return self.culprit in map(str, published.ranks)

    @property
    def shares(self) -> tuple[float | None, float | None]:
        """Lost share of the verdict, and of the published cause in `run_cause:time_lost`."""
        published = self.trial.recording.published
        causes = (self.verdict,) if published is None else published.causes
        found = [self.time_lost[cause] for cause in causes if cause in self.time_lost]
        return self.lost, max(found, default=None)

    @property
    def is_share_right(self) -> bool | None:
        """True if both shares are within 3 points of the published one; None if the source states none."""
        published = self.trial.recording.published
        if published is None or published.lost is None:
            return None
        wanted = published.lost
        return all(share is not None and abs(share - wanted) <= TOLERANCE for share in self.shares)


def trials(recordings: Sequence[Recording]) -> list[Trial]:
    """Return each recording as it is, and with unmeasured communication if it has any."""
    return [
        Trial(recording, measured)
        for recording in recordings
        for measured in ((True, False) if recording.measures_communication else (True,))
    ]


def judged(tried: Sequence[Trial], *, minutes: float = MINUTES) -> list[Finding]:
    """Play the trials and evaluate all rules on them together, each in a cluster of its own."""
    series: list[Series] = []
    for number, trial in enumerate(tried):
        series += [
            replace(each, labels={"cluster": str(number), **each.labels})
            for each in played(trial.recording, measured=trial.measured, minutes=minutes)
        ]
    moments = runner.evaluations(int(60 * minutes))
    answers = runner.evaluate(series, {_EXPRESSION: moments}).samples[_EXPRESSION]
    apart: list[Answers] = [{moment: [] for moment in moments} for _ in tried]
    for moment, samples in answers.items():
        for sample in samples:
            if cluster := sample.labels.get("cluster", ""):
                apart[int(cluster)][moment].append(sample)
    return [_finding(trial, answers) for trial, answers in zip(tried, apart, strict=True)]


def _finding(trial: Trial, answers: Answers) -> Finding:
    end = max(answers)
    last = [samples for moment, samples in answers.items() if moment > end - JUDGED_SECONDS]
    verdicts = Counter(
        sample.labels["cause"] for samples in last for sample in samples if sample.name == "run:verdict:ratio5m"
    )
    verdict = verdicts.most_common(1)[0][0] if verdicts else ""
    stops = trial.recording.stops_minute
    begin = BEGIN + 60 * (stops or 0.0)
    published = trial.recording.published
    right = () if published is None else published.causes
    first = next((moment for moment in sorted(answers) if moment >= begin and _is_any(answers[moment], right)), None)
    return Finding(
        trial=trial,
        verdict=verdict,
        culprit=_culprit(last, verdict),
        lost=_mean([s.value for each in last for s in each if _is_of(s, "run:verdict:ratio5m", verdict)]),
        time_lost=_time_lost(last),
        delay=None if first is None else first - begin,
        alerts=_alerts(answers),
    )


def _is_of(sample: Sample, name: str, cause: str) -> bool:
    return sample.name == name and sample.labels.get("cause") == cause


def _is_any(samples: Sequence[Sample], causes: Sequence[str]) -> bool:
    return any(_is_of(sample, "run:verdict:ratio5m", cause) for sample in samples for cause in causes)


def _culprit(last: Sequence[Sequence[Sample]], verdict: str) -> str:
    named = Counter(
        sample.labels["rank"]
        for samples in last
        for sample in samples
        if sample.name == "run:culprit:info" and sample.labels.get("rank")
    )
    if not named and verdict in _OF_ONE_RANK:
        for samples in last:
            scores = {s.labels["rank"]: s.value for s in samples if s.name == "run_rank:straggler_score:ratio5m"}
            if scores:
                named[max(scores, key=scores.__getitem__)] += 1
    return named.most_common(1)[0][0] if named else ""


def _time_lost(last: Sequence[Sequence[Sample]]) -> Mapping[str, float]:
    values: dict[str, list[float]] = {}
    for samples in last:
        for sample in samples:
            if sample.name == "run_cause:time_lost:ratio5m":
                values.setdefault(sample.labels["cause"], []).append(sample.value)
    return {cause: sum(found) / len(found) for cause, found in values.items()}


def _mean(values: Sequence[float]) -> float | None:
    found = [value for value in values if not isnan(value)]
    return sum(found) / len(found) if found else None


def _alerts(answers: Answers) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for _, samples in sorted(answers.items()):
        for sample in samples:
            if sample.name == "ALERTS" and sample.labels["alertname"] != runner.WATCHDOG:
                found[sample.labels["alertname"]] = None
    return tuple(found)
