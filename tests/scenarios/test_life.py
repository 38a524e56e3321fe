"""The whole life of a trial, graded on timelines whose grades are known by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stallscope.model.catalogue.causes import CAUSES
from tests.scenarios import CASES, LIVES
from tests.scenarios.__main__ import as_json
from tests.scenarios.case import Case, render
from tests.scenarios.delays import GOALS, against_goals, by_cause
from tests.scenarios.figures import Account, Firing, Outcome, Trial, Truth, judge
from tests.scenarios.life import PARENTS, Life, certain_seconds, step_seconds, timeline
from tests.scenarios.score import apart, table_of_delays, table_of_goals
from tests.scenarios.story import Run, Story

STORY = Story(nodes=(), runs=(Run(),))


def case(cause: str = "input_few_workers", kind: str = "positive", **fields: Any) -> Case:
    return Case("toy", kind, "run", cause, STORY, **{"onset": 10.0, "length": 40.0, **fields})


def judged(
    a_case: Case, *changes: tuple[float, str], firings: Sequence[Firing] = (), noise: bool = False
) -> tuple[Outcome, Life]:
    """Judge a verdict that changes at each given minute."""
    verdicts = {second: cause for minute, cause in changes for second in range(int(60 * minute), 2401, 30)}
    account = Account(verdicts={"run": verdicts}, firings=firings)
    outcome = judge(Trial(a_case, 1, noise), account, Truth(gpus=1, first_step=0.0))
    assert outcome.life is not None
    return outcome, outcome.life


def firing(minute: float, alert: str, cause: str, *, severity: str = "warning", until: float = 40) -> Firing:
    return Firing(alert, severity, cause, {}, int(60 * minute), int(60 * until))


def at(life: Life, minute: float) -> tuple[str, tuple[str, ...]]:
    moment = life.moments[int(2 * minute)]
    return moment.grade, moment.harmful


GOOD = ((0, "insufficient_data"), (1, "healthy"), (11, "input_bound"), (12, "input_few_workers"))


def test_each_evaluation_is_graded_by_what_is_true_then() -> None:
    _, life = judged(case(end=30.0), *GOOD, (32, "h2d_bound"), (35, "healthy"))
    assert [at(life, minute)[0] for minute in (0, 5, 10, 11, 12, 30, 32, 35)] == [
        "general",
        "right",
        "general",
        "general",
        "right",
        "general",
        "wrong",
        "right",
    ]


@pytest.mark.parametrize(
    ("cause", "verdict", "grade"),
    [
        ("input_few_workers", "input_bound", "general"),
        ("input_few_workers", "input_disk_bound", "wrong"),
        ("input_bound", "input_few_workers", "wrong"),
        ("hang_spin", "stalled", "general"),
        ("hang_spin", "straggler_input", "wrong"),
        ("straggler_hw", "straggler_rank", "general"),
        ("straggler_rank", "straggler_hw", "wrong"),
    ],
)
def test_only_a_parent_is_general(cause: str, verdict: str, grade: str) -> None:
    _, life = judged(case(cause), (0, "healthy"), (10, verdict))
    assert at(life, 20)[0] == grade


def test_the_cause_is_wrong_before_its_onset() -> None:
    _, life = judged(case(), (0, "input_few_workers"))
    assert at(life, 5)[0] == "wrong"


def test_a_subject_without_verdict_has_no_grade() -> None:
    _, life = judged(case(), (2, "healthy"))
    assert at(life, 1)[0] == "none"


def test_one_wrong_part_makes_the_moment_wrong() -> None:
    two = {"a": {0: "healthy"}, "b": {0: "healthy"}, "c": {0: "lost"}}
    life = judge(Trial(case(), 1, False), Account(verdicts=two, firings=()), Truth(gpus=3)).life
    assert life is not None
    assert (life.moments[0].verdict, life.moments[0].grade) == ("healthy", "wrong")


def test_parents_are_causes_whose_alert_the_child_mutes() -> None:
    for child, parent in PARENTS.items():
        if child != "lost":  # of a GPU, and its alert mutes all others of it
            assert parent in CAUSES[child].mutes, child


def test_an_alert_is_harmful_unless_it_is_expected_or_allowed() -> None:
    a_case = case(
        alerts=frozenset({"TrainingInputFewWorkers"}),
        allowed=frozenset({"TrainingStalled", "GpuLost"}),
        forbidden=frozenset({"lost"}),
    )
    firings = [
        firing(20, "TrainingInputFewWorkers", "input_few_workers"),
        firing(20, "TrainingStalled", "stalled"),
        firing(20, "GpuLost", "lost"),
        firing(20, "TrainingInputBound", "input_bound", until=25),
        firing(20, "GpuPackingCandidate", "packing_candidate", severity="info"),
    ]
    _, life = judged(a_case, *GOOD, firings=firings)
    assert at(life, 20)[1] == ("GpuLost", "TrainingInputBound")
    assert at(life, 30)[1] == ("GpuLost",)
    early = [firing(5, "TrainingInputFewWorkers", "input_few_workers")]
    _, life = judged(a_case, *GOOD, firings=early)
    assert at(life, 5)[1] == ("TrainingInputFewWorkers",)
    assert at(life, 12)[1] == ()


def test_delays_run_from_onset_and_end_to_a_verdict_that_holds() -> None:
    _, life = judged(case(end=30.0), *GOOD, (31, "healthy"), (32, "input_bound"), (33, "healthy"))
    assert (life.onset_delay, life.between, life.end_delay) == (120, 1, 180)


def test_healthy_and_compute_bound_are_one_verdict_between_the_onset_and_the_right_one() -> None:
    _, life = judged(case(), (0, "compute_bound"), (11, "healthy"), (12, "input_bound"), (13, "input_few_workers"))
    assert life.between == 1
    _, life = judged(case(), (0, "insufficient_data"), (11, "healthy"), (12, "input_bound"), (13, "input_few_workers"))
    assert life.between == 2


@pytest.mark.parametrize(("cause", "since"), [("hang_spin", 60), ("hang_io", 60), ("lost", 0), ("input_bound", 0)])
def test_a_hang_is_certain_after_a_minute_and_a_lost_gpu_at_once(cause: str, since: float) -> None:
    assert certain_seconds(case(cause)) == since


def test_five_steps_of_each_case_with_a_standstill_take_less_than_a_minute() -> None:
    slow = [each.name for each in (*CASES, *LIVES) if certain_seconds(each) and step_seconds(each) > 60 / 5]
    assert slow == []


def test_a_verdict_that_does_not_hold_is_not_reached() -> None:
    flicker = ((11, "input_few_workers"), (12, "h2d_bound"), (13, "input_few_workers"))
    _, life = judged(case(), (0, "healthy"), *flicker)
    assert (life.onset_delay, life.between) == (180, 1)


def test_a_verdict_that_never_comes_is_infinitely_late() -> None:
    _, life = judged(case(), (0, "healthy"))
    assert (life.onset_delay, life.between) == (math.inf, 0)


def test_a_cause_that_need_not_be_a_verdict_has_no_delay() -> None:
    _, life = judged(case(acceptable=frozenset({"healthy"})), (0, "healthy"))
    assert life.onset_delay is None


def test_a_standstill_has_a_page_and_a_generic_verdict() -> None:
    a_case = case("hang_io", alerts=frozenset({"TrainingHangIo"}), allowed=frozenset({"TrainingInputBound"}))
    firings = [
        firing(10.5, "TrainingInputBound", "input_bound"),
        firing(12, "TrainingStalled", "stalled"),
        firing(14, "TrainingHangIo", "hang_io"),
    ]
    _, life = judged(a_case, (0, "healthy"), (11, "stalled"), (13, "hang_io"), firings=firings)
    assert (life.generic, life.onset_delay, life.page) == (60, 180, 120)


def test_the_first_right_verdict_is_that_of_a_run_without_a_fault() -> None:
    assert judged(case(), *GOOD)[1].first_right == 60
    assert judged(case(), (0, "input_few_workers"))[1].first_right == math.inf
    assert judged(case(onset=2.0), *GOOD)[1].first_right is None, "two minutes are too few to judge"


def test_goals_are_met_by_a_good_life_and_missed_by_a_bad_one() -> None:
    spins = case("hang_spin", alerts=frozenset({"TrainingHangSpin"}), end=30.0)
    paged = [firing(12, "TrainingHangSpin", "hang_spin")]
    good, _ = judged(spins, (0, "healthy"), (10.5, "stalled"), (11, "hang_spin"), (30.5, "healthy"), firings=paged)
    bad, _ = judged(
        spins,
        (0, "input_bound"),
        (5, "healthy"),
        (11, "straggler_input"),
        (12, "input_bound"),
        (13, "h2d_bound"),
        (14, "hang_spin"),
        (30.5, "lost"),
    )
    for outcome, expected in ((good, True), (bad, False)):
        figures = against_goals([outcome])
        met = {name: goal.met(figures[name]) for name, goal in GOALS.items()}
        assert set(met.values()) == {expected}, (met, figures)
    assert GOALS["onset_wrong_none"].met(against_goals([good, bad])["onset_wrong_none"]) is False


def test_the_end_of_a_fault_has_delays_of_verdict_and_alert_and_counts_changes_back() -> None:
    a_case = case(alerts=frozenset({"TrainingInputFewWorkers"}), end=30.0)
    fires = [firing(20, "TrainingInputFewWorkers", "input_few_workers", until=32)]
    outcome, life = judged(a_case, *GOOD, (31, "healthy"), (33, "input_bound"), (35, "healthy"), firings=fires)
    assert (life.alert_end, life.returns, life.generic) == (150, 1, 60)
    assert against_goals([outcome])["end_alert_median"] == 150
    assert judged(a_case, *GOOD, (31, "healthy"))[1].alert_end is None, "no alert fired at the end"
    endless = [firing(20, "TrainingInputFewWorkers", "input_few_workers")]
    assert judged(a_case, *GOOD, firings=endless)[1].alert_end == math.inf


def test_starts_are_runs_whose_fault_is_there_from_their_first_step() -> None:
    early = replace(STORY, runs=(Run(start=9.0, initialization=1.0),))
    outcome, _ = judged(replace(case(), story=early), *GOOD)
    figures = against_goals([outcome])
    assert (figures["start_named_median"], figures["start_right_median"]) == (60, 120)
    assert math.isnan(against_goals([judged(case(), *GOOD)[0]])["start_named_median"])


def test_a_goal_without_a_trial_is_neither_met_nor_missed() -> None:
    assert GOALS["standstill_right"].met(against_goals([])["standstill_right"]) is None


def test_a_cause_has_delays_and_shares_of_wrong_time() -> None:
    late = [judged(case(end=30.0), *GOOD, (31, "healthy"))[0]]
    wrong = [judged(case(end=30.0), (0, "healthy"), (11, "h2d_bound"))[0]]
    found = by_cause(late + wrong)["input_few_workers"]
    assert (found["trials"], found["onset_never"], found["between_most"]) == (2, 1, 1)
    assert found["onset_p95"] == math.inf
    assert found["onset_wrong"] == pytest.approx(18 / 40)
    assert found["early_wrong"] == 0
    assert by_cause(late)["input_few_workers"]["end_median"] == 60
    assert "| never |" in table_of_delays(wrong)
    assert "(missed)" in table_of_goals(wrong)


def test_infinity_and_nothing_have_words_in_json() -> None:
    assert json.loads(as_json({"a": math.inf, "b": math.nan, "c": 1.5})) == {"a": "never", "b": None, "c": 1.5}


def test_changes_are_printed_once_each() -> None:
    a_case = case(end=30.0)
    _, life = judged(a_case, *GOOD, (30, "healthy"), firings=[firing(20, "TrainingStalled", "stalled")])
    lines = timeline(a_case, life).splitlines()
    assert [line.split()[:4] for line in lines[:2]] == [
        ["0:00", "before", "insufficient_data", "general"],
        ["1:00", "before", "healthy", "right"],
    ]
    assert [line.endswith("TrainingStalled (harmful)") for line in lines].count(True) == 2
    assert any("30:00  after" in line for line in lines)


def test_a_fault_that_ends_is_judged_while_it_lasts() -> None:
    ended = ((0, "healthy"), (10, "input_few_workers"), (20.5, "healthy"))
    assert judged(case(end=20.0), *ended)[0].verdict == "input_few_workers"
    assert judged(case(), *ended)[0].verdict == "healthy"


def test_whole_lives_are_in_no_other_figure() -> None:
    outcome, _ = judged(case(), *GOOD)
    life = replace(outcome, trial=Trial(LIVES[0], 1, False))
    assert apart({"rules": [outcome, life]}, held_out=False) == {"rules": [outcome]}


def test_lives_have_a_beginning_and_an_end() -> None:
    assert len(LIVES) <= 36
    for each in LIVES:
        assert each.story.runs[0].start > 0
        if each.name.startswith("life_"):
            assert each.kind == "negative" or (each.onset >= 10 and each.end is not None)
        assert each.end is None or each.end <= each.length - 10
        assert step_seconds(each) > 0


@pytest.mark.parametrize(("name", "missing"), [("one_minute", 1), ("four_minutes", 7)])
def test_a_gap_has_no_scrape_at_all(name: str, missing: int) -> None:
    a_case = next(each for each in LIVES if each.name == f"life_scrape_gap_of_{name}")
    series = render(a_case, 1, noise=False, labels={})
    up = next(each for each in series if each.name == "up")
    assert sum(math.isnan(value) for value in up.values if value is not None) == missing
    assert None not in up.values
    assert up.sample(31) is None
    assert up.sample(30) == 1


def test_an_exporter_restart_resets_its_own_counters() -> None:
    a_case = next(each for each in LIVES if each.name == "life_exporter_restart")
    series = render(a_case, 1, noise=False, labels={})
    started = next(each for each in series if each.name == "process_start_time_seconds")
    assert started.values[29] == -1800
    assert started.values[30] == 900
