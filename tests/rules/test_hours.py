"""Rules that look back 15 minutes or more."""

from __future__ import annotations

import pytest

from tests.rules.rulebook import (
    CLOCK,
    LENGTH,
    TARGET,
    Rulebook,
    Story,
    exporter,
    gpu,
    growing,
    growing_then,
    growing_until,
    rank,
    scrapes,
    series,
    steady,
    until,
)

HOUR = "run_cause:time_lost:ratio1h"
GOODPUT = "run:goodput:ratio1h"
RUN = {"run": "train"}


def of_rank(number: int = 0, **target: str) -> dict[str, str]:
    return {**TARGET, **target, "run": "train", "rank": str(number)}


def of_gpu(index: int = 0, **target: str) -> dict[str, str]:
    return {**TARGET, **target, "gpu": str(index), "uuid": f"GPU-{index}"}


def in_turns(first: float, per_second: float, then: float) -> str:
    """A counter that grows by one rate until a minute, and by another from then on."""
    at = scrapes(first)
    reached = per_second * 30 * at
    return f"0+{per_second * 30:g}x{at} {reached + then * 30:g}+{then * 30:g}x{LENGTH - at}"


SAVES = [series("stallscope_training_phase_occurrences_total", growing(1 / 300), phase="checkpoint", **of_rank())]


def test_shares_of_an_hour_are_of_its_wall_time(rulebook: Rulebook) -> None:
    story = rank(phases={"checkpoint": 0.1, "evaluation": 0.2, "logging": 0.07}) + gpu(idle=0.2) + SAVES
    rulebook.check_percent(
        story,
        HOUR,
        [
            (RUN | {"cause": "checkpoint_stall"}, 10),
            (RUN | {"cause": "evaluation_overhead"}, 20),
            (RUN | {"cause": "callback_stall"}, 7),
        ],
        at="58m",
    )


def test_shares_of_an_hour_need_half_an_hour_of_training(rulebook: Rulebook) -> None:
    story = rank(phases={"checkpoint": 0.1, "evaluation": 0.2}, first_step=300) + gpu() + SAVES
    rulebook.check(story, {HOUR: []}, at="34m")
    rulebook.check(story, {f"count({HOUR})": [({}, 2)]}, at="37m")


def test_a_save_every_twenty_minutes_counts_by_its_mean(rulebook: Rulebook) -> None:
    """A minute and a half each: more than a twentieth of the hour, and nothing in most windows of five minutes."""
    saving = " ".join(f"{90 * done}+0x37 {90 * done + 30} {90 * done + 60}" for done in range(4))
    story = [
        *rank(),
        *gpu(),
        series("stallscope_training_phase_seconds_total", saving, phase="checkpoint", **of_rank()),
        series("stallscope_training_phase_occurrences_total", growing(1 / 1200), phase="checkpoint", **of_rank()),
    ]
    rulebook.check_percent(story, HOUR, [(RUN | {"cause": "checkpoint_stall"}, 5)], at="58m")
    rulebook.check(story, {"run_cause:time_lost:ratio5m": []}, at="50m")
    rulebook.check_firing(exporter() + story, [{"alertname": "TrainingCheckpointStall"} | RUN], by="alertname, run")


def test_goodput_is_productive_step_time_over_wall_time(rulebook: Rulebook) -> None:
    story = rank(wait=0.1, phases={"checkpoint": 0.1, "evaluation": 0.2}) + gpu(idle=0.1)
    rulebook.check_percent(story, GOODPUT, [(RUN, 60)], at="58m")
    rulebook.check_percent(story, "run:badput:ratio1h", [(RUN, 20)], at="58m")


@pytest.mark.parametrize("reports", [False, True])
def test_time_in_an_evaluation_is_not_lost_before_it_is_reported(reports: bool, rulebook: Rulebook) -> None:
    activity = {"training": until(40), "evaluation": until(40, 0, 1)}
    evaluates = rank(wait=None, activity=activity, last_push=CLOCK if reports else growing_until(40))
    story = [(name, growing_until(40) if "phase_seconds" in name else values) for name, values in evaluates]
    counted = growing_then(40, 0, 1) if reports else steady(0)
    story.append(series("stallscope_training_phase_seconds_total", counted, phase="evaluation", **of_rank()))
    rulebook.check_percent(story, "run:badput:ratio1h", [(RUN, 0)], at="38m")
    rulebook.check_percent(story, "run:badput:ratio1h", [(RUN, 0)] if reports else [], at="58m")


def reborn(name: str, values: str) -> tuple[str, str]:
    """Return series of a rank missing from minute 20 to 30; its phases restart, its clocks continue."""
    first, slope = values.split("x")[0].split("+")
    again = float(first) if "phase_seconds" in name else float(first) + 61 * float(slope)
    return name, f"{first}+{slope}x40 _x20 {again:g}+{slope}x60"


@pytest.mark.evaluated_every(30)
def test_goodput_counts_the_time_in_which_no_process_lived(rulebook: Rulebook) -> None:
    story = [reborn(name, values) for name, values in rank(gpus=())]
    rulebook.check_percent(story, GOODPUT, [(RUN, 100)], at="19m")
    rulebook.check(story, {f"round(20 * {GOODPUT})": [(RUN, 15)]}, at="40m")


def stepping(shown: str, counted: str) -> Story:
    """Return a rank that reports its step and its steps in this session."""
    story = [each for each in rank(gpus=()) if "step_seconds_count" not in each[0]]
    return [
        *story,
        series("stallscope_training_step", shown, **of_rank()),
        series("stallscope_training_step_seconds_count", counted, **of_rank()),
    ]


def test_steps_that_a_return_to_a_checkpoint_has_lost_are_not_productive(rulebook: Rulebook) -> None:
    """A thousand steps, back to 600, and 575 more: 375 (to the first reported) of 1,525 were wasted."""
    resumed = stepping("0+25x40 600+25x24", "0+25x40 0+25x24")
    rulebook.check(resumed, {"sum_over_time(run:steps_lost:count[1h])": [(RUN, 375)]}, at="32m")
    rulebook.check_percent(resumed, GOODPUT, [(RUN, 75)], at="32m")


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(stepping("0+25x40 0+25x24", "0+25x40 0+25x24"), id="the new session reports no step"),
        pytest.param(stepping("0+25x100", "0+25x40 0+25x24"), id="saved just before it ended"),
    ],
)
def test_without_a_known_return_no_steps_are_lost(rulebook: Rulebook, story: Story) -> None:
    rulebook.check(story, {"run:steps_lost:count": []}, at="21m")
    rulebook.check_percent(story, GOODPUT, [(RUN, 100)], at="32m")


def aged(minutes: float, story: Story) -> Story:
    """A run that was started so long before the story."""
    return [*story, series("stallscope_training_start_timestamp_seconds", steady(-60 * minutes), **of_rank())]


@pytest.mark.parametrize(
    ("story", "alerts"),
    [
        pytest.param(aged(30, rank(phases={"restore": 0.125}) + gpu(idle=0.1)), ["TrainingGoodputLow"], id="at 1.25"),
        pytest.param(aged(30, rank(phases={"restore": 0.08}) + gpu(idle=0.1)), [], id="at 0.8"),
        pytest.param(aged(0, rank(phases={"restore": 0.2}) + gpu(idle=0.1)), [], id="a young run"),
        pytest.param(aged(30, rank(phases={"evaluation": 0.2}) + gpu()), [], id="evaluation is useful"),
        pytest.param(
            aged(30, rank(wait=0.25) + gpu(idle=0.25)), ["TrainingInputBound"], id="reported under its own name"
        ),
    ],
)
def test_low_goodput_alerts_once_the_run_is_an_hour_old(rulebook: Rulebook, story: Story, alerts: list[str]) -> None:
    rulebook.check_firing(exporter() + story, [{"alertname": alert} for alert in alerts], at="50m", by="alertname")


def working(seconds: str, **work: str) -> Story:
    """Return a rank with this work per step; `work` is the number of kinds it reports."""
    story = [each for each in rank(gpus=()) if "phase_seconds" not in each[0] and "step_seconds_count" not in each[0]]
    return [
        *story,
        series("stallscope_training_phase_seconds_total", seconds, phase="forward", **of_rank()),
        series("stallscope_training_phase_seconds_total", steady(0), phase="data_wait", **of_rank()),
        *(series(f"stallscope_training_{name}", values, **of_rank()) for name, values in work.items()),
    ]


EVEN = growing(1)
DRIFT = "rank:slower:ratio5m"


@pytest.mark.parametrize(
    ("story", "percent"),
    [
        # Work fills the time; what changes is how many steps, samples or tokens that is.
        pytest.param(working(EVEN, step_seconds_count=in_turns(40, 1, 0.8)), 20, id="slower steps"),
        pytest.param(working(EVEN, step_seconds_count=in_turns(40, 1, 1 / 1.125)), 11, id="at 1.25"),
        pytest.param(working(EVEN, step_seconds_count=in_turns(40, 1, 1 / 1.08)), None, id="at 0.8"),
        pytest.param(working(EVEN, step_seconds_count=in_turns(40, 0.8, 1)), None, id="faster steps"),
        pytest.param(
            working(EVEN, step_seconds_count=in_turns(40, 1, 0.5), samples_total=growing(64)),
            None,
            id="half as many steps, of twice as many samples",
        ),
        pytest.param(
            working(
                EVEN, step_seconds_count=growing(1), samples_total=growing(64), tokens_total=in_turns(40, 900, 600)
            ),
            33,
            id="fewer tokens",
        ),
        pytest.param(
            working(EVEN, step_seconds_count=in_turns(40, 1, 0.5), batch_size=until(40, 64, 128)),
            None,
            id="another batch size",
        ),
        pytest.param(
            working(EVEN, step_seconds_count=in_turns(40, 1, 0.8), batch_size=steady(48)),
            20,
            id="the same batch size throughout",
        ),
        pytest.param(
            working(in_turns(40, 1, 0.5), step_seconds_count=in_turns(40, 1, 0.5)), None, id="as much work, but waits"
        ),
    ],
)
def test_steps_have_become_slower_if_the_same_work_takes_longer(
    rulebook: Rulebook, story: Story, percent: int | None
) -> None:
    rulebook.check_percent(story, DRIFT, [] if percent is None else [(of_rank(), percent)], at="50m")


def test_without_a_quarter_of_an_hour_of_history_nothing_has_become_slower(rulebook: Rulebook) -> None:
    rulebook.check(working(EVEN, step_seconds_count=in_turns(9, 1, 0.5)), {DRIFT: []}, at="14m")


def test_drift_is_the_verdict_and_the_alert_after_a_quarter_of_an_hour(rulebook: Rulebook) -> None:
    story = exporter() + working(EVEN, step_seconds_count=in_turns(35, 1, 0.75))
    rulebook.check_percent(story, "run:verdict:ratio5m", [(RUN | {"cause": "step_time_drift"}, 25)], at="52m")
    rulebook.check_firing(story, [], at="44m", by="alertname")
    rulebook.check_firing(story, [{"alertname": "TrainingStepTimeDrift"}], at="52m", by="alertname")


@pytest.mark.parametrize(
    ("excess", "is_drift"), [pytest.param(0.1, True, id="less than half"), pytest.param(0.15, False, id="most")]
)
def test_single_slow_steps_are_no_drift(rulebook: Rulebook, excess: float, is_drift: bool) -> None:
    story = exporter() + working(EVEN, step_seconds_count=in_turns(35, 1, 0.75))
    story += [series("stallscope_training_slow_step_excess_seconds_total", growing(excess), **of_rank())]
    shown = [(RUN | {"cause": "step_time_drift"}, 25)] if is_drift else []
    rulebook.check_percent(story, 'run_cause:time_lost:ratio5m{cause="step_time_drift"}', shown, at="52m")


def dips(every: float, *, spread: float = 0.1, below: float = 0.08) -> Story:
    """A GPU that dips at intervals, and a rank on it that makes two steps a second."""
    return [
        *rank(steps=growing(2)),
        *gpu(idle=below),
        series("stallscope_gpu_dip_interval_seconds_count", growing(1 / every), **of_gpu()),
        series("stallscope_gpu_dip_interval_seconds_sum", growing(1), **of_gpu()),
        series("stallscope_gpu_dip_interval_seconds_sumsq", growing(every * (1 + spread**2)), **of_gpu()),
        series("stallscope_training_step_seconds_sum", growing(1), **of_rank()),
    ]


def test_regular_dips_have_a_period_in_seconds_and_in_steps(rulebook: Rulebook) -> None:
    rulebook.check(
        dips(every=25),
        {
            "round(gpu:dip_period:seconds30m)": [(of_gpu(), 25)],
            "round(gpu:dip_period:steps30m)": [(of_gpu(), 50)],
        },
        at="40m",
    )


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(dips(every=25, spread=1), id="at random"),
        pytest.param(dips(every=25, spread=0.375), id="irregular, at 1.25"),
        pytest.param(dips(every=240), id="too few"),
        pytest.param(dips(every=25, below=0.04), id="short"),
    ],
)
def test_other_dips_have_no_period(rulebook: Rulebook, story: Story) -> None:
    rulebook.check(story, {"gpu:dip_regular:info": [], "gpu:dip_period:seconds30m": []}, at="40m")
