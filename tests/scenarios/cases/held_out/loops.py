"""Training loops that lose time by themselves: input, copies, kernels, and work between steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.scenarios.case import Case
from tests.scenarios.cases.held_out.grounds import (
    A2,
    DESK_1,
    G2,
    G4,
    HGX_H200,
    INPUT,
    LAB_1,
    OLD,
    OLD_1,
    SLICES,
    TWO_H200,
    WAITING,
    Draw,
    pausing,
    positive,
    scene,
    small_steps,
    step_of,
)
from tests.scenarios.cases.settings import WELL, taking
from tests.scenarios.story import ALWAYS, From, Host, Kernels, Run, Story, Work

_SHORT = 37.0
"""Minutes of most cases."""


def _waiting(work: Work, share: float, **changes: object) -> Work:
    return taking(replace(work, **changes), "data_wait", share)  # type: ignore[arg-type]


def _input() -> Iterator[Case]:
    # Workers enough, CPUs left, storage calm: nothing shows why.
    draw = Draw("input_bound")
    share = draw.between(0.15, 0.35)
    work = draw.pace(A2.work)
    yield positive(
        "wait_without_a_reason",
        "input_bound",
        "TrainingInputBound",
        scene(A2, draw.dress(), _waiting(work, share, loader_cores=draw.between(8.2, 8.7)), before=work),
        forbidden=INPUT - {"input_bound"} | {"small_batch"},
        lost=share,
        length=_SHORT,
    )
    # An old kernel reports no pressure; the CPUs are full nevertheless.
    draw = Draw("saturated_without_pressure")
    share = draw.between(0.2, 0.45)
    yield positive(
        "decoding_fills_processors_without_pressure",
        "input_cpu_saturated",
        "TrainingInputCpuSaturated",
        scene(
            A2,
            draw.dress(),
            _waiting(A2.work, share, loader_cores=draw.between(11.0, 11.5), loader_workers=12),
            more={"absent": ("stallscope_host_pressure_",)},
        ),
        forbidden=frozenset({"input_few_workers", "input_single_thread", "input_disk_bound"}),
        lost=share,
        length=_SHORT,
    )
    # Each utilisation sample is a second, and a step is a quarter: no sample is ever low.
    draw = Draw("saturated_small")
    share = draw.between(0.22, 0.4)
    yield positive(
        "four_processors_for_a_t4",
        "input_cpu_saturated",
        "TrainingInputCpuSaturated",
        scene(
            G4,
            draw.dress(),
            _waiting(G4.work, share, loader_cores=3.4, loader_workers=4),
            host=Host(cores=0.15, cpu_waiting=draw.between(0.4, 0.75)),
        ),
        forbidden=frozenset({"input_few_workers", "input_disk_bound", "small_batch", "healthy"}),
        lost=share,
        length=_SHORT,
    )
    # Bursts run into the quota, though on the mean the pod's six CPUs are not full, and the machine is half idle.
    draw = Draw("quota")
    share = draw.between(0.15, 0.3)
    before = replace(A2.work, loader_workers=6, loader_cores=3.6, quota_throttled=0.01)
    throttled = draw.between(0.4, 0.8)
    yield positive(
        "quota_of_six_processors",
        "input_cgroup_throttled",
        "TrainingInputCgroupThrottled",
        scene(
            A2,
            {**draw.dress(), "pods": True, "namespace": "speech"},
            _waiting(before, share, loader_cores=4.5, quota_throttled=throttled, quota_waited=2 * throttled),
            before=before,
            cpu_limit=6.0,
            quota=True,
        ),
        forbidden=frozenset({"input_few_workers", "input_disk_bound", "input_network_bound"}),
        lost=share,
        length=50.0,
    )
    draw = Draw("one_worker")
    share = draw.between(0.25, 0.55)
    yield positive(
        "one_worker",
        "input_few_workers",
        "TrainingInputFewWorkers",
        scene(G2, draw.dress(), _waiting(G2.work, share, loader_workers=1, loader_cores=draw.between(0.75, 0.88))),
        forbidden=frozenset({"input_cpu_saturated", "input_too_many_workers", "input_disk_bound", "small_batch"}),
        lost=share,
        length=_SHORT,
    )
    # A data set of one shard: the job has 16 of 24 CPUs, and one thread of it works.
    draw = Draw("one_shard")
    share = draw.between(0.15, 0.4)
    yield positive(
        "one_shard_for_twelve_workers",
        "input_single_thread",
        "TrainingInputSingleThread",
        scene(
            LAB_1,
            {**draw.dress(), "slurm_job": "8127"},
            _waiting(LAB_1.work, share, loader_workers=12, loader_cores=0.8, main_thread=0.992),
            cpu_limit=16.0,
        ),
        forbidden=frozenset({"input_cpu_saturated", "input_too_many_workers", "input_disk_bound", "launch_bound"}),
        lost=share,
        length=_SHORT,
    )
    draw = Draw("too_many")
    share = draw.between(0.15, 0.3)
    workers = draw.whole(24, 32)
    yield positive(
        "workers_crowd_an_old_machine",
        "input_too_many_workers",
        "TrainingInputTooManyWorkers",
        scene(
            OLD,
            draw.dress(),
            _waiting(OLD.work, share, loader_workers=workers, loader_cores=draw.between(6.4, 6.9)),
            host=Host(cores=0.5, cpu_waiting=draw.between(0.35, 0.6)),
        ),
        forbidden=frozenset({"input_few_workers", "input_single_thread", "input_disk_bound"}),
        lost=share,
        length=_SHORT,
    )
    draw = Draw("disk")
    share = draw.between(0.2, 0.5)
    waits = draw.between(0.3, 0.6)
    yield positive(
        "rotating_disk",
        "input_disk_bound",
        "TrainingInputDiskBound",
        scene(
            LAB_1,
            draw.dress(),
            _waiting(LAB_1.work, share, bytes_per_sample=1.6e6, loader_cores=2.5, loader_workers=18),
            host=Host(cores=1.2, iowait=0.2, io_waiting=waits, io_stalled=0.7 * waits, disk_busy=0.99),
        ),
        forbidden=frozenset(
            {"input_few_workers", "input_network_bound", "input_cpu_saturated", "input_remote_latency"}
        ),
        lost=share,
        length=_SHORT,
    )
    draw = Draw("line")
    share = draw.between(0.22, 0.45)
    waits_for_line = _waiting(G2.work, share, data="network", loader_cores=1.6)
    rate = draw.between(0.88, 0.96) * G2.node.link
    yield positive(
        "object_store_at_line_rate",
        "input_network_bound",
        "TrainingInputNetworkBound",
        scene(
            G2,
            draw.dress(),
            replace(waits_for_line, bytes_per_sample=rate * step_of(waits_for_line) / waits_for_line.batch),
        ),
        forbidden=frozenset({"input_few_workers", "input_disk_bound", "input_cpu_saturated", "input_single_thread"}),
        lost=share,
        length=_SHORT,
    )
    draw = Draw("latency")
    share = draw.between(0.18, 0.4)
    before = replace(LAB_1.work, data="nfs")
    yield positive(
        "home_folders_answer_slowly",
        "input_remote_latency",
        "TrainingInputRemoteLatency",
        scene(
            LAB_1,
            draw.dress(),
            _waiting(before, share, loader_cores=1.2),
            before=before,
            host=Host(
                cores=1.2, nfs_in_flight=draw.between(90, 250), nfs_operations=900, io_waiting=0.04, io_stalled=0.01
            ),
        ),
        forbidden=frozenset({"input_network_bound", "input_cpu_saturated", "input_single_thread"}),
        lost=share,
        length=_SHORT,
    )


def _several() -> Iterator[Case]:
    # Two losses at once, of which one is several times the other.
    draw = Draw("wait_and_saves")
    share, saves = draw.between(0.25, 0.4), draw.between(0.05, 0.07)
    few = replace(HGX_H200.work, loader_workers=2, loader_cores=1.5)
    yield positive(
        "few_workers_and_some_saves",
        "input_few_workers",
        "TrainingInputFewWorkers",
        scene(HGX_H200, draw.dress(), pausing(_waiting(few, share), "checkpoint", saves, every=150.0)),
        allowed=frozenset({"TrainingCheckpointStall"}),
        forbidden=frozenset({"checkpoint_stall", "comm_bound", "periodic_host_work", "input_disk_bound"}),
        lost=share * (1 - saves),
        length=_SHORT,
    )
    draw = Draw("copies_and_callback")
    share, logs = draw.between(0.2, 0.32), draw.between(0.05, 0.08)
    copying = taking(replace(DESK_1.work, copied_per_sample=5e6), "host_copy", share)
    yield positive(
        "copies_and_a_callback",
        "h2d_bound",
        "TrainingH2dBound",
        scene(DESK_1, draw.dress(), pausing(copying, "logging", logs, steps=40)),
        allowed=frozenset({"TrainingCallbackStall"}),
        forbidden=INPUT | {"callback_stall", "sync_stall", "periodic_host_work"},
        lost=share * (1 - logs),
        length=_SHORT,
    )
    # On a MIG instance, beside another that trains well.
    draw = Draw("instance")
    share = draw.between(0.2, 0.4)
    waits = _waiting(SLICES.work, share, loader_workers=1, loader_cores=0.85)
    yield positive(
        "one_worker_on_a_mig_instance",
        "input_few_workers",
        "TrainingInputFewWorkers",
        Story(
            nodes=(SLICES.node,),
            runs=(
                Run(
                    name="vit",
                    ranks=((0,),),
                    work=(From(ALWAYS, SLICES.work), From(7.0, waits)),
                    pods=True,
                    namespace="research",
                ),
                Run(name="unet", ranks=((1,),), work=(From(ALWAYS, SLICES.work),), pods=True, namespace="ads"),
            ),
            hosts=(From(ALWAYS, SLICES.host),),
            sharing="mig",
        ),
        forbidden=frozenset({"input_cpu_saturated", "input_disk_bound", "small_batch"}),
        lost=share,
        length=_SHORT,
    )


def _device() -> Iterator[Case]:
    advice = INPUT | {"healthy", "compute_bound", "comm_bound"}
    draw = Draw("small_h200")
    tiny = Kernels(
        busy=draw.between(0.85, 0.96),
        memory=0.25,
        sm=draw.between(0.18, 0.38),
        occupancy=0.1,
        dram=0.12,
        tensor=0.08,
        fp32=0.1,
        power=draw.between(0.2, 0.38),
    )
    yield positive(
        "batch_of_four_on_an_h200",
        "small_batch",
        "TrainingSmallBatch",
        scene(
            HGX_H200,
            draw.dress(),
            before=small_steps(draw.between(0.009, 0.028), tiny, batch=4, memory=draw.between(0.08, 0.3)),
        ),
        onset=0.0,
        acceptable=frozenset({"launch_bound"}),
        forbidden=advice,
        lost=tiny.busy - tiny.sm,
        tolerance=0.1,
        length=_SHORT,
    )
    # The driver's counters only, on a card of 2017.
    draw = Draw("small_1080")
    weak = replace(tiny, busy=draw.between(0.85, 0.95), power=draw.between(0.25, 0.42))
    yield positive(
        "batch_of_eight_on_an_old_card",
        "small_batch",
        "TrainingSmallBatch",
        scene(
            OLD_1,
            draw.dress(),
            before=small_steps(draw.between(0.013, 0.034), weak, memory=0.2),
            precision="fp32",
        ),
        onset=0.0,
        acceptable=frozenset({"launch_bound"}),
        forbidden=advice,
        length=_SHORT,
    )
    draw = Draw("eager")
    eager = replace(tiny, busy=draw.between(0.5, 0.75), sm=draw.between(0.15, 0.3), power=0.3)
    yield positive(
        "tiny_kernels_out_of_python",
        "launch_bound",
        "TrainingLaunchBound",
        scene(
            HGX_H200,
            draw.dress(),
            small_steps(draw.between(0.2, 0.5), eager, batch=32, memory=0.87, main_thread=0.993),
        ),
        forbidden=advice,
        length=_SHORT,
    )
    draw = Draw("item")
    share = draw.between(0.14, 0.35)
    yield positive(
        "loss_read_at_every_step",
        "sync_stall",
        "TrainingSyncStall",
        scene(A2, draw.dress(), taking(draw.pace(A2.work), "other", share)),
        forbidden=INPUT | {"comm_bound", "h2d_bound", "callback_stall"},
        lost=share,
        length=_SHORT,
    )
    draw = Draw("embeddings")
    streaming = Kernels(
        memory=0.9, sm=0.86, occupancy=0.55, dram=draw.between(0.75, 0.82), tensor=0.15, fp32=0.25, power=0.68
    )
    yield positive(
        "embeddings_stream_through_memory",
        "mem_bw_bound",
        "TrainingMemBwBound",
        scene(HGX_H200, draw.dress(), replace(draw.pace(HGX_H200.work), kernels=streaming, batch=4096)),
        forbidden=INPUT | {"small_batch", "launch_bound", "tensor_cores_unused"},
        length=45.0,
    )
    draw = Draw("single_precision")
    single = Kernels(
        sm=draw.between(0.85, 0.95), occupancy=0.4, dram=0.32, tensor=0.0, fp32=draw.between(0.6, 0.85), power=0.78
    )
    yield positive(
        "single_precision_on_an_h200",
        "tensor_cores_unused",
        "TrainingTensorCoresUnused",
        scene(HGX_H200, {**draw.dress(), "precision": "fp32"}, replace(HGX_H200.work, kernels=single)),
        forbidden=INPUT | {"small_batch", "mem_bw_bound"},
        length=52.0,
    )
    draw = Draw("mfu")
    share = draw.between(0.06, 0.14)
    slow = replace(HGX_H200.work, kernels=Kernels(sm=0.88, tensor=0.32, dram=0.4, fp32=0.2, power=0.7))
    yield positive(
        "model_of_few_flops",
        "low_mfu",
        "TrainingLowMfu",
        scene(
            HGX_H200,
            draw.dress(),
            replace(slow, tokens_per_sample=4096, flops_per_sample=share * 9.895e14 * step_of(slow) / slow.batch),
        ),
        forbidden=INPUT | {"small_batch", "launch_bound"},
        length=45.0,
    )


def _between() -> Iterator[Case]:
    # Tens of seconds every few minutes, in all of an hour.
    draw = Draw("saves")
    share = draw.between(0.09, 0.2)
    dress = {**draw.dress(), "start": -60.0}
    yield positive(
        "saves_of_half_a_minute",
        "checkpoint_stall",
        "TrainingCheckpointStall",
        scene(A2, dress, before=pausing(draw.pace(A2.work), "checkpoint", share, every=draw.between(190, 240, 0))),
        forbidden=INPUT | {"sync_stall", "periodic_host_work", "step_outliers", "small_batch"},
        lost=share,
        onset=0.0,
        length=75.0,
    )
    draw = Draw("validation")
    share = draw.between(0.34, 0.5)
    dress = {**draw.dress(), "start": -60.0}
    yield positive(
        "validation_after_every_short_epoch",
        "evaluation_overhead",
        "TrainingEvaluationOverhead",
        scene(G4, dress, before=pausing(G4.work, "evaluation", share, every=draw.between(60, 110, 0), busy=0.85)),
        forbidden=INPUT | {"checkpoint_stall", "periodic_host_work", "sync_stall"},
        lost=share,
        onset=0.0,
        length=75.0,
    )
    draw = Draw("upload")
    share = draw.between(0.12, 0.28)
    yield positive(
        "images_logged_every_so_many_steps",
        "callback_stall",
        "TrainingCallbackStall",
        scene(G2, draw.dress(), pausing(G2.work, "logging", share, steps=draw.whole(15, 60))),
        forbidden=INPUT | {"step_outliers", "periodic_host_work", "small_batch", "sync_stall"},
        lost=share,
        length=_SHORT,
    )
    draw = Draw("hiccups")
    share, factor = draw.between(0.1, 0.2), draw.between(3, 7)
    yield positive(
        "steps_that_hiccup",
        "step_outliers",
        "TrainingStepOutliers",
        scene(
            A2,
            draw.dress(),
            replace(A2.work, outliers=share / (1 - share) / (factor - 1), outlier_factor=factor),
        ),
        forbidden=INPUT | {"checkpoint_stall", "small_batch"},
        lost=share,
        length=50.0,
    )


def _progress() -> Iterator[Case]:
    draw = Draw("weights")
    start = draw.between(2, 4, 1)
    yield positive(
        "weights_come_slowly",
        "long_init",
        "TrainingLongInit",
        scene(HGX_H200, {**draw.dress(), "start": start, "initialization": draw.between(45, 70, 0)}),
        forbidden=frozenset({"stalled", "hang_io", "healthy", "input_bound"}),
        onset=start,
        length=42.0,
    )
    draw = Draw("deadlock")
    story = scene(DESK_1, draw.dress(), replace(DESK_1.work, hangs="idle", main_thread=0.0))
    yield positive(
        "loader_deadlock",
        "stalled",
        "TrainingStalled",
        story,
        allowed=WAITING,
        forbidden=frozenset({"healthy", "hang_spin", "idle_allocated", "underused"}),
        lost=1.0,
        length=28.0,
    )
    # Two ranks in two different collectives: both spin for ever.
    draw = Draw("collectives")
    story = scene(
        TWO_H200, {**draw.dress(), "measures_communication": True}, replace(TWO_H200.work, hangs="spin"), onset=8.0
    )
    yield positive(
        "collectives_that_do_not_match",
        "hang_spin",
        "TrainingHangSpin",
        story,
        acceptable=frozenset({"stalled"}),
        allowed=WAITING | {"TrainingCommBound"},
        forbidden=frozenset({"healthy", "compute_bound", "small_batch", "straggler_rank"}),
        onset=8.0,
        lost=1.0,
        length=28.0,
    )
    draw = Draw("server_gone")
    yield positive(
        "file_server_gone",
        "hang_io",
        "TrainingHangIo",
        scene(
            LAB_1,
            draw.dress(),
            replace(LAB_1.work, hangs="io", main_thread=0.0),
            host=Host(cores=0.8, iowait=0.25, io_waiting=0.97, io_stalled=0.9, nfs_in_flight=draw.between(30, 100, 0)),
        ),
        allowed=WAITING,
        forbidden=frozenset({"healthy", "hang_spin"}),
        lost=1.0,
        length=28.0,
    )
    draw = Draw("crashes")
    first, gap = draw.between(8, 12, 1), draw.between(7, 9, 1)
    restarts = tuple(first + gap * number for number in range(4))
    yield positive(
        "out_of_memory_again_and_again",
        "restart_loop",
        "TrainingRestartLoop",
        scene(G2, draw.dress(), restarts=restarts, restart_seconds=60.0),
        acceptable=WELL | {"insufficient_data", "goodput_low"},
        onset=restarts[2],
        length=50.0,
        verdict_expected=False,
    )
    draw = Draw("not_a_number")
    yield positive(
        "loss_not_a_number",
        "loss_nonfinite",
        "TrainingLossNonfinite",
        scene(A2, draw.dress(), replace(A2.work, losses_not_finite=1.0)),
        acceptable=WELL,
        length=25.0,
        verdict_expected=False,
    )


CASES: tuple[Case, ...] = (*_input(), *_several(), *_device(), *_between(), *_progress())
