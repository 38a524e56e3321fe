"""Exactly one verdict for each rank, run and GPU, and the right one."""

from __future__ import annotations

import pytest

from tests.rules.rulebook import (
    CLOCK,
    INTERVAL,
    Labels,
    Rulebook,
    Story,
    exporter,
    gpu,
    growing,
    growing_then,
    growing_until,
    host,
    interrupted,
    rank,
    series,
    steady,
    until,
)

RANK_VERDICT = "rank:verdict:ratio5m"
RUN_VERDICT = "run:verdict:ratio5m"
GPU_VERDICT = "gpu:verdict:ratio5m"
NODE = {"job": "stallscope", "instance": "node1:19400"}


def of_gpu(index: int = 0, **labels: str) -> dict[str, str]:
    return {**NODE, "gpu": str(index), "uuid": f"GPU-{index}", **labels}


def of_rank(number: int = 0, **labels: str) -> dict[str, str]:
    return {"run": "train", "rank": str(number), **labels}


def test_a_rank_that_loses_nothing_is_healthy_at_every_level(rulebook: Rulebook) -> None:
    story = rank(wait=0.02) + gpu(idle=0.02)
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="healthy"), 0)])
    rulebook.check_percent(story, RUN_VERDICT, [({"run": "train", "cause": "healthy"}, 0)])
    rulebook.check_percent(story, GPU_VERDICT, [(of_gpu(cause="healthy"), 0)])


def test_an_exposed_wait_is_input_bound_at_every_level(rulebook: Rulebook) -> None:
    story = rank(wait=0.3) + gpu(idle=0.28)
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="input_bound"), 28)])
    rulebook.check_percent(story, RUN_VERDICT, [({"run": "train", "cause": "input_bound"}, 28)])
    rulebook.check_percent(story, GPU_VERDICT, [(of_gpu(cause="input_bound"), 28)])
    rulebook.check_percent(story, "run:time_lost:ratio5m", [({"run": "train"}, 28)])


def waiting(cores: float | None = None) -> Story:
    return rank(wait=0.3, cores=cores) + gpu(idle=0.3)


def paused_for(activity: str) -> Story:
    return rank(wait=0.6, activity={"training": steady(0), activity: steady(1)}) + gpu(idle=0.9)


# Every sample reads 75 %, none is under 10 %: the W&B study's run on real data.
SHORT_WAITS = [
    *rank(wait=0.3),
    *(each for each in gpu(idle=0.25) if "below_seconds" not in each[0]),
    series("stallscope_gpu_below_seconds_total", steady(0), level="0.1", **of_gpu()),
]
# The exporter has just come back: its GPU counters are three minutes old, the run is hours old.
PARTLY_FILLED = rank(wait=0.3) + [
    (name, "_x34 " + values if "_total" in name or "samples" in name else values) for name, values in gpu()
]
TWO_GPUS = (("0", "GPU-0"), ("1", "GPU-1"))
BETWEEN = {"training": until(18), "evaluation": until(18, 0, 1)}
FULL = "input_cpu_saturated"


@pytest.mark.parametrize(
    ("story", "cause", "percent"),
    [
        pytest.param(rank(wait=0.2) + gpu(idle=0.6), "input_bound", 20, id="the GPU idles for longer than the wait"),
        pytest.param(rank(wait=0.3) + gpu(idle=0.0), "healthy", 0, id="the wait is hidden behind a busy GPU"),
        pytest.param(rank(wait=0.02) + gpu(idle=0.5), "healthy", 0, id="the GPU idles without a wait for data"),
        pytest.param(SHORT_WAITS, "input_bound", 25, id="waits shorter than the driver's samples"),
        pytest.param(PARTLY_FILLED, "healthy", 0, id="a window that is only partly filled"),
        pytest.param(waiting() + host(0.95), FULL, 30, id="host full"),
        pytest.param(waiting() + host(0.85, pressure=0.3), FULL, 30, id="host nearly full and tasks wait"),
        pytest.param(waiting() + host(0.85, pressure=0.02), "input_bound", 30, id="host nearly full, no task waits"),
        pytest.param(waiting() + host(0.3), "input_bound", 30, id="host has idle CPUs"),
        pytest.param(waiting(), "input_bound", 30, id="no host metrics"),
        pytest.param(waiting() + host(0.95, instance="node2:19400"), "input_bound", 30, id="another host is full"),
        pytest.param(waiting(7.8) + host(0.2), FULL, 30, id="limit reached on a free host"),
        pytest.param(waiting(2.0) + host(0.2), "input_bound", 30, id="far from the limit"),
        pytest.param(waiting(0.5) + host(0.95), FULL, 30, id="other processes saturate the CPUs"),
        pytest.param(waiting(7.0) + host(0.95), FULL, 30, id="under the limit, a tenth of a full host ours"),
        pytest.param(rank(wait=0.01) + gpu(idle=0.01) + host(0.99), "healthy", 0, id="host full, and no wait"),
        pytest.param(paused_for("evaluation"), "healthy", 0, id="in an evaluation"),
        pytest.param(paused_for("paused"), "healthy", 0, id="paused"),
        pytest.param(paused_for("restore"), "healthy", 0, id="in a restore"),
        pytest.param(paused_for("initialization"), "healthy", 0, id="in initialization"),
        pytest.param(rank(wait=0.3, activity=BETWEEN) + gpu(idle=0.3), "input_bound", 30, id="after an evaluation"),
        pytest.param(
            rank(wait=0.3, gpus=TWO_GPUS) + gpu(0, idle=0.3) + gpu(1, idle=None),
            "insufficient_data",
            0,
            id="one of two GPUs reports no idle time",
        ),
        pytest.param(
            rank(wait=0.3) + gpu(3, uuid="GPU-0", up=steady(0), idle=None) + gpu(0, idle=0.3),
            "input_bound",
            30,
            id="a GPU known under two indices",
        ),
    ],
)
def test_a_rank_has_the_verdict_of_its_exposed_wait_and_of_the_evidence_of_its_own_host(
    rulebook: Rulebook, story: Story, cause: str, percent: int
) -> None:
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause=cause), percent)])


def test_a_loss_under_the_notice_level_is_no_verdict_but_is_counted(rulebook: Rulebook) -> None:
    story = rank(wait=0.04) + gpu(idle=0.1)
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="healthy"), 0)])
    rulebook.check_percent(
        story, "gpu_cause:time_lost:ratio5m", [(of_gpu(run="train", rank="0", cause="input_bound"), 4)]
    )


def test_a_run_without_gpus_is_judged_by_its_data_wait_alone(rulebook: Rulebook) -> None:
    story = rank(wait=0.25, gpus=())
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="input_bound"), 25)])
    rulebook.check(story, {"gpu_cause:time_lost:ratio5m": [], GPU_VERDICT: []})


def test_ranks_of_one_pod_share_its_cpu_limit(rulebook: Rulebook) -> None:
    story = [
        each
        for number in (0, 1)
        for each in rank(number, wait=0.3, cores=3.8, cpu_limit=8, pod="a", gpus=((str(number), f"GPU-{number}"),))
        + gpu(number, idle=0.3)
    ]
    rulebook.check_percent(story, RUN_VERDICT, [({"run": "train", "cause": "input_cpu_saturated"}, 30)])


@pytest.mark.parametrize(
    ("story", "missing"),
    [
        pytest.param(rank(wait=0.3, first_step=1190) + gpu(idle=0.3), {"warmup"}, id="warm-up"),
        pytest.param(rank(wait=0.3, steps=steady(5)) + gpu(idle=0.3), {"steps"}, id="too few steps"),
        pytest.param(rank(wait=None) + gpu(idle=0.3), {"data_wait"}, id="no data wait"),
        pytest.param(rank(wait=0.3) + gpu(idle=None), {"gpu_idle"}, id="GPU reports no idle time"),
        pytest.param(rank(wait=0.3), {"gpu_idle"}, id="GPU is not this exporter's"),
        pytest.param(
            rank(
                wait=0.3,
                last_push=growing_until(12),
                activity={"training": steady(0), "evaluation": steady(1)},
            )
            + gpu(idle=0.3),
            {"reports"},
            id="reports are old",
        ),
    ],
)
def test_without_enough_evidence_the_verdict_is_insufficient_data_and_says_what_is_missing(
    rulebook: Rulebook, story: list[tuple[str, str]], missing: set[str]
) -> None:
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="insufficient_data"), 0)])
    rulebook.check_percent(story, RUN_VERDICT, [({"run": "train", "cause": "insufficient_data"}, 0)])
    rulebook.check(
        story,
        {
            "count by (missing) (rank:missing:info)": [({"missing": each}, 1) for each in sorted(missing)],
            "run:time_lost:ratio5m": [],
        },
    )


@pytest.mark.evaluated_every(30)
def test_a_young_rank_that_is_seen_to_do_well_is_healthy_90_seconds_after_its_first_step(rulebook: Rulebook) -> None:
    story = rank(wait=0.02, first_step=600) + gpu(idle=0.02)
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="insufficient_data"), 0)], at="11m")
    for moment in ("11m30s", "14m", "15m", "16m", "20m"):
        rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="healthy"), 0)], at=moment)
        rulebook.check_percent(story, RUN_VERDICT, [({"run": "train", "cause": "healthy"}, 0)], at=moment)
        rulebook.check_percent(story, GPU_VERDICT, [(of_gpu(cause="healthy"), 0)], at=moment)


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(rank(wait=0.08, first_step=600) + gpu(idle=0.0), id="waits for data"),
        pytest.param(rank(wait=0.02, first_step=600) + gpu(idle=0.15), id="GPU idles"),
        pytest.param(
            rank(wait=0.02, first_step=600)
            + gpu(idle=0.0)
            + [series("stallscope_gpu_sm_active_seconds_total", growing(0.7), **of_gpu(mig=""))],
            id="SMs idle",
        ),
        pytest.param(
            rank(wait=0.02, first_step=600, steps=growing(0.4), step_seconds=2.5) + gpu(idle=0.0), id="few steps"
        ),
        pytest.param(rank(wait=0.02, first_step=600) + gpu(idle=None), id="GPU reports no idle time"),
        pytest.param(rank(wait=None, first_step=600) + gpu(idle=0.0), id="no data wait"),
    ],
)
def test_a_young_rank_that_is_not_seen_to_do_well_has_no_verdict_yet(
    rulebook: Rulebook, story: list[tuple[str, str]]
) -> None:
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="insufficient_data"), 0)], at="12m")


def test_warm_up_ends_300_seconds_after_the_first_step(rulebook: Rulebook) -> None:
    story = rank(wait=0.3, phases={"checkpoint": 0.1}, first_step=600) + gpu(idle=0.3)
    shares = "round(100 * rank_cause:time_lost:ratio5m)"
    wait = (of_rank(cause="input_bound"), 30)
    rulebook.check(story, {shares: [wait]}, at="14m30s")
    rulebook.check(story, {shares: [wait, (of_rank(cause="checkpoint_stall"), 10)]}, at="16m")


def with_shorter_steps(minute: float) -> Story:
    """A rank that waits for data, made its first step at minute 10, and makes shorter steps from a minute on."""
    settling = (
        series("stallscope_training_step_seconds_sum", growing(1), **NODE, **of_rank()),
        series("stallscope_training_step_seconds_count", growing_then(minute, 0.5, 2), **NODE, **of_rank()),
    )
    reported = [each for each in rank(wait=0.3, first_step=600) if "step_seconds_count" not in each[0]]
    return [*reported, *settling, *gpu(idle=0.3)]


@pytest.mark.evaluated_every(30)
def test_warm_up_goes_on_while_steps_become_shorter(rulebook: Rulebook) -> None:
    story = with_shorter_steps(14)
    missing = 'count(rank:missing:info{missing="warmup"})'
    rulebook.check(story, {missing: [({}, 1)]}, at="18m")
    rulebook.check(story, {missing: []}, at="28m")


def test_warm_up_does_not_begin_again_when_steps_become_shorter(rulebook: Rulebook) -> None:
    story = with_shorter_steps(17)
    for moment in ("17m", "18m", "19m", "20m"):
        rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="input_bound"), 30)], at=moment)


def since_minute_10(story: Story) -> Story:
    """Return these series on a new exporter."""
    return [(name, f"_x20 {values}") for name, values in story]


def test_a_rank_whose_gpus_are_new_to_the_exporter_is_healthy_after_a_minute_if_it_is_seen_to_do_well(
    rulebook: Rulebook,
) -> None:
    story = rank(wait=0.02) + since_minute_10(gpu(idle=0.02))
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="insufficient_data"), 0)], at="10m")
    for moment in ("11m", "11m30s", "13m", "14m", "20m"):
        rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="healthy"), 0)], at=moment)


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(rank(wait=0.08) + since_minute_10(gpu(idle=0.0)), id="waits for data"),
        pytest.param(rank(wait=0.02) + since_minute_10(gpu(idle=0.15)), id="GPU idles"),
        pytest.param(
            rank(wait=0.02, gpus=(("0", "GPU-0"), ("1", "GPU-1"))) + since_minute_10(gpu(idle=0.0)),
            id="one GPU is unknown",
        ),
        pytest.param(rank(wait=0.02, gpus=()) + gpu(idle=0.0), id="no GPU is claimed while one is in use"),
    ],
)
def test_a_rank_whose_gpus_are_new_to_the_exporter_has_no_verdict_yet_unless_it_is_seen_to_do_well(
    rulebook: Rulebook, story: Story
) -> None:
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="insufficient_data"), 0)], at="11m30s")


@pytest.mark.parametrize("state", ["finished", "failed", "lost"])
def test_a_run_that_has_ended_has_no_verdict(rulebook: Rulebook, state: str) -> None:
    story = rank(wait=0.3, state=state) + gpu(idle=0.3, held=False)
    rulebook.check(story, {RANK_VERDICT: [], RUN_VERDICT: [], "run:time_lost:ratio5m": []})
    rulebook.check_percent(story, GPU_VERDICT, [(of_gpu(cause="healthy"), 0)])


def test_hardware_outranks_a_greater_loss(rulebook: Rulebook) -> None:
    story = rank(wait=0.6) + gpu(idle=0.6, throttled={"hw_thermal": 0.4}, clock=0.75)
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="thermal_throttle"), 10)])
    rulebook.check_percent(story, "run:time_lost:ratio5m", [({"run": "train"}, 70)])


def test_a_lost_gpu_outranks_the_stall_that_it_causes(rulebook: Rulebook) -> None:
    story = rank(last_step=growing_until(10)) + gpu(up=until(10), idle=None)
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="lost"), 100)])
    rulebook.check_percent(story, "run:time_lost:ratio5m", [({"run": "train"}, 100)])


def test_a_run_has_the_hardware_cause_of_one_rank_with_the_mean_share(rulebook: Rulebook) -> None:
    story = [each for number in range(4) for each in rank(number, gpus=((str(number), f"GPU-{number}"),))]
    story += gpu(0) + gpu(1) + gpu(2) + gpu(3, up=steady(0), idle=None)
    rulebook.check_percent(story, RUN_VERDICT, [({"run": "train", "cause": "lost"}, 25)])
    rulebook.check_percent(
        story,
        GPU_VERDICT,
        [(of_gpu(index, cause="lost" if index == 3 else "healthy"), 100 * (index == 3)) for index in range(4)],
    )


def test_a_run_of_which_one_rank_lacks_evidence_is_judged_by_the_others(rulebook: Rulebook) -> None:
    story = rank(0, wait=0.4) + gpu(0, idle=0.4) + rank(1, wait=0.4, gpus=(("1", "GPU-1"),)) + gpu(1, idle=None)
    rulebook.check_percent(story, RUN_VERDICT, [({"run": "train", "cause": "input_bound"}, 20)])
    rulebook.check_percent(
        story, RANK_VERDICT, [(of_rank(0, cause="input_bound"), 40), (of_rank(1, cause="insufficient_data"), 0)]
    )


def test_a_rank_on_two_gpus_has_one_verdict_by_its_busiest_gpu(rulebook: Rulebook) -> None:
    story = rank(wait=0.3, gpus=(("0", "GPU-0"), ("1", "GPU-1"))) + gpu(0, idle=0.2) + gpu(1, idle=0.9)
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="input_bound"), 20)])
    rulebook.check_percent(
        story, GPU_VERDICT, [(of_gpu(0, cause="input_bound"), 20), (of_gpu(1, cause="input_bound"), 20)]
    )


def test_a_fault_of_one_gpu_is_not_the_verdict_of_its_ranks_other_gpu(rulebook: Rulebook) -> None:
    story = rank(gpus=(("0", "GPU-0"), ("1", "GPU-1"))) + gpu(0)
    story += gpu(1, throttled={"hw_thermal": 0.5}, clock=0.5)
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="thermal_throttle"), 25)])
    rulebook.check_percent(
        story, GPU_VERDICT, [(of_gpu(0, cause="healthy"), 0), (of_gpu(1, cause="thermal_throttle"), 25)]
    )


def test_two_runs_on_one_gpu_have_a_verdict_each_and_the_gpu_has_the_greater(rulebook: Rulebook) -> None:
    story = rank(run="one", wait=0.1) + rank(run="two", wait=0.3) + gpu(idle=0.4)
    rulebook.check_percent(
        story,
        RUN_VERDICT,
        [({"run": "one", "cause": "input_bound"}, 10), ({"run": "two", "cause": "input_bound"}, 30)],
    )
    rulebook.check_percent(story, GPU_VERDICT, [(of_gpu(cause="input_bound"), 30)])


def test_a_rank_that_knows_only_the_index_is_joined_by_it(rulebook: Rulebook) -> None:
    story = rank(wait=0.3, gpus=(("1", ""),)) + gpu(0, idle=0.0) + gpu(1, idle=0.3)
    rulebook.check_percent(
        story,
        "gpu_cause:time_lost:ratio5m",
        [(of_gpu(1, run="train", rank="0", cause="input_bound"), 30)],
    )


def test_the_uuid_counts_where_the_rank_numbers_gpus_otherwise(rulebook: Rulebook) -> None:
    story = rank(wait=0.3, gpus=(("0", "GPU-1"),)) + gpu(0, idle=0.0) + gpu(1, idle=0.3)
    rulebook.check_percent(
        story,
        "gpu_cause:time_lost:ratio5m",
        [(of_gpu(1, run="train", rank="0", cause="input_bound"), 30)],
    )


def test_an_instance_of_a_divided_gpu_is_joined_by_its_own_uuid(rulebook: Rulebook) -> None:
    story = rank(wait=0.3, gpus=(("0", "MIG-7"),)) + gpu(0, idle=None) + gpu(0, uuid="MIG-7", mig="1g.10gb", idle=0.3)
    rulebook.check_percent(
        story,
        GPU_VERDICT,
        [
            ({**NODE, "gpu": "0", "uuid": "MIG-7", "mig": "1g.10gb", "cause": "input_bound"}, 30),
            (of_gpu(0, cause="insufficient_data"), 0),
        ],
    )


def test_a_run_over_two_nodes_is_one_run(rulebook: Rulebook) -> None:
    story = rank(0, wait=0.3) + gpu(0, idle=0.28)
    story += rank(1, wait=0.3, instance="node2:19400") + gpu(0, idle=0.32, instance="node2:19400")
    rulebook.check_percent(story, RUN_VERDICT, [({"run": "train", "cause": "input_bound"}, 29)])


def test_a_rank_that_moved_to_another_node_is_judged_where_it_last_reported(rulebook: Rulebook) -> None:
    story = rank(wait=0.6, last_push=growing_until(18)) + gpu(idle=0.6)
    story += rank(wait=0.2, instance="node2:19400") + gpu(idle=0.2, instance="node2:19400")
    rulebook.check_percent(story, RANK_VERDICT, [(of_rank(cause="input_bound"), 20)])
    rulebook.check_percent(story, RUN_VERDICT, [({"run": "train", "cause": "input_bound"}, 20)])


def test_runs_of_one_name_in_two_namespaces_are_two_runs(rulebook: Rulebook) -> None:
    story = rank(wait=0.2, namespace="a") + gpu(idle=0.2)
    story += rank(wait=0.4, namespace="b", instance="node2:19400") + gpu(idle=0.4, instance="node2:19400")
    rulebook.check_percent(
        story,
        RUN_VERDICT,
        [
            ({"run": "train", "namespace": "a", "cause": "input_bound"}, 20),
            ({"run": "train", "namespace": "b", "cause": "input_bound"}, 40),
        ],
    )


def test_a_cluster_label_survives_and_separates_equal_nodes(rulebook: Rulebook) -> None:
    story = [
        each
        for cluster, share in (("north", 0.2), ("south", 0.4))
        for each in rank(wait=share, cluster=cluster) + gpu(idle=share, cluster=cluster) + host(0.95, cluster=cluster)
    ]
    cause = {"cause": "input_cpu_saturated"}
    shares = {"north": 20, "south": 40}
    rulebook.check(
        story,
        {
            f"round(100 * {RUN_VERDICT})": [
                ({"cluster": cluster, "run": "train", **cause}, share) for cluster, share in shares.items()
            ],
            f"round(100 * {GPU_VERDICT})": [
                (of_gpu(cluster=cluster) | cause, share) for cluster, share in shares.items()
            ],
            "round(100 * run:time_lost:ratio5m)": [
                ({"cluster": cluster, "run": "train"}, share) for cluster, share in shares.items()
            ],
        },
    )


def test_other_labels_of_the_target_do_not_disturb_the_joins(rulebook: Rulebook) -> None:
    story = rank(0, wait=0.3, rack="r1") + gpu(0, idle=0.28, rack="r1")
    story += rank(1, wait=0.3, instance="node2:19400", rack="r2") + gpu(0, idle=0.32, instance="node2:19400", rack="r2")
    rulebook.check_percent(story, RUN_VERDICT, [({"run": "train", "cause": "input_bound"}, 29)])


@pytest.mark.evaluated_every(30)
def test_an_exporters_restart_changes_no_verdict(rulebook: Rulebook) -> None:
    """Its GPU counters begin at zero again, the shim's go on; what the GPU did meanwhile is not known, nor claimed."""
    story = [
        (
            name,
            interrupted(
                20, float(slope) / INTERVAL, first=float(first), reset="stallscope_gpu" in name and "_total" in name
            ),
        )
        for name, values in rank(wait=0.3) + gpu(idle=0.3)
        for first, slope in [values.replace("e+", "e").split("x")[0].split("+")]
    ]
    for minute in ("22m30s", "24m", "28m"):
        found = f"count by (cause) ({RANK_VERDICT} > 0.1 < 0.31)"
        one_of_each: dict[str, list[tuple[Labels, float]]] = {
            f"count({name})": [({}, 1.0)] for name in (RANK_VERDICT, RUN_VERDICT, GPU_VERDICT)
        }
        rulebook.check(story, {found: [({"cause": "input_bound"}, 1)], **one_of_each}, at=minute)


def test_a_node_that_has_just_been_started_is_not_judged(rulebook: Rulebook) -> None:
    story = exporter() + rank(wait=0.3, state="starting", steps=steady(0), last_step=CLOCK) + gpu(idle=0.9)
    rulebook.check_percent(story, RUN_VERDICT, [({"run": "train", "cause": "insufficient_data"}, 0)], at="2m")


@pytest.mark.parametrize(
    ("share", "cause"),
    [
        pytest.param(0.044, "input_bound", id="under the notice level, over the clearing ratio of it"),
        pytest.param(0.03, "healthy", id="under the clearing ratio of the notice level"),
    ],
)
def test_a_verdict_in_force_stays_until_its_share_is_clearly_under_the_level(
    rulebook: Rulebook, share: float, cause: str
) -> None:
    story = rank(wait=0.2, wait_then=(20, share)) + gpu(idle=0.4)
    rulebook.check(story, {f"count by (cause) ({RUN_VERDICT})": [({"cause": cause}, 1)]}, at="40m")


def test_a_share_between_clearing_and_notice_level_is_no_verdict_by_itself(rulebook: Rulebook) -> None:
    rulebook.check(rank(wait=0.044) + gpu(idle=0.4), {f"count by (cause) ({RUN_VERDICT})": [({"cause": "healthy"}, 1)]})


def test_a_cause_is_found_before_anything_is_called_healthy(rulebook: Rulebook) -> None:
    """Rules evaluate one file after another; in between a rank that can just be judged must not pass for healthy."""
    for first_step in (600, -3600):
        story = rank(wait=0.3, first_step=first_step) + gpu(idle=0.3)
        rulebook.check(story, {f'count_over_time({RUN_VERDICT}{{cause="healthy"}}[40m])': []}, at="40m")
    story = rank(wait=0.0, first_step=600) + gpu(idle=0.15)
    rulebook.check(story, {f"count by (cause) ({RUN_VERDICT})": [({"cause": "insufficient_data"}, 1)]}, at="15m30s")
    rulebook.check(story, {f"count by (cause) ({RUN_VERDICT})": [({"cause": "healthy"}, 1)]}, at="17m")
    story = rank(wait=0.0, first_step=-3600) + gpu(idle=0.15)
    rulebook.check(story, {f"count by (cause) ({RUN_VERDICT})": [({"cause": "healthy"}, 1)]}, at="2m30s")


def test_the_gpu_of_a_straggler_has_its_own_hardware_cause_and_the_run_has_a_straggler(rulebook: Rulebook) -> None:
    story: list[tuple[str, str]] = []
    for number in range(3):
        slow = number == 2
        phases = {"communication": 0.0 if slow else 0.3}
        story += rank(number, phases=phases, gpus=((str(number), f"GPU-{number}"),))
        story += gpu(number, throttled={"hw_thermal": 1.0} if slow else {}, clock=0.7 if slow else 1.0)
    rulebook.check(
        story,
        {
            f"count by (cause) ({RUN_VERDICT})": [({"cause": "straggler_hw"}, 1)],
            f"count by (cause) ({GPU_VERDICT}{{gpu='2'}})": [({"cause": "thermal_throttle"}, 1)],
            f"count by (cause) ({GPU_VERDICT}{{gpu!='2'}})": [({"cause": "straggler_hw"}, 2)],
        },
        at="30m",
    )


@pytest.mark.evaluated_every(30)
def test_a_scrape_that_goes_unanswered_takes_no_verdict_away(rulebook: Rulebook) -> None:
    """Every series of the node is stale for one interval, as Prometheus marks them."""
    story = []
    for name, values in rank(wait=0.3) + gpu(idle=0.3):
        first, slope = (float(each) for each in values.replace("e+", "e").split("x")[0].split("+"))
        again = first + slope * 42
        story.append((name, f"{first:.10g}+{slope:.10g}x40 stale {again:.10g}+{slope:.10g}x78"))
    found = {f"count_over_time({name}[290s])": 10 for name in (RANK_VERDICT, RUN_VERDICT, GPU_VERDICT)}
    rulebook.check(
        story,
        {
            f"sum without (cause) ({name})": [(labels, count)]
            for (name, count), labels in zip(found.items(), (of_rank(), {"run": "train"}, of_gpu()), strict=True)
        },
        at="22m",
    )
