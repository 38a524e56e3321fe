"""Runs of several ranks, GPU memory, hardware, the use of GPUs, and machines in trouble."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.scenarios.case import Case
from tests.scenarios.cases.held_out.grounds import (
    A2,
    DESK,
    DESK_1,
    G2,
    G4,
    HGX_H200,
    INPUT,
    LAB,
    LAB_1,
    OLD,
    RIG,
    TWO_H200,
    Draw,
    late,
    on,
    pausing,
    positive,
    scene,
    step_of,
)
from tests.scenarios.cases.settings import WELL, slowed, taking
from tests.scenarios.story import ALWAYS, From, Gpu, Kernels, Run, Story, Work

_SHORT = 37.0
_SOON = 22.0
_NOT_THE_NETWORK = frozenset({"comm_bound", "small_batch", "scaling_inefficient", "healthy"})
_INSTEAD = frozenset({"healthy", "compute_bound", "comm_bound", "small_batch"})


def _ranks() -> Iterator[Case]:
    # Three ranks: one computes for longer, for an unknown reason.
    draw = Draw("late_rank")
    share, rank = draw.between(0.14, 0.35), draw.whole(0, 2)
    work = draw.pace(RIG.work)
    yield positive(
        "late_rank_of_three",
        "straggler_rank",
        "TrainingStragglerRank",
        scene(
            RIG,
            draw.dress(),
            late(work, share),
            before=work,
            only=(rank,),
            measures_communication=draw.one_of((False, True)),
        ),
        forbidden=_NOT_THE_NETWORK | {"straggler_hw", "straggler_input"},
        culprit=(("rank", str(rank)),),
        lost=share,
        length=_SHORT,
    )
    draw = Draw("hungry_rank")
    share, rank = draw.between(0.15, 0.35), draw.whole(0, 1)
    yield positive(
        "hungry_rank_of_two",
        "straggler_input",
        "TrainingStragglerInput",
        scene(
            LAB,
            draw.dress(),
            late(LAB.work, share, by="data_wait"),
            only=(rank,),
            measures_communication=True,
        ),
        forbidden=_NOT_THE_NETWORK | {"straggler_hw"},
        culprit=(("rank", str(rank)),),
        lost=share,
        length=_SHORT,
    )
    draw = Draw("hot_rank")
    clock, rank = draw.between(0.64, 0.78), draw.whole(0, 1)
    yield positive(
        "hot_rank_of_two",
        "straggler_hw",
        "TrainingStragglerHw",
        scene(
            TWO_H200,
            draw.dress(),
            slowed(TWO_H200.work, 0.97 / clock),
            only=(rank,),
            gpu=Gpu(throttled={"sw_thermal": draw.between(0.85, 0.99)}, clock=clock, celsius=87),
            gpus=(rank,),
            measures_communication=True,
        ),
        also=("GpuThermalThrottle",),
        acceptable=frozenset({"thermal_throttle"}),
        forbidden=_NOT_THE_NETWORK | {"straggler_input"},
        culprit=(("rank", str(rank)),),
        lost=round(1 - clock / 0.97, 3),
        tolerance=0.06,
        length=_SHORT,
    )
    # Gradients travel over 16 Gb/s between two small machines.
    draw = Draw("slow_wire")
    share = draw.between(0.22, 0.45)
    traffic = 0.8 * share * G2.node.link
    yield positive(
        "gradients_over_a_slow_wire",
        "comm_bound",
        "TrainingCommBound",
        scene(
            G2,
            draw.dress(),
            taking(G2.work, "communication", share),
            count=2,
            host=replace(G2.host, received=traffic, transmitted=traffic),
            measures_communication=True,
        ),
        forbidden=INPUT | {"straggler_rank", "straggler_hw", "small_batch", "healthy"},
        lost=share,
        length=_SHORT,
    )
    draw = Draw("data_parallel")
    share = draw.between(0.45, 0.6)
    yield positive(
        "one_process_for_two_old_gpus",
        "gpu_load_imbalance",
        "TrainingGpuLoadImbalance",
        scene(
            OLD,
            draw.dress(),
            before=replace(OLD.work, loader_workers=14, loader_cores=6.0),
            ranks=((0, 1),),
            gpu_shares=(1.0, share),
        ),
        acceptable=WELL,
        onset=0.0,
        length=45.0,
        verdict_expected=False,
    )
    draw = Draw("no_nvlink")
    efficiency = draw.between(0.5, 0.68)
    alone = replace(DESK.work, communication=0.0)
    yield positive(
        "two_gpus_do_little_more_than_one",
        "scaling_inefficient",
        "TrainingScalingInefficient",
        scene(
            DESK,
            draw.dress(),
            before=replace(alone, backward=alone.backward + step_of(alone) * (1 / efficiency - 1)),
            values={"single_gpu_samples_per_second": alone.batch / step_of(alone)},
        ),
        acceptable=WELL | {"comm_bound"},
        onset=0.0,
        length=42.0,
        verdict_expected=False,
    )


def _memory() -> Iterator[Case]:
    draw = Draw("near_oom")
    top = draw.between(0.94, 0.97)
    yield positive(
        "memory_nearly_full",
        "gpu_mem_near_oom",
        "TrainingGpuMemNearOom",
        scene(
            G2,
            {**draw.dress(), "framework": "pytorch"},
            replace(G2.work, memory=top, allocator_retries=draw.between(1, 4)),
        ),
        acceptable=WELL,
        lost=0.0,
        length=_SHORT,
        verdict_expected=False,
    )


def _hardware() -> Iterator[Case]:
    # Hot, and short of data as well: hardware first.
    draw = Draw("hot_and_hungry")
    clock = draw.between(0.6, 0.74)
    wait = draw.between(0.11, 0.15)
    yield positive(
        "hot_card_that_also_waits",
        "thermal_throttle",
        "GpuThermalThrottle",
        scene(
            DESK_1,
            draw.dress(),
            taking(slowed(replace(DESK_1.work, loader_cores=11.0, loader_workers=13), 0.97 / clock), "data_wait", wait),
            gpu=Gpu(throttled={"sw_thermal": draw.between(0.88, 0.99)}, clock=clock, celsius=88),
            gpus=(0,),
        ),
        subject="gpu",
        allowed=frozenset({"TrainingInputBound"}),
        forbidden=_INSTEAD | {"power_capped", "input_few_workers"},
        culprit=on(0),
        lost=round(1 - clock / 0.97, 3),
        tolerance=0.08,
        length=_SHORT,
    )
    draw = Draw("brake")
    share = draw.between(0.08, 0.5)
    yield positive(
        "rack_brakes_for_power",
        "power_brake",
        "GpuPowerBrake",
        scene(
            A2,
            draw.dress(),
            slowed(A2.work, 1 + share),
            gpu=Gpu(throttled={"power_brake": share, "hw_slowdown": share}, clock=0.97 - 0.5 * share),
        ),
        subject="gpu",
        forbidden=_INSTEAD | {"thermal_throttle", "power_capped"},
        culprit=on(0),
        length=_SOON,
    )
    draw = Draw("xid")
    code = draw.one_of((62, 64, 95, 120, 140, 143))
    yield positive(
        f"xid_{code}",
        "xid_hw",
        "GpuXidHw",
        scene(HGX_H200, draw.dress(), gpu=Gpu(xids=(code,))),
        subject="gpu",
        forbidden=_INSTEAD | {"xid_app"},
        culprit=on(0),
        length=_SOON,
    )
    draw = Draw("gone")
    yield positive(
        "only_gpu_gone",
        "lost",
        "GpuLost",
        scene(
            A2,
            draw.dress(),
            replace(A2.work, hangs="idle"),
            gpu=Gpu(present=False, xids=(79,)),
            killed=(0,),
        ),
        subject="gpu",
        acceptable=frozenset({"xid_hw"}),
        allowed=frozenset({"GpuXidHw", "TrainingStalled", "TrainingHangIo", "TrainingTelemetryMissing"}),
        forbidden=_INSTEAD | {"insufficient_data", "idle_allocated"},
        culprit=on(0),
        length=_SOON,
    )
    draw = Draw("ecc")
    yield positive(
        "one_bit_too_many",
        "ecc_uncorrected",
        "GpuEccUncorrected",
        scene(LAB_1, draw.dress(), gpu=Gpu(uncorrected=1)),
        subject="gpu",
        forbidden=_INSTEAD,
        culprit=on(0),
        length=_SOON,
    )
    draw = Draw("rows")
    yield positive(
        "no_spare_rows",
        "row_remap_failed",
        "GpuRowRemapFailed",
        scene(A2, draw.dress(), gpu=Gpu(remap_failed=True, remapped=draw.whole(4, 8))),
        subject="gpu",
        forbidden=_INSTEAD,
        culprit=on(0),
        length=_SOON,
    )
    draw = Draw("riser")
    yield positive(
        "card_on_a_riser",
        "pcie_degraded",
        "GpuPcieDegraded",
        scene(DESK_1, draw.dress(), gpu=Gpu(width=draw.one_of((1, 4)))),
        subject="gpu",
        forbidden=frozenset({"lost", "thermal_throttle"}),
        culprit=on(0),
        lost=0.0,
        length=_SHORT,
    )
    draw = Draw("link")
    gpu = draw.whole(0, 1)
    yield positive(
        "one_link_of_eighteen_down",
        "nvlink_down",
        "GpuNvlinkDown",
        scene(TWO_H200, draw.dress(), gpu=Gpu(links_down=1), gpus=(gpu,)),
        subject="gpu",
        forbidden=frozenset({"lost", "pcie_degraded"}),
        culprit=on(gpu),
        lost=0.0,
        length=32.0,
    )


def _use() -> Iterator[Case]:
    # No shim, short steps: every sample is low, and none shows why.
    draw = Draw("unseen")
    busy, step = draw.between(0.3, 0.55), draw.between(0.03, 0.06)
    low = Work(
        data_wait=(1 - busy) * step,
        host_copy=0.0,
        forward=0.3 * busy * step,
        backward=0.65 * busy * step,
        optimizer=0.05 * busy * step,
        other=0.0,
        kernels=Kernels(sm=0.8, power=0.7),
        batch=64,
        data="none",
        loader_cores=2.0,
    )
    yield positive(
        "pod_without_shim_at_half_use",
        "underused",
        "GpuUnderused",
        scene(A2, {**draw.dress(), "pods": True, "namespace": "ads"}, low, instrumented=False),
        subject="gpu",
        run="",
        forbidden=INPUT | {"small_batch", "idle_allocated"},
        culprit=on(0),
        length=_SHORT,
    )
    draw = Draw("dips")
    share, every = draw.between(0.09, 0.2), draw.between(22, 40, 1)
    dips = pausing(G2.work, "other", share, every=every)
    dips = replace(dips, pauses=(replace(dips.pauses[0], spread=draw.between(0.03, 0.12)),))
    yield positive(
        "dips_at_regular_times_without_shim",
        "periodic_host_work",
        "GpuPeriodicHostWork",
        scene(G2, draw.dress(), dips, instrumented=False),
        subject="gpu",
        run="",
        acceptable=frozenset({"underused"}),  # whose second form is use that fluctuates
        allowed=frozenset({"GpuUnderused"}),
        forbidden=INPUT | {"small_batch", "idle_allocated"},
        culprit=on(0),
        lost=share,
        length=60.0,
    )
    draw = Draw("forgotten")
    begin = draw.between(4, 9, 0)
    forgotten = (
        From(ALWAYS, Gpu(foreign=("edsger",), foreign_busy=draw.between(0.6, 0.95), foreign_memory=0.3)),
        From(begin, Gpu(foreign=("edsger",), foreign_busy=0.0, foreign_memory=0.3)),
    )
    yield positive(
        "notebook_left_open",
        "idle_allocated",
        "GpuIdleAllocated",
        Story(nodes=(G2.node,), hosts=(From(ALWAYS, G2.host),), gpus=forgotten),
        subject="gpu",
        run="",
        forbidden=frozenset({"underused", "mem_zombie", "small_batch"}),
        culprit=on(0),
        onset=begin,
        lost=1.0,
        length=100.0,
    )
    draw = Draw("leftover")
    yield positive(
        "memory_of_a_dead_process",
        "mem_zombie",
        "GpuMemZombie",
        scene(OLD, draw.dress(), ranks=((0,),), gpu=Gpu(kept=draw.between(0.15, 0.7)), gpus=(1,)),
        subject="gpu",
        run="",
        acceptable=WELL,
        forbidden=frozenset({"idle_allocated", "underused", "packing_candidate"}),
        culprit=on(1),
        length=30.0,
    )
    half = replace(slowed(DESK.work, 2.0), memory=0.4, communication=0.0)
    yield positive(
        "two_pods_on_the_first_gpu",
        "shared_unexpectedly",
        "GpuSharedUnexpectedly",
        Story(
            nodes=(DESK.node,),
            runs=(
                Run(
                    name="vit", ranks=((0,),), work=(From(ALWAYS, half),), pods=True, namespace="research", cpu_limit=16
                ),
                Run(
                    name="deepfm",
                    ranks=((0,),),
                    work=(From(ALWAYS, half),),
                    pods=True,
                    namespace="ads",
                    start=7.0,
                    cpu_limit=16,
                ),
            ),
            hosts=(From(ALWAYS, DESK.host),),
        ),
        subject="gpu",
        run="vit",
        acceptable=WELL,
        forbidden=frozenset({"underused", "idle_allocated", "packing_candidate"}),
        culprit=on(0),
        length=_SHORT,
    )


def _hosts() -> Iterator[Case]:
    blamed = (("instance", "node0:19400"),)
    draw = Draw("shared_memory")
    yield positive(
        "shared_memory_full",
        "shm_full",
        "HostShmFull",
        scene(G4, draw.dress(), host=replace(G4.host, shared_memory=draw.between(0.96, 0.99))),
        subject="host",
        acceptable=WELL,
        culprit=blamed,
        lost=0.0,
        length=_SHORT,
        verdict_expected=False,
    )
    draw = Draw("memory")
    yield positive(
        "memory_short_on_a_small_machine",
        "mem_pressure",
        "HostMemPressure",
        scene(
            G4,
            draw.dress(),
            host=replace(
                G4.host,
                memory_used=draw.between(0.94, 0.98),
                page_cache=0.02,
                memory_waiting=draw.between(0.15, 0.4),
            ),
        ),
        subject="host",
        acceptable=WELL,
        culprit=blamed,
        lost=0.0,
        length=45.0,
        verdict_expected=False,
    )
    draw = Draw("killed")
    yield positive(
        "worker_killed_for_memory",
        "oom_kill",
        "HostOomKill",
        scene(G4, draw.dress(), host=replace(G4.host, oom_kills=draw.between(0.04, 0.1), memory_used=0.7)),
        subject="host",
        acceptable=WELL,
        culprit=blamed,
        lost=0.0,
        length=25.0,
        verdict_expected=False,
    )


CASES: tuple[Case, ...] = (*_ranks(), *_memory(), *_hardware(), *_use(), *_hosts())
