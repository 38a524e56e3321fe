"""Runs and their GPU memory: it costs no time until it ends the run, so no case has another verdict for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import (
    CLOUD_WORK,
    LAPTOP_WORK,
    NODE_WORK,
    SERVER_WORK,
    WELL,
    near,
    negative,
    positive,
    run_on,
)
from tests.scenarios.machines import CLOUD, LAPTOP, PAIR, SERVER, SINGLE
from tests.scenarios.story import Drop, From, Kernels, Pause, Saw

_LEVELS = (0.8, 1.25)
_QUIET: dict[str, Any] = {"subject": "run", "verdict_expected": False, "acceptable": WELL, "lost": 0.0}
_LEAK = {"length": 95.0, "onset": 0.0}
_ROOMY = Kernels(busy=0.8, memory=0.35, sm=0.6, dram=0.3, tensor=0.35, power=0.62)


def _cases() -> Iterator[Case]:
    headroom = frozenset({"TrainingGpuMemHeadroom"})
    yield positive(
        "gpu_mem_headroom_node",
        "gpu_mem_headroom",
        run_on(SINGLE, replace(NODE_WORK, memory=0.3, kernels=_ROOMY), onset=0.0),
        alerts=headroom,
        **_QUIET,
    )
    for level in _LEVELS:
        # SageMaker's BatchSize: 70 %; more is free at a higher level.
        peak = 0.7 / level
        yield near(
            "gpu_mem_headroom",
            "gpu_mem_headroom",
            level,
            run_on(SINGLE, replace(NODE_WORK, memory=peak, reserved=peak + 0.01, kernels=_ROOMY), onset=0.0),
            alerts=headroom,
            **_QUIET,
        )
    oom = frozenset({"TrainingGpuMemNearOom"})
    yield positive(
        "gpu_mem_near_oom_laptop",
        "gpu_mem_near_oom",
        run_on(LAPTOP, replace(LAPTOP_WORK, memory=0.965, allocator_retries=3)),
        alerts=oom,
        **_QUIET,
    )
    yield positive(
        "gpu_mem_near_oom_server",
        "gpu_mem_near_oom",
        run_on(SERVER, replace(SERVER_WORK, memory=0.975)),
        alerts=oom,
        **_QUIET,
    )
    for level in _LEVELS:
        # 90 % leave a tenth: the level is of what is left.
        yield near(
            "gpu_mem_near_oom",
            "gpu_mem_near_oom",
            level,
            run_on(CLOUD, replace(CLOUD_WORK, memory=1 - 0.1 / level, reserved=1 - 0.1 / level + 0.005)),
            alerts=oom,
            **_QUIET,
        )
    leak = frozenset({"TrainingGpuMemLeak"})
    yield positive(
        "gpu_mem_leak_laptop",
        "gpu_mem_leak",
        run_on(LAPTOP, before=replace(LAPTOP_WORK, memory=0.4, leak_per_hour=0.2), start=-30.0),
        alerts=leak,
        **{**_QUIET, **_LEAK},
    )
    yield positive(
        "gpu_mem_leak_node",
        "gpu_mem_leak",
        run_on(SINGLE, before=replace(NODE_WORK, memory=0.5, leak_per_hour=0.12), start=-30.0),
        alerts=leak,
        **{**_QUIET, **_LEAK},
    )
    for level in _LEVELS:
        # A twentieth of the card within the hour that is watched.
        yield near(
            "gpu_mem_leak",
            "gpu_mem_leak",
            level,
            run_on(CLOUD, before=replace(CLOUD_WORK, memory=0.5, leak_per_hour=0.05 * level), start=-30.0),
            alerts=leak,
            **{**_QUIET, **_LEAK},
        )
    yield from _hidden_leaks(leak)
    fragmented = frozenset({"TrainingGpuMemFragmented"})
    yield positive(
        "gpu_mem_fragmented_server",
        "gpu_mem_fragmented",
        run_on(SERVER, replace(SERVER_WORK, memory=0.32, used=0.28, reserved=0.85)),
        alerts=fragmented,
        **_QUIET,
    )
    for level in _LEVELS:
        yield near(
            "gpu_mem_fragmented",
            "gpu_mem_fragmented",
            level,
            run_on(
                CLOUD,
                replace(CLOUD_WORK, memory=0.4, used=0.38, reserved=0.39 * 2 * level),
                before=replace(CLOUD_WORK, memory=0.75, used=0.7),
            ),
            alerts=fragmented,
            **_QUIET,
        )
    imbalance = frozenset({"TrainingGpuMemImbalance"})
    yield positive(
        "gpu_mem_imbalance_node",
        "gpu_mem_imbalance",
        run_on(PAIR, replace(NODE_WORK, memory=0.88), before=replace(NODE_WORK, memory=0.52), only=(0,)),
        alerts=imbalance,
        culprit=(("rank", "0"),),
        **_QUIET,
    )
    for level in _LEVELS:
        yield near(
            "gpu_mem_imbalance",
            "gpu_mem_imbalance",
            level,
            run_on(
                PAIR,
                replace(NODE_WORK, memory=0.58 * (1 + 0.20 * level)),
                before=replace(NODE_WORK, memory=0.58),
                only=(0,),
            ),
            alerts=imbalance,
            **_QUIET,
        )


def _hidden_leaks(leak: frozenset[str]) -> Iterator[Case]:
    """Leaks that other changes of memory hide, and changes of memory that look like leaks."""
    evaluates = WELL | {"evaluation_overhead"}
    # Generation fills a cache of keys and values for twenty minutes, in which tensors use far more than in training.
    generates = replace(
        NODE_WORK,
        memory=0.45,
        leak_per_hour=0.12,
        evaluation_used=0.55,
        pauses=(Pause("evaluation", 1200.0, every_seconds=2400.0, busy=0.9),),
    )
    yield positive(
        "gpu_mem_leak_between_evaluation_peaks",
        "gpu_mem_leak",
        run_on(SINGLE, before=generates, start=-30.0),
        alerts=leak,
        allowed=frozenset({"TrainingEvaluationOverhead"}),
        **{**_QUIET, **_LEAK, "acceptable": evaluates},
    )
    # The optimizer's state is on the host while weights are exported.
    exports = replace(LAPTOP_WORK, memory=0.5, used=0.45, leak_per_hour=0.15, drop=Drop(25.0, 3.0, 0.3, first=10.0))
    yield positive(
        "gpu_mem_leak_between_drops",
        "gpu_mem_leak",
        run_on(LAPTOP, before=exports, start=-30.0),
        alerts=leak,
        **{**_QUIET, **_LEAK},
    )
    # Evaluations take 3 %, 10 % and 20 % of the time, as the sets they read grow; training uses what it always did.
    evaluating = tuple(
        From(
            minute,
            replace(
                NODE_WORK,
                memory=0.5,
                evaluation_used=0.85,
                pauses=(Pause("evaluation", seconds, every_seconds=1200.0 - seconds, busy=0.9),),
            ),
        )
        for minute, seconds in ((-60.0, 40.0), (20.0, 120.0), (60.0, 240.0))
    )
    story = run_on(SINGLE, before=evaluating[0].state, start=-60.0)
    yield negative(
        "evaluation_peaks_grow_in_share",
        replace(story, runs=(replace(story.runs[0], work=evaluating),)),
        length=110.0,
        lost=None,
        acceptable=evaluates,
    )
    # A replay buffer on the GPU fills for 80 minutes and is emptied: it never holds more than before.
    yield negative(
        "memory_fills_and_is_emptied",
        run_on(CLOUD, before=replace(CLOUD_WORK, memory=0.55, used=0.4, saw=Saw(80.0, 0.35, first=41.0)), start=-30.0),
        length=110.0,
    )


CASES: tuple[Case, ...] = tuple(_cases())
