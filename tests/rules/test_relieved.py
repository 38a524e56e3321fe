"""A fault or a standstill that ends at minute 14: verdict and alert follow soon, and losses that come and go stay."""

from __future__ import annotations

import re

import pytest

from alerts.alert_rules import RELIEVED, RELIEVED_BY_SMS
from tests.rules.rulebook import (
    INTERVAL,
    LENGTH,
    RULE_FILES,
    TARGET,
    Rulebook,
    Story,
    exporter,
    gpu,
    growing,
    growing_then,
    rank,
    scrapes,
    series,
    steady,
)

pytestmark = pytest.mark.evaluated_every(30)

_END = 14.0
_VERDICT = "sum by (run, cause) (round(100 * run:verdict:ratio5m{}))"
_ALERTS = 'count by (alertname, severity, run) (last_over_time(ALERTS{{alertstate="firing", cause!=""}}[1m]{}))'


def of_run(cause: str) -> dict[str, str]:
    return {"run": "train", "cause": cause}


def verdicts(seconds: int) -> str:
    """Every verdict of the last seconds."""
    return f"count by (run, cause) (count_over_time(run:verdict:ratio5m[{seconds}s]))"


def changing(*changes: tuple[float, float]) -> str:
    """A counter with its rate from each minute on."""
    words, value = [], 0.0
    ends = [scrapes(minute) for minute, _ in changes[1:]] + [LENGTH]
    begin = 0
    for (_, rate), end in zip(changes, ends, strict=True):
        step = rate * INTERVAL
        words.append(f"{value:.10g}+{step:.10g}x{end - begin - 1}")
        value += step * (end - begin)
        begin = end
    return " ".join(words)


def waiting(
    *shares: tuple[float, float], busy: str | None = None, phase: str = "data_wait", first_step: float = 0
) -> Story:
    """A rank that is in a phase for a share of its time, from each minute on; its steps are as much slower."""
    labels = {**TARGET, "run": "train", "rank": "0"}
    work = [(minute, 1 - share) for minute, share in shares]
    steps = [(minute, 2 * rate) for minute, rate in work]
    story = [
        each
        for each in (*rank(first_step=first_step), *gpu())
        if not re.search('phase="forward"|_step_seconds|busy_seconds|last_step', each[0])
        and not (phase in each[0] and "phase_seconds" in each[0])
    ]
    return [
        *story,
        series("stallscope_training_phase_seconds_total", changing(*shares), phase=phase, **labels),
        series("stallscope_training_phase_seconds_total", changing(*work), phase="forward", **labels),
        series("stallscope_training_step_seconds_count", changing(*steps), **labels),
        series("stallscope_training_step_seconds_sum", growing(1), **labels),
        series("stallscope_training_last_step_timestamp_seconds", growing(1), **labels),
        series("stallscope_gpu_busy_seconds_total", busy or changing(*work), **TARGET, gpu="0", uuid="GPU-0"),
    ]


def fixed() -> Story:
    of_gpu = {**TARGET, "gpu": "0", "uuid": "GPU-0"}
    return [
        *exporter(),
        *waiting((0, 0.4), (_END, 0.01)),
        series("stallscope_gpu_sm_active_seconds_total", growing_then(_END, 0.3, 0.9), **of_gpu),
        series("stallscope_gpu_energy_joules_total", growing_then(_END, 100, 250), **of_gpu),
        series("stallscope_gpu_power_limit_watts", steady(350), **of_gpu),
    ]


def test_the_verdict_of_a_wait_ends_90_seconds_after_it_and_none_of_the_gpu_side_follows(rulebook: Rulebook) -> None:
    rulebook.check(
        fixed(),
        {
            _VERDICT.format(" offset 4m"): [(of_run("input_bound"), 40)],
            verdicts(145): [(of_run("healthy"), 1)],
            'count_over_time(pair_cause:time_lost:ratio5m{domain="device", cause!="compute_bound"}[4m])': [],
        },
        at="18m",
    )


def test_the_alert_of_a_wait_ends_three_minutes_after_it(rulebook: Rulebook) -> None:
    labels = {"alertname": "TrainingInputBound", "severity": "warning", "run": "train"}
    rulebook.check(
        fixed(),
        {
            _ALERTS.format(" offset 4m"): [(labels, 1)],
            'count_over_time(ALERTS{alertname=~"Training.+"}[65s])': [],
        },
        at="18m",
    )


def test_an_exporter_that_restarts_meanwhile_brings_no_verdict_back(rulebook: Rulebook) -> None:
    before = changing((0, 0.6), (_END, 0.99)).split()
    turn = scrapes(_END + 2)
    again = f"0+{0.99 * INTERVAL:g}x{LENGTH - turn - 1}"
    restarted = f"{before[0]} {60 * _END * 0.6:g}+{0.99 * INTERVAL:g}x{turn - scrapes(_END) - 1} {again}"
    story = waiting((0, 0.4), (_END, 0.01), busy=restarted)
    rulebook.check(story, {verdicts(145): [(of_run("healthy"), 1)]}, at="18m")


def test_a_wait_that_comes_and_goes_leaves_once_an_hour_at_most(rulebook: Rulebook) -> None:
    story = waiting((0, 0.4), (7, 0.01), (8, 0.4), (16, 0.01), (17, 0.4))
    rulebook.check(
        story,
        {
            _VERDICT.format(" offset 3m"): [(of_run("input_bound"), 40)],
            "count_over_time(run:relieved:info[15m])": [({"run": "train"}, 1)],
            verdicts(295): [(of_run("input_bound"), 1)],
        },
        at="18m",
    )


def test_a_callback_that_is_moved_off_the_loop_leaves_neither_a_verdict_nor_an_alert(rulebook: Rulebook) -> None:
    rulebook.check(
        [*exporter(), *waiting((0, 0.3), (_END, 0.01), phase="logging")],
        {
            _ALERTS.format(" offset 4m"): [
                ({"alertname": "TrainingCallbackStall", "severity": "warning", "run": "train"}, 1)
            ],
            verdicts(145): [(of_run("healthy"), 1)],
            'count_over_time(ALERTS{alertname=~"Training.+"}[65s])': [],
        },
        at="18m",
    )


def test_the_end_of_one_of_many_callbacks_is_no_end(rulebook: Rulebook) -> None:
    each_three_minutes = [change for minute in range(3, 18, 3) for change in ((minute, 0.95), (minute + 0.5, 0.0))]
    rulebook.check(
        [*exporter(), *waiting((0, 0.0), *each_three_minutes, phase="logging", first_step=-1200)],
        {
            "count_over_time(run:relieved:info[18m])": [],
            verdicts(600): [(of_run("callback_stall"), 1)],
            'count(ALERTS{alertname="TrainingCallbackStall", alertstate="firing"})': [({}, 1)],
        },
        at="18m",
    )


def test_sms_that_have_more_to_do_leave_neither_a_verdict_nor_an_alert_of_little_work(rulebook: Rulebook) -> None:
    of_gpu = {**TARGET, "gpu": "0", "uuid": "GPU-0"}
    of_rank = {**TARGET, "run": "train", "rank": "0"}
    # A larger batch: fewer steps a second.
    steps = series("stallscope_training_step_seconds_count", growing_then(_END, 50, 4), **of_rank)
    rulebook.check(
        [
            *exporter(),
            *(each for each in (*rank(), *gpu()) if "step_seconds_" not in each[0]),
            steps,
            series("stallscope_training_step_seconds_sum", growing(1), **of_rank),
            series("stallscope_training_allocator_peak_bytes", steady(2e10), **of_rank),
            series("stallscope_gpu_memory_total_bytes", steady(8e10), **of_gpu),
            series("stallscope_gpu_sm_active_seconds_total", growing_then(_END, 0.2, 0.9), **of_gpu),
            series("stallscope_gpu_energy_joules_total", growing_then(_END, 100, 300), **of_gpu),
            series("stallscope_gpu_power_limit_watts", steady(350), **of_gpu),
        ],
        {
            _VERDICT.format(" offset 4m"): [(of_run("small_batch"), 80)],
            _ALERTS.format(" offset 4m"): [
                ({"alertname": "TrainingSmallBatch", "severity": "warning", "run": "train"}, 1)
            ],
            'count by (cause) (count_over_time(run:verdict:ratio5m{cause="small_batch"}[145s]))': [],
            'count_over_time(ALERTS{alertname=~"Training.+", alertstate="firing", severity!="info"}[65s])': [],
        },
        at="18m",
    )


@pytest.mark.parametrize("cause", ["input_few_workers", "h2d_bound", "straggler_rank", "comm_bound"])
def test_rules_and_alerts_name_the_same_causes(cause: str) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in RULE_FILES)
    assert f'run:verdict:ratio5m{{cause=~"{RELIEVED}"}}' in text
    assert f'run:verdict:ratio5m{{cause=~"{RELIEVED_BY_SMS}"}}' in text
    assert re.fullmatch(RELIEVED, cause)


def test_a_warm_up_that_waits_for_data_leaves_neither_a_verdict_nor_an_alert(rulebook: Rulebook) -> None:
    rulebook.check(
        [*exporter(), *waiting((0, 0.4), (4.5, 0.01))],
        {
            verdicts(235): [(of_run("healthy"), 1)],
            'count_over_time(ALERTS{alertname=~"Training.+", alertstate="firing"}[11m])': [],
        },
        at="11m",
    )


def started_again() -> Story:
    """A rank that waits for data until it is started again at minute 14, and then no more."""
    counted = scrapes(_END)

    def counter(before: float, after: float) -> str:
        return f"0+{before * INTERVAL:g}x{counted - 1} 0+{after * INTERVAL:g}x{LENGTH - counted}"

    labels = {**TARGET, "run": "train", "rank": "0"}
    changed: list[tuple[str, dict[str, str], tuple[float, float]]] = [
        ("phase_seconds_total", {"phase": "data_wait"}, (0.4, 0.01)),
        ("phase_seconds_total", {"phase": "forward"}, (0.6, 0.99)),
        ("step_seconds_count", {}, (1.2, 2)),
        ("step_seconds_sum", {}, (1, 1)),
    ]
    story = [
        each
        for each in waiting((0, 0.4), (_END, 0.01))
        if not re.search("|".join(name for name, *_ in changed), each[0])
    ]
    first = f"0+0x{counted - 1} {60 * _END:g}+0x{LENGTH - counted}"
    return [
        *exporter(),
        *(each for each in story if "first_step" not in each[0]),
        series("stallscope_training_first_step_timestamp_seconds", first, **labels),
        *(series(f"stallscope_training_{name}", counter(*rates), **more, **labels) for name, more, rates in changed),
    ]


def test_a_fix_with_a_restart_ends_the_alert_three_minutes_after_it(rulebook: Rulebook) -> None:
    labels = {"alertname": "TrainingInputBound", "severity": "warning", "run": "train"}
    rulebook.check(
        started_again(),
        {
            _ALERTS.format(" offset 4m"): [(labels, 1)],
            'count_over_time(ALERTS{alertname=~"Training.+"}[65s])': [],
            "count_over_time(run:relieved:info[18m])": [],
        },
        at="18m",
    )


def stopped(share: float) -> Story:
    """A rank in its warm-up that compiles for two minutes, and waits for data for a share of its time after that."""
    labels = {**TARGET, "run": "train", "rank": "0"}
    before, after = scrapes(_END - 2), scrapes(_END)
    last = f"0+{INTERVAL}x{before} {60 * (_END - 2):g}+0x{after - before - 2} {60 * _END:g}+{INTERVAL}x{LENGTH - after}"
    story = waiting((0, 0.01), (_END - 2, 0), (_END, share), first_step=60 * (_END - 4))
    replaced = "last_step|step_seconds_count|forward|busy_seconds"
    steps = changing((0, 2), (_END - 2, 0), (_END, 2 - 2 * share))
    works = changing((0, 0.99), (_END - 2, 0), (_END, 1 - share))
    return [
        *exporter(),
        *(each for each in story if not re.search(replaced, each[0])),
        series("stallscope_training_last_step_timestamp_seconds", last, **labels),
        *(
            series(f"stallscope_training_step_seconds_{name}", steps, **more, **labels)
            for name, more in (("count", {}), ("bucket", {"le": "1"}), ("bucket", {"le": "+Inf"}))
        ),
        series("stallscope_training_phase_seconds_total", works, phase="forward", **labels),
        series(
            "stallscope_training_phase_seconds_total",
            changing((0, 0), (_END - 2, 1), (_END, 0)),
            phase="other",
            **labels,
        ),
        series("stallscope_gpu_busy_seconds_total", works, **TARGET, gpu="0", uuid="GPU-0"),
    ]


def test_what_a_rank_does_after_a_standstill_is_its_verdict_two_minutes_later(rulebook: Rulebook) -> None:
    rulebook.check_percent(stopped(0.3), "run:verdict:ratio5m", [(of_run("insufficient_data"), 0)], at="13m30s")
    for moment in ("15m30s", "19m", "21m"):
        rulebook.check_percent(stopped(0.3), "run:verdict:ratio5m", [(of_run("input_bound"), 30)], at=moment)
    rulebook.check(stopped(0.01), {verdicts(145): [(of_run("healthy"), 1)]}, at="18m")
