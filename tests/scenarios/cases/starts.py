"""Runs whose fault is there from their first step on, and is fixed later: how soon a verdict comes, and goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import (
    CLOUD_WORK,
    LAPTOP_WORK,
    NODE_WORK,
    TINY,
    negative,
    positive,
    run_on,
    slowed,
    taking,
)
from tests.scenarios.machines import CLOUD, LAPTOP, PAIR, QUAD, SINGLE
from tests.scenarios.story import ALWAYS, From, Gpu, Host, Kernels, Node, Pause, Story, Work

_START, _FIRST_STEP, _FIXED, _LENGTH = 1.0, 2.0, 14.0, 26.0
"""Minutes."""


def _begins_ill(
    node: Node, work: Work, well: Work, *, host: Host | None = None, only: tuple[int, ...] | None = None, **given: Any
) -> Story:
    """Return a run that does `work` from its first step on, and `well` once its fault is fixed."""
    story = run_on(node, well, before=well, onset=_FIXED, start=_START, initialization=_FIRST_STEP - _START, **given)
    run = story.runs[0]
    states = (From(ALWAYS, well), From(0.0, work, only), *run.work[1:])
    hosts = story.hosts if host is None else (*story.hosts, From(_START, host), From(_FIXED, story.hosts[0].state))
    return replace(story, runs=(replace(run, work=states),), hosts=hosts)


def _case(name: str, cause: str, alert: str, story: Story, **given: Any) -> Case:
    return positive(
        f"start_{name}",
        cause,
        story,
        subject="run",
        alerts=frozenset({alert}),
        **{"onset": _FIRST_STEP, "end": _FIXED, "length": _LENGTH, **given},
    )


def _short(work: Work) -> Work:
    """Return the same work in steps of half the time."""
    return replace(
        slowed(work, 0.5),
        data_wait=work.data_wait / 2,
        host_copy=work.host_copy / 2,
        communication=work.communication / 2,
        batch=work.batch / 2,
    )


def _inputs() -> Iterator[Case]:
    laptop, cloud = _short(LAPTOP_WORK), _short(CLOUD_WORK)
    yield _case(
        "input_cpu_saturated",
        "input_cpu_saturated",
        "TrainingInputCpuSaturated",
        _begins_ill(
            LAPTOP,
            replace(taking(laptop, "data_wait", 0.35), loader_cores=14.0),
            laptop,
            host=Host(cores=2.0, cpu_waiting=0.6),
        ),
    )
    # A run keeps its number of workers; from the fix on each sample takes them less time.
    few = replace(laptop, loader_workers=2, loader_cores=1.6)
    yield _case(
        "input_few_workers",
        "input_few_workers",
        "TrainingInputFewWorkers",
        _begins_ill(LAPTOP, taking(few, "data_wait", 0.4), replace(few, loader_cores=1.2)),
    )
    slow = taking(replace(cloud, data="network", loader_cores=0.9), "data_wait", 0.3)
    step = slow.data_wait + slow.host_copy + slow.forward + slow.backward + slow.optimizer + slow.other
    yield _case(
        "input_network_bound",
        "input_network_bound",
        "TrainingInputNetworkBound",
        _begins_ill(CLOUD, replace(slow, bytes_per_sample=0.95 * 1.25e9 * step / slow.batch), cloud),
    )
    yield _case(
        "input_disk_bound",
        "input_disk_bound",
        "TrainingInputDiskBound",
        _begins_ill(
            CLOUD,
            replace(taking(cloud, "data_wait", 0.3), loader_cores=0.9),
            cloud,
            host=Host(cores=0.3, iowait=0.2, io_waiting=0.6, disk_read=4e8, disk_busy=0.98),
        ),
    )
    yield _case(
        "input_bound",
        "input_bound",
        "TrainingInputBound",
        _begins_ill(LAPTOP, replace(taking(laptop, "data_wait", 0.25), loader_cores=9.5, loader_workers=14), laptop),
    )


def _hosts() -> Iterator[Case]:
    cloud = _short(CLOUD_WORK)
    yield _case(
        "h2d_bound", "h2d_bound", "TrainingH2dBound", _begins_ill(CLOUD, taking(cloud, "host_copy", 0.25), cloud)
    )
    yield _case(
        "sync_stall", "sync_stall", "TrainingSyncStall", _begins_ill(CLOUD, taking(cloud, "other", 0.25), cloud)
    )
    yield _case(
        "callback_stall",
        "callback_stall",
        "TrainingCallbackStall",
        _begins_ill(CLOUD, taking(cloud, "logging", 0.25), cloud),
    )


def _ranks() -> Iterator[Case]:
    node = _short(NODE_WORK)
    yield _case(
        "comm_bound",
        "comm_bound",
        "TrainingCommBound",
        _begins_ill(PAIR, taking(node, "communication", 0.4), node, measures_communication=True),
    )
    yield _case(
        "straggler_rank",
        "straggler_rank",
        "TrainingStragglerRank",
        _begins_ill(QUAD, replace(node, backward=2 * node.backward), node, only=(2,), measures_communication=True),
    )


def _devices() -> Iterator[Case]:
    small = Work(
        data_wait=0.0001,
        host_copy=0.0001,
        forward=0.006,
        backward=0.012,
        optimizer=0.002,
        other=0.0002,
        kernels=TINY,
        batch=8,
        data="none",
        loader_workers=4,
        loader_cores=0.5,
        main_thread=0.5,
        memory=0.2,
    )
    yield _case(
        "small_batch",
        "small_batch",
        "TrainingSmallBatch",
        _begins_ill(SINGLE, small, NODE_WORK),
        acceptable=frozenset({"launch_bound"}),
    )
    # Without an energy counter, and with a count of FLOPs, which says what but not why.
    yield _case(
        "small_batch_without_energy",
        "small_batch",
        "TrainingSmallBatch",
        _begins_ill(
            SINGLE,
            replace(small, flops_per_sample=1e10),
            replace(NODE_WORK, flops_per_sample=1e12),
            more={"absent": ("stallscope_gpu_energy",)},
        ),
        end=None,
        length=_FIXED,
        acceptable=frozenset({"launch_bound"}),
    )
    eager = Kernels(busy=0.68, memory=0.25, sm=0.26, occupancy=0.1, dram=0.2, tensor=0.08, fp32=0.1, power=0.32)
    launches = replace(small, forward=0.06, backward=0.12, kernels=eager, batch=32, main_thread=0.99, memory=0.88)
    yield _case(
        "launch_bound",
        "launch_bound",
        "TrainingLaunchBound",
        _begins_ill(SINGLE, launches, NODE_WORK),
        acceptable=frozenset({"small_batch"}),
    )
    fills = replace(eager, sm=0.6, occupancy=0.3, tensor=0.3, power=0.5)
    launches = replace(small, forward=0.06, backward=0.12, kernels=fills, batch=32, main_thread=0.99, memory=0.88)
    yield _case(
        "launch_bound_with_full_sms",
        "launch_bound",
        "TrainingLaunchBound",
        _begins_ill(SINGLE, launches, replace(launches, kernels=Kernels(), main_thread=0.5)),
    )


def _hangs() -> Iterator[Case]:
    story = _begins_ill(PAIR, NODE_WORK, NODE_WORK)
    (run,) = story.runs
    stuck = replace(NODE_WORK, hangs="idle", main_thread=0.0)
    work = (From(ALWAYS, NODE_WORK), From(4.0, replace(NODE_WORK, hangs="spin")), From(4.0, stuck, (1,)))
    yield _case(
        "hang_spin",
        "hang_spin",
        "TrainingHangSpin",
        replace(story, runs=(replace(run, work=work),)),
        onset=4.0,
        end=None,
        length=12.0,
        acceptable=frozenset({"stalled"}),
    )


def _harmless() -> Iterator[Case]:
    # The driver's own slowdown at clocks near the highest, on a GPU that was idle until then.
    slow = Gpu(throttled={"sw_thermal": 0.5}, clock=0.95, celsius=80)
    story = run_on(LAPTOP, gpu=slow, onset=_FIRST_STEP, start=_START, initialization=_FIRST_STEP - _START)
    yield negative("start_harmless_slowdown", story, length=16.0)
    # A part of the model is compiled when it is first used: one step takes minutes, with the GPU idle.
    compiles = replace(LAPTOP_WORK, pauses=(Pause("other", 200.0, every_steps=20),))
    story = _begins_ill(LAPTOP, LAPTOP_WORK, LAPTOP_WORK)
    (run,) = story.runs
    work = (From(ALWAYS, LAPTOP_WORK), From(4.0, compiles), From(4.0 + 215 / 60, LAPTOP_WORK))
    yield negative("start_compilation_in_a_step", replace(story, runs=(replace(run, work=work),)), length=18.0)
    # The batches of the first 45 s of a later session come from a cold cache.
    cold = taking(CLOUD_WORK, "data_wait", 0.6)
    restarted = run_on(CLOUD, start=_START, initialization=_FIRST_STEP - _START, restarts=(9.0,))
    (run,) = restarted.runs
    work = (From(ALWAYS, CLOUD_WORK), From(9.0, cold), From(9.0 + (run.restart_seconds + 45) / 60, CLOUD_WORK))
    yield negative("start_restart_cold", replace(restarted, runs=(replace(run, work=work),)), length=18.0)
    moved = run_on(CLOUD, count=2, ranks=((0,),), start=_START, initialization=_FIRST_STEP - _START, end=9.0)
    soon = (From(ALWAYS, cold), From(10.0 + 45 / 60, CLOUD_WORK))
    later = replace(moved.runs[0], ranks=((1,),), start=9.5, initialization=0.5, end=None, work=soon)
    yield negative("start_move_cold", replace(moved, runs=(*moved.runs, later)), length=18.0)


CASES: tuple[Case, ...] = (*_inputs(), *_hosts(), *_ranks(), *_devices(), *_hangs(), *_harmless())
