"""Runs of several ranks that wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import (
    NODE_WORK,
    ONSET,
    SERVER_WORK,
    WELL,
    near,
    negative,
    positive,
    run_on,
    slowed,
    taking,
)
from tests.scenarios.machines import HGX, PAIR, QUAD, SERVER, SERVER_4
from tests.scenarios.story import Gpu, Node, Story, Work

_LEVELS = (0.8, 1.25)
_NOT_THE_NETWORK = frozenset({"comm_bound", "small_batch", "scaling_inefficient", "healthy"})


def _step(work: Work) -> float:
    parts = ("data_wait", "host_copy", "forward", "backward", "communication", "optimizer", "logging", "other")
    return float(sum(getattr(work, part) for part in parts))


def _late(work: Work, share: float, *, by: str = "backward") -> Work:
    """Delay the work by this share of the step that all ranks then take."""
    late = share / (1 - share) * _step(work)
    return replace(work, **{by: getattr(work, by) + late})


def _slow_ranks() -> Iterator[Case]:
    alert = frozenset({"TrainingStragglerRank"})
    for name, node, count, rank, hook in (
        ("straggler_rank_node", HGX, 1, 3, False),
        ("straggler_rank_node_with_hook", QUAD, 1, 2, True),
        ("straggler_rank_two_nodes", HGX, 2, 12, True),
    ):
        yield positive(
            name,
            "straggler_rank",
            run_on(node, _late(NODE_WORK, 0.26), only=(rank,), count=count, measures_communication=hook),
            subject="run",
            alerts=alert,
            forbidden=_NOT_THE_NETWORK | {"straggler_hw", "straggler_input"},
            culprit=(("rank", str(rank)),),
            lost=0.26,
        )
    for level in _LEVELS:
        yield near(
            "straggler_rank",
            "straggler_rank",
            level,
            run_on(QUAD, _late(NODE_WORK, 0.10 * level), only=(3,), measures_communication=True),
            subject="run",
            acceptable=frozenset({"straggler_rank", "comm_bound"} if level < 1 else ()),
            alerts=alert,
            culprit=(("rank", "3"),) if level > 1 else None,
            lost=0.10 * level,
        )
    starved = frozenset({"TrainingStragglerInput"})
    for name, node, work, rank, hook in (
        ("straggler_input_node", QUAD, NODE_WORK, 3, True),
        ("straggler_input_server", SERVER_4, SERVER_WORK, 2, False),
    ):
        yield positive(
            name,
            "straggler_input",
            run_on(node, _late(work, 0.22, by="data_wait"), only=(rank,), measures_communication=hook),
            subject="run",
            alerts=starved,
            forbidden=_NOT_THE_NETWORK | {"straggler_hw"},
            culprit=(("rank", str(rank)),),
            lost=0.22,
        )
    for level in _LEVELS:
        yield near(
            "straggler_input",
            "straggler_input",
            level,
            run_on(QUAD, _late(NODE_WORK, 0.10 * level, by="data_wait"), only=(1,), measures_communication=True),
            subject="run",
            acceptable=frozenset({"straggler_input", "comm_bound"} if level < 1 else ()),
            alerts=starved,
            culprit=(("rank", "1"),) if level > 1 else None,
            lost=0.10 * level,
        )


def _slow_hardware() -> Iterator[Case]:
    hot = Gpu(throttled={"hw_thermal": 0.96}, clock=0.74, celsius=92)
    for name, count, rank in (("straggler_hw_node", 1, 2), ("straggler_hw_two_nodes", 2, 3)):
        yield positive(
            name,
            "straggler_hw",
            run_on(
                QUAD if count == 1 else PAIR,
                slowed(NODE_WORK, 0.97 / 0.74),
                only=(rank,),
                count=count,
                gpu=hot,
                gpus=(rank,),
                measures_communication=True,
            ),
            subject="run",
            acceptable=frozenset({"thermal_throttle"}),
            alerts=frozenset({"TrainingStragglerHw", "GpuThermalThrottle"}),
            forbidden=_NOT_THE_NETWORK | {"straggler_input"},
            culprit=(("rank", str(rank)),),
            lost=0.23,
        )
    # A card in the wrong slot: copies take four times as long. Clocks are fine.
    narrow = replace(NODE_WORK, host_copy=0.004 + 0.13)
    yield positive(
        "straggler_hw_narrow_slot",
        "straggler_hw",
        run_on(QUAD, narrow, only=(3,), gpu=Gpu(width=4), gpus=(3,), measures_communication=True),
        subject="run",
        acceptable=frozenset({"straggler_rank", "pcie_degraded"}),
        alerts=frozenset({"GpuPcieDegraded"}),
        allowed=frozenset({"TrainingStragglerHw", "TrainingStragglerRank"}),
        forbidden=_NOT_THE_NETWORK | {"straggler_input"},
        culprit=(("rank", "3"),),
        lost=0.22,
    )
    for level in _LEVELS:
        # A clock under nine tenths of the peers': the loss at 1.25 is an eighth.
        clock = 1 - 0.1 * level
        yield near(
            "straggler_hw",
            "straggler_hw",
            level,
            run_on(
                QUAD,
                slowed(NODE_WORK, 1 / clock),
                only=(2,),
                gpu=Gpu(throttled={"hw_thermal": 0.09 if level < 1 else 0.95}, clock=0.97 * clock, celsius=90),
                gpus=(2,),
                measures_communication=True,
            ),
            subject="run",
            acceptable=frozenset({"straggler_rank", "straggler_hw", "comm_bound"} if level < 1 else ()),
            alerts=frozenset({"TrainingStragglerHw"}),
            allowed=frozenset({"GpuThermalThrottle"} if level > 1 else ()),
            culprit=(("rank", "2"),) if level > 1 else None,
            lost=0.1 * level,
        )


def _shape() -> Iterator[Case]:
    # One process drives four GPUs, and gathers on the first: DataParallel.
    imbalance = frozenset({"TrainingGpuLoadImbalance"})
    whole = replace(SERVER_WORK, communication=0.0, loader_cores=12.0, loader_workers=48)
    yield positive(
        "gpu_load_imbalance_data_parallel",
        "gpu_load_imbalance",
        run_on(SERVER_4, before=whole, ranks=((0, 1, 2, 3),), gpu_shares=(1.0, 0.55, 0.55, 0.55)),
        subject="run",
        acceptable=WELL,
        alerts=imbalance,
        length=45.0,
        onset=0.0,
        verdict_expected=False,
    )
    for level in _LEVELS:
        yield near(
            "gpu_load_imbalance",
            "gpu_load_imbalance",
            level,
            run_on(SERVER_4, before=whole, ranks=((0, 1, 2, 3),), gpu_shares=(1.0, *(3 * (1 - 0.205 * level,)))),
            subject="run",
            acceptable=WELL,
            alerts=imbalance,
            length=45.0,
            onset=0.0,
            verdict_expected=False,
        )
    slow = frozenset({"TrainingCommBound"})
    for name, node, work, count, share in (
        ("comm_bound_two_nodes", HGX, NODE_WORK, 2, 0.35),
        ("comm_bound_server", SERVER, SERVER_WORK, 1, 0.24),
    ):
        yield positive(
            name,
            "comm_bound",
            run_on(node, taking(work, "communication", share), count=count, measures_communication=True),
            subject="run",
            alerts=slow,
            forbidden=frozenset({"straggler_rank", "straggler_hw", "input_bound", "small_batch", "healthy"}),
            lost=share,
        )
    for level in _LEVELS:
        # Random waits of ranks for each other count as communication too.
        yield near(
            "comm_bound",
            "comm_bound",
            level,
            run_on(PAIR, taking(NODE_WORK, "communication", 0.10 * level - 0.008), measures_communication=True),
            subject="run",
            acceptable=frozenset({"comm_bound"}),
            alerts=slow,
            lost=0.10 * level,
        )
    scaling: dict[str, Any] = {
        "subject": "run",
        "acceptable": WELL | {"comm_bound"},
        "alerts": frozenset({"TrainingScalingInefficient"}),
        "onset": 0.0,
        "length": 45.0,
        "verdict_expected": False,
    }
    yield positive("scaling_inefficient_node", "scaling_inefficient", _scaled(0.65), **scaling)
    for level in _LEVELS:
        # Under 0.8 of what one GPU alone does: a fifth is lost.
        yield near("scaling_inefficient", "scaling_inefficient", level, _scaled(1 - 0.2 * level), **scaling)


def _scaled(efficiency: float) -> Story:
    """Three GPUs, each of which does a share of what one alone did, by the user's own word.

    No hook measures communication separately: it is part of `backward`.
    """
    alone = replace(NODE_WORK, communication=0.0)
    together = replace(alone, backward=alone.backward + _step(alone) * (1 / efficiency - 1))
    return run_on(
        QUAD,
        before=together,
        ranks=((0,), (1,), (2,)),
        cpu_limit=24.0,
        values={"single_gpu_samples_per_second": alone.batch / _step(alone)},
    )


def _others() -> Iterator[Case]:
    # A rank on two GPUs each, one of them late.
    yield positive(
        "straggler_rank_on_two_gpus_each",
        "straggler_rank",
        run_on(
            HGX,
            _late(NODE_WORK, 0.25),
            onset=ONSET,
            only=(1,),
            ranks=((0, 1), (2, 3), (4, 5), (6, 7)),
            measures_communication=True,
        ),
        subject="run",
        alerts=frozenset({"TrainingStragglerRank"}),
        forbidden=_NOT_THE_NETWORK,
        culprit=(("rank", "1"),),
        lost=0.25,
    )


def _uneven() -> Iterator[Case]:
    """Sequences differ in length: the slowest of n ranks takes longer than the mean, and another one in each step.

    The truth is computed from as many draws as it takes to know it, not by the formula of the rules.
    """
    alert = frozenset({"TrainingUnevenWork"})
    slow = frozenset({"TrainingStepOutliers"})  # the longest steps are outliers too
    for name, node, count, spread, hook in (
        ("uneven_work_node", HGX, 1, 0.35, True),
        ("uneven_work_two_nodes", HGX, 2, 0.25, True),
        ("uneven_work_node_without_hook", QUAD, 1, 0.4, False),
    ):
        ranks = node.gpus * count
        yield positive(
            name,
            "uneven_work",
            run_on(node, replace(NODE_WORK, unevenness=spread), count=count, measures_communication=hook),
            subject="run",
            alerts=alert,
            allowed=slow,
            forbidden=_NOT_THE_NETWORK | {"straggler_rank", "straggler_hw", "straggler_input"},
            lost=_waited(spread, ranks),
        )
    for level, spread in zip(_LEVELS, (0.088, 0.1425), strict=True):
        yield near(
            "uneven_work",
            "uneven_work",
            level,
            run_on(QUAD, replace(NODE_WORK, unevenness=spread), measures_communication=True),
            subject="run",
            acceptable=frozenset({"uneven_work", "comm_bound"} if level < 1 else ()),
            alerts=alert,
            lost=0.10 * level,
        )
    # A bucket of lengths for all ranks of a step: as the remedy says.
    lengths = replace(NODE_WORK, buckets=((0.25, 0.5), (0.25, 0.8), (0.25, 1.2), (0.25, 1.5)), tokens_per_sample=400)
    yield negative(
        "equal_lengths_in_each_step",
        run_on(QUAD, before=lengths, measures_communication=True),
        forbidden=frozenset({"uneven_work", "straggler_rank", "step_outliers"}),
    )


def _late_batches() -> Iterator[Case]:
    """In each step the batch of another rank is late: no rank stands out, and the others wait in the all-reduce.

    The truth is computed from as many draws as it takes to know it, not by the formula of the rules.
    """
    alert = frozenset({"TrainingInputBound"})
    worlds: tuple[tuple[str, Node, int, dict[str, Any], dict[str, Any]], ...] = (
        ("by_turns_4", QUAD, 1, {"late_batches": 1.0, "late_seconds": 0.2}, {"measures_communication": True}),
        ("by_turns_8_without_hook", HGX, 1, {"late_batches": 1.0, "late_seconds": 0.25}, {}),
        ("by_turns_64", HGX, 8, {"late_batches": 1.0, "late_seconds": 0.25}, {"measures_communication": True}),
        (
            "heavy_tail_8",
            HGX,
            1,
            {"late_batches": 0.1, "late_seconds": 0.15, "late_tail": 2.5},
            {"measures_communication": True, "device_events": False},
        ),
        (
            "heavy_tail_64_without_hook",
            HGX,
            8,
            {"late_batches": 0.02, "late_seconds": 0.15, "late_tail": 2.5},
            {"device_events": False},
        ),
        (
            "with_uneven_work",
            HGX,
            1,
            {"late_batches": 1.0, "late_seconds": 0.4, "unevenness": 0.1},
            {"measures_communication": True},
        ),
    )
    for name, node, count, late, measures in worlds:
        work = replace(NODE_WORK, **late)
        yield positive(
            f"late_batches_{name}",
            "input_bound",
            run_on(node, work, count=count, **measures),
            subject="run",
            alerts=alert,
            forbidden=frozenset({"comm_bound", "straggler_rank", "straggler_input", "straggler_hw", "step_outliers"}),
            lost=_waited_for_data(work, node.gpus * count),
            tolerance=0.03,
        )
    # As much communication, while all ranks wait equally long for data.
    busy = replace(taking(NODE_WORK, "communication", 0.3), data_wait=0.02)
    yield positive(
        "comm_bound_with_equal_data_waits",
        "comm_bound",
        run_on(HGX, busy, measures_communication=True),
        subject="run",
        alerts=frozenset({"TrainingCommBound"}),
        forbidden=frozenset({"input_bound", "straggler_rank", "straggler_input", "uneven_work"}),
        lost=busy.communication / _step(busy),
        tolerance=0.03,
    )
    # Batches of long sequences take longer to load as well: their work is what others wait for.
    yield positive(
        "uneven_work_with_data_waits",
        "uneven_work",
        run_on(HGX, replace(NODE_WORK, unevenness=0.35, data_wait=0.01), measures_communication=True),
        subject="run",
        alerts=frozenset({"TrainingUnevenWork"}),
        allowed=frozenset({"TrainingStepOutliers"}),
        forbidden=_NOT_THE_NETWORK | {"straggler_rank", "straggler_hw", "straggler_input"},
        lost=_waited(0.35, 8),
    )


def _waited_for_data(work: Work, ranks: int) -> float:
    """Share of the step that ranks wait on average for late batches, their own and those of others."""
    draw = np.random.default_rng(1)
    shape = (20_000, ranks)
    late = work.late_seconds * (1 + draw.pareto(work.late_tail, shape) if work.late_tail else np.ones(shape))
    if work.late_batches < 1:
        late *= draw.random(shape) < work.late_batches
    else:
        late *= draw.integers(ranks, size=len(late))[:, None] == np.arange(ranks)
    deviation = np.sqrt(np.log1p(work.unevenness**2))
    phases = (work.forward, work.backward, work.optimizer)
    computing = sum(phases)
    varied = sum(seconds * (1 + 0.4 * work.spread * draw.standard_normal(shape)) for seconds in phases)
    own = varied * draw.lognormal(-(deviation**2) / 2, deviation, shape)
    last = (own + late).max(axis=1).mean()
    waited = last - own.max(axis=1).mean() + work.data_wait
    return float(waited / (_step(work) - computing + last))


def _waited(unevenness: float, ranks: int) -> float:
    """Share of the step that ranks wait on average for the one with the most computing."""
    deviation = np.sqrt(np.log1p(unevenness**2))
    drawn = np.random.default_rng(1).lognormal(-(deviation**2) / 2, deviation, (20_000, ranks))
    computing = NODE_WORK.forward + NODE_WORK.backward + NODE_WORK.optimizer
    longest = computing * drawn.max(axis=1).mean()
    return float((longest - computing) / (_step(NODE_WORK) - computing + longest))


def _pipelines() -> Iterator[Case]:
    """A stage of a pipeline has more work. The schedule shows what is lost, not the formula of the rules."""
    alert = frozenset({"TrainingStageImbalance"})
    misled = _NOT_THE_NETWORK | {"straggler_rank", "straggler_hw", "straggler_input"}
    for name, node, count, works, microbatches, fields in (
        ("node", HGX, 1, (1.0, 1.0, 1.0, 1.6), 8, {"measures_communication": True}),
        ("node_without_hook", HGX, 1, (1.0, 1.0, 1.0, 1.4), 16, {}),
        ("two_nodes", HGX, 2, (1.0, 1.9), 4, {"measures_communication": True}),
        ("one_rank_each", QUAD, 1, (1.5, 0.9, 0.9, 0.9), 12, {"measures_communication": True}),
        ("unreported", HGX, 1, (1.0, 1.0, 1.0, 1.5), 64, {"measures_communication": True, "stages": ()}),
    ):
        ranks = node.gpus * count
        story, lost = _pipeline(node, count, works, microbatches, **fields)
        yield positive(
            f"stage_imbalance_{name}",
            "stage_imbalance",
            story,
            subject="run",
            # Without the report of a rank, ranks with unreported stages do not divide into equal ones.
            acceptable=frozenset({"straggler_rank"} if "stages" in fields else ()),
            alerts=alert,
            allowed=frozenset({"TrainingStragglerRank"} if "stages" in fields else ()),
            forbidden=misled - {"straggler_rank"} if "stages" in fields else misled,
            culprit=(("rank", "0"),) if works[0] > 1 and ranks == len(works) else None,
            lost=lost,
        )
    for level, heavy in zip(_LEVELS, (1.166, 1.279), strict=True):
        story, lost = _pipeline(HGX, 1, (1.0, 1.0, 1.0, heavy), 16, measures_communication=True)
        yield near(
            "stage_imbalance",
            "stage_imbalance",
            level,
            story,
            subject="run",
            acceptable=frozenset({"stage_imbalance"} if level < 1 else ()),
            alerts=alert,
            lost=lost,
        )
    for name, node, stages, microbatches in (("few", QUAD, 4, 4), ("many", HGX, 4, 16), ("two", HGX, 2, 2)):
        story, _ = _pipeline(node, 1, stages * (1.0,), microbatches, measures_communication=True)
        yield negative(
            f"equal_stages_{name}_microbatches",
            story,
            forbidden=(misled | {"stage_imbalance"}) - WELL,
        )
    # A rank that is slow in a stage of several, and the heavy stage of which one rank's stage is unknown.
    slow, lost = _pipeline(HGX, 1, (1.0, 1.0, 1.0, 1.8), 8, only=(6,), measures_communication=True)
    yield positive(
        "straggler_rank_in_a_stage",
        "straggler_rank",
        slow,
        subject="run",
        alerts=frozenset({"TrainingStragglerRank"}),
        forbidden=_NOT_THE_NETWORK | {"stage_imbalance", "straggler_hw", "straggler_input"},
        culprit=(("rank", "6"),),
        lost=lost,
    )
    partly, lost = _pipeline(
        HGX, 1, (1.0, 1.0, 1.0, 1.6), 8, measures_communication=True, stages=(None, 0, 1, 1, 2, 2, 3, 3)
    )
    yield positive(
        "stage_of_a_rank_unknown",
        "straggler_rank",
        partly,
        subject="run",
        alerts=frozenset({"TrainingStragglerRank"}),
        forbidden=_NOT_THE_NETWORK | {"stage_imbalance", "straggler_hw", "straggler_input"},
        lost=lost,
    )


def _pipeline(
    node: Node, count: int, works: Sequence[float], microbatches: int, *, only: Sequence[int] = (), **run: Any
) -> tuple[Story, float]:
    """Return a run whose stages have these parts of the usual work from the onset on, and the share that it loses.

    Args:
        node: the machine.
        count: machines.
        works: work of each stage; 1 is the usual work, which all have before the onset.
        microbatches: of a step.
        only: ranks that have the work; the others of their stages keep the usual work.
        run: further fields of the run.
    """
    ranks = node.gpus * count
    stages = tuple(rank * len(works) // ranks for rank in range(ranks))
    chosen = only or tuple(rank for rank in range(ranks) if works[stages[rank]] != 1.0)
    computing = NODE_WORK.forward + NODE_WORK.backward

    def work(factor: float, slowest: Sequence[float]) -> Work:
        """Return the work of a rank in a pipeline with these stages: it waits while that fills and drains."""
        bubble = computing * (_passed(slowest, microbatches) - max(slowest))
        return replace(
            NODE_WORK,
            forward=factor * NODE_WORK.forward,
            backward=factor * NODE_WORK.backward,
            communication=NODE_WORK.communication + bubble,
        )

    usual = len(works) * (1.0,)
    story = run_on(node, count=count, before=work(1.0, usual), **{"stages": stages, **run})
    changed = [
        change
        for factor in {works[stages[rank]] for rank in chosen}
        for change in run_on(
            node,
            work(factor, works),
            count=count,
            only=tuple(rank for rank in chosen if works[stages[rank]] == factor),
        )
        .runs[0]
        .work[1:]
    ]
    story = replace(story, runs=(replace(story.runs[0], work=(*story.runs[0].work, *changed)),))
    mean = sum(works[stages[rank]] if rank in chosen else 1.0 for rank in range(ranks)) / ranks
    taken, equal = (computing * _passed(each, microbatches) for each in (works, len(works) * (mean,)))
    return story, (taken - equal) / (_step(NODE_WORK) - computing + taken)


def _passed(works: Sequence[float], microbatches: int) -> float:
    """Return the time in which all microbatches pass the stages forward and then backward, twice as long."""
    free = len(works) * [0.0]
    for length, order in ((1 / 3, range(len(works))), (2 / 3, reversed(range(len(works))))):
        ready = microbatches * [0.0]
        for stage in order:
            for number in range(microbatches):
                free[stage] = max(free[stage], ready[number]) + length * works[stage] / microbatches
                ready[number] = free[stage]
    return max(free)


CASES: tuple[Case, ...] = (
    *_slow_ranks(),
    *_slow_hardware(),
    *_shape(),
    *_others(),
    *_uneven(),
    *_late_batches(),
    *_pipelines(),
)
