"""Sums for dashboards: what a fleet loses by cause, how many GPUs it has, what a run's ranks and GPUs do together."""

from __future__ import annotations

import pytest

from tests.rules.rulebook import (
    INTERVAL,
    RULE_FILES,
    SHARED,
    TARGET,
    Rulebook,
    Story,
    gpu,
    gpu_signal,
    growing,
    host,
    node,
    rank,
    series,
    steady,
)

FILES = tuple(path for path in RULE_FILES if path.stem in (*SHARED, "input", "use", "verdicts", "totals"))


def in_percent(name: str) -> str:
    return f"round(100 * {name})"


def waiting(instance: str, wait: float) -> Story:
    """A node whose one rank waits for data while its GPU idles."""
    return node(instance, gpu(idle=wait) + rank(wait=wait, run=f"train-{instance}") + host(0.2))


def test_what_a_cause_costs_all_gpus_together_is_counted_in_gpus(rulebook: Rulebook) -> None:
    story = waiting("a:19400", 0.4) + waiting("b:19400", 0.3) + waiting("c:19400", 0.0)
    rulebook.check(story, {in_percent("cause:gpus_lost:sum5m"): [({"cause": "input_bound"}, 70)]}, rule_files=FILES)


def test_nothing_lost_is_no_series_while_the_gpus_are_counted(rulebook: Rulebook) -> None:
    rulebook.check(
        waiting("a:19400", 0.0),
        {
            "cause:gpus_lost:sum5m": [],
            "cluster:gpus_known:count": [({"__name__": "cluster:gpus_known:count"}, 1)],
            "cause:gpus:count": [({"__name__": "cause:gpus:count", "cause": "healthy"}, 1)],
        },
        rule_files=FILES,
    )


def test_a_gpu_loses_no_more_than_its_time_however_many_causes_claim_it(rulebook: Rulebook) -> None:
    lost = [
        series("gpu_cause:share:ratio5m", steady(0.8), **TARGET, gpu="0", uuid="GPU-0", cause=cause)
        for cause in ("input_bound", "thermal_throttle")
    ]
    rulebook.check(
        lost,
        {
            in_percent("cause:gpus_lost:sum5m"): [({"cause": "input_bound"}, 50), ({"cause": "thermal_throttle"}, 50)],
        },
        rule_files=[path for path in FILES if path.stem == "totals"],
    )


def test_a_mig_instance_counts_as_its_part_of_the_card(rulebook: Rulebook) -> None:
    labels = {**TARGET, "gpu": "0"}
    story = [
        *(series("gpu:up:max", steady(1), **labels, uuid=f"MIG-{each}", mig=str(each)) for each in range(4)),
        series("gpu_cause:share:ratio5m", steady(1), **labels, uuid="MIG-2", mig="2", cause="idle_allocated"),
    ]
    rulebook.check(
        story,
        {
            in_percent("cause:gpus_lost:sum5m"): [({"cause": "idle_allocated"}, 25)],
            "count(cluster:gpus_known:count == 1)": [({}, 1)],
        },
        rule_files=[path for path in FILES if path.stem == "totals"],
    )


def test_gpus_are_known_up_held_and_busy(rulebook: Rulebook) -> None:
    story = [
        *gpu(0, idle=0.25),
        *gpu(1, idle=1.0, held=False),
        *gpu(2, up=steady(0), idle=None, held=False),
    ]
    rulebook.check(
        story,
        {
            "sum(cluster:gpus_known:count)": [({}, 3)],
            "sum(cluster:gpus_up:count)": [({}, 2)],
            "sum(cluster:gpus_held:count)": [({}, 1)],
            in_percent("sum(cluster:gpus_busy:sum5m)"): [({}, 75)],
        },
        rule_files=FILES,
    )


def test_what_the_ranks_of_a_run_do_is_summed_over_its_nodes(rulebook: Rulebook) -> None:
    story: Story = []
    for number, instance in enumerate(("a:19400", "b:19400")):
        own = {**TARGET, "run": "train", "rank": str(number)}
        further = [
            series("stallscope_training_samples_total", growing(100), **own),
            series("stallscope_training_batch_size", steady(50), **own),
            series("stallscope_training_step_seconds_sum", growing(1), **own),
        ]
        story += node(
            instance,
            [*gpu(idle=0.5), *rank(number), *further],
            gpu_signal("memory_used_bytes", steady(20)),
            gpu_signal("memory_total_bytes", steady(80)),
            gpu_signal("memory_busy_seconds_total", growing(0.25)),
            gpu_signal("energy_joules_total", growing(300)),
        )
    run = {"run": "train"}
    rulebook.check(
        story,
        {
            "round(run:samples:rate5m)": [(run, 200)],
            "run:tokens:rate5m": [],
            in_percent("rank:step:seconds5m"): [
                ({**run, "rank": "0", "job": "stallscope", "instance": "a:19400"}, 100),
                ({**run, "rank": "1", "job": "stallscope", "instance": "b:19400"}, 100),
            ],
            in_percent("run:step:seconds5m"): [(run, 100)],
            "1 * run:batch_size:sum": [(run, 100)],
            in_percent("run:gpu_busy:ratio5m"): [(run, 50)],
            in_percent("run:gpu_memory_busy:ratio5m"): [(run, 25)],
            in_percent("run:gpu_memory_used:ratio"): [(run, 25)],
            "round(run:power:watts5m)": [(run, 600)],
        },
        rule_files=FILES,
    )


def at_work(number: int, per_second: float, first_step: float) -> Story:
    """A rank that makes steps from a time on, in seconds; its counters begin then."""
    idle = int(first_step / INTERVAL)
    samples = f"_x{idle} 0+{per_second * INTERVAL:g}x{100 - idle}"
    labels = {**TARGET, "run": "train", "rank": str(number)}
    return [*rank(number, first_step=first_step), series("stallscope_training_samples_total", samples, **labels)]


@pytest.mark.parametrize(
    ("seconds", "samples_a_second"),
    [
        pytest.param(30, None, id="absent half a minute after the first step"),
        pytest.param(60, None, id="absent after a minute"),
        pytest.param(90, 100, id="right after a minute and a half"),
        pytest.param(270, 100, id="right before five minutes"),
        pytest.param(330, 100, id="right after five minutes"),
    ],
)
@pytest.mark.evaluated_every(30)
def test_the_throughput_of_a_new_run_is_right_or_absent(
    rulebook: Rulebook, seconds: int, samples_a_second: float | None
) -> None:
    expected = [] if samples_a_second is None else [({"run": "train"}, samples_a_second)]
    rulebook.check(
        node("node1:19400", gpu() + at_work(0, 100, first_step=600)),
        {"round(run:samples:rate5m)": expected},
        at=f"{600 + seconds}s",
        rule_files=FILES,
    )


@pytest.mark.evaluated_every(30)
def test_the_throughput_of_a_run_is_absent_while_one_of_its_ranks_is_new(rulebook: Rulebook) -> None:
    story = node("node1:19400", gpu() + at_work(0, 100, first_step=0) + at_work(1, 100, first_step=600))
    for seconds, expected in ((660, []), (690, [({"run": "train"}, 200)])):
        rulebook.check(story, {"round(run:samples:rate5m)": expected}, at=f"{seconds}s", rule_files=FILES)


def test_the_time_left_is_that_of_the_steps_left_at_the_pace_of_half_an_hour(rulebook: Rulebook) -> None:
    own = {**TARGET, "run": "train", "rank": "0"}
    planned = series("stallscope_training_steps_planned", steady(10_000), **own)
    step = series("run:step:max", growing(2), run="train")
    rulebook.check(
        [*rank(), planned, step],
        {
            "run:steps_planned:max * 1": [({"run": "train"}, 10_000)],
            "round(run:time_left:seconds * 2 + run:step:max, 100)": [({"run": "train"}, 10_000)],
        },
        rule_files=FILES,
    )


def test_a_run_that_makes_no_step_has_no_end(rulebook: Rulebook) -> None:
    own = {**TARGET, "run": "train", "rank": "0"}
    planned = series("stallscope_training_steps_planned", steady(10_000), **own)
    rulebook.check(
        [*rank(), planned, series("run:step:max", steady(500), run="train")],
        {"run:time_left:seconds": []},
        rule_files=FILES,
    )


def test_ranks_are_counted_by_what_they_do(rulebook: Rulebook) -> None:
    saving = {"training": steady(0), "checkpoint": steady(1)}
    rulebook.check(
        [*rank(0), *rank(1), *rank(2, activity=saving)],
        {
            "run_activity:ranks:count * 1": [
                ({"run": "train", "activity": "training"}, 2),
                ({"run": "train", "activity": "checkpoint"}, 1),
            ],
        },
        rule_files=FILES,
    )


def test_steps_and_phases_of_all_ranks_are_summed_by_length_and_by_phase(rulebook: Rulebook) -> None:
    clock = [
        series(
            "stallscope_training_phase_gpu_seconds_total",
            growing(0.5),
            **TARGET,
            run="train",
            rank=str(number),
            phase="forward",
        )
        for number in range(2)
    ]
    rulebook.check(
        [*rank(0, wait=0.25), *rank(1, wait=0.25), *clock],
        {
            in_percent("run:step_seconds_bucket:rate5m"): [
                ({"run": "train", "le": "0.5"}, 0),
                ({"run": "train", "le": "1"}, 200),
                ({"run": "train", "le": "+Inf"}, 200),
            ],
            in_percent("run_phase:time:rate5m"): [
                ({"run": "train", "phase": "data_wait"}, 50),
                ({"run": "train", "phase": "forward"}, 150),
            ],
            in_percent("run_phase:gpu_time:rate5m"): [({"run": "train", "phase": "forward"}, 100)],
        },
        rule_files=FILES,
    )


TOTALS = [path for path in FILES if path.stem == "totals"]


def claimed(index: int, run: str, user: str = "", *, lost: float | None = None) -> Story:
    """A GPU that a run claims."""
    labels = {**TARGET, "gpu": str(index), "uuid": f"GPU-{index}"}
    place = {"namespace": "vision", "run": run}
    return [
        series("gpu:up:max", steady(1), **labels),
        series("gpu:busy:ratio5m", steady(0.5), **labels),
        series("gpu:observed:ratio5m", steady(1), **labels),
        series("stallscope_gpu_energy_joules_total", growing(300), **labels),
        series("rank_gpu:claim:info", steady(1), **labels, **place, rank=str(index)),
        *([series("run:job_class:info", steady(1), **place, user=user, job_class="production")] if user else []),
        *([] if lost is None else [series("run:time_lost:ratio5m", steady(lost), **place)]),
    ]


def owned(index: int, *users: str, lost: float = 0.0, **labels: str) -> Story:
    """A GPU without a run, held by users."""
    card = {**TARGET, "gpu": str(index), "uuid": f"GPU-{index}", **labels}
    return [
        series("gpu:up:max", steady(1), **card),
        series("gpu:busy:ratio5m", steady(1 - lost), **card),
        *(series("stallscope_gpu_owner_info", steady(1), **card, namespace="lab", user=user) for user in users),
        *([series("gpu_cause:share:ratio5m", steady(lost), **card, cause="idle_allocated")] if lost else []),
    ]


def test_a_run_and_its_user_own_the_gpus_that_it_claims(rulebook: Rulebook) -> None:
    cause = series("run_cause:time_lost:ratio5m", steady(0.2), namespace="vision", run="train", cause="input_bound")
    story = [*claimed(0, "train", "ada", lost=0.25), *claimed(1, "train"), cause]
    owner = {"namespace": "vision", "run": "train", "user": "ada"}
    rulebook.check(
        story,
        {
            in_percent("owner:gpus_held:sum"): [(owner, 200)],
            in_percent("owner:gpus_busy:sum5m"): [(owner, 100)],
            in_percent("owner:gpus_lost:sum5m"): [(owner, 50)],
            in_percent("owner_cause:gpus_lost:sum5m"): [({**owner, "cause": "input_bound"}, 40)],
            "round(owner:power:watts5m)": [(owner, 600)],
        },
        rule_files=TOTALS,
    )


def test_a_run_without_a_known_user_owns_its_gpus(rulebook: Rulebook) -> None:
    owner = {"namespace": "vision", "run": "train"}
    rulebook.check(claimed(0, "train"), {in_percent("owner:gpus_held:sum"): [(owner, 100)]}, rule_files=TOTALS)


def test_a_gpu_without_a_run_belongs_to_its_owner_with_what_it_loses(rulebook: Rulebook) -> None:
    owner = {"namespace": "lab", "user": "grace"}
    rulebook.check(
        owned(0, "grace", lost=1.0),
        {
            in_percent("owner:gpus_held:sum"): [(owner, 100)],
            in_percent("owner:gpus_lost:sum5m"): [(owner, 100)],
            in_percent("owner_cause:gpus_lost:sum5m"): [({**owner, "cause": "idle_allocated"}, 100)],
        },
        rule_files=TOTALS,
    )


def test_owners_of_one_gpu_share_its_time_evenly(rulebook: Rulebook) -> None:
    ada, grace = ({"namespace": "lab", "user": user} for user in ("ada", "grace"))
    runs = [*claimed(1, "one", "ada"), *claimed(1, "two", "grace")]
    rulebook.check(
        [*owned(0, "ada", "grace", lost=0.5), *dict(runs).items()],
        {
            in_percent("owner:gpus_held:sum"): [
                (ada, 50),
                (grace, 50),
                ({"namespace": "vision", "run": "one", "user": "ada"}, 50),
                ({"namespace": "vision", "run": "two", "user": "grace"}, 50),
            ],
            in_percent('owner:gpus_lost:sum5m{run=""}'): [(ada, 25), (grace, 25)],
            'count(owner_cause:gpus_lost:sum5m{cause="idle_allocated"})': [({}, 1)],
        },
        rule_files=TOTALS,
    )


def test_instances_of_a_card_are_parts_of_it_and_a_free_gpu_has_no_owner(rulebook: Rulebook) -> None:
    card = {**TARGET, "gpu": "0"}
    story = [
        *owned(0, "ada", uuid="MIG-0", mig="0"),
        *(series("gpu:up:max", steady(1), **card, uuid=f"MIG-{each}", mig=str(each)) for each in (1, 2, 3)),
        *(series("gpu:free:info", steady(1), **card, uuid=f"MIG-{each}", mig=str(each)) for each in (1, 2)),
    ]
    rulebook.check(
        story,
        {
            # A process with an unknown owner holds the last instance.
            in_percent("owner:gpus_held:sum"): [({"namespace": "lab", "user": "ada"}, 25), ({}, 25)],
        },
        rule_files=TOTALS,
    )
