"""Named scenarios as data: the workload of a simulated node, its fault and the expected cause.

The figures come from the published descriptions of each bottleneck, never from the rules' own thresholds, so that a
scenario can find a rule wrong. Each is named after its cause in the verdict contract.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stallscope.lab.simulation import program


@dataclass(frozen=True)
class Pause:
    """Periodic work during which no rank trains."""

    phase: str
    """A phase of the shim; `other` is not measured as a phase. `initialization` is the start of all ranks; `restart` is
    another start, after all of them have failed."""
    seconds: float
    every_seconds: float
    """Without the pause. A pause in steps that not every minute has looks like steps that still become shorter."""


@dataclass(frozen=True)
class Allocator:
    """The framework's allocator of GPU memory, as shares of the GPU's memory."""

    used: float
    """By tensors between steps."""
    peak: float
    reserved: float
    growth_per_hour: float = 0.0
    """Of all three."""
    retries: float = 0.0
    """Allocations that failed at first, a minute."""


@dataclass(frozen=True)
class Workload:
    """A data-parallel training step: mean seconds by phase, and what the job holds."""

    data_wait: float
    host_copy: float
    forward: float
    backward: float
    communication: float
    """The collective itself; waiting for slower ranks comes on top."""
    optimizer: float
    variation: float = 0.03
    """Relative spread of each phase from step to step."""
    unevenness: float = 0.0
    """Relative spread of each rank's forward and backward pass from step to step: lognormal."""
    memory_share: float = 0.72
    """Frame buffer that the job holds, as a share of the whole."""
    samples: int = 512
    """Samples a step and rank."""
    single_gpu_rate: float | None = None
    """Samples a second that a GPU alone has processed, by the user's own measurement."""
    flops: float | None = None
    """Floating-point operations of the model, a step and rank."""
    growth_per_hour: float = 0.0
    """Relative growth of the time that the GPU computes in each step."""
    loader_workers: int = 8
    other: float = 0.0
    """Outside of the measured phases."""
    pause: Pause | None = None
    kernels: Mapping[str, float] = field(default_factory=dict)
    """Use of the GPU's units by forward and backward, by field of `PhaseEffect`, where it is not the usual one."""
    loss: float | None = None
    """The reported loss, where it is not that of a model that learns."""
    allocator: Allocator = field(default=Allocator(0.5, 0.72, 0.75))
    main_thread: float = 0.6
    """Load of the main thread, as a share of a CPU."""
    cpu_quota: float | None = None
    """CPUs that each rank may use, loader workers included; None for all."""
    quota_throttled: float = 0.0
    """Periods of that quota in which it stopped the rank, as a share."""
    oom_kills: float = 0.0
    """Processes of its cgroup that the kernel ends, a second."""
    lines: program.Lines = field(default_factory=dict)
    """Lines of the program in which it loses time."""


@dataclass(frozen=True)
class HostLoad:
    """Load of the simulated host, all as shares of time."""

    cpu: float
    """CPUs busy."""
    iowait: float = 0.005
    cpu_waiting: float = 0.01
    """Some task waited for a CPU."""
    io_waiting: float = 0.005
    disk: float = 0.1
    """The data disk had work."""
    memory: float = 0.25
    """Memory that is not available to others."""
    memory_waiting: float = 0.0
    """Some task waited for memory."""
    swapped_pages: float = 0.0
    """Pages a second, in and out each."""
    oom_kills: float = 0.0
    """Processes that the kernel ends, a second."""
    network: float = 0.001
    """Of the interface's speed, received."""
    network_errors: float = 0.0
    """Received packets with errors, a second."""
    nfs_in_flight: float = 0.0
    """Operations that wait for a remote file system, as a mean."""
    shared_memory: float = 0.02
    """Of `/dev/shm`, in use."""
    cpu_spread: float = 0.03
    """Deviation of a third of the CPUs from the mean."""


@dataclass(frozen=True)
class LoadChange:
    """The job goes on with other phase times and another load on the host."""

    workload: Workload
    host: HostLoad
    ranks: tuple[int, ...] | None = None
    """Affected ranks; None for all."""


@dataclass(frozen=True)
class HardwareFault:
    """These GPUs report other values than before."""

    gpus: tuple[int, ...] | None
    """None for all."""
    readings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values in place of those before, by query and signal."""
    per_minute: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Growth of counters, by query and signal."""
    clock: float = 1.0
    """Of the maximum."""
    reason: str = ""
    """Throttle reason that the driver reports for the clock; empty for none."""
    xid: int | None = None
    """Code of the event at the beginning."""


@dataclass(frozen=True)
class CoolingFailure:
    """Heat leaves these GPUs less easily, by this factor; the driver lowers their clocks to hold the temperature."""

    gpus: tuple[int, ...]
    resistance: float


@dataclass(frozen=True)
class GpuLoss:
    """These GPUs fall off the bus; the job's other ranks wait for theirs in a collective for ever."""

    gpus: tuple[int, ...]
    stacks: program.Standstill
    """Stacks of the ranks from then on."""


@dataclass(frozen=True)
class Stall:
    """No rank reaches the end of a step any more, while every process lives."""

    spinning: bool
    """GPUs spin in a collective (fully utilised, at low power) instead of idling."""
    stacks: program.Standstill
    """Stacks of the ranks from then on."""
    storage: bool = False
    """The host waits for a storage that does not respond."""


@dataclass(frozen=True)
class SharedGpu:
    """Each GPU has a job of its own. The job of one starts again on the GPU of another, and leaves its own free."""

    gpu: int
    free: int


Fault = LoadChange | HardwareFault | CoolingFailure | GpuLoss | Stall | SharedGpu


@dataclass(frozen=True)
class Scenario:
    """Workload, fault and expected cause of a simulated node."""

    name: str
    description: str
    expected: str
    """Expected cause, by its name in the catalogue."""
    workload: Workload
    host: HostLoad
    fault: Fault | None = None
    onset: float = 60.0
    """Seconds from the start to the fault."""
    age: float = 0.0
    """Seconds for which the ranks have run when the simulation starts."""
    owned: bool = True
    """Processes hold the GPUs' memory."""
    instrumented: bool = True
    """The job uses the shim; without it there are GPU signals alone."""
    coupled: bool = False
    """No simulated job: the GPUs work for the real ranks that claim them."""
    seed: int = 1
    """GPUs of another seed have other UUIDs."""

    @property
    def run(self) -> str:
        """Name of the simulated run; empty if none reports."""
        return f"simulated-{self.name.replace('_', '-')}" if self.instrumented else ""

    @property
    def simulates_host(self) -> bool:
        """True if the cause depends on the load of the host, which must be simulated too."""
        return isinstance(self.fault, (LoadChange, SharedGpu)) or (isinstance(self.fault, Stall) and self.fault.storage)

    @property
    def is_faulty(self) -> bool:
        """True if there is something to repair."""
        return self.expected not in ("healthy", "compute_bound")

    @property
    def faulty_gpus(self) -> tuple[int, ...]:
        """GPUs with the fault, if it affects only some; their ranks have the same numbers."""
        if isinstance(self.fault, SharedGpu):
            return self.fault.gpu, self.fault.free
        return (self.fault.gpus or ()) if isinstance(self.fault, (HardwareFault, CoolingFailure, GpuLoss)) else ()


_STEADY = Workload(data_wait=0.01, host_copy=0.008, forward=0.35, backward=0.62, communication=0.06, optimizer=0.05)
_CALM = HostLoad(cpu=0.32)
_SMALL = Workload(
    data_wait=0.0005,
    host_copy=0.0005,
    forward=0.012,
    backward=0.022,
    communication=0.001,
    optimizer=0.003,
    samples=8,
    allocator=Allocator(0.2, 0.28, 0.3),
    kernels={"memory": 0.3, "sm": 0.3, "occupancy": 0.12, "dram": 0.15, "tensor": 0.1, "power": 0.3},
    memory_share=0.3,
)
_EXPERIMENT = Workload(
    data_wait=0.12,
    host_copy=0.01,
    forward=0.015,
    backward=0.02,
    communication=0.0,
    optimizer=0.005,
    memory_share=0.125,
)
_QUIET = HostLoad(cpu=0.15)
_IDLE = Workload(
    data_wait=1.0,
    host_copy=0,
    forward=0,
    backward=0,
    communication=0,
    optimizer=0,
    variation=0.0,  # else the others would spin in a collective until the slowest is there
    memory_share=0.3,
)

_FAULTY = (1,)
"""GPU and rank of faults that affect a single one."""


def _load(host: HostLoad = _CALM, *, ranks: tuple[int, ...] | None = None, **changes: Any) -> LoadChange:
    """Change some fields of the usual workload."""
    return LoadChange(replace(_STEADY, **changes), host, ranks)


_FAULTS: tuple[tuple[str, str, Fault], ...] = (
    (
        "power_brake",
        "An external power brake halves the clocks of one GPU, and the other ranks wait for it.",
        HardwareFault(_FAULTY, clock=0.5, reason="power_brake"),
    ),
    (
        "power_capped",
        "The power limit of all GPUs is set to 400 W of 700, which holds their clocks down.",
        HardwareFault(None, readings={"power_limits": {"power_limit_watts": 400.0}}, clock=0.7, reason="power_cap"),
    ),
    (
        "clocks_limited",
        "The clocks of all GPUs are set to 60 % of their maximum.",
        HardwareFault(
            None,
            readings={"clocks_configured": {"clock_configured_hertz": {"sm": 1_188e6, "graphics": 1_188e6}}},
            clock=0.6,
        ),
    ),
    (
        "straggler_hw",
        "The clock of one GPU is at 60 % of the others', for no reason that its driver reports, and they wait for it.",
        HardwareFault(_FAULTY, clock=0.6),
    ),
    ("xid_hw", "The driver reports a hardware error of one GPU: Xid 119.", HardwareFault(_FAULTY, xid=119)),
    ("xid_app", "The driver reports an illegal access by the application: Xid 31.", HardwareFault(_FAULTY, xid=31)),
    (
        "ecc_uncorrected",
        "The memory of one GPU has two uncorrectable errors.",
        HardwareFault(_FAULTY, readings={"health": {"ecc_errors_total": {"corrected": 40, "uncorrected": 2}}}),
    ),
    (
        "row_remap_pending",
        "A memory row of one GPU waits for a reset to be remapped.",
        HardwareFault(_FAULTY, readings={"health": {"row_remap_pending": 1}}),
    ),
    (
        "row_remap_failed",
        "A memory row of one GPU could not be remapped.",
        HardwareFault(_FAULTY, readings={"health": {"row_remap_failed": 1}}),
    ),
    (
        "pcie_degraded",
        "The PCIe link of one GPU has 8 of its 16 lanes.",
        HardwareFault(_FAULTY, readings={"pcie_link": {"pcie_link_width": 8}}),
    ),
    (
        "pcie_replays",
        "The PCIe link of one GPU repeats 90 packets a minute.",
        HardwareFault(_FAULTY, per_minute={"health": {"pcie_replays_total": 90.0}}),
    ),
    (
        "nvlink_errors",
        "The NVLinks of one GPU have errors: 60 replays a minute.",
        HardwareFault(_FAULTY, per_minute={"health": {"nvlink_errors_total": {"replay": 60.0, "recovery": 3.0}}}),
    ),
    (
        "nvlink_down",
        "Two of the 18 NVLinks of one GPU are down.",
        HardwareFault(_FAULTY, readings={"health": {"nvlink_links_active": 16}}),
    ),
    (
        "input_bound",
        "Each step waits a third of its time for data, and the host shows no reason.",
        _load(HostLoad(cpu=0.3), data_wait=0.62, loader_workers=16, lines=program.AUGMENTING),
    ),
    (
        "input_few_workers",
        "Two loader workers cannot keep up, while most CPUs idle.",
        _load(HostLoad(cpu=0.05), data_wait=0.62, loader_workers=2, lines=program.AUGMENTING),
    ),
    (
        "input_single_thread",
        "The loader has workers enough, and waits for the main thread, which keeps one CPU busy.",
        _load(HostLoad(cpu=0.2), data_wait=0.62, loader_workers=14, main_thread=0.995, lines=program.COLLATING),
    ),
    (
        "input_too_many_workers",
        "The loader has three workers for each CPU, which wait for one another.",
        _load(HostLoad(cpu=0.7, cpu_waiting=0.6), data_wait=0.62, loader_workers=24, lines=program.AUGMENTING),
    ),
    (
        "input_disk_bound",
        "The data disk is busy all the time, and each step waits for it.",
        _load(
            HostLoad(cpu=0.2, iowait=0.15, io_waiting=0.6, disk=0.99),
            data_wait=0.62,
            loader_workers=16,
            lines=program.READING,
        ),
    ),
    (
        "input_network_bound",
        "The data arrives over a network interface that is full.",
        _load(HostLoad(cpu=0.2, network=0.95), data_wait=0.62, loader_workers=16, lines=program.READING),
    ),
    (
        "input_remote_latency",
        "The data is on a remote file system that takes 50 ms for each of 200 operations in flight.",
        _load(
            HostLoad(cpu=0.2, iowait=0.1, io_waiting=0.6, disk=0.01, network=0.1, nfs_in_flight=200.0),
            data_wait=0.62,
            loader_workers=16,
        ),
    ),
    (
        "input_cgroup_throttled",
        "A CPU quota stops the loader in 60 % of its periods, while most CPUs of the host idle.",
        _load(HostLoad(cpu=0.22), data_wait=0.62, cpu_quota=2.0, quota_throttled=0.6),
    ),
    (
        "h2d_bound",
        "Copying each batch to the GPU takes a quarter of the step.",
        _load(host_copy=0.36),
    ),
    (
        "comm_bound",
        "Communication takes 40 % of each step.",
        _load(communication=0.7),
    ),
    (
        "sync_stall",
        "A quarter of each step is outside of the measured phases, with an idle GPU.",
        _load(other=0.36, lines=program.SYNCHRONIZING),
    ),
    (
        "mem_bw_bound",
        "The kernels of forward and backward move data all the time, and compute little.",
        _load(kernels={"dram": 0.9, "memory": 0.95, "tensor": 0.05, "fp32": 0.1, "sm": 0.95}),
    ),
    (
        "tensor_cores_unused",
        "Forward and backward compute in single precision, without tensor cores.",
        _load(kernels={"tensor": 0.0, "fp32": 0.75, "fp16": 0.0}),
    ),
    (
        "launch_bound",
        "Many kernels are too short for the GPU, which idles between two launches.",
        _load(kernels={"busy": 0.55, "sm": 0.15, "tensor": 0.05, "dram": 0.1, "power": 0.3}, main_thread=0.99),
    ),
    (
        "checkpoint_stall",
        "A checkpoint of 3 s every quarter of a minute blocks the training; the alert comes after 35 minutes.",
        _load(pause=Pause("checkpoint", 3.0, 12.0), lines=program.SAVING),
    ),
    (
        "evaluation_overhead",
        "An evaluation of 40 s after every minute and a half of training; the alert comes after 35 minutes.",
        _load(pause=Pause("evaluation", 40.0, 90.0), lines=program.EVALUATING),
    ),
    (
        "callback_stall",
        "Logging and callbacks take 4 s every 19 s.",
        _load(pause=Pause("logging", 4.0, 15.0), lines=program.LOGGING),
    ),
    (
        "rollout_wait",
        "GPUs wait 8 s for the rollouts of other GPUs every 20 s; the alert comes after 35 minutes.",
        _load(pause=Pause("rollout", 8.0, 12.0)),
    ),
    (
        "step_outliers",
        "Every 18 s, one step takes 4 s in place of one.",
        _load(pause=Pause("forward", 3.0, 15.0)),
    ),
    (
        "step_time_drift",
        "The GPUs compute for a time that grows by 80 % an hour in each step; found after three quarters of an hour.",
        _load(growth_per_hour=0.8),
    ),
    (
        "restart_loop",
        "All ranks fail a minute after each start, which takes three quarters of a minute; found after five minutes.",
        _load(pause=Pause("restart", 45.0, 60.0)),
    ),
    (
        "goodput_low",
        "All ranks fail every half an hour, and need seven minutes to start; found after an hour and a quarter.",
        _load(pause=Pause("restart", 420.0, 1_800.0)),
    ),
    (
        "gpu_load_imbalance",
        "The kernels of one rank fill less than half of its GPU's SMs; found after a quarter of an hour.",
        _load(ranks=_FAULTY, kernels={"sm": 0.45, "occupancy": 0.15, "tensor": 0.25, "dram": 0.3, "power": 0.55}),
    ),
    (
        "straggler_rank",
        "One rank computes longer than the others, which wait for it.",
        _load(ranks=_FAULTY, forward=0.55, backward=0.95),
    ),
    (
        "stage_imbalance",
        "The two ranks of the first pipeline stage compute longer than the others, which wait for them.",
        _load(ranks=(0, 1), forward=0.75, backward=1.3),
    ),
    (
        "uneven_work",
        "In each step another rank has the longest sequences, and the others wait for it.",
        _load(unevenness=0.4),
    ),
    (
        "straggler_input",
        "One rank waits for its data, and the others wait for it.",
        _load(ranks=_FAULTY, data_wait=0.6, lines=program.AUGMENTING),
    ),
    (
        "hang_io",
        "No rank makes a step any more: all of them wait for a storage that does not respond.",
        Stall(spinning=False, storage=True, stacks=program.Standstill(program.IN_STORAGE)),
    ),
    (
        "gpu_mem_headroom",
        "Tensors need a third of the GPU's memory, and the kernels two thirds of its SMs.",
        _load(allocator=Allocator(0.25, 0.33, 0.36), kernels={"sm": 0.6, "busy": 0.9}),
    ),
    (
        "gpu_mem_near_oom",
        "Tensors need nearly all of the GPU's memory, and some allocations fail at first.",
        _load(allocator=Allocator(0.9, 0.98, 0.985, retries=2.0)),
    ),
    (
        "gpu_mem_leak",
        "Tensors take 12 % more of the GPU's memory every hour; found after an hour and a half.",
        _load(allocator=Allocator(0.4, 0.45, 0.5, growth_per_hour=0.12)),
    ),
    (
        "gpu_mem_fragmented",
        "The allocator holds four times as much memory as tensors use.",
        _load(allocator=Allocator(0.2, 0.72, 0.8)),
    ),
    (
        "gpu_mem_imbalance",
        "One rank needs twice as much GPU memory as the others.",
        _load(allocator=Allocator(0.85, 0.92, 0.94), ranks=_FAULTY),
    ),
    (
        "loss_nonfinite",
        "The loss is not a number any more.",
        _load(loss=float("nan")),
    ),
    (
        "mem_pressure",
        "The host runs out of memory, and tasks wait for it.",
        _load(HostLoad(cpu=0.3, memory=0.98, memory_waiting=0.4)),
    ),
    (
        "oom_kill",
        "The kernel ends loader workers of one rank, because the host's memory is full.",
        _load(
            HostLoad(cpu=0.3, memory=0.99, memory_waiting=0.2, oom_kills=0.02),
            ranks=_FAULTY,
            oom_kills=0.02,
        ),
    ),
    (
        "shm_full",
        "The loader workers' batches fill nine tenths of the host's shared memory (/dev/shm).",
        _load(HostLoad(cpu=0.3, shared_memory=0.9)),
    ),
    (
        "swapping",
        "The host moves 3000 pages a second to and from swap.",
        _load(HostLoad(cpu=0.3, memory=0.95, memory_waiting=0.05, swapped_pages=3000.0)),
    ),
    (
        "cpu_saturated",
        "All CPUs of the host are busy, and tasks wait for one; found after twenty minutes.",
        _load(HostLoad(cpu=0.985, cpu_waiting=0.7)),
    ),
    (
        "network_errors",
        "Three in a hundred packets that the network interface receives are damaged.",
        _load(HostLoad(cpu=0.3, network=0.02, network_errors=1500.0)),
    ),
)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="healthy",
            description="Data-parallel training that keeps its GPUs busy; nothing to do.",
            expected="healthy",
            workload=replace(_STEADY, kernels={"tensor": 0.4, "power": 0.75}),
            host=_CALM,
        ),
        Scenario(
            name="repaired",
            description="The healthy job, on GPUs that replace those of a faulty scenario; `stallscope up --end`.",
            expected="healthy",
            workload=replace(_STEADY, kernels={"tensor": 0.4, "power": 0.75}),
            host=_CALM,
            seed=2,
        ),
        Scenario(
            name="compute_bound",
            description="Training that keeps the tensor cores busy at nine tenths of the GPUs' power; nothing to do.",
            expected="compute_bound",
            workload=_STEADY,
            host=_CALM,
        ),
        Scenario(
            name="input_cpu_saturated",
            description=("Decoding needs more CPUs than the host has: GPUs wait about a third of each step for data."),
            expected="input_cpu_saturated",
            workload=_STEADY,
            host=_CALM,
            # A wait of more than half a second in each step shows in the driver's own samples as idle time.
            fault=_load(HostLoad(cpu=0.97, cpu_waiting=0.55), data_wait=0.62, lines=program.AUGMENTING),
        ),
        Scenario(
            name="thermal_throttle",
            description="One GPU loses its cooling, runs at its temperature limit with clocks down by a quarter or "
            "more, and the other ranks wait for it.",
            expected="thermal_throttle",
            workload=_STEADY,
            host=_CALM,
            fault=CoolingFailure(gpus=(3,), resistance=4.0),
        ),
        Scenario(
            name="gpu_lost",
            description="One GPU falls off the bus in the middle of training; the other ranks wait in a collective.",
            expected="lost",
            workload=_STEADY,
            host=_CALM,
            fault=GpuLoss(gpus=(5,), stacks=program.Standstill(program.IN_ALL_REDUCE, {5: program.IN_SYNCHRONIZE})),
        ),
        Scenario(
            name="stalled",
            description="Training stops making steps with every process alive and every GPU idle, as after a deadlock "
            "in the loader.",
            expected="stalled",
            workload=_STEADY,
            host=_CALM,
            fault=Stall(spinning=False, stacks=program.Standstill(program.IN_LOADER)),
        ),
        Scenario(
            name="hang_spin",
            description="One rank calls another collective than the other ranks, and neither ends: GPUs spin fully "
            "utilised at low power, and no rank makes a step.",
            expected="hang_spin",
            workload=_STEADY,
            host=_CALM,
            fault=Stall(
                spinning=True,
                stacks=program.Standstill(program.IN_ALL_REDUCE, dict.fromkeys(_FAULTY, program.IN_ALL_GATHER)),
            ),
        ),
        Scenario(
            name="spin_suspected",
            description="The same in a job without the shim: GPUs spin fully utilised at low power.",
            expected="spin_suspected",
            workload=_STEADY,
            host=_CALM,
            fault=Stall(spinning=True, stacks=program.Standstill(program.IN_ALL_REDUCE)),
            instrumented=False,
        ),
        Scenario(
            name="underused",
            description="GPU work that keeps each GPU a third busy, from a job without the shim.",
            expected="underused",
            # Shorter than the driver's sampling period, so that every sample is low and none is a dip.
            workload=Workload(
                data_wait=0.15,
                host_copy=0.02,
                forward=0.03,
                backward=0.04,
                communication=0.0,
                optimizer=0.01,
                memory_share=0.3,
            ),
            host=HostLoad(cpu=0.15),
            instrumented=False,
        ),
        *(
            Scenario(
                name=name,
                description=description,
                expected=name,
                workload=_STEADY,
                host=_CALM,
                fault=fault,
            )
            for name, description, fault in _FAULTS
        ),
        Scenario(
            name="small_batch",
            description="Batches of 8 samples: short steps of kernels that are too small for the GPU.",
            expected="small_batch",
            workload=_SMALL,
            host=_CALM,
            fault=LoadChange(_SMALL, _CALM),  # from the start, since the steps before would be outliers
        ),
        Scenario(
            name="low_mfu",
            description="Busy GPUs that do 8 % of their peak for the model; the rest is padding, or computed twice.",
            expected="low_mfu",
            workload=replace(_STEADY, flops=85e12, kernels={"tensor": 0.2}),
            host=_CALM,
        ),
        Scenario(
            name="scaling_inefficient",
            description="The batch is divided among the GPUs, each of which processes 290 samples a second, and alone "
            "processed 480; found after a quarter of an hour.",
            expected="scaling_inefficient",
            workload=replace(_STEADY, samples=320, single_gpu_rate=480.0),
            host=_CALM,
        ),
        Scenario(
            name="long_init",
            description="A job without a step so far, which was started 19 minutes ago; found after two minutes.",
            expected="long_init",
            workload=replace(_STEADY, pause=Pause("initialization", 86_400.0, 0.0)),
            host=_CALM,
            age=1_140.0,
        ),
        Scenario(
            name="packing_candidate",
            description="Experiments without the shim that need a quarter of their GPU's time and an eighth of its "
            "memory; found after half an hour.",
            expected="packing_candidate",
            workload=_EXPERIMENT,
            host=_QUIET,
            fault=LoadChange(_EXPERIMENT, _QUIET),
            instrumented=False,
        ),
        Scenario(
            name="shared_unexpectedly",
            description="Two jobs without the shim compute on one GPU, while the GPU next to it is free.",
            expected="shared_unexpectedly",
            workload=replace(_STEADY, memory_share=0.4),
            host=_CALM,
            fault=SharedGpu(gpu=0, free=1),
            instrumented=False,
        ),
        Scenario(
            name="idle_allocated",
            description="A job without the shim holds GPUs and memory without using them; found after an hour.",
            expected="idle_allocated",
            workload=_IDLE,
            host=HostLoad(cpu=0.02),
            instrumented=False,
        ),
        Scenario(
            name="mem_zombie",
            description="A job has ended, and the memory of its GPUs is in use by no process.",
            expected="mem_zombie",
            workload=_IDLE,
            host=HostLoad(cpu=0.02),
            owned=False,
            instrumented=False,
        ),
        Scenario(
            name="periodic_host_work",
            description="A job without the shim stops for a second and a half every 20 s.",
            expected="periodic_host_work",
            workload=replace(_STEADY, pause=Pause("other", 1.5, 20.0)),
            host=_CALM,
            instrumented=False,
        ),
        Scenario(
            name="coupled",
            description="No job is simulated: each GPU does what the phases of the real rank that claims it by its "
            "index would make it do, so that training on CPUs shows how a GPU would perform.",
            expected="healthy",
            workload=_STEADY,
            host=_CALM,
            instrumented=False,
            coupled=True,
        ),
    )
}
"""Every scenario by name."""


def scenario(name: str, *, onset: float | None = None) -> Scenario:
    """Look up a scenario, with the fault at another time where `onset` (seconds after the start) is given.

    Raises:
        ValueError: the scenario is unknown, or the onset is negative.
    """
    found = SCENARIOS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, SCENARIOS, n=1)
        guess = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"unknown scenario {name!r}{guess}; `stallscope up --list-scenarios` lists them")
    if onset is None:
        return found
    if not 0 <= onset < float("inf"):
        raise ValueError(f"the onset of {name} must be zero or more seconds, got {onset}")
    return replace(found, onset=onset)
