"""Runs that wait for data, and why.

Bands of the wait are published: 5 % notice, 10 % warning, 20 % high (PyTorch's profiler, XProf, TraceML).
"""

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
    SERVER_WORK,
    WORKSTATION_WORK,
    near,
    positive,
    run_on,
    taking,
)
from tests.scenarios.machines import CLOUD, HGX, LAPTOP, PAIR, SERVER, SERVER_4, SINGLE, WORKSTATION
from tests.scenarios.story import ALWAYS, From, Host, Node, Run, Story, Work

_PODS: dict[str, Any] = {"pods": True, "namespace": "vision"}
_CGROUP_LENGTH = 48.0
"""Throttling is judged over a quarter of an hour."""
_WARN = 0.10


def _waiting(work: Work, share: float, **changes: Any) -> Work:
    return taking(replace(work, **changes), "data_wait", share)


def _parent() -> Iterator[Case]:
    # Enough workers, some CPUs left, storage and network calm: nothing shows why.
    yield positive(
        "input_bound_laptop",
        "input_bound",
        run_on(LAPTOP, _waiting(LAPTOP_WORK, 0.25, loader_cores=9.5, loader_workers=14)),
        subject="run",
        alerts=frozenset({"TrainingInputBound"}),
        forbidden=frozenset({"input_few_workers", "input_disk_bound", "input_network_bound", "input_cpu_saturated"}),
        lost=0.25,
    )
    yield positive(
        "input_bound_node",
        "input_bound",
        run_on(PAIR, _waiting(NODE_WORK, 0.22, loader_cores=16, loader_workers=20)),
        subject="run",
        alerts=frozenset({"TrainingInputBound"}),
        forbidden=frozenset({"input_few_workers", "input_disk_bound", "input_network_bound", "small_batch"}),
        lost=0.22,
    )
    for level in (0.8, 1.25):
        yield near(
            "input_bound",
            "input_bound",
            level,
            run_on(LAPTOP, _waiting(LAPTOP_WORK, _WARN * level, loader_cores=9.5, loader_workers=14)),
            subject="run",
            acceptable=frozenset({"input_bound"}),
            alerts=frozenset({"TrainingInputBound"}),
            lost=_WARN * level,
        )


def _cpus() -> Iterator[Case]:
    # Decoding needs more than there is: 24 CPUs a rank.
    node = _waiting(NODE_WORK, 0.31, loader_cores=23)
    saturated = Host(cores=4, cpu_waiting=0.6)
    pair = Host(cores=1, cpu_waiting=0.6)
    more_workers = frozenset({"input_few_workers", "input_single_thread", "input_disk_bound", "small_batch"})
    yield positive(
        "input_cpu_saturated_node",
        "input_cpu_saturated",
        run_on(HGX, node, host=saturated),
        subject="run",
        alerts=frozenset({"TrainingInputCpuSaturated"}),
        forbidden=more_workers,
        lost=0.31,
    )
    yield positive(
        "input_cpu_saturated_two_nodes",
        "input_cpu_saturated",
        run_on(PAIR, node, host=pair, count=2, slurm_job="4711"),
        subject="run",
        alerts=frozenset({"TrainingInputCpuSaturated"}),
        forbidden=more_workers,
        lost=0.31,
    )
    # Not all of the CPUs' time, but a task waits for one most of the time.
    yield positive(
        "input_cpu_saturated_by_pressure",
        "input_cpu_saturated",
        run_on(CLOUD, _waiting(CLOUD_WORK, 0.24, loader_cores=6.3), host=Host(cores=0.3, cpu_waiting=0.5)),
        subject="run",
        alerts=frozenset({"TrainingInputCpuSaturated"}),
        forbidden=more_workers,
        lost=0.24,
    )
    for level in (0.8, 1.25):
        yield near(
            "input_cpu_saturated",
            "input_cpu_saturated",
            level,
            run_on(SINGLE, _waiting(NODE_WORK, _WARN * level, loader_cores=23), host=Host(cores=0.6, cpu_waiting=0.6)),
            subject="run",
            acceptable=frozenset({"input_cpu_saturated"}),
            alerts=frozenset({"TrainingInputCpuSaturated"}),
            lost=_WARN * level,
        )


def _quota() -> Iterator[Case]:
    # A pod's limit of 8 CPUs on a machine that is two thirds idle.
    def pods(node: Node, share: float, throttled: float) -> Story:
        before = replace(NODE_WORK, loader_cores=5.0, loader_workers=8, quota_throttled=0.02)
        after = _waiting(before, share, loader_cores=7.4, quota_throttled=throttled, quota_waited=1.5 * throttled)
        return run_on(node, after, before=before, cpu_limit=8.0, quota=True, **_PODS)

    yield positive(
        "input_cgroup_throttled_pods",
        "input_cgroup_throttled",
        pods(PAIR, 0.28, 0.62),
        subject="run",
        alerts=frozenset({"TrainingInputCgroupThrottled"}),
        forbidden=frozenset({"input_few_workers", "input_disk_bound", "input_network_bound"}),
        length=_CGROUP_LENGTH,
        lost=0.28,
    )
    small = replace(CLOUD_WORK, loader_cores=1.5, loader_workers=4, quota_throttled=0.02)
    yield positive(
        "input_cgroup_throttled_container",
        "input_cgroup_throttled",
        run_on(
            CLOUD,
            _waiting(small, 0.26, loader_cores=2.6, quota_throttled=0.5, quota_waited=0.8),
            before=small,
            cpu_limit=3.0,
            quota=True,
            **_PODS,
        ),
        subject="run",
        alerts=frozenset({"TrainingInputCgroupThrottled"}),
        forbidden=frozenset({"input_few_workers", "input_disk_bound"}),
        length=_CGROUP_LENGTH,
        lost=0.26,
    )
    # kubernetes-mixin: a quarter of the periods, over a quarter of an hour. At 1.25 of it with a wait that matters.
    for level in (0.8, 1.25):
        yield near(
            "input_cgroup_throttled",
            "input_cgroup_throttled",
            level,
            pods(SINGLE, 0.06 if level < 1 else 0.2, 0.25 * level),
            subject="run",
            acceptable=frozenset({"input_bound", "input_cgroup_throttled", "input_cpu_saturated"}),
            alerts=frozenset({"TrainingInputCgroupThrottled"}),
            length=_CGROUP_LENGTH,
        )


def _workers() -> Iterator[Case]:
    few = frozenset({"TrainingInputFewWorkers"})
    harm = frozenset({"input_cpu_saturated", "input_too_many_workers", "input_disk_bound", "small_batch"})
    yield positive(
        "input_few_workers_laptop",
        "input_few_workers",
        run_on(LAPTOP, _waiting(LAPTOP_WORK, 0.3, loader_workers=2, loader_cores=1.6)),
        subject="run",
        alerts=few,
        forbidden=harm,
        lost=0.3,
    )
    yield positive(
        "input_few_workers_node",
        "input_few_workers",
        run_on(PAIR, _waiting(NODE_WORK, 0.35, loader_workers=2, loader_cores=1.7)),
        subject="run",
        alerts=few,
        forbidden=harm,
        lost=0.35,
    )
    # PyTorch's default: the training thread itself loads.
    yield positive(
        "input_few_workers_none",
        "input_few_workers",
        run_on(LAPTOP, _waiting(LAPTOP_WORK, 0.4, loader_workers=0, loader_cores=0, main_thread=0.8)),
        subject="run",
        alerts=few,
        forbidden=harm,
        lost=0.4,
    )
    yield positive(
        "input_single_thread_laptop",
        "input_single_thread",
        run_on(LAPTOP, _waiting(LAPTOP_WORK, 0.25, loader_workers=14, loader_cores=1.2, main_thread=0.995)),
        subject="run",
        alerts=frozenset({"TrainingInputSingleThread"}),
        forbidden=harm,
        lost=0.25,
    )
    yield positive(
        "input_single_thread_server",
        "input_single_thread",
        run_on(SERVER, _waiting(SERVER_WORK, 0.26, loader_workers=14, loader_cores=1.8, main_thread=0.995)),
        subject="run",
        alerts=frozenset({"TrainingInputSingleThread"}),
        forbidden=harm,
        lost=0.26,
    )
    # 24 workers on 8 CPUs, and 64 on 24 each: all of them wait.
    yield positive(
        "input_too_many_workers_cloud",
        "input_too_many_workers",
        run_on(
            CLOUD,
            _waiting(CLOUD_WORK, 0.26, loader_workers=24, loader_cores=5.2),
            host=Host(cores=0.3, cpu_waiting=0.55),
        ),
        subject="run",
        alerts=frozenset({"TrainingInputTooManyWorkers"}),
        forbidden=frozenset({"input_few_workers", "input_single_thread", "input_disk_bound"}),
        lost=0.26,
    )
    yield positive(
        "input_too_many_workers_node",
        "input_too_many_workers",
        run_on(
            PAIR, _waiting(NODE_WORK, 0.18, loader_workers=64, loader_cores=17), host=Host(cores=1, cpu_waiting=0.5)
        ),
        subject="run",
        alerts=frozenset({"TrainingInputTooManyWorkers"}),
        forbidden=frozenset({"input_few_workers", "input_single_thread", "input_disk_bound"}),
        lost=0.18,
    )
    for level in (0.8, 1.25):
        yield near(
            "input_few_workers",
            "input_few_workers",
            level,
            run_on(LAPTOP, _waiting(LAPTOP_WORK, _WARN * level, loader_workers=2, loader_cores=1.6)),
            subject="run",
            acceptable=frozenset({"input_few_workers", "input_bound"} if level < 1 else {"input_few_workers"}),
            alerts=few,
            lost=_WARN * level,
        )
        yield near(
            "input_single_thread",
            "input_single_thread",
            level,
            run_on(
                LAPTOP, _waiting(LAPTOP_WORK, _WARN * level, loader_workers=14, loader_cores=1.2, main_thread=0.995)
            ),
            subject="run",
            acceptable=frozenset({"input_single_thread", "input_bound"} if level < 1 else {"input_single_thread"}),
            alerts=frozenset({"TrainingInputSingleThread"}),
            lost=_WARN * level,
        )
        # SageMaker Debugger: workers over 200 % of the CPUs.
        yield near(
            "input_too_many_workers",
            "input_too_many_workers",
            level,
            run_on(
                CLOUD,
                _waiting(CLOUD_WORK, 0.07 if level < 1 else 0.18, loader_workers=16 * level, loader_cores=5.2),
                host=Host(cores=0.3, cpu_waiting=0.25 * level),
            ),
            subject="run",
            acceptable=frozenset({"input_bound", "input_too_many_workers"} if level < 1 else ()),
            alerts=frozenset({"TrainingInputTooManyWorkers"}),
        )


def _storage() -> Iterator[Case]:
    disk = frozenset({"TrainingInputDiskBound"})
    not_disk = frozenset({"input_few_workers", "input_network_bound", "input_cpu_saturated", "input_single_thread"})
    reading = Host(cores=0.3, iowait=0.35, io_waiting=0.5, io_stalled=0.4, disk_busy=0.98)
    yield positive(
        "input_disk_bound_cloud",
        "input_disk_bound",
        run_on(CLOUD, _waiting(CLOUD_WORK, 0.35, bytes_per_sample=1.2e6, loader_cores=1.2), host=reading),
        subject="run",
        alerts=disk,
        forbidden=not_disk,
        lost=0.35,
    )
    # A busy machine hides iowait; pressure shows it nevertheless.
    yield positive(
        "input_disk_bound_node",
        "input_disk_bound",
        run_on(
            PAIR,
            _waiting(NODE_WORK, 0.26, bytes_per_sample=1.5e6, loader_cores=8),
            host=Host(cores=15, iowait=0.03, io_waiting=0.28, io_stalled=0.15, disk_busy=1.0),
        ),
        subject="run",
        alerts=disk,
        forbidden=not_disk,
        lost=0.26,
    )
    network = frozenset({"TrainingInputNetworkBound"})
    not_network = frozenset({"input_few_workers", "input_disk_bound", "input_cpu_saturated", "input_single_thread"})
    # 10 Gb/s at its limit: 4.6 MB a sample, 128 samples in half a second.
    yield positive(
        "input_network_bound_cloud",
        "input_network_bound",
        run_on(CLOUD, _at_the_line(CLOUD_WORK, 0.3, 1.25e9, 0.95)),
        subject="run",
        alerts=network,
        forbidden=not_network,
        lost=0.3,
    )
    yield positive(
        "input_network_bound_two_nodes",
        "input_network_bound",
        run_on(PAIR, _at_the_line(NODE_WORK, 0.25, 12.5e9 / 2, 0.94), count=2),
        subject="run",
        alerts=network,
        forbidden=not_network,
        lost=0.25,
    )
    # An NFS client with all of its 128 slots in use and a tenth of the line rate (Lablup's finding).
    waiting = Host(cores=1, nfs_in_flight=126, nfs_operations=900, io_waiting=0.03, io_stalled=0.01)
    latency = frozenset({"TrainingInputRemoteLatency"})
    yield positive(
        "input_remote_latency_server",
        "input_remote_latency",
        run_on(SERVER, _waiting(SERVER_WORK, 0.3, loader_cores=1.5), host=waiting),
        subject="run",
        alerts=latency,
        forbidden=frozenset({"input_network_bound", "input_cpu_saturated", "input_single_thread"}),
        lost=0.3,
    )
    yield positive(
        "input_remote_latency_few_workers_look",
        "input_remote_latency",
        run_on(
            PAIR,
            _waiting(replace(NODE_WORK, data="nfs"), 0.25, loader_workers=4, loader_cores=0.8),
            before=replace(NODE_WORK, data="nfs"),
            host=Host(cores=1, nfs_in_flight=240, nfs_operations=3000, io_waiting=0.03, io_stalled=0.01),
        ),
        subject="run",
        alerts=latency,
        forbidden=frozenset({"input_network_bound", "input_cpu_saturated", "input_few_workers"}),
        lost=0.25,
    )
    for level in (0.8, 1.25):
        under = level < 1
        share = _WARN * level
        yield near(
            "input_disk_bound",
            "input_disk_bound",
            level,
            run_on(CLOUD, _waiting(CLOUD_WORK, share, bytes_per_sample=0.9e6), host=reading),
            subject="run",
            acceptable=frozenset({"input_disk_bound", "input_bound"} if under else ()),
            alerts=disk,
            lost=share,
        )
        yield near(
            "input_network_bound",
            "input_network_bound",
            level,
            run_on(CLOUD, _at_the_line(CLOUD_WORK, share, 1.25e9, 0.95)),
            subject="run",
            acceptable=frozenset({"input_network_bound", "input_bound"} if under else ()),
            alerts=network,
            lost=share,
        )
        yield near(
            "input_remote_latency",
            "input_remote_latency",
            level,
            run_on(SERVER, _waiting(SERVER_WORK, share, loader_cores=1.5), host=waiting),
            subject="run",
            acceptable=frozenset({"input_remote_latency", "input_bound"} if under else ()),
            alerts=latency,
            lost=share,
        )


def _at_the_line(work: Work, share: float, line: float, used: float) -> Work:
    """Work that waits for a network of which this rank has `line` bytes a second."""
    waits = _waiting(replace(work, data="network"), share)
    step = sum(
        getattr(waits, phase)
        for phase in ("data_wait", "host_copy", "forward", "backward", "communication", "optimizer", "other")
    )
    return replace(waits, bytes_per_sample=used * line * step / waits.batch, loader_cores=0.4 * work.loader_cores)


def _acceptance() -> Iterator[Case]:
    # Two GPUs, real data: 4300 images a second instead of 6100; the CPUs are full, the disk is flat.
    real = replace(taking(WORKSTATION_WORK, "data_wait", 0.295), loader_cores=11.4, busy_while_waiting=0.05)
    yield positive(
        "ac_05_real_data_on_two_gpus",
        "input_cpu_saturated",
        run_on(
            WORKSTATION,
            real,
            before=replace(WORKSTATION_WORK, data="none", loader_cores=0.5),
            host=Host(cores=0.5, cpu_waiting=0.7, memory_used=0.22),
            framework="tensorflow",
            precision="fp32",
        ),
        subject="run",
        alerts=frozenset({"TrainingInputCpuSaturated"}),
        forbidden=frozenset({"input_disk_bound", "input_network_bound", "input_few_workers", "healthy"}),
        lost=0.295,
    )
    # 12.5 MB a sample over 10 Gb/s: a hundred samples a second and no more.
    slow = replace(CLOUD_WORK, data="network", bytes_per_sample=12.5e6, batch=64, loader_cores=0.9)
    step = 64 * 12.5e6 / (0.955 * 1.25e9)
    rest = slow.host_copy + slow.forward + slow.backward + slow.optimizer + slow.other
    yield positive(
        "ac_08_network_at_its_limit",
        "input_network_bound",
        run_on(CLOUD, replace(slow, data_wait=step - rest)),
        subject="run",
        alerts=frozenset({"TrainingInputNetworkBound"}),
        forbidden=frozenset({"input_cpu_saturated", "input_few_workers", "input_disk_bound"}),
        lost=1 - rest / step,
    )
    yield positive(
        "ac_11_fetch_dominates",
        "input_cpu_saturated",
        run_on(CLOUD, _waiting(CLOUD_WORK, 0.6, loader_cores=7.3), host=Host(cores=0.3, cpu_waiting=0.8)),
        subject="run",
        alerts=frozenset({"TrainingInputCpuSaturated"}),
        forbidden=frozenset({"input_few_workers", "small_batch", "input_disk_bound"}),
        lost=0.6,
    )


def _two_runs() -> Iterator[Case]:
    # Two trainings share a machine; one of them, on two GPUs a rank, waits. The other is well.
    waits = _waiting(SERVER_WORK, 0.3, loader_workers=2, loader_cores=1.6)
    yield positive(
        "input_few_workers_beside_a_healthy_run",
        "input_few_workers",
        Story(
            nodes=(SERVER_4,),
            runs=(
                Run(ranks=((0, 1),), work=(From(ALWAYS, SERVER_WORK), From(ONSET, waits)), user="grace"),
                Run(name="bert", ranks=((2,), (3,)), work=(From(ALWAYS, SERVER_WORK),)),
            ),
            hosts=(From(ALWAYS, QUIET[SERVER_4]),),
        ),
        subject="run",
        alerts=frozenset({"TrainingInputFewWorkers"}),
        forbidden=frozenset({"input_cpu_saturated", "input_disk_bound"}),
        lost=0.3,
    )


CASES: tuple[Case, ...] = (
    *_parent(),
    *_cpus(),
    *_quota(),
    *_workers(),
    *_storage(),
    *_acceptance(),
    *_two_runs(),
)
