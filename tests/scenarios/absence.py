"""Take one metric family away from a case, and see which causes the rules still name.

Absence is not evidence: without a family a rule names the same cause, a more general one, or none. It never names
another specific cause.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from stallscope.model.catalogue.causes import CAUSES
from tests.known_names import BY_SERIES_NAME, READ, rules
from tests.promql_names import names_in
from tests.rules.layers import selects
from tests.rules.rulebook import EVALUATION_INTERVAL
from tests.scenarios import runner
from tests.scenarios.account import CLASS_HELD_SECONDS, truth
from tests.scenarios.case import WELL, Case, Series, render
from tests.scenarios.cases import CASES
from tests.scenarios.figures import SETTLING_SECONDS, evidence_seconds
from tests.scenarios.life import INSUFFICIENT, PARENTS, accepted
from tests.scenarios.story import From

SEED = 1
_JUDGED_SECONDS = 60
"""Time after a cause has settled in which its verdict is judged."""
_VERDICTS = ("run:verdict:ratio5m", "rank:verdict:ratio5m", "gpu:verdict:ratio5m")
_HIDES_FEW_WORKERS = (
    "input_cpu_saturated",
    "input_cgroup_throttled",
    "input_disk_bound",
    "input_network_bound",
    "input_remote_latency",
)
_RANKS = frozenset(
    [
        "stallscope_training_state",
        "stallscope_training_last_push_timestamp_seconds",
        "stallscope_training_rank_gpu_info",
    ]
)
"""Families without which no rank claims a GPU."""
_OF_A_GPU_ALONE = frozenset(["underused", "periodic_host_work", "lost"])
"""Causes of a held GPU without a rank. Its own counters and its driver are their evidence."""
_FURTHER_PARENTS = {
    **dict.fromkeys(("checkpoint_stall", "evaluation_overhead"), "goodput_low"),
    "callback_stall": "periodic_host_work",
}
"""The finding that is right where the phase is unknown: little goodput in an hour, regular dips of a GPU."""
_MOST_UNITS = 110
"""GPUs and ranks in one evaluation: promtool refuses a query with more than 10,000 samples."""
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


def units(case: Case) -> int:
    """Return the number of GPUs and ranks of a case."""
    return sum(node.gpus for node in case.story.nodes) + sum(len(run.ranks) for run in case.story.runs)


@cache
def representatives() -> Mapping[str, Case]:
    """Return the smallest positive case of each cause of the catalogue; those of inference servers are not in it."""
    chosen: dict[str, Case] = {}
    for case in CASES:
        if case.kind == "positive" and case.cause in CAUSES:
            best = chosen.setdefault(case.cause, case)
            if units(case) * case.length < units(best) * best.length:
                chosen[case.cause] = case
    return chosen


@cache
def with_one_worker() -> tuple[Case, ...]:
    """Return the cases of waits for data whose cause hides that the loader also has too few workers."""
    return tuple(_with_one_worker(representatives()[cause]) for cause in _HIDES_FEW_WORKERS)


def _with_one_worker(case: Case) -> Case:
    runs = tuple(
        replace(
            run, work=tuple(From(each.minute, replace(each.state, loader_workers=1), each.only) for each in run.work)
        )
        for run in case.story.runs
    )
    return replace(case, name=f"{case.name}_one_worker", story=replace(case.story, runs=runs))


@cache
def scraped(case: Case) -> tuple[Series, ...]:
    """Return the series of a case that rules read, up to the end of the judged time."""
    series = [each for each in render(case, SEED, noise=False, labels={}) if each.name in READ]
    settled = max(60 * case.onset + evidence_seconds(case.cause), truth(case, series).ready) + SETTLING_SECONDS
    if case.cause in CAUSES and CAUSES[case.cause].domain == "device":
        settled += CLASS_HELD_SECONDS
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


def _is_of(rule: Mapping[str, Any], cause: str) -> bool:
    if rule["record"].startswith("stallscope:"):  # a constant
        return False
    return rule.get("labels", {}).get("cause") == cause or bool(re.search(rf'"cause", "{cause}"', str(rule["expr"])))


@cache
def _recorded() -> Mapping[str, list[dict[str, Any]]]:
    recorded = defaultdict(list)
    for rule in rules():
        if "record" in rule:
            recorded[rule["record"]].append(rule)
    return recorded


def findings(trials: Iterable[Trial]) -> dict[Trial, frozenset[Finding]]:
    """Return what the rules name at the end of each trial."""
    found: dict[Trial, frozenset[Finding]] = {}
    for batch in _batches(trials):
        found |= _findings(batch)
    return found


def _batches(trials: Iterable[Trial]) -> Iterator[list[Trial]]:
    """Yield trials that end at about the same time together."""
    batch: list[Trial] = []
    for trial in sorted(trials, key=lambda each: last_second(each.case)):
        if sum(units(each.case) for each in (*batch, trial)) > _MOST_UNITS:
            yield batch
            batch = []
        batch.append(trial)
    if batch:
        yield batch


def _findings(batch: Sequence[Trial]) -> dict[Trial, frozenset[Finding]]:
    series: list[Series] = []
    judged: list[range] = []
    for position, trial in enumerate(batch):
        last = last_second(trial.case) // EVALUATION_INTERVAL * EVALUATION_INTERVAL
        judged.append(range(last - _JUDGED_SECONDS, last + 1, EVALUATION_INTERVAL))
        series += [
            Series(each.name, {"cluster": str(position), **each.labels}, each.values)
            for each in scraped(trial.case)
            if each.name not in BY_SERIES_NAME or BY_SERIES_NAME[each.name].name != trial.family
        ]
    moments = sorted({second for seconds in judged for second in seconds})
    said = runner.evaluate(series, {FINDINGS: moments}, evaluation_seconds=EVALUATION_INTERVAL)
    found: list[set[Finding]] = [set() for _ in batch]
    for second, samples in said.samples[FINDINGS].items():
        for sample in samples:
            cluster, cause = sample.labels.get("cluster"), sample.labels["cause"]
            if cluster and cause in CAUSES and second in judged[int(cluster)]:
                found[int(cluster)].add(Finding(sample.labels.get("alertname", sample.name), cause))
    return {trial: frozenset(each) for trial, each in zip(batch, found, strict=True)}


def wrong(trial: Trial, complete: Iterable[Finding], found: Iterable[Finding]) -> list[str]:
    """Return the findings that the absence of a family must not lead to.

    Args:
        trial: The case and the family.
        complete: What the rules name of the whole case.
        found: What they name without the family.
    """
    right = accepted(trial.case) | {each.cause for each in complete}
    parents = {**PARENTS, **_FURTHER_PARENTS}
    right |= {parents[cause] for cause in right if cause in parents} | WELL | {INSUFFICIENT}
    if trial.family in _RANKS:
        right |= _OF_A_GPU_ALONE
    return sorted(f"{each.of}: {each.cause}" for each in found if each.cause not in right)


def without_each(case: Case, dropped: Iterable[str]) -> list[Trial]:
    """Return the trial of the whole case, and one for each family of the case among those given."""
    return [Trial(case, ""), *(Trial(case, family) for family in sorted(families(case) & frozenset(dropped)))]


def complaints(found: Mapping[Trial, frozenset[Finding]]) -> list[str]:
    """Return a line for each trial with a wrong finding, and for each whole case whose cause is not named."""
    lines = []
    for trial, named in found.items():
        if trial.family:
            if errors := wrong(trial, found[Trial(trial.case, "")], named):
                lines.append(f"{trial}: {', '.join(errors)}")
        elif trial.case.cause in CAUSES and not accepted(trial.case) & {each.cause for each in named}:
            lines.append(f"{trial}: {trial.case.cause} is not named")
    return lines
