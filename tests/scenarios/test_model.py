"""Two ways of measuring agree, and noise changes only what it should."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.scenarios.case import Case, Series, render
from tests.scenarios.cases.settings import CLOUD_WORK, LAPTOP_WORK, NODE_WORK, SERVER_WORK, run_on, taking
from tests.scenarios.disturbance import Disturbance, Floats
from tests.scenarios.machines import CLOUD, HGX, LAPTOP, QUAD, SERVER, SINGLE
from tests.scenarios.model import Course
from tests.scenarios.story import ALWAYS, From, Host, Pause, Run, Story, Work, at
from tests.scenarios.utilization import Utilization

LENGTH = 12.0


def case(story: Story, **fields: Any) -> Case:
    given = {"name": "told_by_a_test", "kind": "positive", "subject": "run", "cause": "healthy", "length": LENGTH}
    return Case(story=story, **{**given, **fields})


def page(story: Story, *, seed: int = 1, noise: bool = False, **fields: Any) -> list[Series]:
    return render(case(story, **fields), seed, noise=noise, labels={"cluster": "here"})


def chosen(series: Iterable[Series], name: str, **labels: str) -> list[Series]:
    return [
        each
        for each in series
        if each.name == f"stallscope_{name}" and all(each.labels.get(key) == value for key, value in labels.items())
    ]


def one(series: Iterable[Series], name: str, **labels: str) -> Floats:
    found = chosen(series, name, **labels)
    assert len(found) == 1, [each.labels for each in found]
    return np.array([np.nan if value is None else value for value in found[0].values])


def grown(values: Floats) -> float:
    return float(values[-1] - values[0])


BUSY_LIVES = {
    "plain": run_on(LAPTOP),
    "several ranks": run_on(QUAD, measures_communication=True),
    "pauses of all kinds": run_on(
        CLOUD,
        before=replace(
            CLOUD_WORK,
            pauses=(
                Pause("checkpoint", 9.0, every_seconds=100.0),
                Pause("evaluation", 20.0, every_seconds=130.0, busy=0.9),
                Pause("logging", 1.5, every_steps=50),
            ),
            outliers=0.03,
        ),
    ),
    "tiny steps": run_on(
        LAPTOP, before=taking(replace(LAPTOP_WORK, forward=0.002, backward=0.004, optimizer=0.001), "data_wait", 0.2)
    ),
    "no phases": run_on(CLOUD, phases=False),
}


@pytest.mark.parametrize("story", BUSY_LIVES.values(), ids=BUSY_LIVES)
def test_phases_sum_to_the_time_of_the_loop(story: Story) -> None:
    series = page(story)
    phases = chosen(series, "training_phase_seconds_total", rank="0")
    total = np.nansum([[np.nan if value is None else value for value in each.values] for each in phases], axis=0)
    wall = one(series, "training_last_push_timestamp_seconds", rank="0") - one(
        series, "training_start_timestamp_seconds", rank="0"
    )
    assert np.allclose(total, wall, atol=1e-3)


@pytest.mark.parametrize("story", BUSY_LIVES.values(), ids=BUSY_LIVES)
def test_steps_and_what_lies_between_them_take_all_of_the_time(story: Story) -> None:
    series = page(story)
    between = sum(
        grown(np.nan_to_num(np.array([value or 0.0 for value in each.values])))
        for phase in ("evaluation", "restore")
        for each in chosen(series, "training_phase_seconds_total", rank="0", phase=phase)
    )
    took = grown(one(series, "training_step_seconds_sum", rank="0")) + between
    assert took == pytest.approx(LENGTH * 60, abs=25)  # an evaluation or a checkpoint under way at either end


@pytest.mark.parametrize("story", BUSY_LIVES.values(), ids=BUSY_LIVES)
def test_histograms_of_steps_grow_with_their_bounds_to_the_count(story: Story) -> None:
    series = page(story)
    buckets = chosen(series, "training_step_seconds_bucket", rank="0")
    rows = np.array([each.values for each in sorted(buckets, key=lambda each: float(each.labels["le"]))], dtype=float)
    assert (np.diff(rows, axis=0) >= 0).all()
    assert (np.diff(rows, axis=1) >= 0).all()
    assert np.array_equal(rows[-1], one(series, "training_step_seconds_count", rank="0"))


def test_a_step_takes_what_its_phases_take() -> None:
    work = replace(CLOUD_WORK, spread=0.0)
    series = page(run_on(CLOUD, before=work))
    step = work.data_wait + work.host_copy + work.forward + work.backward + work.optimizer + work.other
    mean = grown(one(series, "training_step_seconds_sum")) / grown(one(series, "training_step_seconds_count"))
    assert mean == pytest.approx(step, rel=1e-3)


def test_ranks_of_a_run_make_their_steps_together_though_one_is_late() -> None:
    late = replace(NODE_WORK, backward=0.4)
    series = page(run_on(QUAD, late, only=(2,), onset=3.0, measures_communication=True))
    counts = [one(series, "training_step_seconds_count", rank=str(rank)) for rank in range(4)]
    assert all(np.abs(counts[0] - each).max() <= 10 for each in counts)  # reports are not made at the same moment
    waited = [
        grown(one(series, "training_phase_seconds_total", rank=str(rank), phase="communication")) for rank in range(4)
    ]
    assert min(range(4), key=waited.__getitem__) == 2


def test_the_wait_for_others_is_communication_only_where_a_hook_measures_it() -> None:
    late = replace(NODE_WORK, backward=0.4)
    series = page(run_on(QUAD, late, only=(2,), onset=3.0))
    assert not chosen(series, "training_phase_seconds_total", phase="communication")


def test_a_gpu_is_busy_as_long_as_its_ranks_phases_have_kernels() -> None:
    series = page(run_on(CLOUD, before=taking(CLOUD_WORK, "data_wait", 0.3)))
    computing = sum(
        grown(one(series, "training_phase_seconds_total", phase=phase))
        for phase in ("forward", "backward", "optimizer")
    )
    assert grown(one(series, "gpu_busy_seconds_total")) == pytest.approx(computing, rel=0.02)


def test_a_wait_that_the_queue_hides_leaves_the_gpu_busy() -> None:
    waits = taking(LAPTOP_WORK, "data_wait", 0.3)
    hidden = page(run_on(LAPTOP, before=replace(waits, busy_while_waiting=1.0)))
    exposed = page(run_on(LAPTOP, before=waits))
    assert grown(one(hidden, "gpu_busy_seconds_total")) > 0.97 * LENGTH * 60
    assert grown(one(exposed, "gpu_busy_seconds_total")) < 0.72 * LENGTH * 60


def test_ranks_that_wait_spin_on_few_multiprocessors_at_little_power() -> None:
    late = replace(NODE_WORK, backward=0.27 + 0.4)
    series = page(run_on(QUAD, before=NODE_WORK, after=late, only=(2,), onset=ALWAYS))
    waits, works = ({"gpu": "0"}, {"gpu": "2"})
    assert grown(one(series, "gpu_busy_seconds_total", **waits)) > 0.95 * LENGTH * 60
    for name in ("sm_active_seconds_total", "energy_joules_total"):
        assert grown(one(series, f"gpu_{name}", **waits)) < 0.75 * grown(one(series, f"gpu_{name}", **works))


def test_gpu_samples_agree_with_the_integrals() -> None:
    series = page(run_on(CLOUD, before=taking(CLOUD_WORK, "data_wait", 0.5)))
    samples = grown(one(series, "gpu_utilization_samples_sum")) / 6
    assert samples == pytest.approx(grown(one(series, "gpu_busy_seconds_total")), rel=1e-3)
    assert grown(one(series, "gpu_utilization_samples_count")) == pytest.approx(6 * LENGTH * 60, abs=2)
    low = grown(one(series, "gpu_below_seconds_total", level="0.1"))
    half = grown(one(series, "gpu_below_seconds_total", level="0.5"))
    assert grown(one(series, "gpu_idle_seconds_total")) <= low <= half


def test_energy_is_the_integral_of_power() -> None:
    series = page(run_on(SERVER))
    watts = one(series, "gpu_power_watts", gpu="0")
    joules = grown(one(series, "gpu_energy_joules_total", gpu="0"))
    assert joules == pytest.approx(float(watts.mean()) * LENGTH * 60, rel=0.08)
    assert watts.max() <= SERVER.card.watts


def test_cpu_time_sums_to_all_cpus_and_covers_the_processes() -> None:
    series = page(run_on(HGX))
    modes = {
        each.labels["mode"]: grown(np.array(each.values, dtype=float))
        for each in chosen(series, "host_cpu_seconds_total")
    }
    assert sum(modes.values()) == pytest.approx(HGX.cpus * LENGTH * 60, rel=1e-6)
    ranks = sum(
        grown(np.array(each.values, dtype=float)) for each in chosen(series, "training_process_cpu_seconds_total")
    )
    assert modes["user"] + modes["system"] + modes["other"] >= ranks


def test_bytes_read_are_samples_times_the_bytes_of_one() -> None:
    work = replace(CLOUD_WORK, data="network", bytes_per_sample=1e6)
    quiet = Host(received=0.0)
    series = page(replace(run_on(CLOUD, before=work), hosts=(From(ALWAYS, quiet),)))
    samples = grown(one(series, "training_samples_total"))
    assert grown(one(series, "host_network_receive_bytes_total")) == pytest.approx(samples * 1e6, rel=5e-3)


def test_what_goes_to_the_gpu_is_samples_times_what_one_takes() -> None:
    series = page(run_on(CLOUD))
    samples = grown(one(series, "training_samples_total"))
    copied = samples * CLOUD_WORK.copied_per_sample
    assert grown(one(series, "gpu_pcie_receive_bytes_total")) == pytest.approx(copied, rel=5e-3)


def test_a_gpu_without_profiling_says_so_and_shows_none() -> None:
    series = page(run_on(LAPTOP))
    assert not chosen(series, "gpu_sm_active_seconds_total")
    assert set(one(series, "gpu_signal_supported", signal="sm_active_seconds_total")) == {0.0}
    assert set(one(page(run_on(SINGLE)), "gpu_signal_supported", signal="sm_active_seconds_total")) == {1.0}


def test_a_hang_ends_steps_and_reports_and_not_the_process() -> None:
    series = page(run_on(CLOUD, replace(CLOUD_WORK, hangs="idle"), onset=4.0))
    for name in ("training_step_seconds_count", "training_last_push_timestamp_seconds"):
        values = one(series, name)
        assert values[8] > values[7]
        assert values[-1] == values[10]
    assert set(one(series, "training_state", state="running")) == {1.0}


def test_a_restart_begins_the_sessions_counters_again() -> None:
    series = page(run_on(CLOUD, restarts=(5.0,)))
    assert set(one(series, "training_restarts_total")) == {0.0, 1.0}
    steps = one(series, "training_step_seconds_count")
    assert np.isnan(steps[10])  # no step of the new session has ended
    assert steps[9] > steps[12] > 0
    assert set(one(series, "training_start_timestamp_seconds")) == {-1500.0, 300.0}


def test_a_finished_run_says_so_and_goes_after_a_while() -> None:
    series = page(run_on(CLOUD, end=3.0), length=30.0)
    finished = one(series, "training_state", state="finished")
    assert finished[2] == 0.0
    assert finished[10] == 1.0
    assert np.isnan(finished[-1])
    assert one(series, "gpu_utilization_ratio")[20] == 0.0


def test_a_gpu_off_the_bus_leaves_only_the_word_of_it() -> None:
    story = run_on(SERVER)
    gone = replace(story.gpus[0], minute=4.0, state=replace(story.gpus[0].state, present=False), only=(1,))
    series = page(replace(story, gpus=(*story.gpus, gone)))
    assert one(series, "gpu_up", gpu="1")[-1] == 0.0
    assert one(series, "gpu_lost_info", gpu="1", reason="gpu_lost")[-1] == 1.0
    assert np.isnan(one(series, "gpu_power_watts", gpu="1")[-1])
    assert one(series, "gpu_up", gpu="0")[-1] == 1.0


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    story = run_on(LAPTOP)
    first, again, other = (page(story, seed=seed, noise=True) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_without_noise_only_the_steps_differ_between_seeds() -> None:
    first, other = (page(run_on(LAPTOP), seed=seed) for seed in (1, 2))
    assert [(each.name, each.labels) for each in first] == [(each.name, each.labels) for each in other]
    mean = [grown(one(each, "training_step_seconds_sum")) for each in (first, other)]
    assert mean[0] != mean[1]
    assert mean[0] == pytest.approx(mean[1], rel=0.02)


def test_noise_misses_two_scrapes_restarts_one_exporter_and_takes_away_a_family() -> None:
    calm, noisy = page(run_on(LAPTOP)), page(run_on(LAPTOP), noise=True)
    (up,) = (each for each in noisy if each.name == "up")
    assert up.values.count(0.0) == 2
    busy = one(noisy, "gpu_busy_seconds_total", gpu="0")
    assert (np.diff(busy[~np.isnan(busy)]) < 0).sum() == 1
    gone = {each.name for each in calm} - {each.name for each in noisy}
    assert gone


def test_noise_takes_away_a_rank_where_there_are_four_and_none_that_the_case_is_about() -> None:
    late = run_on(QUAD, replace(NODE_WORK, backward=0.4), only=(2,))
    for seed in range(12):
        missing = Disturbance(late, seed, 40, 30, noise=True).missing[0]
        assert len(missing) == 1
        assert missing[0] not in (0, 2)
    assert Disturbance(run_on(SERVER), 1, 40, 30, noise=True).missing == [()]


def test_noise_leaves_shares_alone() -> None:
    story = run_on(CLOUD, before=taking(CLOUD_WORK, "data_wait", 0.3))
    for seed in range(3):
        series = page(story, seed=seed, noise=True)
        phases = {
            each.labels["phase"]: grown(np.array([value for value in each.values if value is not None]))
            for each in chosen(series, "training_phase_seconds_total")
        }
        assert phases["data_wait"] / sum(phases.values()) == pytest.approx(0.3, abs=0.01)


def test_regular_dips_are_counted_with_their_period() -> None:
    moments = np.arange(0, 600, 1 / 6)
    idle = (moments % 20 >= 18).astype(float)
    used = Utilization(np.concatenate([[0.0], np.cumsum(1 - idle)[:-1]]) / 6, moments)
    end = np.array([600.0])
    assert used.watched("dips", end)[0] == 30
    count, total, squares = (used.watched(f"dip_interval{part}", end)[0] for part in ("s", "_sum", "_sum_of_squares"))
    assert total / count == pytest.approx(20, rel=1e-3)
    assert squares / count == pytest.approx(400, rel=1e-3)


def test_a_short_fall_within_a_sample_is_no_dip() -> None:
    moments = np.arange(0, 100, 1 / 6)
    busy = np.full(len(moments) - 1, 0.6)
    used = Utilization(np.concatenate([[0.0], np.cumsum(busy)]) / 6, moments)
    assert used.watched("dips", np.array([100.0]))[0] == 0


def test_rows_end_exactly_with_their_segments() -> None:
    run = Run(work=(From(ALWAYS, Work()), From(3.0, Work(data_wait=0.4)), From(7.5, Work(hangs="idle"))))
    course = Course(run, 720.0, np.random.default_rng(1), pace=1.0, spread=1.0)
    ends = [float(course.ends[course.segment_of_row == number][-1]) for number in range(len(course.segments))]
    assert ends == pytest.approx([each.end for each in course.segments])
    assert course.durations.min() >= 0


def test_a_story_that_says_nothing_of_a_subject_is_refused() -> None:
    with pytest.raises(ValueError, match="let a state begin earlier"):
        at((From(5.0, Host()),), 0, 1.0)


def test_every_machine_of_a_server_has_its_own_series() -> None:
    series = page(run_on(SERVER, before=SERVER_WORK, count=2))
    assert {each.labels["instance"] for each in series} == {"node0:19400", "node1:19400"}
    assert all(each.labels["cluster"] == "here" for each in series)


def test_noise_leaves_a_load_alone_that_the_case_is_about() -> None:
    full = replace(run_on(SERVER), hosts=(From(ALWAYS, Host(cores=22.0)),))
    for seed in range(3):
        series = page(full, seed=seed, noise=True)
        grew = {
            each.labels["mode"]: grown(np.array([value for value in each.values if value is not None]))
            for each in chosen(series, "host_cpu_seconds_total")
        }
        busy = 1 - (grew["idle"] + grew["iowait"]) / sum(grew.values())
        assert busy == pytest.approx((22.0 + 2 * 4.35) / 32, abs=0.01)
