"""Healthy cases that look like trouble, and cases without enough evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.scenarios.case import Case
from tests.scenarios.cases.held_out.grounds import (
    A2,
    DESK_1,
    G2,
    G4,
    HGX_H200,
    INPUT,
    LAB,
    SLICES,
    TWO_H200,
    Draw,
    late,
    negative,
    on,
    pausing,
    scene,
    unknown,
)
from tests.scenarios.cases.settings import INPUT_CHILDREN, WELL, slowed, taking
from tests.scenarios.story import ALWAYS, From, Gpu, Host, Kernels, Run, Story


def _runs() -> Iterator[Case]:
    # Sixteen batches to a step of ten seconds; a little of it in collectives that nothing hides.
    draw = Draw("accumulation")
    work = taking(
        replace(slowed(TWO_H200.work, draw.between(5, 7)), batch=384, spread=0.015, communication=0.0),
        "communication",
        draw.between(0.02, 0.035),
    )
    yield negative(
        "steps_of_ten_seconds",
        scene(TWO_H200, draw.dress(), before=work, measures_communication=True),
        forbidden=frozenset({"stalled", "comm_bound", "periodic_host_work", "step_outliers", "gpu_load_imbalance"}),
        lost=None,
    )
    draw = Draw("hidden")
    hidden = taking(replace(G4.work, busy_while_waiting=1.0, loader_workers=0), "data_wait", draw.between(0.2, 0.5))
    yield negative(
        "wait_that_the_queue_hides",
        scene(G4, draw.dress(), before=replace(hidden, loader_cores=0.0, main_thread=0.8)),
        forbidden=INPUT,
    )
    # Another user's build fills the desk; the run has eight CPUs to itself.
    draw = Draw("neighbour")
    yield negative(
        "build_beside_a_training",
        scene(
            DESK_1,
            draw.dress(),
            before=DESK_1.work,
            cpu_limit=8.0,
            host=Host(cores=10.7, cpu_waiting=draw.between(0.2, 0.5)),
            onset=ALWAYS,
        ),
        forbidden=INPUT | {"small_batch", "launch_bound"},
    )
    # TensorFlow takes nine tenths of the card beforehand.
    draw = Draw("preallocated")
    yield negative(
        "framework_takes_the_card",
        scene(
            DESK_1,
            {**draw.dress(), "framework": "tensorflow"},
            before=replace(DESK_1.work, memory=0.75, used=0.4, reserved=draw.between(0.9, 0.97)),
        ),
        forbidden=frozenset({"gpu_mem_near_oom", "gpu_mem_leak", "gpu_mem_fragmented"}),
    )
    draw = Draw("seldom_validation")
    rarely = pausing(A2.work, "evaluation", draw.between(0.05, 0.08), every=draw.between(480, 620, 0), busy=0.92)
    yield negative(
        "validation_now_and_then",
        scene(A2, {**draw.dress(), "start": -60.0}, before=rarely),
        acceptable=WELL | {"evaluation_overhead"},
        forbidden=INPUT | {"stalled", "periodic_host_work", "underused", "small_batch"},
        lost=None,
        length=65.0,
    )
    draw = Draw("background_saves")
    saves = pausing(HGX_H200.work, "checkpoint", draw.between(0.004, 0.009), every=draw.between(140, 200, 0))
    yield negative(
        "saves_in_the_background",
        scene(
            HGX_H200,
            {**draw.dress(), "start": -60.0},
            before=saves,
            host=replace(HGX_H200.host, disk_written=2.2e9, io_waiting=0.3, io_stalled=0.08, disk_busy=0.9),
            onset=ALWAYS,
        ),
        forbidden=frozenset({"checkpoint_stall", "input_disk_bound", "periodic_host_work", "hang_io"}),
        lost=None,
        length=65.0,
    )
    draw = Draw("utterances")
    yield negative(
        "utterances_of_all_lengths",
        scene(A2, draw.dress(), before=replace(A2.work, spread=draw.between(0.11, 0.15), tokens_per_sample=900)),
        forbidden=frozenset({"step_outliers", "step_time_drift"}),
        length=60.0,
    )
    # Graphs are compiled and files read for the first time: the first four minutes of steps are slow.
    draw = Draw("compilation")
    dress = {**draw.dress(), "start": 1.0, "initialization": 2.0}
    story = scene(G2, dress, G2.work, before=taking(G2.work, "data_wait", draw.between(0.4, 0.6)), onset=7.0)
    yield negative(
        "first_minutes_are_slow",
        story,
        acceptable=WELL | {"insufficient_data"},
        forbidden=INPUT | {"long_init", "small_batch"},
        lost=None,
    )
    draw = Draw("over")
    yield negative(
        "run_that_is_over",
        scene(G4, draw.dress(), end=draw.between(10, 16, 1)),
        forbidden=frozenset({"stalled", "hang_io", "idle_allocated", "lost", "underused"}),
        verdict_expected=False,
        length=42.0,
    )
    # A spot machine is taken back and given again, twice.
    draw = Draw("spot")
    restarts = (draw.between(8, 12, 1), draw.between(30, 35, 1))
    yield negative(
        "taken_back_twice",
        scene(G4, draw.dress(), restarts=restarts, restart_seconds=draw.between(40, 70, 0)),
        acceptable=WELL | {"insufficient_data", "goodput_low"},
        forbidden=frozenset({"restart_loop", "stalled"}),
        lost=None,
        length=55.0,
    )
    # One record in a whole epoch makes a loss that is not a number.
    draw = Draw("record")
    yield negative(
        "one_bad_record_an_epoch",
        scene(A2, draw.dress(), before=replace(A2.work, losses_not_finite=1 / 1400)),
        forbidden=frozenset({"loss_nonfinite"}),
    )
    # An experiment may wait: the verdict stays, and no one is paged.
    draw = Draw("experiment")
    share = draw.between(0.2, 0.35)
    waits = taking(replace(A2.work, loader_cores=11.2, loader_workers=11), "data_wait", share)
    yield negative(
        "experiment_without_processors",
        scene(
            A2,
            draw.dress(),
            before=waits,
            host=Host(cores=0.3, cpu_waiting=draw.between(0.4, 0.7)),
            onset=ALWAYS,
            job_class="experiment",
        ),
        cause="input_cpu_saturated",
        acceptable=frozenset(),
        lost=share,
    )
    draw = Draw("a_little_late")
    yield negative(
        "rank_a_little_late",
        scene(LAB, draw.dress(), late(LAB.work, draw.between(0.02, 0.04)), only=(1,), measures_communication=True),
        forbidden=frozenset({"straggler_rank", "straggler_hw", "straggler_input", "comm_bound"}),
        lost=None,
    )


def _gpus() -> Iterator[Case]:
    draw = Draw("cap")
    full = replace(A2.work, kernels=Kernels(power=1.0, memory=0.6))
    yield negative(
        "power_cap_of_the_factory",
        scene(
            A2,
            draw.dress(),
            before=full,
            gpu=Gpu(throttled={"power_cap": draw.between(0.7, 0.98)}, clock=draw.between(0.86, 0.92), celsius=71),
            onset=ALWAYS,
        ),
        forbidden=frozenset({"thermal_throttle", "power_brake", "power_capped"}),
    )
    # Gamers' cards hardly ever reach the clock that their maker calls the maximum.
    draw = Draw("boost")
    yield negative(
        "clock_under_its_boost",
        scene(DESK_1, draw.dress(), gpu=Gpu(clock=draw.between(0.84, 0.89), celsius=77), onset=ALWAYS),
        forbidden=frozenset({"thermal_throttle", "clocks_limited", "straggler_hw", "power_brake"}),
        lost=None,
    )
    draw = Draw("recorded_row")
    yield negative(
        "row_remapped_and_recorded",
        scene(A2, draw.dress(), gpu=Gpu(xids=(63,), remapped=1, corrected=draw.whole(20, 400))),
        forbidden=frozenset({"xid_hw", "row_remap_failed", "ecc_uncorrected", "lost"}),
    )
    # Each of two runs has an instance of one GPU: neither slows the other.
    draw = Draw("instances")
    yield negative(
        "two_runs_on_two_mig_instances",
        Story(
            nodes=(SLICES.node,),
            runs=tuple(
                Run(
                    name=name,
                    ranks=((number,),),
                    work=(From(ALWAYS, draw.pace(SLICES.work)),),
                    pods=True,
                    namespace=namespace,
                )
                for number, (name, namespace) in enumerate((("vit", "research"), ("unet", "ads")))
            ),
            hosts=(From(ALWAYS, SLICES.host),),
            sharing="mig",
        ),
        forbidden=frozenset({"shared_unexpectedly", "gpu_load_imbalance", "idle_allocated", "underused"}),
        lost=None,
    )
    # A user tries things out by hand.
    draw = Draw("by_hand")
    states = [From(ALWAYS, Gpu(foreign=("grace",), foreign_memory=0.2))]
    for minute in (3.0, 19.0, 38.0, 61.0):
        began = minute + draw.between(0, 4, 1)
        states.append(From(began, Gpu(foreign=("grace",), foreign_busy=draw.between(0.75, 0.97), foreign_memory=0.5)))
        states.append(From(began + draw.between(2, 7, 1), Gpu(foreign=("grace",), foreign_memory=0.5)))
    yield negative(
        "tried_out_by_hand",
        Story(nodes=(G2.node,), hosts=(From(ALWAYS, G2.host),), gpus=tuple(states)),
        subject="gpu",
        acceptable=WELL | {"underused", "idle_allocated"},
        culprit=on(0),
        verdict_expected=False,
        lost=None,
        length=80.0,
    )


def _unknowns() -> Iterator[Case]:
    common: dict[str, Any] = {"length": 37.0}
    # The wait is measured; what the machine does meanwhile is not.
    draw = Draw("no_host")
    share = draw.between(0.2, 0.4)
    waits = taking(replace(A2.work, loader_cores=8.4), "data_wait", share)
    yield unknown(
        "wait_on_an_unknown_machine",
        scene(A2, draw.dress(), waits, more={"absent": ("stallscope_host_",)}),
        cause="input_bound",
        alerts=frozenset({"TrainingInputBound"}),
        forbidden=INPUT_CHILDREN,
        lost=share,
        **common,
    )
    # An exporter that sees no GPU at all: whether anything waits for the wait can't be known.
    draw = Draw("no_gpu")
    yield unknown(
        "no_gpu_is_seen",
        scene(
            A2,
            draw.dress(),
            before=taking(replace(A2.work, loader_cores=8.4), "data_wait", draw.between(0.2, 0.4)),
            more={"absent": ("stallscope_gpu_",)},
        ),
        acceptable=frozenset({"input_bound"}),
        allowed=frozenset({"TrainingInputBound", "TrainingTelemetryMissing", "StallscopeSourceFailing"}),
        forbidden=frozenset({"healthy", "compute_bound", "small_batch", "sync_stall"}) | INPUT_CHILDREN,
        onset=0.0,
        **common,
    )
    draw = Draw("early")
    start = draw.between(1, 2, 1)
    yield unknown(
        "a_few_minutes_old",
        scene(
            DESK_1,
            {**draw.dress(), "start": start, "initialization": 1.0},
            before=taking(DESK_1.work, "host_copy", draw.between(0.25, 0.5)),
        ),
        forbidden=frozenset({"h2d_bound", "healthy", "compute_bound", "long_init"}) | INPUT,
        onset=start + 1.5,
        length=9.0,
    )
    # One of two ranks never reports.
    draw = Draw("silent")
    yield unknown(
        "one_rank_of_two_is_silent",
        scene(LAB, draw.dress(), missing=(1,), measures_communication=True),
        acceptable=WELL,
        alerts=frozenset({"TrainingTelemetryMissing"}),
        forbidden=frozenset({"straggler_rank", "straggler_hw", "straggler_input", "scaling_inefficient", "stalled"}),
        onset=0.0,
        **common,
    )
    draw = Draw("unreachable")
    minute = draw.between(8, 12, 1)
    yield unknown(
        "second_machine_out_of_reach",
        scene(G2, draw.dress(), count=2, measures_communication=True, more={"exporter_down": ((1, minute),)}),
        acceptable=WELL,
        alerts=frozenset({"StallscopeExporterDown"}),
        allowed=frozenset({"TrainingTelemetryMissing"}),
        forbidden=frozenset({"stalled", "lost", "hang_io", "straggler_rank", "comm_bound"}),
        onset=minute,
        verdict_expected=False,
        **common,
    )


CASES: tuple[Case, ...] = (*_runs(), *_gpus(), *_unknowns())
