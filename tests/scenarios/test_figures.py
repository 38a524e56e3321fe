"""The figures, on trials whose figures are obvious."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.scenarios.case import Case
from tests.scenarios.figures import (
    Account,
    Firing,
    Outcome,
    Trial,
    Truth,
    judge,
    macro_f1,
    percentile,
    prior_weighted,
    ratings,
    summarise,
)
from tests.scenarios.story import Story

STORY = Story(nodes=())


def trial(cause: str = "input_bound", *, kind: str = "positive", noise: bool = False, **fields: Any) -> Trial:
    case = Case("toy", kind, "run", cause, STORY, **{"onset": 10.0, "length": 40.0, **fields})
    return Trial(case, 1, noise)


def always(cause: str, minutes: int = 40) -> Mapping[str, Mapping[int, str]]:
    return {"run": dict.fromkeys(range(0, minutes * 60 + 1, 30), cause)}


def changing(*causes: tuple[int, str]) -> Mapping[str, Mapping[int, str]]:
    """A verdict from each minute on, to minute 40."""
    timeline = {second: cause for minute, cause in causes for second in range(minute * 60, 2401, 30)}
    return {"run": timeline}


def firing(minute: float, alert: str = "TrainingInputBound", *, until: float = 40, **fields: Any) -> Firing:
    labels = fields.pop("labels", {})
    cause = fields.pop("cause", "input_bound")
    severity = fields.pop("severity", "warning")
    return Firing(alert, severity, cause, labels, int(60 * minute), int(60 * until), **fields)


def judged(
    a_trial: Trial, verdicts: Mapping[str, Mapping[int, str]], firings: Sequence[Firing] = (), **fields: Any
) -> Outcome:
    return judge(a_trial, Account(verdicts=verdicts, firings=firings, **fields), Truth(gpus=2))


def test_the_verdict_is_the_most_frequent_one_once_the_cause_can_be_seen() -> None:
    late = changing((0, "healthy"), (16, "input_bound"))
    assert judged(trial(), late).verdict == "input_bound"
    assert judged(trial(), late).flips == 0, "verdicts before the cause is visible are not mistakes"
    assert judged(trial(), changing((0, "healthy"), (30, "input_bound"))).verdict == "healthy"


def test_a_warm_up_delays_the_judgement() -> None:
    account = Account(verdicts=changing((0, "insufficient_data"), (29, "input_bound")), firings=())
    assert judge(trial(), account, Truth(gpus=1, ready=28 * 60)).seen == {"input_bound": 23}


def test_no_verdict_at_all_is_wrong() -> None:
    outcome = judged(trial(), {})
    assert (outcome.verdict, outcome.right, outcome.acceptable) == ("none", False, False)


def test_changes_of_verdict_are_counted_per_hour_of_each_part() -> None:
    swinging = changing((0, "input_bound"), (20, "healthy"), (30, "input_bound"))
    outcome = judged(trial(), {"one": swinging["run"], "two": always("input_bound")["run"]})
    assert outcome.flips == 2
    assert outcome.hours == pytest.approx(2 * 24 / 60, abs=0.02)


def test_an_acceptable_verdict_is_neither_top_1_nor_wrong() -> None:
    outcome = judged(trial(acceptable=frozenset({"input_few_workers"})), always("input_few_workers"))
    assert (outcome.right, outcome.acceptable, outcome.named) == (False, True, True)


def test_nothing_being_wrong_has_two_words() -> None:
    case = trial("healthy", kind="negative", acceptable=frozenset({"healthy", "compute_bound", "underused"}))
    assert judged(case, always("compute_bound")).right
    assert not judged(case, always("underused")).right
    assert not judged(trial("healthy", kind="negative"), always("compute_bound")).right, "where they are distinguished"


def test_the_right_family_is_distinguished_from_the_right_cause() -> None:
    assert judged(trial(), always("input_disk_bound")).named
    assert not judged(trial(), always("h2d_bound")).named


def test_an_alert_is_late_by_what_exceeds_window_and_delay() -> None:
    case = trial(alerts=frozenset({"TrainingInputBound"}))
    outcome = judged(case, always("input_bound"), [firing(21.5, delay=300)])
    assert outcome.late == 3, "onset at 10, five minutes of window, five of delay: due at 20"
    assert outcome.detected == 11.5 * 60
    assert judged(case, always("input_bound"), [firing(12, delay=300)]).late == 0


def test_an_alert_that_began_before_the_onset_is_not_of_this_cause() -> None:
    case = trial(alerts=frozenset({"TrainingInputBound"}))
    outcome = judged(case, always("input_bound"), [firing(2)])
    assert (outcome.fired, outcome.missing) == (False, ("TrainingInputBound",))
    assert outcome.alarms == ("TrainingInputBound (warning, before the onset)",)


def test_unexpected_alerts_are_alarms_unless_info() -> None:
    case = trial("healthy", kind="negative", allowed=frozenset({"GpuLost"}))
    reported = [
        firing(20),
        firing(20, "GpuPackingCandidate", severity="info"),
        firing(20, "GpuLost", severity="critical"),
    ]
    assert judged(case, always("healthy"), reported).alarms == ("TrainingInputBound (warning)",)


def test_telemetry_that_noise_takes_away_may_be_missed_aloud() -> None:
    reported = [firing(20, "TrainingTelemetryMissing")]
    assert judged(trial("healthy", kind="negative", noise=True), always("healthy"), reported).alarms == ()
    assert judged(trial("healthy", kind="negative"), always("healthy"), reported).alarms != ()


def test_a_forbidden_cause_counts_as_verdict_and_as_alert() -> None:
    case = trial(forbidden=frozenset({"input_few_workers", "small_batch"}))
    assert judged(case, always("input_few_workers")).forbidden == ("input_few_workers",)
    assert judged(case, always("input_bound"), [firing(20, cause="small_batch")]).forbidden == ("small_batch",)
    assert judged(case, always("input_bound"), [firing(20, cause="small_batch", severity="info")]).forbidden == ()


def test_the_lost_share_is_its_mean_over_the_judged_time() -> None:
    half = dict.fromkeys(range(960, 2401, 60), 0.3)
    outcome = judged(trial(lost=0.3), always("input_bound"), shares={"input_bound": half, "healthy": {}})
    assert outcome.lost == pytest.approx(0.15, abs=0.01)
    assert judged(trial(), always("input_bound"), shares={"input_bound": half}).lost is None


def test_a_culprit_must_be_named_by_every_alert_that_names_a_rank() -> None:
    case = trial(alerts=frozenset({"TrainingInputBound"}), culprit=(("rank", "3"),))
    assert judged(case, always("input_bound"), [firing(20, labels={"rank": "3"})]).culprit
    both = [firing(20, labels={"rank": "3"}), firing(21, labels={"rank": "2"})]
    assert judged(case, always("input_bound"), both).culprit is False
    scores = dict.fromkeys(range(0, 2401, 30), "3")
    assert judged(case, always("input_bound"), [firing(20)], culprit=scores).culprit
    assert judged(case, always("input_bound"), [firing(20)]).culprit is None


def outcomes(*pairs: tuple[str, str]) -> list[Outcome]:
    """Positives by what they are and what was said."""
    return [judged(trial(cause), always(verdict)) for cause, verdict in pairs]


def test_precision_and_recall_of_each_cause() -> None:
    found = outcomes(("lost", "lost"), ("lost", "stalled"), ("stalled", "stalled"), ("stalled", "stalled"))
    rated = ratings(found)
    assert (rated["lost"].precision, rated["lost"].recall) == (1.0, 0.5)
    assert (rated["stalled"].precision, rated["stalled"].recall) == pytest.approx((2 / 3, 1.0))
    assert macro_f1(found) == pytest.approx((2 / 3 + 0.8) / 2)


def test_a_cause_never_named_has_no_precision() -> None:
    assert ratings(outcomes(("lost", "stalled")))["lost"].f1 == 0


def test_an_acceptable_verdict_counts_as_the_cases_own_cause() -> None:
    shared = judged(trial("shared_unexpectedly", acceptable=frozenset({"lost"})), always("lost"))
    rated = ratings([shared, *outcomes(("lost", "lost"), ("stalled", "lost"))])
    assert (rated["shared_unexpectedly"].precision, rated["shared_unexpectedly"].recall) == (1.0, 1.0)
    assert (rated["lost"].precision, rated["lost"].recall) == (0.5, 1.0), "its own hit, and one mistake"


def test_classes_are_weighted_by_how_often_they_occur() -> None:
    found = outcomes(("input_bound", "input_bound"), ("small_batch", "healthy"), ("lost", "lost"), ("lost", "healthy"))
    assert prior_weighted(found) == pytest.approx(0.4603 + 0.0879 / 2)


def test_false_alarms_are_counted_per_gpu_day_of_negatives_only() -> None:
    quiet = judged(trial("healthy", kind="negative"), always("healthy"))
    loud = judged(trial("healthy", kind="negative"), always("healthy"), [firing(20)])
    ill = judged(trial("lost"), always("lost"), [firing(20)])
    days = 2 * 2 * 40 / 1440
    assert summarise([quiet, loud, ill])["false_alarms_per_gpu_day"] == pytest.approx(1 / days)
    assert summarise([quiet, loud, ill])["negatives_alarmed"] == 0.5


def test_thresholds_are_held_from_both_sides() -> None:
    over = trial(kind="near", level=1.25, alerts=frozenset({"TrainingInputBound"}))
    under = trial(kind="near", level=0.8)
    reported, untold = [firing(25)], list[Firing]()
    verdicts = always("input_bound")
    found = summarise(
        [judged(over, verdicts, reported), judged(over, verdicts, untold), judged(under, verdicts, untold)]
    )
    assert (found["recall_at_1_25"], found["silence_at_0_8"]) == (0.5, 1.0)
    assert summarise([judged(under, verdicts, reported)])["silence_at_0_8"] == 0
    assert math.isnan(found["top1"]), "these cases have figures of their own"


def test_abstention_has_precision_and_recall() -> None:
    found = summarise(
        [
            judged(trial("insufficient_data", kind="abstention"), always("insufficient_data")),
            judged(trial("insufficient_data", kind="abstention"), always("stalled")),
            judged(trial("insufficient_data", kind="abstention", acceptable=frozenset({"healthy"})), always("healthy")),
            judged(trial("lost"), always("insufficient_data")),
        ]
    )
    assert (found["abstention_precision"], found["abstention_recall"]) == (0.5, 2 / 3)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([1, 2, 3, 4], 50) == 2
    assert percentile([1, 2, 3, 4], 95) == 4
    assert math.isnan(percentile([], 95))
