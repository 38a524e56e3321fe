"""Time that passes without steps, or with slower ones than before."""

from __future__ import annotations

import pytest

from tests.rules.rulebook import (
    INTERVAL,
    LENGTH,
    TARGET,
    Labels,
    Rulebook,
    Story,
    exporter,
    gpu,
    growing,
    growing_until,
    rank,
    scrapes,
    series,
    steady,
    until,
)

RUN_VERDICT = "run:verdict:ratio5m"
RANK_VERDICT = "rank:verdict:ratio5m"
VERDICTS_OF_A_HANG = {RUN_VERDICT: "stalled", RANK_VERDICT: "stalled", "gpu:verdict:ratio5m": "thermal_throttle"}
SHARE = "run_cause:time_lost:ratio5m"
HOUR = "run_cause:time_lost:ratio1h"


def of_rank(number: int = 0, run: str = "train", **target: str) -> dict[str, str]:
    return {**TARGET, **target, "run": run, "rank": str(number)}


def of_gpu(index: int = 0, **target: str) -> dict[str, str]:
    return {**TARGET, **target, "gpu": str(index), "uuid": f"GPU-{index}"}


def of_run(cause: str) -> dict[str, str]:
    return {"run": "train", "cause": cause}


def powered(watts: str, index: int = 0, **target: str) -> Story:
    """A GPU's power, of 700 W."""
    return [
        series("stallscope_gpu_power_watts", watts, **of_gpu(index, **target)),
        series("stallscope_gpu_power_limit_watts", steady(700), **of_gpu(index, **target)),
    ]


def slow_steps(lost: float, *, count: str = growing(0.08)) -> Story:
    """Steps that are slower than others: the share of time that they lose, and how many there are."""
    return [
        series("stallscope_training_slow_step_excess_seconds_total", growing(lost), **of_rank()),
        series("stallscope_training_slow_steps_total", count, **of_rank()),
    ]


def storage(full: float = 0.0, in_flight: float = 0.0) -> Story:
    """Share of time in which all tasks wait for storage, and operations of a network file system in flight."""
    return [
        series("stallscope_host_pressure_stalled_seconds_total", growing(full), resource="io", **TARGET),
        series("stallscope_host_nfs_operation_wait_seconds_total", growing(in_flight), mount="/data", **TARGET),
    ]


STOPPED = growing_until(10)
"""The last step, of a rank that makes none after ten minutes."""
HOT = gpu(throttled={"hw_thermal": 0.5}, clock=0.6)
REGULAR = [
    series("stallscope_gpu_dip_interval_seconds_count", growing(1 / 30), **of_gpu()),
    series("stallscope_gpu_dip_interval_seconds_sum", growing(1), **of_gpu()),
    series("stallscope_gpu_dip_interval_seconds_sumsq", growing(30.3), **of_gpu()),
]
"""Dips of the GPU every half minute."""


@pytest.mark.parametrize(
    ("story", "cause", "percent"),
    [
        pytest.param(rank(phases={"checkpoint": 0.15}) + gpu(idle=0.15), "checkpoint_stall", 15, id="saves"),
        pytest.param(rank(phases={"checkpoint": 0.04}) + gpu(idle=0.04), "healthy", 0, id="saves a little"),
        pytest.param(rank(phases={"evaluation": 0.3}) + gpu(), "evaluation_overhead", 30, id="evaluates"),
        pytest.param(rank(phases={"evaluation": 0.08}) + gpu(), "healthy", 0, id="evaluates a little"),
        pytest.param(rank(phases={"logging": 0.1}) + gpu(idle=0.12), "callback_stall", 10, id="logs"),
        pytest.param(rank(phases={"logging": 0.04}) + gpu(idle=0.12), "healthy", 0, id="logs a little"),
        pytest.param(rank(phases={"logging": 0.5}) + gpu(), "healthy", 0, id="a logger that waits for a busy GPU"),
        pytest.param(rank(phases={"upload": 0.1}) + gpu(idle=0.1), "callback_stall", 10, id="a phase of one's own"),
        pytest.param(rank(phases={"second": 0.6}) + gpu(), "healthy", 0, id="a phase of one's own, GPU busy"),
        pytest.param(rank(phases={"rollout": 0.6}) + gpu(), "healthy", 0, id="generates on its own GPU"),
        pytest.param(rank(phases={"rollout": 0.5}) + gpu(idle=0.5), "rollout_wait", 50, id="waits for rollouts"),
        pytest.param(
            rank(phases={"rollout": 0.3, "reward": 0.1, "weight_sync": 0.05}) + gpu(idle=0.47),
            "rollout_wait",
            45,
            id="waits for rollouts, rewards and weights",
        ),
        pytest.param(rank(phases={"rollout": 0.08}) + gpu(idle=0.1), "healthy", 0, id="waits for rollouts a little"),
        pytest.param(rank(phases={"rollout": 0.5}, gpus=()), "healthy", 0, id="generates without a GPU"),
        pytest.param(
            rank(phases={"rollout": 0.6, "logging": 0.12}) + gpu(idle=0.12),
            "callback_stall",
            12,
            id="generates on its own GPU, and logs",
        ),
        pytest.param(
            rank(wait=0.3, phases={"rollout": 0.4}) + gpu(idle=0.3),
            "input_bound",
            30,
            id="generates, and waits for data",
        ),
        pytest.param(rank(phases={"logging": 0.1}, gpus=()), "callback_stall", 10, id="logs, no GPU"),
        pytest.param(
            rank(wait=0.2, phases={"upload": 0.3}) + gpu(idle=0.25),
            "input_bound",
            20,
            id="no more idle time is left beside the wait for data",
        ),
        pytest.param(rank() + gpu(idle=0.1) + slow_steps(0.1), "step_outliers", 10, id="slow steps"),
        pytest.param(rank() + gpu() + slow_steps(0.04), "healthy", 0, id="slow steps, a little"),
        pytest.param(rank() + gpu() + slow_steps(0.1, count=steady(10)), "healthy", 0, id="a few slow steps"),
        pytest.param(
            rank() + gpu(idle=0.1) + slow_steps(0.1, count=growing(0.3)), "healthy", 0, id="long steps among others"
        ),
        pytest.param(rank(steps=steady(99)) + gpu() + slow_steps(0.1), "healthy", 0, id="slow among few steps"),
        pytest.param(
            rank(wait=0.2) + gpu(idle=0.2) + slow_steps(0.2), "input_bound", 20, id="steps slow for want of data"
        ),
        pytest.param(
            rank() + gpu(idle=0.1) + slow_steps(0.09) + REGULAR, "periodic_host_work", 10, id="slow at intervals"
        ),
    ],
)
def test_what_blocks_the_loop_is_named_by_its_phase(rulebook: Rulebook, story: Story, cause: str, percent: int) -> None:
    rulebook.check_percent(story, RUN_VERDICT, [(of_run(cause), percent)])


def test_the_others_lose_what_one_rank_is_blocked_for(rulebook: Rulebook) -> None:
    story = rank(0, phases={"checkpoint": 0.2}) + gpu(0, idle=0.2) + rank(1, gpus=(("1", "GPU-1"),)) + gpu(1)
    rulebook.check_percent(story, f'{SHARE}{{cause="checkpoint_stall"}}', [(of_run("checkpoint_stall"), 20)])


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(rank(phases={"checkpoint": 0.3}, first_step=1000) + gpu(), id="warm-up"),
        pytest.param(
            rank(phases={"checkpoint": 0.3}, last_push=growing_until(12), activity={"paused": steady(1)}) + gpu(),
            id="silent",
        ),
    ],
)
def test_phases_of_a_rank_that_is_new_or_silent_are_not_judged(rulebook: Rulebook, story: Story) -> None:
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("insufficient_data"), 0)])


@pytest.mark.parametrize(
    ("story", "cause"),
    [
        pytest.param(gpu(idle=1.0), "stalled", id="GPU idle, host quiet"),
        pytest.param(gpu() + powered(steady(180)), "hang_spin", id="GPU spins"),
        pytest.param(gpu() + powered(steady(520)), "stalled", id="GPU busy at high power"),
        pytest.param(gpu() + powered("180+60x1 " * (LENGTH // 2)), "stalled", id="GPU busy at changing power"),
        pytest.param(gpu(), "stalled", id="GPU busy, power unknown"),
        pytest.param([*gpu(), powered(steady(180))[0]], "stalled", id="GPU busy, power limit unknown"),
        pytest.param(gpu(idle=0.2) + powered(steady(180)), "stalled", id="GPU busy now and then"),
        pytest.param(gpu(idle=1.0) + storage(full=0.6), "hang_io", id="all wait for storage"),
        pytest.param(gpu(idle=1.0) + storage(in_flight=40), "hang_io", id="all wait for a network file system"),
        pytest.param(gpu(idle=1.0) + storage(full=0.05, in_flight=2), "stalled", id="storage is used a little"),
        pytest.param(gpu(idle=0.5) + storage(full=0.6), "stalled", id="storage is waited for, but the GPU works"),
        pytest.param(gpu(idle=None) + storage(full=0.6), "stalled", id="nothing is known of the GPU"),
    ],
)
def test_a_stall_is_named_by_what_gpu_and_host_do(rulebook: Rulebook, story: Story, cause: str) -> None:
    rulebook.check_percent(rank(last_step=STOPPED) + story, RUN_VERDICT, [(of_run(cause), 100)])


@pytest.mark.parametrize("missed", [0, 1])
def test_a_changed_target_label_makes_no_gpu_of_a_stalled_rank_spin(rulebook: Rulebook, missed: int) -> None:
    before = "180+60x1 " * (scrapes(20) // 2 - missed) + "180 " * missed
    story = rank(last_step=STOPPED) + gpu()
    story += [*powered(f"{before} stale"), powered(f"_x{scrapes(20)} 180", pod="new")[0]]
    rulebook.check(story, {"rank:spinning:info": [], "count(rank:stalled:info)": [({}, 1)]})


def test_a_rank_without_gpus_hangs_in_storage_by_its_host_alone(rulebook: Rulebook) -> None:
    story = rank(last_step=STOPPED, gpus=()) + storage(full=0.6)
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("hang_io"), 100)])


def stack(number: int, location: str, call: str = "", **target: str) -> Story:
    place = {"location": location, "function": "step", "call": call}
    return [series("stallscope_training_stack_info", steady(1), **of_rank(number, **target), **place)]


def stalled(ranks: int, odd: dict[int, str], **target: str) -> Story:
    """Ranks that wait in all_reduce, except some that are elsewhere."""
    story = []
    for number in range(ranks):
        story += rank(number, gpus=(), last_step=STOPPED)
        story += stack(number, odd[number]) if number in odd else stack(number, "job/trainer.py:88", "all_reduce")
    return story


@pytest.mark.parametrize(
    ("story", "found"),
    [
        pytest.param(stalled(8, {3: "job/dataset.py:12"}), [(3, "job/dataset.py:12")], id="one of eight"),
        pytest.param(
            stalled(8, {1: "a.py:1", 2: "b.py:2"}), [(1, "a.py:1"), (2, "b.py:2")], id="two, in different places"
        ),
        pytest.param(stalled(4, {}), [], id="all in one place"),
        pytest.param(stalled(2, {0: "a.py:1"}), [], id="two ranks, no majority"),
        pytest.param(stalled(4, {0: "a.py:1", 1: "a.py:1"}), [], id="half of them"),
        pytest.param(
            [each for n in range(4) for each in rank(n, gpus=()) + stack(n, "a.py:1" if n else "b.py:2")],
            [],
            id="ranks that make steps",
        ),
        pytest.param([each for n in range(4) for each in rank(n, gpus=(), last_step=STOPPED)], [], id="no stacks"),
    ],
)
def test_the_rank_that_differs_from_most_is_named_by_its_stack(
    rulebook: Rulebook, story: Story, found: list[tuple[int, str]]
) -> None:
    rulebook.check(
        story,
        {
            "1 * rank:odd_stack:info": [
                ({**of_rank(number), "location": place, "function": "step"}, 1) for number, place in found
            ]
        },
    )


@pytest.mark.parametrize(
    ("odd", "culprits"),
    [
        pytest.param({3: "job/dataset.py:12"}, [3], id="one of eight"),
        pytest.param({1: "a.py:1", 2: "b.py:2"}, [], id="two, of which either may be to blame"),
        pytest.param({}, [], id="all in one place"),
    ],
)
def test_the_only_rank_that_differs_by_its_stack_is_the_culprit_of_a_standstill(
    rulebook: Rulebook, odd: dict[int, str], culprits: list[int]
) -> None:
    shown = [({**of_rank(number), "cause": "stalled"}, 1) for number in culprits]
    rulebook.check(stalled(8, odd), {"1 * run:culprit:info": shown})


def test_all_ranks_hang_in_a_collective_that_one_of_them_did_not_join(rulebook: Rulebook) -> None:
    story = [
        each for number in range(4) for each in rank(number, gpus=((str(number), f"GPU-{number}"),), last_step=STOPPED)
    ]
    story += gpu(0, idle=1.0) + powered(steady(90), 0)
    story += [each for number in (1, 2, 3) for each in gpu(number) + powered(steady(200), number)]
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("hang_spin"), 100)])
    rulebook.check(story, {"count(rank:spinning:info)": [({}, 3)]})


@pytest.mark.parametrize(
    ("odd", "culprits"),
    [
        pytest.param([1], [1], id="in another collective, as the stack shows"),
        pytest.param([1, 2], [], id="two, of which either may be to blame"),
        pytest.param([], [], id="all in one collective"),
    ],
)
def test_where_all_gpus_spin_the_only_rank_that_differs_by_its_stack_is_the_culprit(
    rulebook: Rulebook, odd: list[int], culprits: list[int]
) -> None:
    story: Story = []
    for number in range(5):
        story += rank(number, gpus=((str(number), f"GPU-{number}"),), last_step=STOPPED)
        story += gpu(number) + powered(steady(200), number)
        story += stack(number, *(("metrics.py:46", "all_gather") if number in odd else ("train.py:88", "all_reduce")))
    shown = [({**of_rank(number), **of_gpu(number), "cause": "hang_spin"}, 1) for number in culprits]
    rulebook.check(story, {"count(rank:spinning:info)": [({}, 5)], "1 * run:culprit:info": shown})


@pytest.mark.parametrize(
    ("story", "cause"),
    [
        pytest.param(rank(last_step=STOPPED) + HOT, "stalled", id="heat only slows"),
        pytest.param(rank() + HOT, "thermal_throttle", id="heat, and the run goes on"),
        pytest.param(
            rank(last_step=STOPPED) + gpu(throttled={"power_brake": 0.5}, clock=0.6),
            "stalled",
            id="the power brake only slows",
        ),
        pytest.param(
            rank(last_step=STOPPED)
            + gpu()
            + [series("stallscope_gpu_ecc_errors_total", steady(2), kind="uncorrected", **of_gpu())],
            "ecc_uncorrected",
            id="a memory fault ends what computes",
        ),
    ],
)
def test_what_only_slows_a_gpu_does_not_hide_that_its_run_stands_still(
    rulebook: Rulebook, story: Story, cause: str
) -> None:
    rulebook.check(story, {f"count by (cause) ({RUN_VERDICT})": [({"cause": cause}, 1)]})


@pytest.mark.evaluated_every(30)
def test_the_loss_of_a_standstill_begins_and_ends_a_minute_late(rulebook: Rulebook) -> None:
    again = f"0+{INTERVAL}x{scrapes(10)} 600+0x{scrapes(5) - 2} 900+{INTERVAL}x{LENGTH}"
    story = rank(last_step=again) + gpu(idle=1.0)
    lost = f'{SHARE}{{cause="stalled"}}'
    rulebook.check(story, {lost: []}, at="11m")
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("stalled"), 100)], at="11m30s")
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("stalled"), 100)], at="15m")
    rulebook.check(story, {"rank:stalled:info": []}, at="15m")
    rulebook.check(story, {lost: []}, at="16m30s")
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("insufficient_data"), 0)], at="16m30s")


@pytest.mark.parametrize(("up", "cause", "share"), [(until(10), "lost", 100), (steady(1), "insufficient_data", 0)])
def test_a_late_step_is_lost_at_once_where_a_gpu_of_the_run_is(
    rulebook: Rulebook, up: str, cause: str, share: int
) -> None:
    stopped = growing_until(10)
    ranks = [rank(number, gpus=((str(number), f"GPU-{number}"),), last_step=stopped) for number in (0, 1)]
    story = ranks[0] + gpu(0, up=up, idle=None if cause == "lost" else 1.0) + ranks[1] + gpu(1, idle=1.0)
    rulebook.check_percent(story, RUN_VERDICT, [(of_run(cause), share)], at="11m")


@pytest.mark.evaluated_every(30)
def test_a_rank_that_ends_in_a_standstill_loses_nothing_more(rulebook: Rulebook) -> None:
    ended = [
        (name, until(15) if name.startswith("stallscope_training_state{") and 'state="running"' in name else values)
        for name, values in rank(last_step=STOPPED)
    ]
    rulebook.check(ended + gpu(idle=1.0), {'pair_cause:time_lost:ratio5m{cause="stalled"}': []}, at="15m30s")


def test_a_hot_gpu_has_its_own_verdict_while_its_rank_stands_still(rulebook: Rulebook) -> None:
    found: dict[str, list[tuple[Labels, float]]] = {
        f"count by (cause) ({name})": [({"cause": cause}, 1)] for name, cause in VERDICTS_OF_A_HANG.items()
    }
    rulebook.check(rank(last_step=STOPPED) + HOT, found)


@pytest.mark.evaluated_every(30)
def test_a_rank_is_not_stalled_before_its_limit_of_time(rulebook: Rulebook) -> None:
    story = rank(last_step=growing_until(16)) + gpu()
    rulebook.check(story, {"rank:stalled:info": []}, at="17m")
    rulebook.check(story, {"count(rank:stalled:info)": [({}, 1)]}, at="17m30s")


def test_a_step_that_begins_in_the_warm_up_may_compile_for_five_minutes(rulebook: Rulebook) -> None:
    compiles = rank(first_step=60 * 8, last_step=STOPPED) + gpu(idle=1.0)
    rulebook.check(
        compiles,
        {
            "count_over_time(rank:stalled:info[30m])": [],
            "count by (missing) (rank:missing:info)": [({"missing": "late_step"}, 1), ({"missing": "standstill"}, 1)],
        },
        at="14m30s",
    )
    rulebook.check(compiles, {"count(rank:stalled:info)": [({}, 1)]}, at="15m30s")


@pytest.mark.parametrize(
    ("story", "cause"),
    [
        pytest.param(
            rank(first_step=60 * 8, last_step=STOPPED) + gpu() + powered(steady(180)), "hang_spin", id="spins"
        ),
        pytest.param(
            rank(first_step=60 * 8, last_step=STOPPED)
            + gpu(idle=1.0)
            + rank(1, gpus=(("1", "GPU-1"),), first_step=60 * 8, last_step=STOPPED)
            + gpu(1)
            + powered(steady(180), 1),
            "hang_spin",
            id="another rank of the run spins",
        ),
        pytest.param(rank(first_step=60 * 4, last_step=STOPPED) + gpu(idle=1.0), "stalled", id="after the warm-up"),
    ],
)
def test_a_step_that_does_not_compile_is_stalled_after_a_minute(rulebook: Rulebook, story: Story, cause: str) -> None:
    rulebook.check_percent(story, RUN_VERDICT, [(of_run(cause), 100)], at="12m")


def test_a_rank_whose_exporter_is_not_scraped_is_not_stalled(rulebook: Rulebook) -> None:
    story = rank(last_step=growing_until(16)) + gpu()
    unheard = [(name, f"{values.split(' ')[0]} _x{LENGTH}") for name, values in story if "last_step" in name]
    rest = [(name, values) for name, values in story if "last_step" not in name]
    rulebook.check(rest + unheard, {"rank:stalled:info": []}, at="18m")


def test_the_clock_of_a_host_may_be_wrong_by_minutes(rulebook: Rulebook) -> None:
    behind = f"-300+{INTERVAL}x{LENGTH}"
    clock = series("stallscope_exporter_source_last_success_timestamp_seconds", behind, source="cpu", **TARGET)
    goes_on = rank(last_step=behind) + gpu() + [clock]
    rulebook.check(goes_on, {"rank:stalled:info": []}, at="30m")
    stands = rank(last_step=f"-300+{INTERVAL}x{scrapes(20)} 900+0x{LENGTH}") + gpu() + [clock]
    rulebook.check(stands, {"count(rank:stalled:info)": [({}, 1)]}, at="22m")


def test_a_rollout_without_a_report_is_a_standstill_after_two_hours(rulebook: Rulebook) -> None:
    before = steady(-6000)  # 100 minutes before the story
    story = rank(last_step=before, last_push=before, activity={"rollout": steady(1)}) + gpu(idle=1.0)
    rulebook.check(story, {"rank:stalled:info": []}, at="18m")
    rulebook.check(story, {"count(rank:stalled:info)": [({}, 1)]}, at="22m")
    rulebook.check(
        rank(last_step=before, last_push=before, activity={"checkpoint": steady(1)}) + gpu(idle=1.0),
        {"count(rank:stalled:info)": [({}, 1)]},
        at="18m",
    )


def test_steps_that_take_minutes_have_a_longer_limit(rulebook: Rulebook) -> None:
    story = rank(last_step=STOPPED, step_seconds=200) + gpu()
    rulebook.check(story, {"rank:stalled:info": []}, at="26m")
    rulebook.check(story, {"count(rank:stalled:info)": [({}, 1)]}, at="28m")


@pytest.mark.parametrize("activity", ["evaluation", "checkpoint", "restore", "paused", "initialization", "rollout"])
def test_the_return_from_something_else_begins_the_limit_again(rulebook: Rulebook, activity: str) -> None:
    story = rank(last_step=STOPPED, activity={"training": until(30, 0, 1), activity: until(30)}) + gpu()
    rulebook.check(story, {"rank:stalled:info": []}, at="31m")
    rulebook.check(story, {"count(rank:stalled:info)": [({}, 1)]}, at="33m")


def test_a_pause_is_never_a_stall(rulebook: Rulebook) -> None:
    story = rank(last_step=STOPPED, last_push=STOPPED, activity={"paused": steady(1)}) + gpu(idle=1.0)
    rulebook.check(story, {"rank:stalled:info": []}, at="55m")


def test_a_silent_rank_is_stalled_unless_its_run_goes_on(rulebook: Rulebook) -> None:
    silent = rank(0, last_step=STOPPED, last_push=STOPPED) + gpu(0)
    rulebook.check_percent(silent, RUN_VERDICT, [(of_run("stalled"), 100)])
    story = silent + rank(1, gpus=(("1", "GPU-1"),)) + gpu(1)
    rulebook.check_percent(
        story,
        RANK_VERDICT,
        [
            ({"run": "train", "rank": "0", "cause": "insufficient_data"}, 0),
            ({"run": "train", "rank": "1", "cause": "healthy"}, 0),
        ],
    )


def starting(minutes: float, *, silent: bool = False) -> Story:
    """A run that was started at minute 2, and makes its first step after some minutes, if ever."""
    begun = scrapes(2 + minutes)
    activity = {"initialization": until(2 + minutes), "training": until(2 + minutes, 0, 1)}
    shown = rank(activity=activity, last_push=growing_until(4) if silent else growing(1))
    story = [each for each in shown if "step" not in each[0]] + gpu(idle=1.0)
    return [
        *story,
        series("stallscope_training_start_timestamp_seconds", steady(120), **of_rank()),
        series("stallscope_training_first_step_timestamp_seconds", f"_x{begun} {begun * 30}+0x60", **of_rank()),
    ]


def test_a_start_is_too_long_after_twenty_minutes(rulebook: Rulebook) -> None:
    rulebook.check_percent(starting(40), RUN_VERDICT, [(of_run("insufficient_data"), 0)], at="21m")
    rulebook.check_percent(starting(40), RUN_VERDICT, [(of_run("long_init"), 100)], at="23m")
    rulebook.check_percent(starting(40, silent=True), RUN_VERDICT, [(of_run("long_init"), 100)], at="23m")
    rulebook.check(starting(25), {f'{SHARE}{{cause="long_init"}}': []}, at="29m")


def restarting(times: int, instance: str = "node1:19400") -> Story:
    """A run that restarts every eight minutes."""
    counts = " ".join(f"{count}+0x15" for count in range(times + 1)) + f" {times}+0x{LENGTH}"
    return [series("stallscope_training_restarts_total", counts, **of_rank(instance=instance))]


def test_a_run_restarts_in_a_loop_from_the_third_time_within_an_hour(rulebook: Rulebook) -> None:
    busy = rank(phases={"restore": 0.3}) + gpu(idle=0.3)
    rulebook.check_percent(busy + restarting(3), RUN_VERDICT, [(of_run("restart_loop"), 30)], at="40m")
    rulebook.check(busy + restarting(2), {f'{SHARE}{{cause="restart_loop"}}': []}, at="40m")


def test_restarts_of_all_ranks_at_once_count_once_and_those_on_another_node_too(rulebook: Rulebook) -> None:
    gang = [each for number in range(4) for each in rank(number, gpus=())]
    gang += [
        series("stallscope_training_restarts_total", f"0+0x20 2+0x{LENGTH}", **of_rank(number)) for number in range(4)
    ]
    rulebook.check(gang, {"round(run:restarts:increase1h)": [({"run": "train"}, 2)]}, at="40m")
    moved = rank(gpus=(), last_push=growing_until(18)) + rank(gpus=(), instance="node2:19400")
    moved += restarting(2) + restarting(1, instance="node2:19400")
    rulebook.check(moved, {"round(run:restarts:increase1h)": [({"run": "train"}, 3)]}, at="40m")


NEVER = f"_x{LENGTH}"


def losses(nonfinite: str, since: str, loss: str | None = None) -> Story:
    """Losses that were no number, counted, the step since which all were, and the last one that was a number."""
    story = rank() + gpu() + [series("stallscope_training_nonfinite_losses_total", nonfinite, **of_rank())]
    story.append(series("stallscope_training_nonfinite_since_step", since, **of_rank()))
    return story if loss is None else [*story, series("stallscope_training_loss", loss, **of_rank())]


@pytest.mark.parametrize(
    ("nonfinite", "since", "cause"),
    [
        pytest.param("0+0x20 1+30x99", "_x21 40+0x99", "loss_nonfinite", id="every step"),
        pytest.param("0+0x20 1+1x99", "_x21 40+0x99", "loss_nonfinite", id="every thirtieth step is reported"),
        pytest.param(
            "0+0x9 1+0x9 2+0x9 3+0x9 4+0x99", "_x10 5+0x99", "loss_nonfinite", id="one in five minutes is reported"
        ),
        pytest.param("0+0x20 1+1x99", "_x21 40+2x99", "healthy", id="among others that are numbers"),
        pytest.param("0+0x20 1+1x99", NEVER, "healthy", id="among many that are numbers"),
        pytest.param("0+0x9 1+0x9 1+0x9 2+0x9 3+0x99", "_x10 5+0x9 _x10 40+0x99", "healthy", id="three of four"),
        pytest.param("0+0x36 2+0x99", "_x37 72+0x99", "healthy", id="two, and then no reports"),
        pytest.param("0+0x20 30+0x99", "_x21 40 _x99", "healthy", id="long ago"),
        pytest.param("0+0x37 30+30x99", "_x38 72+0x99", "healthy", id="for a minute"),
    ],
)
@pytest.mark.parametrize("loss", [steady(9), None])
def test_losses_count_that_are_no_number_one_after_another(
    rulebook: Rulebook, nonfinite: str, since: str, loss: str | None, cause: str
) -> None:
    percent = 0 if cause == "healthy" else 100
    rulebook.check_percent(losses(nonfinite, since, loss), RUN_VERDICT, [(of_run(cause), percent)])


def diverging(name: str, *since: int | None, reports: int | None = None) -> Story:
    """A run with one rank for each step since which its losses are no number; only the first ones report a loss."""
    story: Story = []
    for number, step in enumerate(since):
        story += rank(number, run=name, gpus=((str(number), f"GPU-{number}"),), instance=name)
        story += gpu(number, instance=name)
        labels = of_rank(number, name, instance=name)
        if step is not None:
            story.append(series("stallscope_training_nonfinite_losses_total", "0+0x20 1+30x99", **labels))
            story.append(series("stallscope_training_nonfinite_since_step", f"_x20 {step}+0x99", **labels))
        if reports is None or number < reports:
            story.append(series("stallscope_training_loss", steady(2), **labels))
    return story


def test_the_rank_whose_loss_was_the_first_that_is_no_number_is_named(rulebook: Rulebook) -> None:
    runs = {
        "first": diverging("first", 101, 100),
        "alone": diverging("alone", None, 100),
        "together": diverging("together", 100, 100),
        # The others report no loss.
        "only": diverging("only", 100, None, reports=1),
    }
    rulebook.check(
        [each for story in runs.values() for each in story],
        {
            "count by (run, rank, gpu, cause) (run:culprit:info)": [
                ({"run": run, "rank": "1", "gpu": "1", "cause": "loss_nonfinite"}, 1) for run in ("first", "alone")
            ]
        },
    )


def fires(alert: str, severity: str = "warning") -> dict[str, str]:
    return {"alertname": alert, "severity": severity, "run": "train"}


SAVES = [series("stallscope_training_phase_occurrences_total", growing(1 / 300), phase="checkpoint", **of_rank())]


@pytest.mark.parametrize(
    ("story", "alerts"),
    [
        pytest.param(
            rank(phases={"checkpoint": 0.0625}) + gpu(idle=0.07) + SAVES, [fires("TrainingCheckpointStall")], id="saves"
        ),
        pytest.param(rank(phases={"checkpoint": 0.04}) + gpu(idle=0.04) + SAVES, [], id="saves a little"),
        pytest.param(rank(phases={"evaluation": 0.32}) + gpu(), [fires("TrainingEvaluationOverhead")], id="evaluates"),
        pytest.param(rank(phases={"evaluation": 0.2}) + gpu(), [], id="evaluates less"),
        pytest.param(rank(phases={"logging": 0.0625}) + gpu(idle=0.1), [fires("TrainingCallbackStall")], id="logs"),
        pytest.param(
            rank(phases={"logging": 0.3}, job_class="experiment") + gpu(idle=0.3),
            [fires("TrainingCallbackStall", "info")],
            id="an experiment logs",
        ),
        pytest.param(rank(phases={"logging": 0.04}) + gpu(idle=0.1), [], id="logs a little"),
        pytest.param(rank() + gpu(idle=0.1) + slow_steps(0.0625), [fires("TrainingStepOutliers")], id="slow steps"),
        pytest.param(rank() + gpu() + slow_steps(0.04), [], id="slow steps, a little"),
        pytest.param(starting(55), [fires("TrainingLongInit")], id="starts for long"),
        pytest.param(rank() + gpu() + restarting(3), [fires("TrainingRestartLoop")], id="restarts"),
        pytest.param(
            losses("0+0x90 1+30x29", "_x91 180+0x29", "9-0.01x90 8+0x29"),
            [fires("TrainingLossNonfinite", "critical")],
            id="no number",
        ),
        pytest.param(
            rank(last_step=growing_until(40)) + gpu() + powered(steady(200)),
            [fires("TrainingHangSpin", "critical")],
            id="GPUs spin",
        ),
        pytest.param(
            rank(last_step=growing_until(40)) + gpu(idle=1.0) + storage(full=0.5),
            [fires("TrainingHangIo", "critical")],
            id="storage hangs",
        ),
    ],
)
def test_alerts_fire_on_their_cause_and_not_under_their_level(
    rulebook: Rulebook, story: Story, alerts: list[dict[str, str]]
) -> None:
    rulebook.check_firing(exporter() + story, alerts)


def test_one_save_does_not_make_an_alert(rulebook: Rulebook) -> None:
    once = [series("stallscope_training_phase_occurrences_total", steady(1), phase="checkpoint", **of_rank())]
    story = rank(phases={"checkpoint": 0.2}) + gpu(idle=0.2) + once
    rulebook.check(story, {f'{HOUR}{{cause="checkpoint_stall"}}': []}, at="50m")


def test_an_alert_says_what_it_costs(rulebook: Rulebook) -> None:
    rulebook.check_text(
        exporter() + rank(phases={"logging": 0.25}) + gpu(idle=0.25),
        "TrainingCallbackStall",
        {"alertname": "TrainingCallbackStall", "severity": "warning", "cause": "callback_stall"}
        | {"run": "train", "job_class": "production"},
        {
            "summary": "Logging or callbacks block training.",
            "line": "",
            "lost": "6.0 GPU-hours a day",
            "description": "GPUs of run train idle for 25 % of the time while the loop logs, runs callbacks or is in a "
            "phase with a custom name. Move that work to a thread, do it less often, and reduce on the GPU before "
            "copying (one number, not a tensor); stallscope_training_phase_max_seconds names the longest.",
            "runbook_url": "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks/TrainingCallbackStall.md",
            "dashboard_url": "/d/stallscope-run?var-run=train",
        },
    )


@pytest.mark.parametrize(
    ("others", "said"),
    [
        pytest.param(rank(1, state="lost") + rank(2, state="failed"), [1, 2], id="two processes are gone"),
        pytest.param(rank(1, last_step=STOPPED), [], id="all live"),
        pytest.param(
            rank(1, state="lost", instance="node0:19400") + rank(1, last_step=STOPPED), [], id="moved to another node"
        ),
    ],
)
def test_a_stall_names_the_ranks_whose_process_is_gone(rulebook: Rulebook, others: Story, said: list[int]) -> None:
    gone = f" Start with rank {' '.join(map(str, said))}: its process has ended." if said else ""
    rulebook.check_text(
        exporter() + rank(last_step=STOPPED) + gpu(idle=1.0) + others,
        "TrainingStalled",
        {"alertname": "TrainingStalled", "severity": "critical", "cause": "stalled"}
        | {"run": "train", "job_class": "production"},
        {
            "summary": "Training is stalled, but its processes are alive.",
            "line": "",
            "lost": "24.0 GPU-hours a day",
            "description": "100 % of the ranks of run train have not completed a step for over a minute, and for far "
            f"longer than their steps usually take.{gone} Before the job is killed, save the stacks of all ranks "
            "(`stallscope stacks train`, py-spy dump, or the collective library's flight recorder), find the rank "
            "whose stack differs from the others, then restart from the last checkpoint.",
            "runbook_url": "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks/TrainingStalled.md",
            "dashboard_url": "/d/stallscope-run?var-run=train",
        },
    )


def test_a_loop_that_blocks_between_phases_has_one_cause(rulebook: Rulebook) -> None:
    story = rank(phases={"other": 0.33}) + gpu(idle=0.34) + slow_steps(0.33)
    rulebook.check_percent(story, SHARE, [(of_run("sync_stall"), 33)])
