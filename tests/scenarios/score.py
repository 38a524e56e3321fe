"""Run trials through the rules and the baselines, and write what comes out as tables."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache, partial

from stallscope.lab.replay import rule_engine
from tests.alerting.alertmanager import bundled
from tests.alerting.notifications import notifications
from tests.scenarios import account, delays, runner
from tests.scenarios.baselines import BASELINES
from tests.scenarios.case import Case, Series, render
from tests.scenarios.cases import CASES, HELD_OUT, LIVES
from tests.scenarios.figures import Firing, Outcome, Trial, judge, ratings, scored, share, summarise

RULES = "Stallscope's rules"
PROCESSES = 2
_NICENESS = 10
"""Niceness: other programs on the machine take precedence."""
_BATCH_HOURS = 80.0
"""Hours of GPUs and ranks in one run of the engine: about half a minute."""
_BATCH_SUBJECTS = 100
"""GPUs and ranks in one run of the engine, which gives up where a rule holds more than 10,000 samples at a time."""
Outcomes = dict[str, list[Outcome]]
"""By diagnoser."""
Progress = Callable[[str, Outcomes], None]


def trials(seeds: Iterable[int], noises: Iterable[bool], cases: Iterable[Case] | None = None) -> list[Trial]:
    """Every case, or the given ones, with each seed, clean and noisy."""
    chosen = list(CASES if cases is None else cases)
    return [Trial(case, seed, noise) for noise in noises for seed in seeds for case in chosen]


GATE_SEED = 1
_GATE_HOURS = 3.0
_NEEDS_EVERY_EVALUATION = "warm_up_laptop"
"""It loses time for half a minute less than its alert waits, which evaluations a minute apart don't show."""


def gate() -> list[Trial]:
    """The trials that the tests judge at every change, in a minute: without noise, of the small cases the smallest
    positive one of each cause and a sixth of the others; with noise, a twelfth."""
    small = [case for case in CASES if _size(case) <= _GATE_HOURS]
    positives = sorted((case for case in small if case.kind == "positive"), key=_size, reverse=True)
    smallest = list({case.cause: case for case in positives}.values())
    clean = smallest + [case for case in small if case not in smallest][::6]
    chosen = [*trials([GATE_SEED], [False], clean), *trials([GATE_SEED], [True], small[::12])]
    return [trial for trial in chosen if trial.case.name != _NEEDS_EVERY_EVALUATION]


def run(
    chosen: Sequence[Trial],
    *,
    baselines: bool = True,
    groups: Sequence[str] = runner.SCORED_GROUPS,
    evaluation_seconds: int = runner.EVALUATION_SECONDS,
    progress: Progress | None = None,
) -> Outcomes:
    """Judge trials, two runs of the engine at a time.

    Args:
        chosen: The trials.
        baselines: Judge the baselines as well.
        groups: The order in which the groups of rules are evaluated.
        evaluation_seconds: Time between two evaluations.
        progress: called for each part once it is judged.
    """
    outcomes: Outcomes = {}
    work = partial(judge_batch, baselines=baselines, groups=groups, evaluation_seconds=evaluation_seconds)
    batches = sorted(_batches(chosen), key=_hours, reverse=True)
    new = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, new, initializer=os.nice, initargs=(_NICENESS,)) as pool:
        pending = [pool.submit(work, batch) for batch in batches]
        for number, done in enumerate(as_completed(pending), start=1):
            judged = done.result()
            if progress:
                progress(f"{number} of {len(batches)}", judged)
            for diagnoser, found in judged.items():
                outcomes.setdefault(diagnoser, []).extend(found)
    place = {trial.name: position for position, trial in enumerate(chosen)}
    return {diagnoser: sorted(found, key=lambda each: place[each.trial.name]) for diagnoser, found in outcomes.items()}


def _size(case: Case) -> float:
    return _hours([Trial(case, GATE_SEED, noise=False)])


def _hours(batch: Iterable[Trial]) -> float:
    return sum(_subjects(trial) * trial.case.length / 60 for trial in batch)


def _subjects(trial: Trial) -> int:
    story = trial.case.story
    return sum(node.gpus for node in story.nodes) + sum(len(run.ranks) for run in story.runs)


def _batches(chosen: Iterable[Trial]) -> Iterator[list[Trial]]:
    """Trials of about the same length together: a run of the engine lasts as long as its longest."""
    batch: list[Trial] = []
    for trial in sorted(chosen, key=lambda each: each.case.length):
        more = [*batch, trial]
        if batch and (_hours(more) > _BATCH_HOURS or sum(map(_subjects, more)) > _BATCH_SUBJECTS):
            yield batch
            batch = []
        batch.append(trial)
    if batch:
        yield batch


def judge_batch(
    batch: Sequence[Trial],
    *,
    baselines: bool = True,
    groups: Sequence[str] = runner.SCORED_GROUPS,
    evaluation_seconds: int = runner.EVALUATION_SECONDS,
) -> Outcomes:
    """Judge trials in one run of the engine."""
    rendered = [
        render(trial.case, trial.seed, noise=trial.noise, labels={"cluster": f"trial-{position}"})
        for position, trial in enumerate(batch)
    ]
    moments = runner.evaluations(int(60 * max(trial.case.length for trial in batch)))
    every = [series for each in rendered for series in each]
    together = runner.evaluate(
        every, {runner.EVERYTHING: moments}, groups=groups, evaluation_seconds=evaluation_seconds
    ).samples[runner.EVERYTHING]
    apart: list[rule_engine.Answers] = [
        {moment: [] for moment in runner.evaluations(int(60 * trial.case.length))} for trial in batch
    ]
    for moment, samples in together.items():
        for sample in samples:
            cluster = sample.labels.get("cluster", "")
            if cluster and moment in apart[place := int(cluster.removeprefix("trial-"))]:
                apart[place][moment].append(sample)
    outcomes: Outcomes = {}
    for trial, series, answers in zip(batch, rendered, apart, strict=True):
        for diagnoser, outcome in _judged(trial, series, answers, baselines=baselines):
            outcomes.setdefault(diagnoser, []).append(outcome)
    return outcomes


def _judged(
    trial: Trial, series: Sequence[Series], answers: rule_engine.Answers, *, baselines: bool
) -> Iterator[tuple[str, Outcome]]:
    truth = account.truth(trial.case, series)
    of_rules = account.of_rules(trial.case, series, answers)
    yield RULES, replace(judge(trial, of_rules, truth), notified=_notified(trial.case, of_rules.firings))
    if baselines:
        for name, diagnose in BASELINES.items():
            # A baseline has no alerts by name: any of its rules on an affected subject counts as an alert.
            ill = trial.case.kind == "positive" or (trial.case.level or 0.0) > 1
            reported = partial(_after_onset, trial.case) if ill else _never
            yield name, judge(trial, account.of_baseline(diagnose, series), truth, expected=reported)


def _notified(case: Case, firings: Sequence[Firing]) -> tuple[str, ...]:
    """Return the statuses of the notifications that Alertmanager sends by the bundle's configuration."""
    last = int(60 * case.length)
    ends = {firing.last + runner.EVALUATION_SECONDS for firing in firings}
    changes = sorted({second for second in {firing.first for firing in firings} | ends if second <= last})
    story = [
        (second, [firing.labels for firing in firings if firing.first <= second <= firing.last]) for second in changes
    ]
    return tuple(each.status for each in notifications(_configuration(), story, last))


_configuration = cache(bundled)


def _after_onset(case: Case, firing: Firing) -> bool:
    return firing.last >= 60 * case.onset


def _never(firing: Firing) -> bool:
    return False


_FIGURES: Mapping[str, str] = {
    "top1": "top-1 accuracy",
    "acceptable": "accuracy, acceptable verdicts counted as right",
    "family": "accuracy by family of causes",
    "top1_positives": "top-1 accuracy on positives",
    "top1_negatives": "top-1 accuracy on negatives",
    "macro_f1": "macro-F1 over causes",
    "prior_weighted": "top-1 on positives, weighted by ICSE'24 shares",
    "forbidden": "cases with a forbidden verdict or alert",
    "fired": "positives whose alert fired",
    "alarmed": "positives with any alert above info",
    "positives_with_other_alarms": "positives with an unexpected alert above info",
    "negatives_alarmed": "negatives with an alert above info",
    "false_alarms_per_gpu_day": "false alerts above info a GPU-day of negatives",
    "abstention_precision": "abstention precision",
    "abstention_recall": "abstention recall, acceptable verdicts counted as right",
    "recall_at_1_25": "recall at 1.25 of a threshold",
    "silence_at_0_8": "silence at 0.8 of a threshold",
    "detection_median_minutes": "minutes from onset to alert, median",
    "detection_p95_minutes": "minutes from onset to alert, 95th percentile",
    "late_p95_evaluations": "evaluations late, 95th percentile",
    "late_over_two": "alerts more than two evaluations late",
    "lost_error_mean": "error of the lost share, mean",
    "lost_error_p95": "error of the lost share, 95th percentile",
    "lost_within_0_05": "lost shares within 0.05",
    "culprit": "culprits named",
    "flips_per_hour": "changes of verdict an hour",
    "faults": "trials with a subject without exactly one verdict",
    "trials": "trials",
}


def split(outcomes: Outcomes) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by diagnoser, clean and noisy apart."""
    return {
        diagnoser: {
            kind: summarise([each for each in found if each.trial.noise == noise])
            for kind, noise in (("clean", False), ("noisy", True))
            if any(each.trial.noise == noise for each in found)
        }
        for diagnoser, found in outcomes.items()
    }


def apart(outcomes: Outcomes, *, held_out: bool) -> Outcomes:
    """The outcomes of the held-out cases only, or of all others but LIVES, which have figures of their own."""
    return {
        diagnoser: [
            each for each in found if (each.trial.case in _HELD_OUT) == held_out and each.trial.case not in _LIVES
        ]
        for diagnoser, found in outcomes.items()
    }


_HELD_OUT = frozenset(HELD_OUT)
_LIVES = frozenset(LIVES)
_COMPARED: Mapping[str, str] = {
    "cases": "cases",
    "trials": "trials",
    "top1": "top-1 accuracy",
    "acceptable": "accuracy, acceptable verdicts counted as right",
    "family": "accuracy by family of causes",
    "forbidden": "cases with a forbidden verdict or alert",
    "negatives_alarmed": "negatives with an alert above info",
    "alerts_fired": "recall of alerts: expected ones that fired",
    "fired": "positives whose alert fired",
    "recall_at_1_25": "recall over a threshold (at 1.25; held out at 1.4)",
    "silence_at_0_8": "silence under a threshold (at 0.8; held out at 0.7)",
    "lost_within_0_05": "lost shares within 0.05",
    "faults": "trials with a subject without exactly one verdict",
}


def compared(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """Figures in which one set of cases is held against another, clean and noisy apart."""
    figures: dict[str, dict[str, float]] = {}
    for kind, noise in _KINDS:
        found = [each for each in outcomes if each.trial.noise == noise]
        if found:
            reported = (alert not in each.missing for each in found for alert in each.trial.case.alerts)
            more = {"cases": len({each.trial.case for each in found}), "alerts_fired": share(reported)}
            every = {**summarise(found), **more}
            figures[kind] = {name: every[name] for name in _COMPARED}
    return figures


def table_of_sets(sets: Mapping[str, Sequence[Outcome]]) -> str:
    """One row a figure, two columns a set of cases."""
    columns = [(name, kind, found) for name, outcomes in sets.items() for kind, found in compared(outcomes).items()]
    rows = [[meaning, *(_number(found[key]) for _, _, found in columns)] for key, meaning in _COMPARED.items()]
    return _markdown(["", *(f"{name}, {kind}" for name, kind, _ in columns)], rows)


def table_of_figures(figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """One row a figure, two columns a diagnoser."""
    columns = [(diagnoser, kind) for diagnoser, kinds in figures.items() for kind in kinds]
    rows = [
        [meaning, *(_number(figures[diagnoser][kind].get(name)) for diagnoser, kind in columns)]
        for name, meaning in _FIGURES.items()
    ]
    return _markdown(["", *(f"{diagnoser}, {kind}" for diagnoser, kind in columns)], rows)


def table_of_causes(outcomes: Sequence[Outcome]) -> str:
    """One row a cause that may be a verdict."""
    sets = {kind: [each for each in scored(outcomes) if each.trial.noise == noise] for kind, noise in _KINDS}
    rated = {kind: ratings(found) for kind, found in sets.items() if found}
    causes = sorted({cause for found in rated.values() for cause in found})
    rows = [
        [
            f"`{cause}`",
            *(
                _number(value)
                for found in rated.values()
                for value in (
                    (found[cause].precision, found[cause].recall, found[cause].f1)
                    if cause in found
                    else (None, None, None)
                )
            ),
            str(sum(found[cause].trials for found in rated.values() if cause in found)),
        ]
        for cause in causes
    ]
    head = [f"{what}, {kind}" for kind in rated for what in ("precision", "recall", "F1")]
    return _markdown(["cause", *head, "trials"], rows)


_KINDS = (("clean", False), ("noisy", True))


def table_of_alerts(outcomes: Sequence[Outcome]) -> str:
    """One row an alert that a case expects: how often it came, and how soon."""
    rows: list[list[str]] = []
    for alert in sorted({alert for each in outcomes for alert in each.trial.case.alerts}):
        due = [each for each in outcomes if alert in each.trial.case.alerts]
        reported = [each for each in due if alert not in each.missing]
        late = [each.late for each in reported if each.late is not None]
        rows.append(
            [
                f"`{alert}`",
                f"{len(reported)} of {len(due)}",
                _number(max((each.detected or 0.0) for each in reported) / 60 if reported else None),
                _number(max(late) if late else None),
            ]
        )
    return _markdown(["alert", "fired", "minutes after the onset, at most", "evaluations late, at most"], rows)


def table_of_errors(outcomes: Sequence[Outcome]) -> str:
    """One row a case that some trial got wrong."""
    by_case: dict[str, list[Outcome]] = {}
    for each in outcomes:
        by_case.setdefault(each.trial.case.name, []).append(each)
    rows = [
        [
            f"`{name}`",
            f"{len(wrong)} of {len(found)}",
            "; ".join(sorted({text for each in wrong for text in complaints(each)})),
        ]
        for name, found in sorted(by_case.items())
        if (wrong := [each for each in found if complaints(each)])
    ]
    return _markdown(["case", "trials", "what was wrong"], rows) if rows else "None.\n"


_OF_CAUSE: Mapping[str, str] = {
    "trials": "trials",
    "onset_median": "onset to right verdict, s, median",
    "onset_p95": "95th percentile",
    "onset_never": "never right",
    "between_median": "other verdicts until then, median",
    "between_most": "at most",
    "end_median": "end to right verdict, s, median",
    "end_p95": "95th percentile",
    "early_wrong": "first 10 min: share of time wrong",
    "onset_wrong": "10 min after onset: share of time wrong",
}


def over_the_whole_life(
    outcomes: Sequence[Outcome],
) -> dict[str, dict[str, dict[str, float] | dict[str, dict[str, float]]]]:
    """Figures of the whole life: goals and causes, clean and noisy apart."""
    return {
        kind: {"goals": delays.against_goals(found), "causes": delays.by_cause(found)}
        for kind, noise in _KINDS
        if (found := [each for each in outcomes if each.trial.noise == noise])
    }


def table_of_goals(outcomes: Sequence[Outcome]) -> str:
    """One row a goal of the whole life."""
    sets = [[each for each in outcomes if each.trial.noise == noise] for _, noise in _KINDS]
    rows = []
    for goal in (*delays.GOALS.values(), *delays.SOONER.values()):
        values = [goal.value(found) for found in sets]
        met = [goal.met(value) for value in values]
        rows.append(
            [
                goal.meaning,
                f"{'at least' if goal.is_least else 'at most'} {goal.goal:g}",
                *(
                    f"{_number(value)}{'' if reached is None or reached else ' (missed)'}"
                    for value, reached in zip(values, met, strict=True)
                ),
            ]
        )
    return _markdown(["", "goal", "clean", "noisy"], rows)


def table_of_delays(outcomes: Sequence[Outcome]) -> str:
    """One row a cause: how soon its verdict comes and goes; clean and noisy trials together."""
    rows = [
        [f"`{cause}`", *(_number(found[name]) for name in _OF_CAUSE)]
        for cause, found in delays.by_cause(outcomes).items()
    ]
    return _markdown(["cause", *_OF_CAUSE.values()], rows)


def complaints(outcome: Outcome) -> list[str]:
    """Return the mistakes of a trial in words; empty for a right one."""
    case = outcome.trial.case
    found: list[str] = []
    if case.kind != "near" and case.verdict_expected and not outcome.acceptable:
        others = ", ".join(
            f"{cause} {count}" for cause, count in sorted(outcome.seen.items(), key=lambda item: -item[1])
        )
        found.append(f"verdict {outcome.verdict} instead of {case.cause} (evaluations: {others or 'none'})")
    if outcome.missing:
        found.append(f"{', '.join(outcome.missing)} did not fire")
    if outcome.alarms:
        found.append(f"unexpected: {', '.join(sorted(set(outcome.alarms)))}")
    if case.kind == "near" and (case.level or 0.0) < 1 and outcome.fired:
        found.append("verdict under the threshold")
    if outcome.forbidden:
        found.append(f"forbidden: {', '.join(outcome.forbidden)}")
    if (
        outcome.lost is not None
        and case.lost is not None
        and case.kind == "positive"
        and abs(outcome.lost - case.lost) > case.tolerance
    ):
        found.append(f"lost {outcome.lost:.2f} instead of {case.lost:.2f}")
    if outcome.late is not None and outcome.late > 2:
        found.append(f"{outcome.late:g} evaluations late")
    if outcome.culprit is False:
        found.append("culprit not named")
    return [*found, *outcome.faults]


def _number(value: float | None) -> str:
    if value is None or value != value:  # not a number: nothing to divide by
        return "-"
    if math.isinf(value):
        return "never"
    return f"{value:g}" if value == int(value) and abs(value) >= 2 else f"{value:.3f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
