"""GPUs that are held, shared or used otherwise than they could be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import (
    CLOUD_WORK,
    LAPTOP_WORK,
    NODE_WORK,
    ONSET,
    QUIET,
    TINY,
    WELL,
    WORKSTATION_WORK,
    near,
    positive,
    run_on,
    taking,
)
from tests.scenarios.machines import CLOUD, LAPTOP, PAIR, SERVER, SINGLE, WORKSTATION
from tests.scenarios.story import ALWAYS, From, Gpu, Kernels, Pause, Run, Story, Work

_LEVELS = (0.8, 1.25)
_GPU: dict[str, Any] = {"subject": "gpu", "run": ""}


def _on(gpu: int, node: int = 0) -> tuple[tuple[str, str], ...]:
    return (("instance", f"node{node}:19400"), ("gpu", str(gpu)))


def _underused() -> Iterator[Case]:
    alert = frozenset({"GpuUnderused"})
    for name, node, work, share in (
        ("underused_laptop", LAPTOP, LAPTOP_WORK, 0.62),
        ("underused_node", SINGLE, NODE_WORK, 0.7),
    ):
        # Short steps and a long wait in each: every sample is low, and none shows why.
        short = replace(work, **{each: getattr(work, each) / 8 for each in ("forward", "backward", "optimizer")})
        short = replace(short, data_wait=0.0, host_copy=0.001, other=0.001, communication=0.0)
        yield positive(
            name,
            "underused",
            run_on(node, taking(short, "data_wait", share), before=short, instrumented=False),
            alerts=alert,
            forbidden=frozenset({"input_bound", "small_batch", "idle_allocated"}),
            culprit=_on(0),
            **_GPU,
        )
    for level in _LEVELS:
        # 95 of 100 samples under 70 %.
        busy = min(1.0, 0.70 / level)
        yield near(
            "underused",
            "underused",
            level,
            run_on(CLOUD, _even(busy, steps=0.04), before=CLOUD_WORK, instrumented=False),
            alerts=alert,
            culprit=_on(0) if level > 1 else None,
            **_GPU,
        )


def _even(busy: float, *, steps: float) -> Work:
    """Short steps that keep the GPU busy for the same share of every moment."""
    kernels = Kernels(busy=1.0, sm=0.8, power=0.75)
    return Work(
        data_wait=(1 - busy) * steps,
        host_copy=0.0,
        forward=0.3 * busy * steps,
        backward=0.6 * busy * steps,
        optimizer=0.1 * busy * steps,
        other=0.0,
        batch=32,
        kernels=kernels,
        data="none",
        loader_cores=1.0,
    )


def _periodic() -> Iterator[Case]:
    alert = frozenset({"GpuPeriodicHostWork"})
    plain = replace(CLOUD_WORK, forward=0.06, backward=0.12, optimizer=0.01)
    # A callback every fifty steps: a deep dip of 1.4 s. The shim counts steps, and phases are not measured.
    dips = replace(plain, pauses=(Pause("other", 1.4, every_steps=50),))
    yield positive(
        "ac_09_dip_every_fifty_steps",
        "periodic_host_work",
        run_on(CLOUD, dips, before=plain, phases=False),
        subject="gpu",
        acceptable=frozenset({"step_outliers"}),
        alerts=alert,
        allowed=frozenset({"TrainingStepOutliers"}),
        forbidden=frozenset({"input_bound", "small_batch", "underused"}),
        culprit=_on(0),
        length=60.0,
        lost=0.125,
    )
    yield positive(
        "periodic_host_work_without_shim",
        "periodic_host_work",
        run_on(
            LAPTOP,
            replace(LAPTOP_WORK, pauses=(Pause("other", 3.0, every_seconds=24.0, spread=0.08),)),
            instrumented=False,
        ),
        alerts=alert,
        forbidden=frozenset({"input_bound", "small_batch"}),
        culprit=_on(0),
        length=60.0,
        lost=0.11,
        **_GPU,
    )
    for level in _LEVELS:
        share = 0.05 * level
        yield near(
            "periodic_host_work",
            "periodic_host_work",
            level,
            run_on(
                LAPTOP,
                replace(LAPTOP_WORK, pauses=(Pause("other", share / (1 - share) * 20 + 0.08, every_seconds=20.0),)),
                instrumented=False,
            ),
            alerts=alert,
            culprit=_on(0) if level > 1 else None,
            length=60.0,
            **_GPU,
        )
        # Spread of the time between: 0.3 of its mean, less is more regular.
        yield near(
            "periodic_host_work_by_spread",
            "periodic_host_work",
            level,
            run_on(
                LAPTOP,
                replace(LAPTOP_WORK, pauses=(Pause("other", 2.0, every_seconds=14.0, spread=0.343 / level),)),
                instrumented=False,
            ),
            alerts=alert,
            culprit=_on(0) if level > 1 else None,
            length=60.0,
            **_GPU,
        )


def _held(minutes_idle: float, *, busy_after: bool) -> Story:
    """A pod that holds a GPU and leaves it alone from minute 5 on."""
    states = [
        From(ALWAYS, Gpu()),
        From(ALWAYS, Gpu(foreign=("grace",), foreign_busy=0.8), (0,)),
        From(5.0, Gpu(foreign=("grace",), foreign_busy=0.0), (0,)),
    ]
    if busy_after:
        states.append(From(5.0 + minutes_idle, Gpu(foreign=("grace",), foreign_busy=0.8), (0,)))
    return Story(nodes=(SERVER,), hosts=(From(ALWAYS, QUIET[SERVER]),), gpus=tuple(states))


def _allocated() -> Iterator[Case]:
    alert = frozenset({"GpuIdleAllocated"})
    yield positive(
        "idle_allocated_server",
        "idle_allocated",
        _held(200.0, busy_after=False),
        alerts=alert,
        forbidden=frozenset({"underused", "mem_zombie"}),
        culprit=_on(0),
        onset=5.0,
        length=100.0,
        lost=1.0,
        **_GPU,
    )
    for level in _LEVELS:
        # Princeton's Jobstats warns after an hour.
        yield near(
            "idle_allocated",
            "idle_allocated",
            level,
            _held(60.0 * level + 1.0, busy_after=True),
            alerts=alert,
            culprit=_on(0) if level > 1 else None,
            onset=5.0,
            length=85.0,
            verdict_expected=False,
            acceptable=frozenset({"idle_allocated", "healthy", "underused"}),
            **_GPU,
        )
    zombie = frozenset({"GpuMemZombie"})
    yield positive(
        "mem_zombie_workstation",
        "mem_zombie",
        run_on(WORKSTATION, gpu=Gpu(kept=0.6), gpus=(1,), ranks=((0,),)),
        alerts=zombie,
        acceptable=WELL,
        forbidden=frozenset({"idle_allocated", "underused", "packing_candidate"}),
        culprit=_on(1),
        **_GPU,
    )
    for level in _LEVELS:
        kept = 512 * 2.0**20 * level / SERVER.card.memory
        yield near(
            "mem_zombie",
            "mem_zombie",
            level,
            run_on(SERVER, gpu=Gpu(kept=kept), gpus=(1,), ranks=((0,),)),
            alerts=zombie,
            acceptable=WELL,
            culprit=_on(1) if level > 1 else None,
            **_GPU,
        )


def _shared() -> Iterator[Case]:
    half = replace(WORKSTATION_WORK, forward=0.11, backward=0.19, loader_cores=3.0)
    yield positive(
        "ac_17_two_jobs_on_one_gpu",
        "shared_unexpectedly",
        Story(
            nodes=(WORKSTATION,),
            runs=(
                Run(ranks=((0,),), work=(From(ALWAYS, half),), cpu_limit=12.0),
                Run(name="bert", ranks=((0,),), work=(From(ALWAYS, half),), start=ONSET, user="grace", cpu_limit=12.0),
            ),
            hosts=(From(ALWAYS, QUIET[WORKSTATION]),),
        ),
        subject="gpu",
        acceptable=WELL,
        alerts=frozenset({"GpuSharedUnexpectedly"}),
        forbidden=frozenset({"underused", "idle_allocated", "packing_candidate"}),
        culprit=_on(0),
    )
    # GPU 35 %, 4 of 11 GB, CPUs 30 %: an experiment that leaves room for another.
    small = replace(
        _even(1.0, steps=0.06),
        kernels=replace(TINY, busy=0.35, sm=0.3, power=0.25),
        memory=0.3,
        reserved=0.32,
        loader_cores=6.0,
    )
    yield positive(
        "ac_16_room_for_another_experiment",
        "packing_candidate",
        run_on(WORKSTATION, before=small, ranks=((0,),), job_class="experiment", onset=0.0),
        subject="gpu",
        acceptable=WELL | {"small_batch", "launch_bound", "underused"},
        alerts=frozenset({"GpuPackingCandidate"}),
        culprit=_on(0),
        onset=0.0,
        length=55.0,
        verdict_expected=False,
    )
    for level in _LEVELS:
        # Under half busy.
        steady = replace(
            small,
            kernels=replace(small.kernels, busy=0.5 / level),
            forward=0.05,
            backward=0.1,
            optimizer=0.01,
        )
        yield near(
            "packing_candidate",
            "packing_candidate",
            level,
            run_on(WORKSTATION, before=steady, ranks=((0,),), job_class="experiment", onset=0.0),
            subject="gpu",
            acceptable=WELL | {"small_batch", "launch_bound", "underused"},
            alerts=frozenset({"GpuPackingCandidate"}),
            culprit=_on(0) if level > 1 else None,
            onset=0.0,
            length=55.0,
            verdict_expected=False,
        )


def _spinning() -> Iterator[Case]:
    alert = frozenset({"GpuSpinSuspected"})
    yield positive(
        "spin_suspected_node",
        "spin_suspected",
        run_on(PAIR, replace(NODE_WORK, hangs="spin"), before=NODE_WORK, instrumented=False),
        alerts=alert,
        forbidden=frozenset({"underused", "idle_allocated", "packing_candidate"}),
        **_GPU,
    )
    idle = SINGLE.card.idle_watts / SINGLE.card.watts
    for level in _LEVELS:
        # Under two fifths of the power limit.
        power = (0.4 / level - idle) / (1 - idle)
        kernels = Kernels(memory=0.02, sm=0.15, occupancy=0.05, dram=0.01, tensor=0.0, fp32=0.02, power=power)
        yield near(
            "spin_suspected",
            "spin_suspected",
            level,
            run_on(SINGLE, replace(_even(1.0, steps=0.04), kernels=kernels), before=NODE_WORK, instrumented=False),
            alerts=alert,
            culprit=_on(0) if level > 1 else None,
            **_GPU,
        )


CASES: tuple[Case, ...] = (*_underused(), *_periodic(), *_allocated(), *_shared(), *_spinning())
