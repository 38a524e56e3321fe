"""Whole lives of runs: a start on an empty database, a fault, its end, and what happens to the monitoring meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import CLOUD_WORK, LAPTOP_WORK, NODE_WORK, negative, positive, run_on, slowed
from tests.scenarios.cases.settings import taking as waiting
from tests.scenarios.machines import CLOUD, LAPTOP, PAIR, QUAD
from tests.scenarios.story import ALWAYS, From, Gpu, Host, Node, Story, Work, at

_ONSET, _END, _LENGTH = 15.0, 30.0, 42.0
_START: dict[str, Any] = {"start": 2.0, "initialization": 1.0}
"""The run starts after the first scrapes, so that its first step is seen."""
_BOUNDS: dict[str, Any] = {"onset": _ONSET, "end": _END, "length": _LENGTH}
_SLOW_STEPS = replace(NODE_WORK, data_wait=0.1, host_copy=0.08, forward=2.7, backward=5.0, optimizer=0.3)
"""Steps of eight seconds, as large models have."""


def _ended(story: Story, *, restarted: bool = False) -> Story:
    """Let the states of the beginning hold again from the end on; a run that can't go on is started again."""
    run = story.runs[0]
    first = ALWAYS + 1
    work = tuple(From(_END, at(run.work, rank, first), (rank,)) for rank in range(len(run.ranks)))
    hosts = tuple(From(_END, at(story.hosts, node, first), (node,)) for node in range(len(story.nodes)))
    count = sum(node.gpus for node in story.nodes)
    gpus = tuple(From(_END, at(story.gpus, gpu, first), (gpu,)) for gpu in range(count))
    restarts = (_END,) if restarted else ()
    return replace(
        story,
        runs=(replace(run, work=(*run.work, *work), restarts=restarts),),
        hosts=(*story.hosts, *hosts),
        gpus=(*story.gpus, *gpus),
    )


def _ill(node: Node, after: Work | None, *, restarted: bool = False, **given: Any) -> Story:
    return _ended(run_on(node, after, onset=_ONSET, **{**_START, **given}), restarted=restarted)


def _well() -> Iterator[Case]:
    length = {"length": 30.0}
    yield negative("life_healthy_cloud", run_on(CLOUD, **_START), **length)
    yield negative("life_healthy_slow_steps", run_on(PAIR, before=_SLOW_STEPS, **_START), **length)
    yield negative("life_exporter_restart", run_on(CLOUD, more={"exporter_restarts": ((0, 15.0),)}, **_START), **length)
    # Prometheus itself is restarted, quickly and slowly: it marks no series as ended.
    for name, minutes in (("one_minute", 1.0), ("four_minutes", 4.0)):
        gap = {"scrape_gaps": ((15.0, 15.0 + minutes),)}
        yield negative(f"life_scrape_gap_of_{name}", run_on(CLOUD, more=gap, **_START), **length)


_FULL = Host(cores=2.0, cpu_waiting=0.6)


def _waits() -> Iterator[Case]:
    yield positive(
        "life_input_cpu_saturated_laptop",
        "input_cpu_saturated",
        _ill(LAPTOP, replace(waiting(LAPTOP_WORK, "data_wait", 0.3), loader_cores=14.0), host=_FULL),
        subject="run",
        alerts=frozenset({"TrainingInputCpuSaturated"}),
        forbidden=frozenset({"input_few_workers", "input_single_thread", "input_disk_bound"}),
        lost=0.3,
        **_BOUNDS,
    )
    # 10 Gb/s at 95 % of the line.
    slow = waiting(replace(CLOUD_WORK, data="network"), "data_wait", 0.3)
    step = slow.data_wait + slow.host_copy + slow.forward + slow.backward + slow.optimizer + slow.other
    yield positive(
        "life_input_network_bound_cloud",
        "input_network_bound",
        _ill(CLOUD, replace(slow, bytes_per_sample=0.95 * 1.25e9 * step / slow.batch, loader_cores=0.9)),
        subject="run",
        alerts=frozenset({"TrainingInputNetworkBound"}),
        forbidden=frozenset({"input_few_workers", "input_disk_bound", "input_cpu_saturated", "input_single_thread"}),
        lost=0.3,
        **_BOUNDS,
    )
    # A run keeps its number of workers; from the onset on each sample takes them longer.
    two = replace(LAPTOP_WORK, loader_workers=2, loader_cores=1.2)
    few = replace(waiting(two, "data_wait", 0.3), loader_cores=1.6)
    for name, more in (
        ("an_exporter_restart", {"exporter_restarts": ((0, 20.0),)}),
        ("a_scrape_gap", {"scrape_gaps": ((20.0, 24.0),)}),
    ):
        yield positive(
            f"life_input_few_workers_with_{name}",
            "input_few_workers",
            _ill(LAPTOP, few, before=two, more=more),
            subject="run",
            alerts=frozenset({"TrainingInputFewWorkers"}),
            forbidden=frozenset({"input_cpu_saturated", "input_too_many_workers", "input_disk_bound", "small_batch"}),
            lost=0.3,
            **_BOUNDS,
        )


def _hangs() -> Iterator[Case]:
    for name, node, work in (("hang_spin", PAIR, NODE_WORK), ("hang_spin_slow_steps", PAIR, _SLOW_STEPS)):
        story = run_on(node, replace(work, hangs="spin"), before=work, onset=_ONSET, **_START)
        run = story.runs[0]
        stuck = From(_ONSET, replace(work, hangs="idle", main_thread=0.0), (1,))
        yield positive(
            f"life_{name}",
            "hang_spin",
            _ended(replace(story, runs=(replace(run, work=(*run.work, stuck)),)), restarted=True),
            subject="run",
            acceptable=frozenset({"stalled"}),
            alerts=frozenset({"TrainingHangSpin"}),
            allowed=frozenset({"TrainingStalled"}),
            forbidden=frozenset({"healthy", "compute_bound", "comm_bound", "small_batch", "straggler_rank"}),
            lost=1.0,
            **_BOUNDS,
        )
    yield positive(
        "life_hang_io",
        "hang_io",
        _ill(
            CLOUD,
            replace(CLOUD_WORK, hangs="io", main_thread=0.0),
            restarted=True,
            host=Host(cores=1, iowait=0.3, io_waiting=0.95, io_stalled=0.85),
        ),
        subject="run",
        alerts=frozenset({"TrainingHangIo"}),
        allowed=frozenset({"TrainingStalled"}),
        forbidden=frozenset({"healthy", "hang_spin"}),
        lost=1.0,
        **_BOUNDS,
    )
    # Back on the bus after a reset of the machine; the job is started again.
    yield positive(
        "life_lost",
        "lost",
        _ill(
            LAPTOP,
            replace(LAPTOP_WORK, hangs="idle"),
            restarted=True,
            gpu=Gpu(present=False, lost_reason="reset_required"),
        ),
        subject="gpu",
        alerts=frozenset({"GpuLost"}),
        allowed=frozenset({"TrainingStalled", "TrainingHangIo"}),
        forbidden=frozenset({"healthy", "compute_bound", "input_bound", "idle_allocated"}),
        culprit=(("instance", "node0:19400"), ("gpu", "0")),
        **_BOUNDS,
    )


def _slow() -> Iterator[Case]:
    usual = NODE_WORK
    step = usual.data_wait + usual.host_copy + usual.forward + usual.backward + usual.communication + usual.optimizer
    late = replace(usual, backward=usual.backward + 0.26 / 0.74 * (step + usual.other))
    yield positive(
        "life_straggler_rank",
        "straggler_rank",
        _ill(QUAD, late, only=(2,), measures_communication=True),
        subject="run",
        alerts=frozenset({"TrainingStragglerRank"}),
        forbidden=frozenset({"comm_bound", "small_batch", "scaling_inefficient", "straggler_hw", "straggler_input"}),
        culprit=(("rank", "2"),),
        lost=0.26,
        **_BOUNDS,
    )
    yield positive(
        "life_thermal_throttle",
        "thermal_throttle",
        _ill(
            LAPTOP,
            slowed(LAPTOP_WORK, 0.97 / 0.72),
            gpu=Gpu(throttled={"sw_thermal": 0.98}, clock=0.72, celsius=87),
        ),
        subject="gpu",
        alerts=frozenset({"GpuThermalThrottle"}),
        forbidden=frozenset({"input_bound", "comm_bound", "small_batch", "power_capped"}),
        culprit=(("instance", "node0:19400"), ("gpu", "0")),
        lost=0.26,
        tolerance=0.06,
        **_BOUNDS,
    )


CASES: tuple[Case, ...] = (*_well(), *_waits(), *_hangs(), *_slow())
