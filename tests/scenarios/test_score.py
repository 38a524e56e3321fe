"""The rules are held to the score that is committed, and to what the project promises."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache

import pytest

from tests.rules.rulebook import EVALUATION_INTERVAL
from tests.scenarios import score
from tests.scenarios.__main__ import FIGURES
from tests.scenarios.figures import Outcome, scored, summarise

# It uses the CPUs that other tests leave, and may end after all of them.
pytestmark = [pytest.mark.slow(600), pytest.mark.timeout(1500)]
PROMISED_TOP_1 = {"clean": 0.95, "noisy": 0.90}
SHORTCOMINGS: dict[str, str] = {}
"""Cases that the rules are known to get wrong, and why. Take out what is put right; add nothing without a reason."""


@pytest.fixture(params=["clean", pytest.param("noisy", marks=pytest.mark.nightly)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def outcomes(kind: str) -> Sequence[Outcome]:
    return outcomes_of(kind)


@cache
def outcomes_of(kind: str) -> Sequence[Outcome]:
    """Most cases, with one seed, evaluated half as often as by `make score`."""
    chosen = [trial for trial in score.gate() if trial.noise == (kind == "noisy")]
    return score.run(chosen, baselines=False, evaluation_seconds=EVALUATION_INTERVAL)[score.RULES]


def reported(outcomes: Iterable[Outcome]) -> str:
    """Return the mistakes, one line a trial."""
    return "\n" + "\n".join(f"{each.trial.name}: {'; '.join(score.complaints(each))}" for each in outcomes)


def test_top_1_accuracy_has_not_fallen(outcomes: Sequence[Outcome], kind: str) -> None:
    kept = set(json.loads(FIGURES.read_text(encoding="utf-8"))["gate"][kind])
    found = scored(outcomes)
    names = {each.trial.case.name for each in found}
    right = {each.trial.case.name for each in found if each.right}
    lost = [each for each in found if each.trial.case.name in kept - right]
    assert len(right) >= len(kept & names), (
        f"{len(right)} of {len(found)} verdicts are right, {len(kept & names)} were (make score); lost:{reported(lost)}"
    )


def test_top_1_accuracy_is_as_promised(outcomes: Sequence[Outcome], kind: str) -> None:
    found = scored(outcomes)
    assert summarise(found)["top1"] >= PROMISED_TOP_1[kind], reported(each for each in found if not each.right)


def test_no_negative_raises_a_warning_or_critical_alert(outcomes: Sequence[Outcome]) -> None:
    loud = [each for each in outcomes if each.trial.case.kind == "negative" and each.alarms]
    assert not loud, reported(loud)


def test_a_fault_is_one_notification_and_its_end_another_one(outcomes: Sequence[Outcome]) -> None:
    assert any(each.notified for each in outcomes)
    repeated = [each.trial.name for each in outcomes if each.notified not in ((), ("firing",), ("firing", "resolved"))]
    assert repeated == []


def test_every_rank_run_and_gpu_has_exactly_one_verdict_at_every_evaluation(outcomes: Sequence[Outcome]) -> None:
    broken = [each for each in outcomes if each.faults]
    assert not broken, reported(broken)


def test_no_verdict_does_harm(outcomes: Sequence[Outcome]) -> None:
    harmful = [each for each in outcomes if each.forbidden]
    assert not harmful, reported(harmful)


def test_alerts_come_at_a_quarter_over_a_threshold() -> None:
    near = [each for each in outcomes_of("clean") if (each.trial.case.level or 0.0) > 1]
    missed = [each for each in near if not each.fired]
    assert len(missed) <= 0.05 * len(near), reported(missed)


def test_no_alert_fires_at_a_fifth_under_a_threshold() -> None:
    near = [each for each in outcomes_of("clean") if 0.0 < (each.trial.case.level or 0.0) < 1]
    loud = [each for each in near if (each.fired or each.alarms) and each.trial.case.name not in SHORTCOMINGS]
    assert not loud, reported(loud)


def test_alerts_are_at_most_two_evaluations_late() -> None:
    late = [
        each
        for each in outcomes_of("clean")
        if each.late is not None and each.late > 2 and each.trial.case.name not in SHORTCOMINGS
    ]
    assert not late, reported(late)


def test_the_lost_share_is_right_within_a_twentieth() -> None:
    known = [
        (abs(each.lost - lost), each)
        for each in outcomes_of("clean")
        if each.trial.case.kind == "positive"
        and each.acceptable
        and each.lost is not None
        and (lost := each.trial.case.lost) is not None
    ]
    wrong = [each for error, each in known if error > max(0.05, each.trial.case.tolerance)]
    assert not wrong, reported(wrong)
