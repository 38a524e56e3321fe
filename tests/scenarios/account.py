"""Verdicts and alerts of the rules, or a baseline, on a trial, in one form for all diagnosers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import yaml

from stallscope.lab.replay.rule_engine import Answers, Sample
from stallscope.model.catalogue.causes import CAUSES, DeviceClass
from tests.rules.rulebook import ALERT_FILES
from tests.scenarios.baselines import HEALTHY, Diagnoser
from tests.scenarios.case import Case, Series
from tests.scenarios.figures import Account, Firing, Truth
from tests.scenarios.runner import EVALUATION_SECONDS, SERVING, WATCHDOG

WARM_UP_SECONDS = 300
"""Seconds from the first step until performance is judged (`warmup_seconds`)."""
_HIGH = 0.2
"""Share lost from which the catalogue calls most causes high, and their alerts come sooner."""
_RUN = ("namespace", "run")
_RANK = ("namespace", "run", "rank")
_GPU = ("job", "instance", "gpu", "uuid", "mig")
_IDENTITY = {
    "run:verdict:ratio5m": _RUN,
    "rank:verdict:ratio5m": _RANK,
    "gpu:verdict:ratio5m": _GPU,
    "serving_gpu:verdict:ratio5m": _GPU,
}
_SUBJECTS = ("run:verdict:ratio5m", "gpu:verdict:ratio5m", "serving_gpu:verdict:ratio5m")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def truth(case: Case, series: Sequence[Series]) -> Truth:
    """Facts that only the rendering knows."""
    gpus = {_key(each.labels, _GPU) for each in series if each.name == "stallscope_gpu_up"}
    first_steps = [
        value
        for each in series
        if each.name == "stallscope_training_first_step_timestamp_seconds" and each.labels["run"] == case.run
        for position in range(len(each.values))
        if (value := each.sample(position))
    ]
    return Truth(
        gpus=len(gpus),
        ready=min(first_steps, default=-WARM_UP_SECONDS) + WARM_UP_SECONDS,
        first_step=min(first_steps, default=None),
    )


def of_rules(case: Case, series: Sequence[Series], answers: Answers) -> Account:
    """Read the account of the rules from what they recorded and fired for one trial."""
    verdicts: dict[str, dict[int, str]] = defaultdict(dict)
    shares: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    culprit: dict[int, tuple[float, str]] = {}
    for second, samples in answers.items():
        for sample in samples:
            labels = sample.labels
            if sample.name in _SUBJECTS and _is_subject(case, sample):
                identity = "/".join(_key(labels, _IDENTITY[sample.name]))
                verdicts[identity][second] = labels["cause"]
                if case.subject == "server":  # the value is the share lost
                    shares[labels["cause"]][second].append(sample.value)
            elif sample.name in ("run_cause:time_lost:ratio5m", "gpu_cause:time_lost:ratio5m"):
                if _is_subject(case, sample):
                    shares[labels["cause"]][second].append(sample.value)
            elif sample.name == "run_rank:straggler_score:ratio5m" and labels.get("run") == case.run:
                culprit[second] = max(culprit.get(second, (-1.0, "")), (sample.value, labels.get("rank", "")))
    parts = max(1, len(verdicts))
    return Account(
        verdicts=verdicts,
        firings=list(firings(answers, lambda name: alert_delay(name, surely_lost(case)))),
        shares={
            cause: {second: sum(values) / parts for second, values in timeline.items()}
            for cause, timeline in shares.items()
        },
        culprit={second: rank for second, (_, rank) in culprit.items()},
        faults=promises_broken(series, answers),
    )


def _is_subject(case: Case, sample: Sample) -> bool:
    """Return True if a verdict or share is of the case's subject."""
    labels = sample.labels
    if case.subject == "run":
        return sample.name.startswith("run") and labels.get("run") == case.run
    prefix = {"gpu": "gpu", "server": "serving_gpu"}.get(case.subject)
    if prefix and sample.name.startswith(prefix):
        wanted = dict(case.culprit or ())
        return all(labels.get(label) == wanted[label] for label in ("instance", "gpu", "uuid") if label in wanted)
    return False


def firings(answers: Answers, delay: Callable[[str], float]) -> Iterable[Firing]:
    """Each alert that fired, from its first evaluation to its last in a row."""
    moments: dict[tuple[tuple[str, str], ...], list[int]] = defaultdict(list)
    for second, samples in sorted(answers.items()):
        for sample in samples:
            if sample.name == "ALERTS" and sample.labels["alertname"] != WATCHDOG:
                moments[tuple(sorted(sample.labels.items()))].append(second)
    for labels, seconds in moments.items():
        found = dict(labels)
        for first, last in _rows(seconds):
            yield Firing(
                alert=found["alertname"],
                severity=found.get("severity", ""),
                cause=found.get("cause", ""),
                labels=found,
                first=first,
                last=last,
                delay=delay(found["alertname"]),
            )


def _rows(seconds: Sequence[int]) -> Iterable[tuple[int, int]]:
    """First and last of each row of evaluations without a gap."""
    rows: list[tuple[int, int]] = []
    for second in seconds:
        if rows and second - rows[-1][1] <= EVALUATION_SECONDS:
            rows[-1] = (rows[-1][0], second)
        else:
            rows.append((second, second))
    return rows


@lru_cache
def _alert_rules() -> Mapping[str, Sequence[Mapping[str, str]]]:
    rules: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for path in (*ALERT_FILES, SERVING):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                rules[rule.get("alert", "")].append(rule)
    return rules


def surely_lost(case: Case) -> float | None:
    """Return the lowest share that a right measurement of the loss may have."""
    return None if case.lost is None else case.lost - case.tolerance


CLASS_HELD_SECONDS = 180.0
"""Seconds for which a class of GPU work must have held until it is a cause (`pair_cause:gpu_side_held:info`)."""
_ON_CLASSES = frozenset(
    cause.alert for cause in CAUSES.values() if cause.rule is not None and isinstance(cause.rule.shape, DeviceClass)
)


def alert_delay(name: str, lost: float | None) -> float:
    """Seconds that an alert takes by its rules: `for`, and the window of a mean or of its condition on a lesser
    loss."""
    rules = _alert_rules().get(name, ())
    held = CLASS_HELD_SECONDS if name in _ON_CLASSES else 0.0
    return held + max((_delay(rule, lost) for rule in rules), default=0.0)


def _delay(rule: Mapping[str, str], lost: float | None) -> float:
    held = duration(str(rule.get("for", "0s")))
    further = re.search(r"(min|avg)_over_time\(\s*run_cause:time_lost:ratio5m\{[^}]*\}\[(\w+)\]", str(rule["expr"]))
    if further and (further[1] == "avg" or lost is None or lost < _HIGH):
        return held + duration(further[2])
    return held


def duration(text: str) -> float:
    """Seconds of a duration in Prometheus's notation."""
    return float(sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhd])", text)))


def promises_broken(series: Sequence[Series], answers: Answers) -> list[str]:
    """Who had no verdict, or several, at an evaluation: each kind of fault once, with its first moment.

    A rank is judged while it is starting or running, a run while one of its ranks is, a GPU while the exporter exposes
    of it. One evaluation is allowed until the rules have seen a new subject.
    """
    expected = _judged_subjects(series)
    faults: dict[tuple[str, tuple[str, ...], str], list[int]] = defaultdict(list)
    for second, samples in sorted(answers.items()):
        counts: Counter[tuple[str, tuple[str, ...]]] = Counter(
            (sample.name, _key(sample.labels, _IDENTITY[sample.name])) for sample in samples if sample.name in _IDENTITY
        )
        for (name, key), count in counts.items():
            if count > 1:
                faults[name, key, f"{count} verdicts"].append(second)
        before = expected.get(second - EVALUATION_SECONDS, set())
        for name, key in (expected.get(second, set()) & before) - counts.keys():
            faults[name, key, "no verdict"].append(second)
    return [
        f"{name.split(':')[0]} {'/'.join(filter(None, key))}: {what} at {len(seconds)} evaluations, "
        f"first at {seconds[0] / 60:g} min"
        for (name, key, what), seconds in faults.items()
    ]


def _judged_subjects(series: Sequence[Series]) -> Mapping[int, set[tuple[str, tuple[str, ...]]]]:
    expected: dict[int, set[tuple[str, tuple[str, ...]]]] = defaultdict(set)
    namespaces = {
        _key(each.labels, ("instance", "run", "rank")): each.labels.get("namespace", "")
        for each in series
        if each.name == "stallscope_training_rank_info"
    }
    for each in series:
        if each.name == "stallscope_gpu_up":
            for position in range(len(each.values)):
                if each.sample(position) is not None:
                    expected[position * EVALUATION_SECONDS].add(("gpu:verdict:ratio5m", _key(each.labels, _GPU)))
        elif each.name == "stallscope_training_state" and each.labels["state"] in ("starting", "running"):
            namespace = namespaces.get(_key(each.labels, ("instance", "run", "rank")), "")
            labels = {**each.labels, "namespace": namespace}
            for position in range(len(each.values)):
                if each.sample(position):
                    now = expected[position * EVALUATION_SECONDS]
                    now.add(("rank:verdict:ratio5m", _key(labels, _RANK)))
                    now.add(("run:verdict:ratio5m", _key(labels, _RUN)))
    return expected


def _key(labels: Mapping[str, str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in names)


def of_baseline(diagnose: Diagnoser, series: Sequence[Series]) -> Account:
    """Read a baseline's account: its first rule that fires is its verdict, and each rule is an alert."""
    fired = diagnose(series)
    answers: Answers = {
        position * EVALUATION_SECONDS: [
            Sample({"__name__": "ALERTS", "alertname": cause, "cause": cause, "severity": "warning"}, 1.0)
            for cause in causes
        ]
        for position, causes in enumerate(fired)
    }
    return Account(
        verdicts={
            "": {
                position * EVALUATION_SECONDS: causes[0] if causes else HEALTHY for position, causes in enumerate(fired)
            }
        },
        firings=list(firings(answers, lambda name: 0.0)),
    )
