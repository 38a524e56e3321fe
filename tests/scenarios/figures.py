"""Figures of a diagnoser: what it said of each trial, held against the truth.

Pure functions on small data; `score.py` runs the trials and writes the table. Definitions, which the table repeats:

- A trial is a case with a seed, clean or with noise. It is judged over the evaluations from `onset` plus the time
  that the cause takes to be visible (EVIDENCE, five minutes for most) plus two evaluations, to its end.
- Its verdict is the cause that its subject had at most of those evaluations (of a GPU or host that the case names,
  else of all its GPUs; of its run).
- An alert is late by the evaluations that it fires after the moment when the cause has filled the alert's window and
  then lasted for the alert's own delay.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median

from tests.scenarios.case import MISSING_RANK_ALERTS, WELL, Case
from tests.scenarios.life import INSUFFICIENT, NOTHING, Life, live
from tests.scenarios.runner import EVALUATION_SECONDS

SETTLING_SECONDS = 2 * EVALUATION_SECONDS
"""From raw data to verdict may take two evaluations, since groups of rules evaluate at different moments."""

EVIDENCE_MINUTES: Mapping[str, float] = {
    # Minutes that a cause must last before the contract requires its verdict; five for all others.
    "stalled": 5.0,
    "hang_spin": 5.0,
    "hang_io": 5.0,
    "idle_allocated": 60.0,
    "long_init": 20.0,
    "step_time_drift": 15.0,
    "tensor_cores_unused": 15.0,
    "input_cgroup_throttled": 15.0,
    "low_mfu": 10.0,
    "mem_bw_bound": 10.0,
    "power_brake": 10.0,
    "thermal_throttle": 10.0,
    "packing_candidate": 30.0,
    "gpu_mem_leak": 60.0,
    "spin_suspected": 12.0,
    "gpu_mem_fragmented": 10.0,
    "checkpoint_stall": 60.0,
    "evaluation_overhead": 60.0,
    "goodput_low": 60.0,
    "periodic_host_work": 30.0,
    "lost": 0.0,
    "xid_hw": 0.0,
    "xid_app": 0.0,
    "ecc_uncorrected": 0.0,
    "row_remap_pending": 0.0,
    "row_remap_failed": 0.0,
    "oom_kill": 0.0,
    "shm_full": 0.0,
}


def evidence_seconds(cause: str) -> float:
    """How long a cause must last before it can be seen."""
    return 60 * EVIDENCE_MINUTES.get(cause, 5.0)


def family(cause: str) -> str:
    """The group of causes in the verdict contract; a right family sends people to the right part of their work."""
    if cause.startswith("input_"):
        return "input"
    return _FAMILIES.get(cause, cause)


_FAMILIES = {
    cause: name
    for name, causes in {
        "device": "h2d_bound small_batch launch_bound sync_stall mem_bw_bound tensor_cores_unused low_mfu",
        "memory": "gpu_mem_headroom gpu_mem_near_oom gpu_mem_leak gpu_mem_fragmented gpu_mem_imbalance",
        "time": "checkpoint_stall evaluation_overhead callback_stall step_outliers step_time_drift long_init stalled "
        "hang_spin hang_io restart_loop goodput_low loss_nonfinite rollout_wait",
        "ranks": "straggler_rank straggler_input straggler_hw gpu_load_imbalance stage_imbalance uneven_work "
        "comm_bound scaling_inefficient",
        "hardware": "thermal_throttle power_brake power_capped clocks_limited xid_hw xid_app lost ecc_uncorrected "
        "row_remap_pending row_remap_failed pcie_degraded pcie_replays nvlink_errors nvlink_down",
        "use": "underused periodic_host_work idle_allocated mem_zombie shared_unexpectedly packing_candidate "
        "spin_suspected",
        "host": "mem_pressure oom_kill shm_full swapping cpu_saturated network_errors",
        "serving": "serving_idle serving_starved serving_kv_full serving_busy",
        "healthy": "healthy compute_bound",
    }.items()
    for cause in causes.split()
}
PRIORS = {"data": 0.4603, "code": 0.4518, "rest": 0.0879}
"""Shares of low-utilisation issues by class in 706 real jobs (ICSE 2024): data operations, training and evaluation
code, the remainder."""
_CODE = frozenset({"device", "memory", "time"})


def prior_class(cause: str) -> str:
    """The class of PRIORS that a cause belongs to."""
    group = family(cause)
    return "data" if group == "input" else "code" if group in _CODE else "rest"


@dataclass(frozen=True)
class Trial:
    """A case with a seed."""

    case: Case
    seed: int
    noise: bool

    @property
    def name(self) -> str:
        return f"{self.case.name} (seed {self.seed}, {'noisy' if self.noise else 'clean'})"

    def __reduce__(self) -> tuple[Callable[[str, int, bool], Trial], tuple[str, int, bool]]:
        """Travels between processes by name: stories hold mappings that can't be pickled."""
        return _find, (self.case.name, self.seed, self.noise)


def _find(name: str, seed: int, noise: bool) -> Trial:
    from tests.scenarios.cases import CASES, HELD_OUT, LIVES

    return Trial(next(case for case in (*CASES, *HELD_OUT, *LIVES) if case.name == name), seed, noise)


@dataclass(frozen=True)
class Firing:
    """An alert from its first evaluation to its last, in seconds since the start."""

    alert: str
    severity: str
    cause: str
    labels: Mapping[str, str]
    first: int
    last: int
    delay: float = 0.0
    """Seconds for which the alert's condition must hold."""

    @property
    def loud(self) -> bool:
        """A notification that reaches a person."""
        return self.severity in ("warning", "critical")


@dataclass(frozen=True)
class Account:
    """Diagnoses of one trial by one diagnoser."""

    verdicts: Mapping[str, Mapping[int, str]]
    """For each part of the subject (a run; GPUs) its cause by second; a second without verdict is left out."""
    firings: Sequence[Firing]
    shares: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """The subject's share lost by cause and second; 0 where left out."""
    culprit: Mapping[int, str] = field(default_factory=dict)
    """The rank with the greatest straggler score by second."""
    faults: Sequence[str] = ()
    """Broken promises, such as two verdicts at once."""


@dataclass(frozen=True)
class Truth:
    """Facts of a trial's rendering that a judge must know."""

    gpus: int
    ready: float = 0.0
    """Second from which the run's warm-up is over."""
    first_step: float | None = None
    """Second of the run's first step; None if there is none."""


@dataclass(frozen=True)
class Outcome:
    """A trial judged."""

    trial: Trial
    verdict: str
    seen: Mapping[str, int]
    """Evaluations by cause in the judged time."""
    flips: int
    hours: float
    gpu_days: float
    fired: bool
    """An alert that was expected fired after the onset."""
    late: float | None
    """Evaluations by which the first alert that the case names was late; None where none fired."""
    detected: float | None
    """Seconds from onset to the first expected alert."""
    alarmed: float | None
    """Seconds from onset to the first alert above info."""
    alarms: tuple[str, ...]
    """Alerts above info that the case does not expect."""
    missing: tuple[str, ...]
    """Expected alerts that did not fire."""
    forbidden: tuple[str, ...]
    """Forbidden causes, as verdict or alert."""
    lost: float | None
    """Mean share of the verdict, where the true one is known."""
    culprit: bool | None
    """The culprit was named; None without a culprit, or if no rank was named at all."""
    faults: tuple[str, ...]
    life: Life | None = None
    """The whole life of the trial; None for a baseline."""
    notified: tuple[str, ...] = ()
    """Statuses of the notifications; empty for a baseline."""

    @property
    def right(self) -> bool:
        """The exact cause; `healthy` and `compute_bound` are two words for nothing being wrong."""
        case = self.trial.case
        alike = case.acceptable & WELL if case.cause in WELL else frozenset[str]()
        return self.verdict == case.cause or self.verdict in alike

    @property
    def acceptable(self) -> bool:
        return self.right or self.verdict in self.trial.case.acceptable

    @property
    def named(self) -> bool:
        """The right family."""
        case = self.trial.case
        return self.acceptable or family(self.verdict) in {family(cause) for cause in (case.cause, *case.acceptable)}


def judge(trial: Trial, account: Account, truth: Truth, *, expected: Callable[[Firing], bool] | None = None) -> Outcome:
    """Hold an account against the truth.

    Args:
        trial: The case.
        account: What a diagnoser said of it.
        truth: What only the rendering knows.
        expected: returns the alerts that should fire; by default those that the case names.
    """
    case = trial.case
    start, end = 60 * case.onset, 60 * (case.length if case.end is None else case.end)
    judged_from = min(max(start + evidence_seconds(case.cause), truth.ready) + SETTLING_SECONDS, end)
    timelines = [
        [cause for second, cause in sorted(timeline.items()) if judged_from <= second <= end]
        for timeline in account.verdicts.values()
    ]
    seen = Counter(cause for timeline in timelines for cause in timeline)
    wanted = expected or (lambda firing: firing.alert in case.alerts)
    after = [firing for firing in account.firings if firing.first >= start]
    hits = sorted((firing for firing in after if wanted(firing)), key=lambda firing: firing.first)
    loud = sorted(firing.first for firing in after if firing.loud)
    excused = MISSING_RANK_ALERTS if trial.noise else frozenset[str]()
    verdict = seen.most_common(1)[0][0] if seen else NOTHING
    named_cause = verdict if verdict in case.acceptable else case.cause
    return Outcome(
        trial=trial,
        verdict=verdict,
        seen=seen,
        flips=sum(one != other for timeline in timelines for one, other in pairwise(timeline)),
        hours=sum(map(len, timelines)) * EVALUATION_SECONDS / 3600,
        gpu_days=truth.gpus * 60 * case.length / 86400,
        fired=bool(hits),
        detected=hits[0].first - start if hits else None,
        late=_late(case, hits[0], truth) if hits and expected is None else None,
        alarmed=loud[0] - start if loud else None,
        alarms=tuple(
            f"{firing.alert} ({firing.severity}{', before the onset' if firing.first < start else ''})"
            for firing in account.firings
            if firing.loud and firing.alert not in case.allowed | excused
            if firing.first < start or not (firing.alert in case.alerts or wanted(firing))
        ),
        missing=tuple(sorted(case.alerts - {firing.alert for firing in hits})),
        forbidden=tuple(sorted(({verdict} | {firing.cause for firing in after if firing.loud}) & case.forbidden)),
        lost=(
            _mean_share(account.shares.get(named_cause, {}), judged_from, end)
            if case.lost is not None and case.verdict_expected and account.shares
            else None
        ),
        culprit=_culprit_named(case, hits, account.culprit, judged_from),
        faults=tuple(account.faults),
        life=(
            live(
                case,
                noise=trial.noise,
                verdicts=account.verdicts,
                shares=account.shares,
                alerts=[(each.alert, each.cause, each.first, each.last) for each in account.firings if each.loud],
                first_step=truth.first_step,
            )
            if expected is None
            else None
        ),
    )


def _late(case: Case, firing: Firing, truth: Truth) -> float:
    filled = max(60 * case.onset + evidence_seconds(firing.cause), truth.ready)
    return max(0.0, (firing.first - filled - firing.delay) / EVALUATION_SECONDS)


def _mean_share(shares: Mapping[int, float], judged_from: float, end: float) -> float:
    moments = [second for second in range(0, int(end) + 1, EVALUATION_SECONDS) if second >= judged_from]
    return fmean(shares.get(second, 0.0) for second in moments) if moments else 0.0


def _culprit_named(case: Case, hits: Sequence[Firing], scores: Mapping[int, str], judged_from: float) -> bool | None:
    """Return True if every alert named the culprit, or the highest straggler score did where alerts name no rank."""
    if case.culprit is None:
        return None
    culprit = dict(case.culprit)
    named = [
        all(firing.labels[label] == value for label, value in culprit.items() if label in firing.labels)
        for firing in hits
        if ("rank" in firing.labels if "rank" in culprit else culprit.keys() & firing.labels.keys())
    ]
    if named:
        return all(named)
    ranks = Counter(rank for second, rank in scores.items() if second >= judged_from)
    return ranks.most_common(1)[0][0] == culprit.get("rank") if ranks else None


@dataclass(frozen=True)
class Rating:
    """Quality of the distinction of one cause from all others."""

    precision: float
    recall: float
    trials: int

    @property
    def f1(self) -> float:
        together = self.precision + self.recall
        return 2 * self.precision * self.recall / together if together else 0.0


def scored(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The trials whose primary verdict is known: all but those at 0.8 and 1.25, which have figures of their own."""
    return [each for each in outcomes if each.trial.case.kind != "near" and each.trial.case.verdict_expected]


def share(results: Iterable[bool]) -> float:
    """Share of trues; not a number where there is nothing."""
    found = list(results)
    return sum(found) / len(found) if found else math.nan


def ratings(outcomes: Sequence[Outcome]) -> dict[str, Rating]:
    """Precision and recall of each cause among verdicts; an acceptable one counts as the case's own cause in both."""
    by_cause: dict[str, list[Outcome]] = defaultdict(list)
    claims: dict[str, list[bool]] = defaultdict(list)
    for each in outcomes:
        by_cause[each.trial.case.cause].append(each)
        claims[each.trial.case.cause if each.acceptable else each.verdict].append(each.acceptable)
    return {
        cause: Rating(
            precision=share(claims[cause]) if claims[cause] else 0.0,
            recall=share(each.acceptable for each in trials),
            trials=len(trials),
        )
        for cause, trials in sorted(by_cause.items())
    }


def macro_f1(outcomes: Sequence[Outcome]) -> float:
    """Mean F1 over causes, however many cases each has."""
    found = ratings(outcomes)
    return fmean(rating.f1 for rating in found.values()) if found else math.nan


def prior_weighted(outcomes: Sequence[Outcome]) -> float:
    """Top-1 accuracy on positives, each class weighted by how often real jobs have it."""
    by_class: dict[str, list[bool]] = defaultdict(list)
    for each in outcomes:
        if each.trial.case.kind == "positive":
            by_class[prior_class(each.trial.case.cause)].append(each.right)
    weight = sum(PRIORS[name] for name in by_class)
    return sum(PRIORS[name] * share(rights) for name, rights in by_class.items()) / weight if weight else math.nan


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least so many per cent of all do not exceed; not a number for none."""
    found = sorted(values)
    return found[max(0, math.ceil(percent / 100 * len(found)) - 1)] if found else math.nan


def middle(values: Iterable[float]) -> float:
    """Median; not a number for none."""
    found = list(values)
    return median(found) if found else math.nan


def mean(values: Iterable[float]) -> float:
    """Mean; not a number for none."""
    found = list(values)
    return fmean(found) if found else math.nan


def summarise(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """All figures of a diagnoser that are one number."""
    verdicts = scored(outcomes)
    of_kind: dict[str, list[Outcome]] = defaultdict(list)
    for each in outcomes:
        of_kind[each.trial.case.kind].append(each)
    positives, negatives = of_kind["positive"], of_kind["negative"]
    near = [(each, level) for each in of_kind["near"] if (level := each.trial.case.level) is not None]
    abstained = [each for each in verdicts if each.verdict == INSUFFICIENT]
    alerted = [each for each in positives if each.trial.case.alerts]
    errors = [
        abs(each.lost - lost)
        for each in positives
        if each.lost is not None and (lost := each.trial.case.lost) is not None
    ]
    return {
        "trials": len(outcomes),
        "top1": share(each.right for each in verdicts),
        "acceptable": share(each.acceptable for each in verdicts),
        "family": share(each.named for each in verdicts),
        "top1_positives": share(each.right for each in verdicts if each.trial.case.kind == "positive"),
        "top1_negatives": share(each.right for each in verdicts if each.trial.case.kind == "negative"),
        "macro_f1": macro_f1(verdicts),
        "prior_weighted": prior_weighted(verdicts),
        "forbidden": share(bool(each.forbidden) for each in outcomes if each.trial.case.forbidden),
        "fired": share(each.fired for each in alerted),
        "alarmed": share(each.alarmed is not None for each in alerted),
        "false_alarms_per_gpu_day": sum(len(each.alarms) for each in negatives)
        / (sum(each.gpu_days for each in negatives) or math.nan),
        "negatives_alarmed": share(bool(each.alarms) for each in negatives),
        "positives_with_other_alarms": share(bool(each.alarms) for each in positives),
        "abstention_precision": share(each.acceptable for each in abstained),
        "abstention_recall": share(each.acceptable for each in verdicts if each.trial.case.kind == "abstention"),
        "recall_at_1_25": share(each.fired for each, level in near if level > 1),
        "silence_at_0_8": share(not each.fired and not each.alarms for each, level in near if level < 1),
        "detection_median_minutes": middle(each.detected / 60 for each in alerted if each.detected is not None),
        "detection_p95_minutes": percentile((each.detected / 60 for each in alerted if each.detected is not None), 95),
        "late_p95_evaluations": percentile((each.late for each in alerted if each.late is not None), 95),
        "late_over_two": share(each.late > 2 for each in alerted if each.late is not None),
        "lost_error_mean": mean(errors),
        "lost_error_p95": percentile(errors, 95),
        "lost_within_0_05": share(error <= 0.05 for error in errors),
        "culprit": share(each.culprit for each in positives if each.culprit is not None),
        "flips_per_hour": sum(each.flips for each in outcomes) / (sum(each.hours for each in outcomes) or math.nan),
        "faults": sum(bool(each.faults) for each in outcomes),
    }
