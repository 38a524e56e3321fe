"""Differences between the ranks of a run, and what they cost it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.rules.rulebook import (
    TARGET,
    Rulebook,
    Story,
    exporter,
    gpu,
    growing,
    growing_until,
    rank,
    series,
    steady,
    until,
)

RUN_VERDICT = "run:verdict:ratio5m"
RANK_VERDICT = "rank:verdict:ratio5m"
SCORE = "run_rank:straggler_score:ratio5m"
SHARE = "run_cause:time_lost:ratio5m"


def of_rank(number: int = 0, **target: str) -> dict[str, str]:
    return {**TARGET, **target, "run": "train", "rank": str(number)}


def of_gpu(index: int = 0, **target: str) -> dict[str, str]:
    return {**TARGET, **target, "gpu": str(index), "uuid": f"GPU-{index}"}


def of_run(cause: str) -> dict[str, str]:
    return {"run": "train", "cause": cause}


def member(
    number: int,
    phases: Mapping[str, float],
    *,
    wait: float = 0.0,
    idle: float | None = None,
    sm: float | None = None,
    clock: float = 1.0,
    throttled: Mapping[str, float] | None = None,
    **story: str,
) -> Story:
    """A rank with its GPU: shares of its time by phase, what is left is the optimizer's."""
    shown = rank(
        number,
        wait=wait,
        phases=phases,
        other_phase="optimizer",
        gpus=((str(number), f"GPU-{number}"),),
        **story,  # type: ignore[arg-type]
    )
    shown += gpu(number, idle=wait if idle is None else idle, clock=clock, throttled=throttled)
    shown.append(series("stallscope_gpu_info", steady(1), model="H100", **of_gpu(number)))
    if sm is not None:
        shown.append(series("stallscope_gpu_sm_active_seconds_total", growing(sm), **of_gpu(number)))
    return shown


def together(**others: float) -> Story:
    """Three ranks that wait for others for some of their time."""
    phases = {"forward": 0.3, "backward": 0.5 - others.get("communication", 0.0), **others}
    return [each for number in (1, 2, 3) for each in member(number, phases)]


def loading(*waits: float) -> Story:
    """Ranks that wait for data, and then for the rank that waits longest for data."""
    found: Story = []
    for number, wait in enumerate(waits):
        found += member(number, {"forward": 0.3, "backward": 0.4, "communication": max(waits) - wait + 0.01}, wait=wait)
    return found


LATE = {"forward": 0.3, "backward": 0.5, "communication": 0.01}
"""Phases of a rank that does not wait for other ranks."""


def test_the_rank_that_waits_least_is_the_one_that_all_wait_for(rulebook: Rulebook) -> None:
    story = member(0, LATE) + together(communication=0.21)
    rulebook.check_percent(
        story,
        SCORE,
        [({"run": "train", "rank": str(number)}, 20 if number == 0 else 0) for number in range(4)],
    )
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("straggler_rank"), 20)])
    rulebook.check_percent(
        story,
        RANK_VERDICT,
        [({"run": "train", "rank": str(number), "cause": "straggler_rank"}, 20) for number in range(4)],
    )


def test_who_waits_for_a_straggler_is_not_bound_by_communication(rulebook: Rulebook) -> None:
    story = member(0, LATE) + together(communication=0.21)
    rulebook.check(story, {f'{SHARE}{{cause="comm_bound"}}': []})
    slow = member(0, {**LATE, "communication": 0.15}) + together(communication=0.35)
    rulebook.check_percent(slow, f'{SHARE}{{cause="comm_bound"}}', [(of_run("comm_bound"), 15)])
    rulebook.check_percent(slow, f'{SHARE}{{cause="straggler_rank"}}', [(of_run("straggler_rank"), 20)])


@pytest.mark.parametrize(
    ("story", "cause", "percent"),
    [
        pytest.param(member(0, LATE) + together(communication=0.135), "straggler_rank", 13, id="at 1.25"),
        pytest.param(member(0, LATE) + together(communication=0.085), "straggler_rank", 7, id="at 1.5 of the notice"),
        pytest.param(member(0, LATE) + together(communication=0.05), "healthy", 0, id="at 0.8 of the notice"),
        pytest.param(loading(0.25, 0.10, 0.15, 0.20), "input_bound", 25, id="for loaders that end at different times"),
        pytest.param(loading(0.25, 0.10, 0.10, 0.10), "straggler_input", 15, id="for one slow loader"),
        pytest.param(together(communication=0.3), "comm_bound", 30, id="all wait alike"),
        pytest.param(together(communication=0.125), "comm_bound", 13, id="communication at 1.25"),
        pytest.param(together(communication=0.08), "healthy", 0, id="communication at 0.8"),
        pytest.param(
            member(0, {**LATE, "backward": 0.2}, wait=0.25) + together(communication=0.26),
            "straggler_input",
            25,
            id="for want of data",
        ),
        pytest.param(
            member(0, LATE, clock=0.75) + together(communication=0.26),
            "straggler_hw",
            25,
            id="a clock under the peers'",
        ),
        pytest.param(
            member(0, LATE, clock=0.75, throttled={"power_cap": 0.9}) + together(communication=0.26),
            "straggler_rank",
            25,
            id="a clock under a power limit",
        ),
        pytest.param(
            member(0, LATE, clock=0.75, throttled={"hw_thermal": 0.9}) + together(communication=0.26),
            "straggler_hw",
            25,
            id="heat",
        ),
        pytest.param(
            member(0, {**LATE, "backward": 0.2}, wait=0.25, clock=0.8) + together(communication=0.26),
            "straggler_input",
            25,
            id="for want of data, at a low clock",
        ),
        pytest.param(
            member(0, {**LATE, "backward": 0.3, "checkpoint": 0.2}, idle=0.2) + together(communication=0.21),
            "checkpoint_stall",
            20,
            id="it saves while the others wait",
        ),
        # Communication is not measured: the wait is in the backward pass.
        pytest.param(
            member(0, {"forward": 0.3, "backward": 0.25}, wait=0.25)
            + [each for number in (1, 2, 3) for each in member(number, {"forward": 0.3, "backward": 0.5})],
            "straggler_input",
            25,
            id="for want of data, communication not measured",
        ),
        pytest.param(
            member(0, {"forward": 0.45, "backward": 0.45})
            + [each for number in (1, 2, 3) for each in member(number, {"forward": 0.3, "backward": 0.6})],
            "straggler_rank",
            33,
            id="a slow forward pass, communication not measured",
        ),
        pytest.param(
            member(0, {"forward": 0.3, "backward": 0.6}, sm=0.9)
            + [each for number in (1, 2, 3) for each in member(number, {"forward": 0.3, "backward": 0.6}, sm=0.72)],
            "straggler_rank",
            20,
            id="the only one whose SMs work, communication not measured",
        ),
        pytest.param(
            member(0, {"forward": 0.3, "backward": 0.5}) + member(1, {"forward": 0.3, "backward": 0.6}),
            "healthy",
            0,
            id="no cause reported",
        ),
        pytest.param(member(0, LATE), "healthy", 0, id="alone"),
    ],
)
def test_the_reason_why_ranks_wait(rulebook: Rulebook, story: Story, cause: str, percent: int) -> None:
    rulebook.check_percent(story, RUN_VERDICT, [(of_run(cause), percent)])


def test_a_rank_that_never_waits_for_others_delays_them(rulebook: Rulebook) -> None:
    story = member(0, {"forward": 0.3, "backward": 0.5}) + together(communication=0.21)
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("straggler_rank"), 21)])
    rulebook.check(story, {f'{SHARE}{{cause="comm_bound"}}': [], f"{SCORE}{{rank!='0'}} > 0": []})


def ranks_of(
    run: str, *phases: Mapping[str, float], stages: int = 0, unknown: int | None = None, per_node: int = 64
) -> Story:
    """A run with these phases by rank; each stage of a known number of them has equally many ranks, in their order.

    The stage of rank `unknown` is not reported.
    """
    return [
        each
        for number, shares in enumerate(phases)
        for each in rank(
            number,
            run=run,
            phases=shares,
            other_phase="optimizer",
            gpus=(),
            pipeline_stage=str(number * stages // len(phases)) if stages and number != unknown else "",
            instance=f"node{number // per_node}:19400",
        )
    ]


def with_data_ranks(story: Story) -> Story:
    """Return the story of ranks that report their place in data parallelism."""
    return [(name.replace("rank_info{", 'rank_info{data_rank="0",'), values) for name, values in story]


BUBBLE = {"forward": 0.2, "backward": 0.4, "communication": 0.4}
"""A stage of a pipeline, all of whose stages have equal work."""
LIGHT = {"forward": 0.12, "backward": 0.25, "communication": 0.63}
HEAVY = {"forward": 0.25, "backward": 0.37, "communication": 0.38}
"""A stage with more work than three light ones: their mean is 0.4325."""
SLOW = {"forward": 0.3, "backward": 0.65, "communication": 0.05}
"""A slow rank, next to seven light ones: their mean is 0.4425."""


def unmeasured(*phases: Mapping[str, float]) -> list[dict[str, float]]:
    """Return the phases as they are measured if waiting is part of the backward pass."""
    return [{"forward": each["forward"], "backward": 1 - each["forward"]} for each in phases]


def test_in_a_pipeline_only_unequal_work_is_lost(rulebook: Rulebook) -> None:
    uneven = (*6 * [LIGHT], HEAVY, HEAVY)
    one_slow = (*7 * [LIGHT], SLOW)
    # Excess over the mean, and how much of it is left without the part that the pipeline fills and drains.
    heavy = (0.62 - 0.4325) * (1 - 0.38 / (3 * 0.4325))
    heavy_by_forward = 2.5 * (0.25 - 0.1525) * (1 - (1 - 2.5 * 0.25) / (3 * 2.5 * 0.1525))
    slow_of_stage = (0.95 - 0.4425) * (1 - 0.05 / (3 * 0.4425))
    # Excess over the ranks that are not slow.
    two, slow = 0.63 - 0.38, 0.63 - 0.05
    worlds: dict[str, tuple[Story, str, float]] = {
        "equal stages": (ranks_of("equal stages", *4 * [BUBBLE], stages=4), "healthy", 0),
        "equal, unmeasured": (ranks_of("equal, unmeasured", *unmeasured(*4 * [BUBBLE]), stages=4), "healthy", 0),
        "no known stages": (ranks_of("no known stages", *4 * [BUBBLE]), "comm_bound", 0.4),
        "heavy": (ranks_of("heavy", *uneven, stages=4), "stage_imbalance", heavy),
        "heavy, unmeasured": (
            ranks_of("heavy, unmeasured", *unmeasured(*uneven), stages=4),
            "stage_imbalance",
            heavy_by_forward,
        ),
        "heavy, one rank a stage": (
            ranks_of("heavy, one rank a stage", *3 * [LIGHT], HEAVY, stages=4),
            "stage_imbalance",
            heavy,
        ),
        "equally heavy": (ranks_of("equally heavy", *uneven), "stage_imbalance", heavy),
        "equally heavy, unmeasured": (
            ranks_of("equally heavy, unmeasured", *unmeasured(*uneven)),
            "stage_imbalance",
            heavy_by_forward,
        ),
        "a stage is unknown": (ranks_of("a stage is unknown", *uneven, stages=4, unknown=0), "straggler_rank", heavy),
        "no pipeline": (with_data_ranks(ranks_of("no pipeline", *uneven)), "straggler_rank", two),
        "a node": (ranks_of("a node", *uneven, per_node=2), "straggler_rank", two),
        "a node is a stage": (
            ranks_of("a node is a stage", *uneven, stages=4, per_node=2),
            "stage_imbalance",
            heavy,
        ),
        "no stage of three": (
            ranks_of("no stage of three", *5 * [LIGHT], *3 * [SLOW]),
            "straggler_rank",
            slow,
        ),
        "slow rank": (ranks_of("slow rank", *one_slow, stages=4), "straggler_rank", slow_of_stage),
        "slow rank, no stages": (ranks_of("slow rank, no stages", *one_slow), "straggler_rank", slow),
        "a little more work": (
            ranks_of("a little more work", *2 * [{"backward": 0.74, "communication": 0.26}], *4 * [BUBBLE]),
            "comm_bound",
            0.26,
        ),
    }
    rulebook.check_percent(
        [each for story, _, _ in worlds.values() for each in story],
        RUN_VERDICT,
        [({"run": run, "cause": cause}, round(100 * lost)) for run, (_, cause, lost) in worlds.items()],
    )


def waiting(run: str, number: int, *shares: tuple[float, int]) -> Story:
    """Return the story of a rank with shares of its time in communication, each for a number of minutes."""
    found, total = "", 0.0
    for share, minutes in shares:
        found += f" {total:.10g}+{share * 30:.10g}x{2 * minutes - 1}"
        total += share * 60 * minutes
    story = rank(number, run=run, phases={"forward": 0.3, "communication": 0.4}, other_phase="optimizer", gpus=())
    return [(name, found.strip() if "communication" in name else values) for name, values in story]


def test_the_alert_on_a_straggler_keeps_its_rank_while_that_rank_delays_the_others(rulebook: Rulebook) -> None:
    often = [((0.1, 4), (0.14, 4)), ((0.14, 4), (0.1, 4))]
    worlds: dict[str, tuple[list[Sequence[tuple[float, int]]], int]] = {
        "another one is slower for a time": ([[(0.1, 25), (0.14, 35)], [(0.14, 25), (0.1, 35)]], 0),
        "both are the slowest by turns": ([8 * turns for turns in often], 0),
        "the first one is fast again": ([[(0.1, 25), (0.4, 35)], [(0.4, 25), (0.1, 35)]], 1),
    }
    story = [
        each
        for run, (ranks, _) in worlds.items()
        for number, shares in enumerate([*ranks, *3 * [[(0.4, 60)]]])
        for each in waiting(run, number, *shares)
    ]
    alerts = "count by (run, rank) (count_over_time(ALERTS{alertname=~'TrainingStraggler.*', alertstate='firing'}[5m]))"
    expected = [({"run": run, "rank": str(slow)}, 1.0) for run, (_, slow) in worlds.items()]
    rulebook.check(exporter() + story, {alerts: expected}, at="50m")


def test_ranks_that_are_not_in_step_are_not_compared_without_measured_communication(rulebook: Rulebook) -> None:
    story = member(0, {"forward": 0.3, "backward": 0.25}, wait=0.25) + member(1, {"forward": 0.3, "backward": 0.5})
    story += [
        series("stallscope_training_step_seconds_sum", growing(0.5 + number), **of_rank(number)) for number in (0, 1)
    ]
    rulebook.check(story, {"run_rank:forward:ratio5m": [], "run_rank_cause:straggler:ratio5m": []})


def test_a_run_that_stands_still_is_not_bound_by_communication(rulebook: Rulebook) -> None:
    hung = [
        (name, growing_until(18) if "last_step" in name else values) for name, values in together(communication=0.4)
    ]
    rulebook.check(hung, {f'{SHARE}{{cause="comm_bound"}}': []}, at="21m")


def test_the_run_names_rank_node_gpu_and_the_fault_that_slows_them(rulebook: Rulebook) -> None:
    slow = member(0, LATE, clock=0.7, throttled={"hw_thermal": 1.0})
    shown = [({**of_rank(0), **of_gpu(0), "cause": "thermal_throttle"}, 1)]
    rulebook.check(slow + together(communication=0.21), {"1 * run:culprit:info": shown})
    shown = [({**of_rank(0), **of_gpu(0), "cause": "straggler_rank"}, 1)]
    rulebook.check(member(0, LATE) + together(communication=0.21), {"1 * run:culprit:info": shown})
    even = [each for number in range(4) for each in member(number, LATE)]
    rulebook.check(even, {"run:culprit:info": []})


def test_what_slows_a_straggler_is_no_second_cause_of_the_run(rulebook: Rulebook) -> None:
    story = member(0, LATE, clock=0.7, throttled={"hw_thermal": 1.0}) + together(communication=0.21)
    rulebook.check(
        story,
        {
            f"count by (cause) ({SHARE} > 0)": [({"cause": "straggler_hw"}, 1)],
            f"abs(run:time_lost:ratio5m - on (run) sum by (run) ({SHARE})) > 0.001": [],
            "count(run:time_lost:ratio5m > 0.1)": [({}, 1)],
            'count by (rank) (rank_cause:time_lost:ratio5m{cause="thermal_throttle"})': [({"rank": "0"}, 1)],
        },
    )


def test_all_ranks_lose_their_time_to_the_gpu_that_one_of_them_lost(rulebook: Rulebook) -> None:
    stopped = growing_until(15)
    story = [each for number in (1, 2, 3) for each in member(number, LATE, last_step=stopped)]
    story += rank(0, gpus=(("0", "GPU-0"),), last_step=stopped) + gpu(0, up=until(15), idle=None)
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("lost"), 100)])
    rulebook.check(
        story,
        {
            f"count by (cause) ({SHARE} > 0)": [({"cause": "lost"}, 1)],
            "count by (cause) (gpu:verdict:ratio5m)": [({"cause": "lost"}, 1), ({"cause": "stalled"}, 3)],
            "1 * run:culprit:info": [({**of_rank(0), **of_gpu(0), "cause": "lost"}, 1)],
        },
    )


def hung_without_rank_0(up: str = steady(1)) -> Story:
    """Ranks that wait for rank 0, whose process has ended; one of them has a GPU that its power brake slows."""
    stopped = growing_until(15)
    story = [each for number in (1, 2) for each in member(number, LATE, last_step=stopped)]
    story += member(3, LATE, last_step=stopped, clock=0.9, throttled={"power_brake": 0.4})
    gone = [
        (name, until(15) if name.startswith("stallscope_training_state{") and 'state="running"' in name else values)
        for name, values in rank(0, gpus=(("0", "GPU-0"),), last_step=stopped)
    ]
    return story + gone + gpu(0, idle=None, up=up)


def test_a_hung_run_whose_rank_ended_with_its_gpu_has_lost_that_gpu(rulebook: Rulebook) -> None:
    story = hung_without_rank_0(up=until(15))
    rulebook.check_percent(story, RUN_VERDICT, [(of_run("lost"), 100)])
    rulebook.check(story, {"1 * run:culprit:info": [({**of_rank(0), **of_gpu(0), "cause": "lost"}, 1)]})


def test_a_hung_run_whose_rank_ended_with_a_sound_gpu_has_lost_none(rulebook: Rulebook) -> None:
    rulebook.check(
        hung_without_rank_0(),
        {"rank_gpu:gone:info": [], 'run:verdict:ratio5m{cause="lost"}': []},
    )


@pytest.mark.parametrize("slow", [0, 1])
def test_a_rank_with_other_work_is_the_straggler(rulebook: Rulebook, slow: int) -> None:
    """Communication is not measured: who waits spends it in the backward pass. Forward passes vary a little."""
    story: Story = []
    for number in range(4):
        phases = {"other": 0.4, "backward": 0.2} if number == slow else {"other": 0.07, "backward": 0.53}
        story += member(number, {"forward": 0.32 if number == 0 else 0.3, **phases})
    rulebook.check(
        story,
        {
            "count by (rank, cause) (run_rank_cause:straggler:ratio5m)": [
                ({"rank": str(slow), "cause": "straggler_rank"}, 1)
            ]
        },
    )


def loads(*shares: float, **labels: str) -> Story:
    """One process that drives several GPUs, each with a share of its SMs active."""
    gpus = tuple((str(index), f"GPU-{index}") for index in range(len(shares)))
    story = rank(gpus=gpus)
    for index, share in enumerate(shares):
        story += gpu(index)
        story.append(series("stallscope_gpu_sm_active_seconds_total", growing(share), **of_gpu(index)))
        story.append(series("stallscope_gpu_info", steady(1), **of_gpu(index), **{"model": f"H{index}00"} | labels))
    return story


def scaled(each: float, baseline: float | None = 100.0, wait: float = 0.0) -> Story:
    """Two ranks that do so many samples a second, of which one GPU alone did 100."""
    story = [one for number in (0, 1) for one in member(number, {"forward": 0.5}, wait=wait)]
    for number in (0, 1):
        story.append(series("stallscope_training_samples_total", growing(each), **of_rank(number)))
        if baseline is not None:
            name = "single_gpu_samples_per_second"
            story.append(series("stallscope_training_value", steady(baseline), name=name, **of_rank(number)))
    return story


def fires(alert: str, **labels: str) -> dict[str, str]:
    return {"alertname": alert, "severity": "warning", "run": "train", **labels}


@pytest.mark.parametrize(
    ("story", "alerts"),
    [
        pytest.param(
            member(0, LATE) + together(communication=0.135), [fires("TrainingStragglerRank", rank="0")], id="late"
        ),
        pytest.param(member(0, LATE) + together(communication=0.08), [], id="a little late"),
        pytest.param(
            member(0, {**LATE, "backward": 0.2}, wait=0.25) + together(communication=0.26),
            [fires("TrainingStragglerInput", rank="0")],
            id="late for want of data",
        ),
        pytest.param(
            member(0, LATE, clock=0.75) + together(communication=0.26),
            [fires("TrainingStragglerHw", rank="0")],
            id="late for its clock",
        ),
        pytest.param(together(communication=0.125), [fires("TrainingCommBound")], id="communication"),
        pytest.param(together(communication=0.08), [], id="a little communication"),
        pytest.param(loads(0.9, 0.6, 0.6, model="H100"), [fires("TrainingGpuLoadImbalance")], id="unequal load"),
        pytest.param(loads(0.9, 0.75, 0.75, model="H100"), [], id="nearly equal load"),
        pytest.param(loads(0.9, 0.6, 0.6), [], id="GPUs of different models"),
        pytest.param(scaled(75), [fires("TrainingScalingInefficient")], id="scales badly"),
        pytest.param(scaled(87), [], id="scales as two consumer GPUs do"),
        pytest.param(scaled(75, baseline=None), [], id="without a baseline"),
        pytest.param(scaled(75, wait=0.25), [fires("TrainingInputBound")], id="scales badly for want of data"),
    ],
)
def test_alerts_name_the_run_and_the_rank_that_is_meant(
    rulebook: Rulebook, story: Story, alerts: list[dict[str, str]]
) -> None:
    rulebook.check_firing(exporter() + story, alerts, by="alertname, severity, run, rank")


def test_scaling_is_recorded_where_the_run_reports_the_rate_of_one_gpu(rulebook: Rulebook) -> None:
    rulebook.check_percent(scaled(87), "run:scaling_efficiency:ratio5m", [({"run": "train"}, 87)])


MISSING = "TrainingTelemetryMissing"


def world(size: int, *numbers: int, **fields: str) -> Story:
    """Ranks of a world of that size, without GPUs."""
    return [
        each
        for number in numbers
        for each in rank(number, gpus=(), world_size=str(size), **fields)  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize(
    ("story", "missing"),
    [
        pytest.param(exporter() + world(4, 0, 1, 2, 3), None, id="all are there"),
        pytest.param(exporter() + world(4, 0, 1, 3), "ranks", id="one is not"),
        pytest.param(exporter() + world(4, 0, 1, 2) + world(4, 3, state="lost"), None, id="one is known to be lost"),
        pytest.param(
            exporter() + world(2, 0, 1) + world(4, 2, 3, state="failed"), None, id="the world has become smaller"
        ),
        pytest.param(exporter() + world(4, 0, state="finished"), None, id="the run has ended"),
        pytest.param(
            exporter() + rank(0, gpus=(), world_size="4", activity={"evaluation": steady(1)}),
            None,
            id="the last rank evaluates",
        ),
        pytest.param(
            exporter() + world(2, 0) + world(2, 1, last_push=growing_until(20), last_step=growing_until(20)),
            "reports",
            id="one has fallen silent",
        ),
        pytest.param(
            exporter() + world(4, 0, 1) + exporter(instance="node2:19400") + world(4, 2, 3, instance="node2:19400"),
            None,
            id="on two nodes",
        ),
    ],
)
def test_a_partly_silent_run_raises_an_alert(rulebook: Rulebook, story: Story, missing: str | None) -> None:
    expected = [] if missing is None else [fires(MISSING, missing=missing)]
    rulebook.check_firing(story, expected, by="alertname, severity, run, missing")


def test_a_node_whose_exporter_is_down_raises_no_second_alert(rulebook: Rulebook) -> None:
    away = [(name, f"{values.split('x')[0]}x60 stale") for name, values in world(4, 2, 3, instance="node2:19400")]
    story = exporter() + world(4, 0, 1) + exporter(instance="node2:19400")
    down = [(name, until(30) if "node2" in name else values) for name, values in story]
    rulebook.check(down + away, {f'ALERTS{{alertname="{MISSING}"}}': []}, at="50m")
    gone = [(name, "1+0x60 stale" if "up{" in name and "node2" in name else values) for name, values in story]
    rulebook.check(gone + away, {f'count(ALERTS{{alertname="{MISSING}", alertstate="firing"}})': [({}, 1)]}, at="50m")


def test_ranks_that_measure_no_phase_are_not_judged_and_raise_no_alert(rulebook: Rulebook) -> None:
    rulebook.check_firing(exporter() + rank(gpus=(), wait=None, other_phase="other", first_step=-3600), [])
