"""Take one metric family away from a case, and see which causes the rules still name.

Absence is not evidence: without a family a rule names the same cause, a more general one, or none. It never names
another specific cause.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from stallscope.causes import CAUSES
from tests.known_names import BY_SERIES_NAME, READ, rules
from tests.promql_names import names_in
from tests.rules.layers import selects
from tests.scenarios import runner
from tests.scenarios.account import truth
from tests.scenarios.case import WELL, Case, Series, render
from tests.scenarios.cases import CASES
from tests.scenarios.figures import SETTLING_SECONDS, evidence_seconds
from tests.scenarios.life import INSUFFICIENT, PARENTS, accepted

SEED = 1
_JUDGED_SECONDS = 60
"""Time after a cause has settled in which its verdict is judged."""
_CLASS_HELD_SECONDS = 180
"""Time for which a class of GPU work must have held until it is a verdict (`pair_cause:gpu_side_held:info`)."""
_VERDICTS = ("run:verdict:ratio5m", "rank:verdict:ratio5m", "gpu:verdict:ratio5m")
FINDINGS = f'{{__name__=~"{"|".join(_VERDICTS)}"}} or ALERTS{{cause!=""}}'
"""Verdicts and alerts. A pending alert counts: it fires later."""


@dataclass(frozen=True)
class Trial:
    """A case without one metric family."""

    case: Case
    family: str
    """Name of the family; empty if nothing is taken away."""

    def __str__(self) -> str:
        return f"{self.case.name} without {self.family or 'nothing'}"


@dataclass(frozen=True)
class Finding:
    """A cause that the rules name."""

    of: str
    """Name of the verdict's series, or of the alert."""
    cause: str


def size(case: Case) -> float:
    """Return the GPUs and ranks of a case, times its minutes."""
    story = case.story
    return (sum(node.gpus for node in story.nodes) + sum(len(run.ranks) for run in story.runs)) * case.length


@cache
def representatives() -> Mapping[str, Case]:
    """Return the smallest positive case of each cause."""
    chosen: dict[str, Case] = {}
    for case in CASES:
        if case.kind == "positive" and (case.cause not in chosen or size(case) < size(chosen[case.cause])):
            chosen[case.cause] = case
    return chosen


@cache
def scraped(case: Case) -> tuple[Series, ...]:
    """Return the series of a case that rules read, up to the end of the judged time."""
    series = [each for each in render(case, SEED, noise=False, labels={}) if each.name in READ]
    settled = max(60 * case.onset + evidence_seconds(case.cause), truth(case, series).ready) + SETTLING_SECONDS
    if case.cause in CAUSES and CAUSES[case.cause].domain == "device":
        settled += _CLASS_HELD_SECONDS
    end = min(60 * case.length, settled + _JUDGED_SECONDS)
    if case.end is not None:
        end = min(end, 60 * case.end)
    return tuple(
        Series(each.name, each.labels, each.values[: int(end) // runner.EVALUATION_SECONDS + 1]) for each in series
    )


def last_second(case: Case) -> int:
    """Return the last second of the judged time."""
    return (len(scraped(case)[0].values) - 1) * runner.EVALUATION_SECONDS


def families(case: Case) -> frozenset[str]:
    """Return the families of a case that rules read."""
    return frozenset(BY_SERIES_NAME[each.name].name for each in scraped(case) if each.name in BY_SERIES_NAME)


@cache
def inputs(cause: str) -> frozenset[str]:
    """Return the families from which the rules of a cause are evaluated, through all recorded series."""
    own = [rule for rule in rules() if "record" in rule and _is_of(rule, cause)]
    alerts = [rule for rule in rules() if "alert" in rule and rule["labels"].get("cause") == cause]
    waiting = own or alerts
    seen: set[int] = set()
    found: set[str] = set()
    while waiting:
        rule = waiting.pop()
        if id(rule) in seen:
            continue
        seen.add(id(rule))
        for selector in names_in(rule["expr"]).selectors:
            if selector.metric in BY_SERIES_NAME:
                found.add(BY_SERIES_NAME[selector.metric].name)
            waiting += [
                other for other in _recorded().get(selector.metric, ()) if selects(selector, other.get("labels", {}))
            ]
    return frozenset(found)


def _is_of(rule: Mapping[str, Mapping[str, str]], cause: str) -> bool:
    if rule["record"].startswith("stallscope:"):  # a constant
        return False
    return rule.get("labels", {}).get("cause") == cause or bool(re.search(rf'"cause", "{cause}"', str(rule["expr"])))


@cache
def _recorded() -> Mapping[str, Sequence[Mapping[str, Mapping[str, str]]]]:
    recorded = defaultdict(list)
    for rule in rules():
        if "record" in rule:
            recorded[rule["record"]].append(rule)
    return recorded


def findings(trials: Sequence[Trial]) -> list[frozenset[Finding]]:
    """Return what the rules name at the end of each trial, from one evaluation of them all."""
    series: list[Series] = []
    moments: set[int] = set()
    for position, trial in enumerate(trials):
        last = last_second(trial.case)
        moments |= set(range(last - _JUDGED_SECONDS, last + 1, runner.EVALUATION_SECONDS))
        series += [
            Series(each.name, {"cluster": str(position), **each.labels}, each.values)
            for each in scraped(trial.case)
            if each.name not in BY_SERIES_NAME or BY_SERIES_NAME[each.name].name != trial.family
        ]
    answers = runner.ask(series, {FINDINGS: sorted(moments)}).samples[FINDINGS]
    found: list[set[Finding]] = [set() for _ in trials]
    for second, samples in answers.items():
        for sample in samples:
            cluster = sample.labels.get("cluster", "")
            if cluster:
                place = int(cluster)
                if last_second(trials[place].case) - _JUDGED_SECONDS <= second <= last_second(trials[place].case):
                    of = sample.labels.get("alertname", sample.name)
                    if sample.labels["cause"] in CAUSES:
                        found[place].add(Finding(of, sample.labels["cause"]))
    return [frozenset(each) for each in found]


def wrong(case: Case, complete: frozenset[Finding], found: Iterable[Finding]) -> list[Finding]:
    """Return the findings that the absence of a family must not lead to.

    Args:
        case: The case.
        complete: What the rules name of the whole case.
        found: What they name without a family.
    """
    named = accepted(case) | {each.cause for each in complete}
    general = {PARENTS[cause] for cause in named if cause in PARENTS} | WELL | {INSUFFICIENT}
    return sorted((each for each in found if each.cause not in named | general), key=lambda each: (each.of, each.cause))
