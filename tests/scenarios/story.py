"""The vocabulary of labelled cases: machines, runs, and their states from which minute on.

Everything is data. Times are minutes after the first scrape, negative ones before it; shares are of time, sizes in
bytes, rates a second. Figures are those of machines and of the literature, never those of the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, TypeVar

GIB = 2.0**30
ALWAYS = -1e9
"""A minute before every story."""
T = TypeVar("T")


@dataclass(frozen=True)
class From(Generic[T]):
    """A state that holds from a minute on, until the next one for the same subject replaces it."""

    minute: float
    state: T
    only: tuple[int, ...] | None = None
    """Nodes, GPUs or ranks that it is for, counted over the whole story; None for all."""


@dataclass(frozen=True, eq=False)
class Card:
    """A GPU model."""

    model: str
    architecture: str
    compute_capability: str
    memory: float
    watts: float
    """Power limit from the factory."""
    idle_watts: float
    clock: float
    memory_clock: float
    profiled: bool = False
    """Has GPM: SM, pipe and DRAM activity."""
    datacentre: bool = False
    """Has ECC, row remapping and a temperature limit that the driver reports."""
    links: int = 0
    generation: int = 4
    width: int = 16
    sample_seconds: float = 1 / 6
    """Averaging period of the driver's utilisation samples."""
    mig: str = ""
    """Profile, where this is a MIG instance: those of a node are all parts of its one GPU."""


@dataclass(frozen=True, eq=False)
class Node:
    """A machine with GPUs of one model."""

    card: Card
    gpus: int
    cpus: int
    memory: float
    link: float = 1.25e9
    """Bytes a second of its network interface."""
    rdma: int = 0
    """RDMA ports, each of 400 Gb/s."""
    nfs: str = ""
    """Mount point, if the machine has one."""
    shared_memory: float = 16 * GIB


@dataclass(frozen=True)
class Kernels:
    """A computing phase's use of the GPU, as shares of the phase."""

    busy: float = 1.0
    memory: float = 0.5
    sm: float = 0.92
    occupancy: float = 0.44
    dram: float = 0.45
    tensor: float = 0.6
    fp32: float = 0.15
    power: float = 0.9
    """Power draw, as a share of the range from idle power to the limit."""


@dataclass(frozen=True)
class Pause:
    """Periodic work of a whole run, during which no rank trains."""

    phase: str
    """`checkpoint`, `logging` and `rollout` are in a step; `evaluation` is between steps; `other` is not a phase."""
    seconds: float
    every_steps: int = 0
    every_seconds: float = 0.0
    spread: float = 0.05
    """Relative, of the time between two."""
    busy: float = 0.0
    """Kernels resident meanwhile: evaluation computes."""


@dataclass(frozen=True)
class Drop:
    """Memory that tensors give back at intervals, of what they use in training."""

    every_minutes: float
    minutes: float
    """Minutes that each use lasts."""
    share: float
    """Of the GPU's memory."""
    first: float = 0.0
    """Minute of the first one, after the state's beginning."""


@dataclass(frozen=True)
class Saw:
    """Memory that fills evenly and is emptied at intervals, beyond what tensors use otherwise."""

    every_minutes: float
    share: float
    """Of the GPU's memory, when it is emptied."""
    first: float = 0.0
    """Minute at which it is emptied first, after the state's beginning."""


@dataclass(frozen=True)
class Work:
    """A rank's training: mean seconds of a step by phase, and what goes with it."""

    data_wait: float = 0.005
    host_copy: float = 0.004
    forward: float = 0.15
    backward: float = 0.30
    communication: float = 0.0
    """The collective itself, not the wait for slower ranks."""
    optimizer: float = 0.02
    logging: float = 0.0
    other: float = 0.002
    spread: float = 0.03
    """Relative, of each phase from step to step."""
    kernels: Kernels = Kernels()
    busy_while_waiting: float = 0.0
    """Kernels still resident during `data_wait`: 1 for a wait that the GPU's queue hides."""
    outliers: float = 0.0
    """Share of steps that are far slower."""
    outlier_factor: float = 3.0
    buckets: tuple[tuple[float, float], ...] = ()
    """Share of steps, and length of their sequences against the mean: computing and tokens follow it."""
    unevenness: float = 0.0
    """Relative spread of a rank's computing from step to step by the lengths of its own sequences: lognormal."""
    late_batches: float = 0.0
    """Chance that a rank's batch is late in a step; 1 if that of one rank is late in each step."""
    late_seconds: float = 0.0
    """By how much a late batch is late, at least where there is a tail."""
    late_tail: float = 0.0
    """Exponent of the Pareto distribution of that delay; 0 for a constant one."""
    drift_per_hour: float = 0.0
    """Relative growth of the computing phases."""
    pauses: tuple[Pause, ...] = ()
    batch: float = 256
    bytes_per_sample: float = 110e3
    """Bytes read from the storage that `data` names."""
    copied_per_sample: float = 602e3
    """To the GPU: 224 x 224 pixels of three floats."""
    data: str = "disk"
    """`disk`, `network`, `nfs`, or `none`: synthetic, or in the page cache."""
    loader_workers: float | None = 8
    loader_cores: float = 3.0
    """CPU cores that the loader's workers keep busy."""
    main_thread: float = 0.35
    """Load of the main thread, as a share of a CPU core."""
    quota_throttled: float = 0.0
    """Share of the quota's periods that were throttled."""
    quota_waited: float = 0.0
    """Share of time lost to it."""
    hangs: str = ""
    """`spin`, `idle` or `io`: no step ends any more, and the GPU spins, idles, or waits for storage."""
    collector: float = 0.001
    """Share of time in the interpreter's garbage collector."""
    tokens_per_sample: float = 0.0
    flops_per_sample: float = 0.0
    memory: float = 0.72
    """Of the GPU's memory: peak of what tensors use."""
    reserved: float | None = None
    """Share of GPU memory that the allocator holds; slightly above the peak by default."""
    used: float | None = None
    """Share of GPU memory that tensors use between steps."""
    leak_per_hour: float = 0.0
    """Of the GPU's memory."""
    evaluation_used: float | None = None
    """Share of GPU memory that tensors use in an evaluation; as between steps by default."""
    drop: Drop | None = None
    saw: Saw | None = None
    allocator_retries: float = 0.0
    """A minute."""
    losses_not_finite: float = 0.0
    """Share of steps with one."""


@dataclass(frozen=True)
class Host:
    """A machine's load apart from the story's runs, and its missing features."""

    cores: float = 2.0
    """Busy with anything but the story's runs."""
    busiest: float | None = None
    """Load of the busiest core; derived from the overall load by default."""
    iowait: float = 0.005
    cpu_waiting: float = 0.01
    io_waiting: float = 0.01
    io_stalled: float = 0.004
    memory_waiting: float = 0.0
    memory_used: float = 0.25
    """Of memory, not available to others."""
    page_cache: float = 0.3
    disk_read: float = 2e6
    """Bytes a second beside the runs'."""
    disk_written: float = 4e6
    disk_busy: float = 0.05
    received: float = 1e6
    transmitted: float = 1e6
    dropped: float = 0.0
    errors: float = 0.0
    swap_in: float = 0.0
    swap_out: float = 0.0
    faults: float = 2.0
    """Major page faults a second."""
    shared_memory: float = 0.1
    """Of /dev/shm."""
    nfs_in_flight: float = 0.2
    """Operations, mean."""
    nfs_operations: float = 20.0
    """A second."""
    oom_kills: float = 0.0
    """A minute, of processes in the cgroup of the ranks."""


@dataclass(frozen=True)
class Gpu:
    """A GPU's state apart from the work on it."""

    present: bool = True
    """The driver can reach the GPU."""
    lost_reason: str = "gpu_lost"
    celsius: float | None = None
    """Derived from power by default."""
    throttled: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Share of time by reason."""
    clock: float = 0.97
    """Of the maximum, while working; the mean over throttled and other time."""
    clock_configured: float | None = None
    """Of the maximum."""
    power_limit: float = 1.0
    """Of the limit from the factory."""
    generation: int | None = None
    """PCIe generation while working, where below the maximum."""
    width: int | None = None
    replays: float = 0.0
    """A minute."""
    links_down: int = 0
    link_errors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """A minute by kind."""
    uncorrected: int = 0
    """ECC errors since the driver was loaded."""
    corrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    remapped: int = 0
    xids: tuple[int, ...] = ()
    """Codes of events at this state's beginning."""
    kept: float = 0.0
    """Share of its memory that no living process holds."""
    foreign: tuple[str, ...] = ()
    """Users, or pods as `namespace/pod`, whose processes hold the GPU in addition to the story's runs."""
    foreign_busy: float = 0.0
    """Share of time with their kernels."""
    foreign_memory: float = 0.1
    """Of its memory, each."""


@dataclass(frozen=True)
class Run:
    """A training job."""

    name: str = "resnet50"
    ranks: tuple[tuple[int, ...], ...] = ((0,),)
    """The GPUs of each rank, counted over the whole story."""
    start: float = -25.0
    """Minute at which its processes started."""
    initialization: float = 1.0
    """Minutes from then to the first step."""
    end: float | None = None
    """Minute at which it ended."""
    outcome: str = "finished"
    work: tuple[From[Work], ...] = (From(ALWAYS, Work()),)
    """`only` counts ranks."""
    framework: str = "pytorch"
    namespace: str = ""
    pods: bool = False
    slurm_job: str = ""
    user: str = "ada"
    job_class: str = "production"
    cpu_limit: float | None = None
    """CPU cores a rank may use; an equal share of the machine's by default."""
    quota: bool = False
    """The limit is a cgroup quota, so that throttling is counted."""
    gpu_shares: tuple[float, ...] = ()
    """Share of the work of each of a rank's GPUs, if they differ."""
    instrumented: bool = True
    """Uses the shim."""
    stages: tuple[int | None, ...] = ()
    """Pipeline stage of each rank, if the run reports stages; None for a rank that does not."""
    phases: bool = True
    """The shim measures phases; else all of a step is `other`."""
    measures_communication: bool = False
    """True if a hook measures collectives; otherwise waiting for others is part of `backward`."""
    device_events: bool = True
    reports_batch: bool = True
    precision: str = "bf16"
    reports_until: float | None = None
    """Minute of the last report."""
    missing: tuple[int, ...] = ()
    """Ranks that never report."""
    world_size: int | None = None
    restarts: tuple[float, ...] = ()
    """Minutes at which all its processes restarted."""
    restart_seconds: float = 40.0
    """Minutes from each restart until training continues."""
    killed: tuple[int, ...] = ()
    """Ranks whose process is gone once the run's work hangs."""
    values: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Further values that the user reports, by name."""


@dataclass(frozen=True)
class Server:
    """An inference server on a GPU, in a pod of its own, as its metrics show it."""

    program: str = "vllm"
    """`vllm`, `vllm_0_11` with the former name of the cache's usage, `vllm_both` with both names, or `sglang`."""
    waiting: float = 0.0
    """Requests, mean."""
    cache_used: float = 0.3
    """Share of the KV cache."""
    preempted: float = 0.0
    """Requests a second."""
    refuses: bool = False
    """Its metrics endpoint does not respond."""


@dataclass(frozen=True)
class Story:
    """Everything that one Prometheus sees of a few machines."""

    nodes: tuple[Node, ...]
    runs: tuple[Run, ...] = ()
    hosts: tuple[From[Host], ...] = (From(ALWAYS, Host()),)
    gpus: tuple[From[Gpu], ...] = (From(ALWAYS, Gpu()),)
    servers: tuple[From[Server], ...] = ()
    """`only` counts GPUs."""
    sharing: str = "exclusive"
    absent: tuple[str, ...] = ()
    """Beginnings of family names that no node exposes."""
    exporter_down: tuple[tuple[int, float], ...] = ()
    """Nodes whose exporter answers no more from a minute on."""
    exporter_restarts: tuple[tuple[int, float], ...] = ()
    """Nodes whose exporter restarts, and the minute of it."""
    scrape_gaps: tuple[tuple[float, float], ...] = ()
    """Minutes between which Prometheus scrapes nothing."""
    failing_source: tuple[tuple[str, float], ...] = ()
    """Sources that fail from a minute on; what they read is stale, and absent."""
    reports_rejected: float = 0.0
    """A minute, from minute 5 on."""
    series_dropped: float = 0.0
    """A minute, from minute 5 on."""


def at(states: tuple[From[T], ...], subject: int, minute: float) -> T:
    """Find the state of a subject at a minute: the last one that has begun; of two, the later one in the story.

    Raises:
        ValueError: no state holds for that subject then.
    """
    found = [each for each in states if each.minute <= minute and (each.only is None or subject in each.only)]
    if not found:
        raise ValueError(f"the story says nothing of {subject} at minute {minute:g}; let a state begin earlier")
    return sorted(found, key=lambda each: each.minute)[-1].state
