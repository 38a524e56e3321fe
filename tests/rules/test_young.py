"""Verdicts in the first minutes of a run, whose first step is at minute 10: right, general, or absent."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.rules.rulebook import (
    LENGTH,
    TARGET,
    Rulebook,
    Story,
    gpu,
    growing_then,
    growing_until,
    rank,
    scrapes,
    series,
    steady,
)
from tests.rules.test_relieved import changing

pytestmark = pytest.mark.evaluated_every(30)

RUN_VERDICT = "run:verdict:ratio5m"
_BEGIN = 10.0
"""Minute of the first step."""


def of_run(cause: str) -> dict[str, str]:
    return {"run": "train", "cause": cause}


def burst(minute: float, seconds: float) -> str:
    """A counter that grows once, within one scrape."""
    before = scrapes(minute)
    return f"0+0x{before} {seconds:g}+0x{LENGTH - before - 1}"


def longest(minute: float, seconds: float) -> str:
    """A gauge with the longest occurrence of the last minute, of which there is one."""
    before, kept = scrapes(minute), scrapes(1)
    return f"0+0x{before} {seconds:g}+0x{kept - 1} 0+0x{LENGTH - before - kept}"


def young(
    phases: Mapping[str, float],
    number: int = 0,
    *,
    step_seconds: float = 0.5,
    busy: float = 0.7,
    further: Story = (),  # type: ignore[assignment]
    main_thread: float | None = None,
    cpu_limit: float = 8,
) -> Story:
    """A rank and its GPU, which had no work before the first step; what the phases leave is the forward pass."""
    labels = {**TARGET, "run": "train", "rank": str(number)}
    counters = {
        **{phase: growing_then(_BEGIN, 0, share) for phase, share in phases.items()},
        "forward": growing_then(_BEGIN, 0, 1 - sum(phases.values())),
        "initialization": growing_until(_BEGIN),
    }
    rate = 1 / step_seconds
    story = rank(number, gpus=((str(number), f"GPU-{number}"),), first_step=60 * _BEGIN, step_seconds=step_seconds)
    story = [
        *(each for each in story if "phase_seconds" not in each[0] and "_step_seconds" not in each[0]),
        *(
            series("stallscope_training_phase_seconds_total", values, phase=phase, **labels)
            for phase, values in counters.items()
        ),
        series("stallscope_training_step_seconds_count", growing_then(_BEGIN, 0, rate), **labels),
        series("stallscope_training_step_seconds_sum", growing_then(_BEGIN, 0, 1), **labels),
        *(each for each in gpu(number) if "busy_seconds" not in each[0]),
        series(
            "stallscope_gpu_busy_seconds_total",
            growing_then(_BEGIN, 0, busy),
            **TARGET,
            gpu=str(number),
            uuid=f"GPU-{number}",
        ),
        *further,
    ]
    if main_thread is not None:
        story += [
            series("stallscope_training_main_thread_cpu_seconds_total", growing_then(_BEGIN, 0, main_thread), **labels),
            series("stallscope_training_process_cpu_seconds_total", growing_then(_BEGIN, 0, main_thread), **labels),
            series("stallscope_training_cpu_limit_cores", steady(cpu_limit), **labels),
        ]
    return story


def test_a_wait_for_data_is_the_verdict_two_minutes_after_the_first_step(rulebook: Rulebook) -> None:
    story = young({"data_wait": 0.3})
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("insufficient_data"), 0)], at="10m")
    for moment in ("11m30s", "12m", "14m", "16m", "20m"):
        rulebook.check_percent(story, RUN_VERDICT, [(of_run("input_bound"), 30)], at=moment)


def test_a_gpu_without_work_before_the_run_is_no_wait_of_it(rulebook: Rulebook) -> None:
    for moment in ("11m30s", "12m", "14m"):
        rulebook.check_percent(
            young({"data_wait": 0.3}, busy=1.0), RUN_VERDICT, [(of_run("insufficient_data"), 0)], at=moment
        )


def lost_from(story: Story, first: float, last: float) -> Story:
    """Return the story without the samples of these minutes."""
    found = []
    for name, values in story:
        samples: list[str] = []
        for part in values.split():
            begin, step, count = (float(each) for each in part.replace("x", "+").split("+"))
            samples += [f"{begin + number * step:.10g}" for number in range(int(count) + 1)]
        lost = range(scrapes(first), scrapes(last) + 1)
        found.append((name, " ".join("stale" if place in lost else each for place, each in enumerate(samples))))
    return found


def test_a_missed_scrape_does_not_end_what_a_young_run_is_known_for(rulebook: Rulebook) -> None:
    story = lost_from(young({"data_wait": 0.01}, busy=1.0), 12, 12)
    for moment in ("12m", "12m30s", "13m", "13m30s"):
        rulebook.check_percent(story, RUN_VERDICT, [(of_run("healthy"), 0)], at=moment)


def test_a_young_run_is_no_longer_healthy_once_its_gpu_is_not_observed(rulebook: Rulebook) -> None:
    story = young({"data_wait": 0.01}, busy=1.0)
    story = [one for each in story for one in (lost_from([each], 12, 60) if "stallscope_gpu_" in each[0] else [each])]
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("healthy"), 0)], at="11m30s")
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("insufficient_data"), 0)], at="13m30s")


@pytest.mark.parametrize(
    ("step_seconds", "none", "right"),
    [(15, "10m30s", "12m"), (30, "12m", "14m"), (46, "13m", "16m"), (60, "13m", "18m")],
)
def test_long_steps_are_judged_after_eight_of_them(
    rulebook: Rulebook, step_seconds: float, none: str, right: str
) -> None:
    story = young({"data_wait": 0.4}, step_seconds=step_seconds)
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("insufficient_data"), 0)], at=none)
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("input_bound"), 30)], at=right)


def one_wait(phase: str, number: int = 0) -> Story:
    """A single occurrence of 20 seconds."""
    labels = {**TARGET, "run": "train", "rank": str(number), "phase": phase}
    return [
        series("stallscope_training_phase_seconds_total", burst(11, 20), **labels),
        series("stallscope_training_phase_max_seconds", longest(11, 20), **labels),
    ]


@pytest.mark.parametrize("phase", ["data_wait", "host_copy", "communication", "checkpoint", "evaluation", "logging"])
def test_what_a_young_run_did_once_is_not_its_verdict(rulebook: Rulebook, phase: str) -> None:
    story = young({"backward": 0.5, "data_wait": 0.01} if phase != "data_wait" else {}, further=one_wait(phase))
    for moment in ("11m", "11m30s", "12m", "13m", "14m"):
        rulebook.check_percent(story, RUN_VERDICT, [(of_run("insufficient_data"), 0)], at=moment)


def two(first: Mapping[str, float], second: Mapping[str, float], further: Story = ()) -> Story:  # type: ignore[assignment]
    return young({"data_wait": 0.01, **first}) + young({"data_wait": 0.01, **second}, 1, further=further)


def test_a_straggler_and_slow_communication_are_verdicts_two_minutes_after_the_first_step(rulebook: Rulebook) -> None:
    late, shared = (
        two({"communication": 0.05}, {"communication": 0.35}),
        two({"communication": 0.3}, {"communication": 0.31}),
    )
    for moment in ("11m30s", "14m", "20m"):
        rulebook.check_percent(late, RUN_VERDICT, [(of_run("straggler_rank"), 30)], at=moment)
        rulebook.check_percent(shared, RUN_VERDICT, [(of_run("comm_bound"), 30)], at=moment)


def test_ranks_that_wait_once_for_another_make_no_straggler_of_it(rulebook: Rulebook) -> None:
    story = two({"communication": 0.02}, {"communication": 0.02}, one_wait("communication", 1))
    for moment in ("11m", "11m30s", "12m", "13m", "14m"):
        rulebook.check_percent(story, RUN_VERDICT, [(of_run("insufficient_data"), 0)], at=moment)


def uneven_work(number: int) -> Story:
    """The counters of own work that varies by two fifths, in steps of half a second of which it is 0.35 s."""
    labels = {**TARGET, "run": "train", "rank": str(number)}
    rates = {"own_work_seconds": 0.7, "uneven_work_square_seconds": 0.0368, "even_work_square_seconds": 0.0}
    return [
        series(f"stallscope_training_{name}_total", growing_then(_BEGIN, 0, rate), **labels)
        for name, rate in rates.items()
    ]


def test_uneven_work_is_the_verdict_two_minutes_after_the_first_step_unless_one_phase_was_long(
    rulebook: Rulebook,
) -> None:
    work = uneven_work(0) + uneven_work(1)
    causes = "count by (cause) (run:verdict:ratio5m)"
    for further, cause in (([], "uneven_work"), (one_wait("backward", 1), "insufficient_data")):
        story = two({"communication": 0.3}, {"communication": 0.3}, [*work, *further])
        rulebook.check(story, {causes: [({"cause": cause}, 1)]}, at="12m")


def test_a_young_rank_for_whose_saves_the_others_wait_is_no_straggler(rulebook: Rulebook) -> None:
    story = two({"communication": 0.02, "checkpoint": 0.2}, {"communication": 0.22})
    for moment in ("11m30s", "12m", "13m", "14m"):
        rulebook.check_percent(story, RUN_VERDICT, [(of_run("insufficient_data"), 0)], at=moment)


def test_ranks_are_not_compared_before_all_of_them_can_be_judged(rulebook: Rulebook) -> None:
    late = [
        (name, growing_then(12, 0, 2) if "step_seconds_count" in name and 'rank="1"' in name else values)
        for name, values in two({"communication": 0.05}, {"communication": 0.35})
    ]
    rulebook.check_percent(late, RUN_VERDICT, [(of_run("insufficient_data"), 0)], at="12m")
    rulebook.check_percent(late, RUN_VERDICT, [(of_run("straggler_rank"), 30)], at="13m30s")


@pytest.mark.parametrize("minutes", [2, 4, 8])
def test_a_cold_start_is_no_verdict_of_a_later_session_however_short_the_first_was(
    rulebook: Rulebook, minutes: float
) -> None:
    begin, end, warm = _BEGIN - minutes, _BEGIN - 0.5, _BEGIN + 0.5
    rates = {
        'phase="forward"': ((begin, 0.99), (end, 0), (_BEGIN, 0.4), (warm, 0.99)),
        'phase="data_wait"': ((begin, 0.01), (end, 0), (_BEGIN, 0.6), (warm, 0.01)),
        'phase="initialization"': ((end, 1), (_BEGIN, 0)),
        "step_seconds_count": ((begin, 2), (end, 0), (_BEGIN, 0.8), (warm, 2)),
        "step_seconds_sum": ((begin, 1), (end, 0), (_BEGIN, 1)),
        "busy_seconds": ((begin, 0.99), (end, 0), (_BEGIN, 0.4), (warm, 0.99)),
    }
    first_steps = f"{60 * begin:g}+0x{scrapes(_BEGIN) - 1} {60 * _BEGIN:g}+0x{LENGTH}"
    story = []
    for name, values in young({"data_wait": 0.01}, busy=1.0):
        changes = next((changes for part, changes in rates.items() if part in name), None)
        changed = changing((0, 0), *changes) if changes else first_steps if "first_step" in name else values
        story.append((name, changed))
    verdicts = "count by (cause) (count_over_time(run:verdict:ratio5m[10m]))"
    found = [({"cause": cause}, 1) for cause in ("healthy", "insufficient_data")]
    rulebook.check(story, {verdicts: found}, at="15m")


def shorter_from(minute: float) -> Story:
    """Steps of two seconds, and of half a second from a minute on."""
    return [
        (name, growing_then(minute, 0.5, 2) if "step_seconds_count" in name else values)
        for name, values in young({"data_wait": 0.3}, step_seconds=2)
    ]


def test_shares_begin_again_where_steps_become_shorter(rulebook: Rulebook) -> None:
    story = shorter_from(12)
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("input_bound"), 30)], at="11m30s")
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("insufficient_data"), 0)], at="13m")
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("input_bound"), 30)], at="14m30s")


def test_a_main_thread_at_its_limit_is_the_reason_where_the_rank_leaves_its_cpus_unused(rulebook: Rulebook) -> None:
    named = young({"data_wait": 0.3}, main_thread=1.0)
    sleeping = young({"data_wait": 0.3}, main_thread=0.5)
    only_one = young({"data_wait": 0.3}, main_thread=1.0, cpu_limit=2)
    for moment in ("12m30s", "20m"):
        rulebook.check_percent(named, RUN_VERDICT, [(of_run("input_single_thread"), 30)], at=moment)
        rulebook.check_percent(sleeping, RUN_VERDICT, [(of_run("input_bound"), 30)], at=moment)
        rulebook.check_percent(only_one, RUN_VERDICT, [(of_run("input_bound"), 30)], at=moment)


def test_a_callback_is_the_verdict_two_minutes_after_the_first_step(rulebook: Rulebook) -> None:
    rulebook.check_percent(young({"logging": 0.3}), RUN_VERDICT, [(of_run("callback_stall"), 30)], at="12m")


def test_a_harmless_slowdown_of_a_gpu_that_was_idle_is_no_throttling(rulebook: Rulebook) -> None:
    of_gpu = {**TARGET, "gpu": "0", "uuid": "GPU-0"}
    clock = f"200e6+0x{scrapes(_BEGIN)} 1.9e9+0x{LENGTH - scrapes(_BEGIN)}"
    story = [each for each in young({"data_wait": 0.01}, busy=0.95) if "clock_hertz" not in each[0]]
    story += [
        series("stallscope_gpu_clock_hertz", clock, clock="sm", **of_gpu),
        series("stallscope_gpu_throttled_seconds_total", growing_then(_BEGIN, 0, 0.5), reason="sw_thermal", **of_gpu),
    ]
    rulebook.check(story, {'count_over_time(pair_cause:time_lost:ratio5m{cause="thermal_throttle"}[5m])': []}, at="14m")
