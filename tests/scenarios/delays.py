"""Figures of how soon the right verdict comes, and of what is said until then: `life.py` over many trials."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.scenarios.case import Case
from tests.scenarios.figures import Outcome, middle, percentile, share
from tests.scenarios.life import (
    EARLY_SECONDS,
    NOTHING,
    STANDSTILLS,
    Life,
    Moment,
    certain_seconds,
    is_without_fault,
    step_seconds,
)
from tests.scenarios.runner import EVALUATION_SECONDS

_FAST_STEP, _PAGED_STEP = 2.0, 10.0
"""Seconds."""


@dataclass(frozen=True)
class Goal:
    """A figure and what it must be."""

    meaning: str
    goal: float
    is_least: bool
    """True if the goal is a lower bound."""
    value: Callable[[Sequence[Outcome]], float]

    def met(self, value: float) -> bool | None:
        """Return None for a figure of no trials."""
        if math.isnan(value):
            return None
        return value >= self.goal if self.is_least else value <= self.goal


def wrong(moments: Iterable[Moment]) -> list[Moment]:
    """Return the moments with a wrong specific verdict or a harmful alert."""
    return [each for each in moments if each.grade == "wrong" or each.harmful]


def lived(outcomes: Iterable[Outcome]) -> list[tuple[Outcome, Life]]:
    """Return the trials whose whole life is known."""
    return [(each, each.life) for each in outcomes if each.life is not None]


def beginning(life: Life) -> list[Moment]:
    """Return the first ten minutes from the subject's first verdict on."""
    first = next((each.second for each in life.moments if each.verdict != NOTHING), math.inf)
    return [each for each in life.moments if first <= each.second < first + EARLY_SECONDS]


def since(life: Life, minute: float) -> list[Moment]:
    """Return the ten minutes from a minute on."""
    return [each for each in life.moments if 60 * minute <= each.second < 60 * minute + EARLY_SECONDS]


def _well_beginnings(outcomes: Sequence[Outcome]) -> list[float]:
    """Return for each run the seconds with a wrong specific verdict in its first ten minutes, before any fault."""
    return [
        EVALUATION_SECONDS * sum(each.grade == "wrong" for each in moments)
        for outcome, life in lived(outcomes)
        if outcome.trial.case.subject == "run"
        and (moments := [each for each in beginning(life) if is_without_fault(outcome.trial.case, each.second)])
    ]


def _wrong_after_onset(outcomes: Sequence[Outcome]) -> list[float]:
    return [EVALUATION_SECONDS * len(wrong(since(life, outcome.trial.case.onset))) for outcome, life in lived(outcomes)]


def _wrong_after_end(outcomes: Sequence[Outcome]) -> list[float]:
    return [
        EVALUATION_SECONDS * len(wrong(since(life, end)))
        for outcome, life in lived(outcomes)
        if (end := outcome.trial.case.end) is not None
    ]


def _between(outcomes: Sequence[Outcome]) -> list[int]:
    return [life.between for _, life in lived(outcomes) if life.between is not None]


def _since_certain(outcomes: Sequence[Outcome], value: Callable[[Life], float | None]) -> list[float]:
    """Return delays of standstills, which count from the onset, as they count from when each is certain."""
    return [
        found - certain_seconds(outcome.trial.case)
        for outcome, life in lived(outcomes)
        if outcome.trial.case.cause in STANDSTILLS and (found := value(life)) is not None
    ]


def _pages(outcomes: Sequence[Outcome]) -> list[float]:
    return [
        life.page
        for outcome, life in lived(outcomes)
        if life.page is not None and step_seconds(outcome.trial.case) < _PAGED_STEP
    ]


def _first_right(outcomes: Sequence[Outcome]) -> list[float]:
    return [
        life.first_right
        for outcome, life in lived(outcomes)
        if life.first_right is not None and step_seconds(outcome.trial.case) < _FAST_STEP
    ]


def _at_most(values: Iterable[float], most: float) -> float:
    return share(each <= most for each in values)


def _greatest(values: Iterable[float]) -> float:
    return max(values, default=math.nan)


GOALS: Mapping[str, Goal] = {
    "early_wrong_none": Goal(
        "runs without a wrong specific verdict in their first 10 min, before any fault",
        1.0,
        True,
        lambda found: _at_most(_well_beginnings(found), 0),
    ),
    "early_wrong_seconds": Goal(
        "the same in seconds, at most", 0.0, False, lambda found: _greatest(_well_beginnings(found))
    ),
    "onset_wrong_none": Goal(
        "trials without a wrong specific verdict or harmful alert within 10 min of the onset",
        0.99,
        True,
        lambda found: _at_most(_wrong_after_onset(found), 0),
    ),
    "end_wrong_none": Goal(
        "trials without a wrong specific verdict or harmful alert within 10 min of the fault's end",
        0.99,
        True,
        lambda found: _at_most(_wrong_after_end(found), 0),
    ),
    "standstill_right": Goal(
        "seconds from the time when a hang or lost GPU is certain to its right verdict, at most",
        60.0,
        False,
        lambda found: _greatest(_since_certain(found, lambda life: life.onset_delay)),
    ),
    "standstill_right_in_60": Goal(
        "hangs and lost GPUs with the right verdict within 60 s of it",
        1.0,
        True,
        lambda found: _at_most(_since_certain(found, lambda life: life.onset_delay), 60),
    ),
    "standstill_named_in_60": Goal(
        "hangs and lost GPUs with the right verdict, or `stalled`, within 60 s of it",
        1.0,
        True,
        lambda found: _at_most(_since_certain(found, lambda life: life.generic), 60),
    ),
    "standstill_never_wrong": Goal(
        "hangs and lost GPUs whose verdict is right or general at every evaluation of the fault",
        1.0,
        True,
        lambda found: share(
            not any(
                each.grade == "wrong" for each in life.moments if not is_without_fault(outcome.trial.case, each.second)
            )
            for outcome, life in lived(found)
            if outcome.trial.case.cause in STANDSTILLS
        ),
    ),
    "page_in_180": Goal(
        "hangs and lost GPUs with an alert within 3 min of their onset, steps under 10 s",
        1.0,
        True,
        lambda found: _at_most(_pages(found), 180),
    ),
    "between_one": Goal(
        "trials with at most one other verdict between the onset and the right one",
        0.95,
        True,
        lambda found: _at_most(_between(found), 1),
    ),
    "between_most": Goal(
        "other verdicts between the onset and the right one, at most",
        2.0,
        False,
        lambda found: _greatest(_between(found)),
    ),
    "first_right_in_120": Goal(
        "runs with the right verdict within 2 min of the first step, steps under 2 s",
        1.0,
        True,
        lambda found: _at_most(_first_right(found), 120),
    ),
    "first_right_p95": Goal(
        "the same in seconds, 95th percentile", 120.0, False, lambda found: percentile(_first_right(found), 95)
    ),
}
"""The figures that are held against a goal."""


def _from_start(outcomes: Sequence[Outcome], value: Callable[[Life], float | None]) -> list[float]:
    """Return delays of runs whose fault is there from their first step on."""
    return [
        found
        for outcome, life in lived(outcomes)
        if _begins_with_fault(outcome.trial.case) and (found := value(life)) is not None
    ]


def _begins_with_fault(case: Case) -> bool:
    """Return True if the first run starts after the installation, and its first step has the fault."""
    runs = case.story.runs
    return bool(runs) and runs[0].start > 0 and runs[0].start + runs[0].initialization == case.onset


def _after_end(outcomes: Sequence[Outcome], value: Callable[[Life], float | None]) -> list[float]:
    """Return delays of faults that are fixed while the run goes on: no standstill, and no fault of a GPU alone."""
    return [
        found
        for outcome, life in lived(outcomes)
        if outcome.trial.case.subject == "run"
        and outcome.trial.case.cause not in STANDSTILLS
        and (found := value(life)) is not None
    ]


def _both(name: str, meaning: str, goal: float, values: Callable[[Sequence[Outcome]], list[float]]) -> dict[str, Goal]:
    """Return the goal of a delay as its median and its 95th percentile."""
    return {
        f"{name}_median": Goal(f"{meaning}, median", goal, False, lambda found: middle(values(found))),
        f"{name}_p95": Goal("the same, 95th percentile", goal, False, lambda found: percentile(values(found), 95)),
    }


SOONER: Mapping[str, Goal] = {
    **_both(
        "start_named",
        "seconds from the first step of a run that begins with a fault to its verdict or the parent",
        120.0,
        lambda found: _from_start(found, lambda life: life.generic),
    ),
    **_both(
        "start_right",
        "seconds from that step to its verdict",
        120.0,
        lambda found: _from_start(found, lambda life: life.onset_delay),
    ),
    **_both(
        "end_verdict",
        "seconds from the end of a run's fault to the verdict without it",
        90.0,
        lambda found: _after_end(found, lambda life: life.end_delay),
    ),
    **_both(
        "end_alert",
        "seconds from that end to the end of the alert",
        180.0,
        lambda found: _after_end(found, lambda life: life.alert_end),
    ),
    "end_returns": Goal(
        "changes back to a fault's verdict after its end, at most",
        1.0,
        False,
        lambda found: _greatest(_after_end(found, lambda life: life.returns)),
    ),
}
"""Figures of how soon a verdict comes at the start, and goes at the end; each with its goal."""


def against_goals(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return each figure of GOALS and SOONER."""
    return {name: goal.value(outcomes) for name, goal in {**GOALS, **SOONER}.items()}


def by_cause(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """Return the delays and the wrong shares of each cause. Infinity is a verdict that never comes."""
    causes: dict[str, list[tuple[Outcome, Life]]] = defaultdict(list)
    for outcome, life in lived(outcomes):
        causes[outcome.trial.case.cause].append((outcome, life))
    return {cause: _of_cause(found) for cause, found in sorted(causes.items())}


def _of_cause(found: Sequence[tuple[Outcome, Life]]) -> dict[str, float]:
    onsets = [life.onset_delay for _, life in found if life.onset_delay is not None]
    ends = [life.end_delay for _, life in found if life.end_delay is not None]
    between = [life.between for _, life in found if life.between is not None]
    early = [moment for _, life in found for moment in beginning(life)]
    late = [moment for outcome, life in found for moment in since(life, outcome.trial.case.onset)]
    return {
        "trials": len(found),
        "onset_median": middle(onsets),
        "onset_p95": percentile(onsets, 95),
        "onset_never": sum(map(math.isinf, onsets)),
        "end_median": middle(ends),
        "end_p95": percentile(ends, 95),
        "between_median": middle(between),
        "between_most": _greatest(between),
        "early_wrong": share(bool(wrong([each])) for each in early),
        "onset_wrong": share(bool(wrong([each])) for each in late),
    }
