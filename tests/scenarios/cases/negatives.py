"""Cases that look like trouble but are healthy: no alert above info may fire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import (
    CLOUD_WORK,
    LAPTOP_WORK,
    NODE_WORK,
    QUIET,
    SERVER_WORK,
    WELL,
    WORKSTATION_WORK,
    negative,
    run_on,
    slowed,
    taking,
)
from tests.scenarios.machines import CLOUD, HGX, LAPTOP, PAIR, QUAD, SERVER, SINGLE, WORKSTATION
from tests.scenarios.story import ALWAYS, From, Gpu, Host, Kernels, Node, Pause, Run, Story, Work

_INPUT = frozenset({"input_bound", "input_cpu_saturated", "input_few_workers", "input_remote_latency"})


def _steady(node: Node, work: Work | None = None, **more: object) -> Story:
    """One state from beginning to end."""
    return run_on(node, before=work, onset=ALWAYS, **more)  # type: ignore[arg-type]


def _healthy() -> Iterator[Case]:
    yield negative("healthy_node", _steady(HGX))
    yield negative("healthy_laptop", _steady(LAPTOP), length=60.0)
    yield negative("healthy_cloud", _steady(CLOUD), length=60.0)
    yield negative("healthy_two_nodes", _steady(HGX, count=2, measures_communication=True, slurm_job="4711"))
    # 3500 images a second in batches of 512: GPU 100 %, memory access 62 %.
    full = Work(
        data_wait=0.001,
        host_copy=0.0005,
        forward=0.05,
        backward=0.09,
        optimizer=0.0033,
        other=0.001,
        kernels=Kernels(memory=0.62, power=0.93),
        batch=512,
        data="none",
        loader_workers=None,
        loader_cores=0.2,
        main_thread=0.3,
        memory=0.8,
        reserved=0.98,
    )
    study = {"framework": "tensorflow", "precision": "fp32"}
    yield negative("ac_02_batch_of_512", _steady(WORKSTATION, full, ranks=((0,),), **study), cause="compute_bound")
    # 6100 images a second on two: GPU 90 % each, 55 % memory access.
    both = replace(full, backward=0.1115, kernels=Kernels(busy=0.915, memory=0.55, power=0.85))
    yield negative(
        "ac_04_two_gpus_at_87_percent",
        _steady(WORKSTATION, both, **study),
        forbidden=frozenset({"scaling_inefficient", "comm_bound", "small_batch"}),
    )
    yield negative(
        "ac_06_second_gpu_not_visible",
        _steady(WORKSTATION, full, ranks=((0,),), gpu=Gpu(celsius=45), gpus=(1,), **study),
        forbidden=frozenset({"gpu_load_imbalance", "underused"}),
    )
    yield negative(
        "ac_07_73_degrees",
        _steady(WORKSTATION, full, gpu=Gpu(celsius=73), ranks=((0,),), **study),
        forbidden=frozenset({"thermal_throttle"}),
    )


def _inputs() -> Iterator[Case]:
    # No worker, no synchronisation: the host waits, and the queue of the GPU never runs empty.
    hidden = replace(taking(LAPTOP_WORK, "data_wait", 0.3), busy_while_waiting=1.0, loader_workers=0, loader_cores=0.0)
    yield negative("hidden_wait_laptop", _steady(LAPTOP, replace(hidden, main_thread=0.75)), forbidden=_INPUT)
    yield negative(
        "hidden_wait_node",
        _steady(SINGLE, replace(taking(NODE_WORK, "data_wait", 0.25), busy_while_waiting=1.0)),
        forbidden=_INPUT,
    )
    yield negative(
        "cpu_full_of_other_tenants",
        _steady(SERVER, host=Host(cores=31.3 - 2 * 4.35, cpu_waiting=0.35)),
        forbidden=_INPUT,
    )
    yield negative(
        "cpu_full_of_own_loaders_without_wait",
        _steady(CLOUD, replace(CLOUD_WORK, loader_cores=7.0), host=Host(cores=0.3, cpu_waiting=0.3)),
        forbidden=_INPUT,
    )
    yield negative(
        "page_cache_fills_memory",
        _steady(CLOUD, host=replace(QUIET[CLOUD], memory_used=0.12, page_cache=0.87)),
        forbidden=frozenset({"mem_pressure"}),
    )
    yield negative(
        "nfs_busy_without_wait",
        _steady(SERVER, host=replace(QUIET[SERVER], nfs_in_flight=150, nfs_operations=4000)),
        forbidden=_INPUT,
    )
    yield negative(
        "disk_busy_without_wait",
        _steady(CLOUD, host=replace(QUIET[CLOUD], io_waiting=0.4, io_stalled=0.1, disk_busy=1.0, disk_written=9e8)),
        forbidden=frozenset({"input_disk_bound", "hang_io"}),
    )
    yield negative(
        "loader_starts_again_each_epoch",
        _steady(SINGLE, replace(NODE_WORK, pauses=(Pause("data_wait", 4.0, every_seconds=300.0),))),
        forbidden=_INPUT | {"periodic_host_work", "step_outliers"},
        length=60.0,
    )
    yield negative(
        "quota_throttles_bursts_without_wait",
        _steady(
            SINGLE,
            replace(NODE_WORK, quota_throttled=0.4, quota_waited=0.3, loader_workers=8, loader_cores=5.0),
            cpu_limit=8.0,
            quota=True,
            pods=True,
            namespace="vision",
        ),
        forbidden=frozenset({"input_cgroup_throttled"}) | _INPUT,
        length=50.0,
    )


def _times() -> Iterator[Case]:
    evaluating = replace(CLOUD_WORK, pauses=(Pause("evaluation", 60.0, every_seconds=900.0, busy=0.5),))
    yield negative(
        "evaluation_now_and_then",
        _steady(CLOUD, evaluating, start=-60.0),
        forbidden=_INPUT | {"periodic_host_work", "small_batch", "underused"},
        length=75.0,
        lost=None,
        acceptable=WELL | {"evaluation_overhead"},
    )
    background = replace(NODE_WORK, pauses=(Pause("checkpoint", 0.6, every_seconds=120.0),))
    yield negative(
        "checkpoints_in_the_background",
        _steady(SINGLE, background, start=-60.0, host=replace(QUIET[SINGLE], disk_written=1.5e9, io_waiting=0.2)),
        forbidden=frozenset({"checkpoint_stall", "input_disk_bound", "periodic_host_work"}),
        length=75.0,
        lost=None,
    )
    yield negative(
        "steps_of_several_batches",
        _steady(
            SINGLE,
            replace(NODE_WORK, forward=0.56, backward=1.08, batch=1024, spread=0.02, data_wait=0.02),
            measures_communication=True,
        ),
        forbidden=frozenset({"periodic_host_work", "comm_bound"}),
    )
    yield negative(
        "sequences_of_many_lengths",
        _steady(CLOUD, replace(CLOUD_WORK, spread=0.14, tokens_per_sample=512)),
        forbidden=frozenset({"step_outliers", "step_time_drift"}),
        length=60.0,
    )
    # First reads: half the time for the first five minutes. While a run waits for data, that is right to say, since no
    # verdict can know that the wait will end; 90 s after its end, and as an alert, it is wrong.
    story = run_on(LAPTOP, before=taking(LAPTOP_WORK, "data_wait", 0.5), start=1.0, initialization=0.5)
    run = replace(story.runs[0], work=(*story.runs[0].work, From(6.0, LAPTOP_WORK)))
    yield negative(
        "warm_up_laptop",
        replace(story, runs=(run,)),
        acceptable=WELL | {"insufficient_data"},
        before=WELL | {"input_bound"},
        onset=7.5,
        forbidden=_INPUT,
        lost=None,
    )
    yield negative(
        "run_that_finished",
        _steady(CLOUD, end=12.0),
        forbidden=frozenset({"stalled", "hang_io", "idle_allocated", "lost"}),
        verdict_expected=False,
        length=60.0,
    )
    yield negative(
        "restarted_once_by_a_deployment",
        _steady(CLOUD, restarts=(15.0,)),
        acceptable=WELL | {"insufficient_data", "goodput_low"},
        forbidden=frozenset({"restart_loop", "stalled"}),
        length=60.0,
    )
    yield negative(
        "ten_minutes_of_initialization",
        _steady(SINGLE, start=2.0, initialization=10.0),
        acceptable=WELL | {"insufficient_data", "long_init"},
        forbidden=frozenset({"stalled", "hang_io", "input_bound"}),
        verdict_expected=False,
    )
    yield negative(
        "long_evaluation",
        _steady(
            CLOUD,
            replace(CLOUD_WORK, pauses=(Pause("evaluation", 420.0, every_seconds=4800.0, busy=0.9),)),
            start=-70.0,
        ),
        acceptable=WELL | {"evaluation_overhead", "insufficient_data"},
        forbidden=frozenset({"stalled", "hang_spin", "hang_io"}),
        length=60.0,
        lost=None,
    )


def _devices() -> Iterator[Case]:
    # TensorFlow and JAX take all memory beforehand; tensors use two thirds of it.
    yield negative(
        "memory_taken_beforehand",
        _steady(CLOUD, replace(CLOUD_WORK, memory=0.66, reserved=0.98, used=0.5), framework="jax"),
        forbidden=frozenset({"gpu_mem_near_oom", "gpu_mem_leak"}),
    )
    yield negative(
        "power_cap_at_full_load",
        _steady(
            SINGLE,
            replace(NODE_WORK, kernels=replace(NODE_WORK.kernels, power=1.0)),
            gpu=Gpu(throttled={"power_cap": 0.92}, clock=0.88),
        ),
        forbidden=frozenset({"thermal_throttle", "power_brake", "power_capped"}),
    )
    yield negative(
        "thermal_bit_at_full_clocks",
        _steady(SINGLE, gpu=Gpu(throttled={"sw_thermal": 0.45}, clock=0.965, celsius=83)),
        forbidden=frozenset({"thermal_throttle", "straggler_hw"}),
    )
    yield negative(
        "slowdown_flashes_at_power_states",
        _steady(SERVER, gpu=Gpu(throttled={"hw_slowdown": 0.002}), gpus=(1,)),
        forbidden=frozenset({"power_brake", "thermal_throttle"}),
    )
    yield negative(
        "clocks_locked_for_a_benchmark",
        _steady(CLOUD, slowed(CLOUD_WORK, 1.25), gpu=Gpu(clock_configured=0.8, clock=0.78)),
        forbidden=frozenset({"thermal_throttle", "power_brake"}),
        lost=None,
        acceptable=WELL,
    )
    yield negative(
        "link_saves_power_at_idle",
        Story(nodes=(LAPTOP,), hosts=(From(ALWAYS, QUIET[LAPTOP]),)),
        subject="gpu",
        run="",
        forbidden=frozenset({"pcie_degraded", "idle_allocated", "underused"}),
        culprit=(("instance", "node0:19400"), ("gpu", "0")),
        length=90.0,
    )
    yield negative(
        "idle_gpus_that_nobody_has",
        _steady(QUAD, ranks=((0,), (1,))),
        forbidden=frozenset({"gpu_load_imbalance"}),
        length=75.0,
    )
    yield negative(
        "xid_of_an_application",
        _steady(SERVER, gpu=Gpu(xids=(43,)), gpus=(1,)),
        forbidden=frozenset({"xid_hw", "lost"}),
    )
    yield negative(
        "nvlink_errors_since_boot",
        _steady(SINGLE, gpu=Gpu(link_errors={"replay": 0.0}), gpus=(0,)),
        forbidden=frozenset({"nvlink_errors"}),
    )
    yield negative(
        "corrected_errors_now_and_then",
        _steady(SINGLE, gpu=Gpu(corrected=600), gpus=(0,)),
        forbidden=frozenset({"ecc_uncorrected"}),
    )
    yield negative(
        "pcie_replays_now_and_then",
        _steady(SERVER, gpu=Gpu(replays=2.0), gpus=(0,)),
        forbidden=frozenset({"pcie_replays", "pcie_degraded"}),
    )


def _sharing() -> Iterator[Case]:
    half = replace(CLOUD_WORK, forward=0.25, backward=0.5, memory=0.4, loader_cores=1.5)
    yield negative(
        "two_runs_on_a_time_sliced_gpu",
        Story(
            nodes=(CLOUD,),
            runs=(
                Run(ranks=((0,),), work=(From(ALWAYS, half),), cpu_limit=4.0, pods=True, namespace="a"),
                Run(name="bert", ranks=((0,),), work=(From(ALWAYS, half),), cpu_limit=4.0, pods=True, namespace="b"),
            ),
            hosts=(From(ALWAYS, QUIET[CLOUD]),),
            sharing="time_sliced",
        ),
        forbidden=frozenset({"shared_unexpectedly"}),
        lost=None,
    )
    yield negative(
        "display_beside_a_training",
        _steady(WORKSTATION, gpu=Gpu(foreign=("gdm",), foreign_memory=0.02), gpus=(0,), ranks=((0,),)),
        forbidden=frozenset({"shared_unexpectedly"}),
    )
    # An experiment may wait: its verdict stays, and no one is paged.
    waits = replace(taking(LAPTOP_WORK, "data_wait", 0.3), loader_workers=2, loader_cores=1.6)
    yield negative(
        "experiment_that_waits",
        _steady(LAPTOP, waits, job_class="experiment"),
        cause="input_few_workers",
        acceptable=frozenset({"input_bound"}),
        lost=0.3,
    )
    # A notebook: five minutes of work now and then.
    states = [From(ALWAYS, Gpu(foreign=("grace",), foreign_memory=0.3))]
    for minute in (4.0, 26.0, 47.0, 70.0):
        states.append(From(minute, Gpu(foreign=("grace",), foreign_busy=0.93, foreign_memory=0.3)))
        states.append(From(minute + 5.0, Gpu(foreign=("grace",), foreign_memory=0.3)))
    yield negative(
        "notebook_now_and_then",
        Story(nodes=(LAPTOP,), hosts=(From(ALWAYS, QUIET[LAPTOP]),), gpus=tuple(states)),
        subject="gpu",
        run="",
        acceptable=WELL | {"underused", "idle_allocated"},
        culprit=(("instance", "node0:19400"), ("gpu", "0")),
        verdict_expected=False,
        length=90.0,
        lost=None,
    )


def _ranks() -> Iterator[Case]:
    # Two stages on two GPUs each: the second has less to keep, and a little less to do.
    story = _steady(QUAD, replace(NODE_WORK, memory=0.9), measures_communication=True)
    second = replace(NODE_WORK, memory=0.5, backward=0.262, kernels=replace(NODE_WORK.kernels, sm=0.85))
    run = replace(story.runs[0], work=(*story.runs[0].work, From(ALWAYS, second, (2, 3))))
    yield negative(
        "pipeline_stages_differ",
        replace(story, runs=(run,)),
        forbidden=frozenset({"gpu_mem_imbalance", "straggler_rank", "gpu_load_imbalance"}),
        lost=None,
    )
    yield negative(
        "ranks_that_vary_by_chance",
        _steady(PAIR, replace(NODE_WORK, spread=0.06), measures_communication=True, count=2),
        forbidden=frozenset({"straggler_rank", "straggler_input", "comm_bound"}),
        lost=None,
    )
    yield negative(
        "collectives_in_the_background",
        _steady(SERVER, replace(SERVER_WORK, communication=0.02), measures_communication=True),
        forbidden=frozenset({"comm_bound"}),
        lost=None,
    )
    yield negative(
        "workstation_with_two_ranks", _steady(WORKSTATION, replace(WORKSTATION_WORK, loader_cores=4.0)), lost=None
    )


CASES: tuple[Case, ...] = (*_healthy(), *_inputs(), *_times(), *_devices(), *_sharing(), *_ranks())
