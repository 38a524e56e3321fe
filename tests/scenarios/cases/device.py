"""Runs whose GPUs have work, and do too little of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import (
    CLOUD_WORK,
    LAPTOP_WORK,
    NODE_WORK,
    SERVER_WORK,
    TINY,
    WELL,
    near,
    positive,
    run_on,
    taking,
)
from tests.scenarios.machines import CLOUD, LAPTOP, PAIR, SERVER, SINGLE, WORKSTATION
from tests.scenarios.story import Kernels, Work

_LEVELS = (0.8, 1.25)
_QUARTER_HOUR = 50.0
"""Length of cases that are judged over fifteen minutes."""
_INPUT_ADVICE = frozenset({"input_bound", "input_few_workers", "input_cpu_saturated"})


def _steps_of(
    seconds: float,
    batch: float,
    kernels: Kernels,
    *,
    memory: float = 0.2,
    main_thread: float = 0.5,
    data: str = "none",
) -> Work:
    """Short steps that wait for nothing."""
    return Work(
        data_wait=0.01 * seconds,
        host_copy=0.01 * seconds,
        forward=0.3 * seconds,
        backward=0.58 * seconds,
        optimizer=0.09 * seconds,
        other=0.01 * seconds,
        kernels=kernels,
        batch=batch,
        data=data,
        loader_workers=4,
        loader_cores=0.5,
        main_thread=main_thread,
        memory=memory,
    )


def _copies() -> Iterator[Case]:
    alert = frozenset({"TrainingH2dBound"})
    for name, node, work, share in (
        ("h2d_bound_laptop", LAPTOP, LAPTOP_WORK, 0.22),
        ("h2d_bound_server", SERVER, SERVER_WORK, 0.16),
        ("h2d_bound_node", SINGLE, NODE_WORK, 0.25),
    ):
        yield positive(
            name,
            "h2d_bound",
            run_on(node, taking(replace(work, copied_per_sample=4e6), "host_copy", share)),
            subject="run",
            alerts=alert,
            forbidden=_INPUT_ADVICE | {"small_batch", "sync_stall"},
            lost=share,
        )
    for level in _LEVELS:
        yield near(
            "h2d_bound",
            "h2d_bound",
            level,
            run_on(CLOUD, taking(CLOUD_WORK, "host_copy", 0.10 * level)),
            subject="run",
            acceptable=frozenset({"h2d_bound"}),
            alerts=alert,
            lost=0.10 * level,
        )


def _small() -> Iterator[Case]:
    alert = frozenset({"TrainingSmallBatch"})
    harm = _INPUT_ADVICE | {"healthy", "compute_bound", "comm_bound"}
    yield positive(
        "small_batch_h100",
        "small_batch",
        run_on(SINGLE, _steps_of(0.014, 8, TINY), ranks=((0,),)),
        subject="run",
        acceptable=frozenset({"launch_bound"}),
        alerts=alert,
        forbidden=harm,
        lost=TINY.busy - TINY.sm,
        tolerance=0.1,
    )
    # No counters but the driver's: short steps, little power, a host at rest.
    yield positive(
        "small_batch_l40s",
        "small_batch",
        run_on(CLOUD, _steps_of(0.018, 8, replace(TINY, memory=0.75, power=0.35))),
        subject="run",
        acceptable=frozenset({"launch_bound"}),
        alerts=alert,
        forbidden=harm,
    )
    # Study of 2019: 250 images a second in batches of 4, GPU 90 %, memory access 85 %, memory all taken beforehand.
    crowded = replace(TINY, busy=0.928, memory=0.86, power=0.45)
    yield positive(
        "ac_01_batch_of_four",
        "small_batch",
        run_on(
            WORKSTATION,
            replace(_steps_of(1 / 62.5, 4, crowded, main_thread=0.2, memory=0.1), reserved=0.98, loader_workers=None),
            ranks=((0,),),
            framework="tensorflow",
            precision="fp32",
        ),
        subject="run",
        acceptable=frozenset({"launch_bound"}),
        alerts=alert,
        forbidden=harm,
    )
    # SageMaker's footprint: GPU, its memory and the host all low.
    low = replace(TINY, busy=0.45, power=0.25, memory=0.15)
    yield positive(
        "ac_10_batch_of_64",
        "small_batch",
        run_on(CLOUD, _steps_of(0.035, 64, low, memory=0.2), before=CLOUD_WORK),
        subject="run",
        acceptable=frozenset({"launch_bound"}),
        alerts=alert,
        forbidden=harm,
    )
    for level in _LEVELS:
        # DCGM's guide: SM activity under a half is ineffective.
        yield near(
            "small_batch",
            "small_batch",
            level,
            run_on(SINGLE, _steps_of(0.02, 16, replace(TINY, sm=0.5 / level, power=0.42)), ranks=((0,),)),
            subject="run",
            acceptable=frozenset({"launch_bound"} if level > 1 else ()),
            alerts=alert,
        )


def _launches() -> Iterator[Case]:
    alert = frozenset({"TrainingLaunchBound"})
    # Tiny kernels out of Python: one thread at its limit, memory full, so that no larger batch fits.
    eager = Kernels(busy=0.68, memory=0.25, sm=0.26, occupancy=0.1, dram=0.2, tensor=0.08, fp32=0.1, power=0.32)
    for name, node in (("launch_bound_h100", SINGLE), ("launch_bound_pair", PAIR)):
        yield positive(
            name,
            "launch_bound",
            run_on(node, _steps_of(0.16, 32, eager, memory=0.88, main_thread=0.99)),
            subject="run",
            acceptable=frozenset({"small_batch"} if node is SINGLE else ()),
            alerts=alert,
            forbidden=_INPUT_ADVICE | {"healthy", "compute_bound", "comm_bound"},
        )
    for level in _LEVELS:
        yield near(
            "launch_bound",
            "launch_bound",
            level,
            run_on(
                SINGLE,
                _steps_of(0.16, 32, replace(eager, sm=0.4 / level, busy=0.9), memory=0.88, main_thread=0.99),
                ranks=((0,),),
            ),
            subject="run",
            acceptable=frozenset({"small_batch"}),
            alerts=alert,
        )


def _host_time() -> Iterator[Case]:
    alert = frozenset({"TrainingSyncStall"})
    for name, node, work, share in (
        ("sync_stall_laptop", LAPTOP, LAPTOP_WORK, 0.24),
        ("sync_stall_node", SINGLE, NODE_WORK, 0.15),
    ):
        yield positive(
            name,
            "sync_stall",
            run_on(node, taking(work, "other", share)),
            subject="run",
            alerts=alert,
            forbidden=_INPUT_ADVICE | {"comm_bound", "h2d_bound"},
            lost=share,
        )
    for level in _LEVELS:
        yield near(
            "sync_stall",
            "sync_stall",
            level,
            run_on(SINGLE, taking(NODE_WORK, "other", 0.10 * level)),
            subject="run",
            acceptable=frozenset({"sync_stall"}),
            alerts=alert,
            lost=0.10 * level,
        )


def _kernels() -> Iterator[Case]:
    # Embeddings and elementwise work: memory at its limit, matrix units at rest.
    streaming = Kernels(memory=0.95, sm=0.85, occupancy=0.6, dram=0.88, tensor=0.12, fp32=0.3, power=0.75)
    memory_alert = frozenset({"TrainingMemBwBound"})
    yield positive(
        "mem_bw_bound_node",
        "mem_bw_bound",
        run_on(SINGLE, replace(NODE_WORK, kernels=streaming)),
        subject="run",
        acceptable=frozenset({"low_mfu"}),
        alerts=memory_alert,
        forbidden=_INPUT_ADVICE | {"small_batch", "launch_bound"},
    )
    for level in _LEVELS:
        # The optimizer's share of a step, with its own traffic, is small.
        yield near(
            "mem_bw_bound",
            "mem_bw_bound",
            level,
            run_on(SINGLE, replace(NODE_WORK, kernels=replace(streaming, dram=0.70 * level))),
            subject="run",
            acceptable=frozenset(WELL),
            alerts=memory_alert,
        )
    # Matrices in 32 bits on a GPU with matrix units.
    single = Kernels(sm=0.93, occupancy=0.4, dram=0.3, tensor=0.0, fp32=0.8, power=0.8)
    tensor_alert = frozenset({"TrainingTensorCoresUnused"})
    yield positive(
        "tensor_cores_unused_node",
        "tensor_cores_unused",
        run_on(SINGLE, replace(NODE_WORK, kernels=single), precision="fp32"),
        subject="run",
        acceptable=frozenset({"low_mfu"}),
        alerts=tensor_alert,
        forbidden=_INPUT_ADVICE | {"small_batch", "mem_bw_bound"},
        length=_QUARTER_HOUR,
    )
    for level in _LEVELS:
        yield near(
            "tensor_cores_unused",
            "tensor_cores_unused",
            level,
            # The optimizer has none, so that the mean over all time is what the threshold is of.
            run_on(SINGLE, replace(NODE_WORK, kernels=replace(single, tensor=0.0545 / level)), precision="fp32"),
            subject="run",
            acceptable=WELL,
            alerts=tensor_alert,
            length=_QUARTER_HOUR,
        )
    mfu_alert = frozenset({"TrainingLowMfu"})
    yield positive(
        "low_mfu_node",
        "low_mfu",
        run_on(SINGLE, _at_mfu(0.11)),
        subject="run",
        alerts=mfu_alert,
        forbidden=_INPUT_ADVICE | {"small_batch", "launch_bound"},
    )
    for level in _LEVELS:
        yield near(
            "low_mfu",
            "low_mfu",
            level,
            run_on(SINGLE, _at_mfu(0.20 / level)),
            subject="run",
            acceptable=WELL,
            alerts=mfu_alert,
        )


def _at_mfu(share: float) -> Work:
    """A transformer's step that does a share of the GPU's peak."""
    work = replace(NODE_WORK, kernels=Kernels(sm=0.9, tensor=0.3, dram=0.4, fp32=0.2, power=0.72), batch=16)
    step = work.data_wait + work.host_copy + work.forward + work.backward + work.communication + work.optimizer
    flops = share * 9.895e14 * (step + work.other) * 1.012 / work.batch
    return replace(work, flops_per_sample=flops, tokens_per_sample=2048)


CASES: tuple[Case, ...] = (*_copies(), *_small(), *_launches(), *_host_time(), *_kernels())
