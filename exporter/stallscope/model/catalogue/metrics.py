"""Every metric family that leaves the exporter, as data.

The exposition, the reference page (`METRICS.md`) and the consistency tests read this one list. Names, labels and
units are a frozen contract: a family or label may be added, never renamed or reused.

A family's `name` is the name in queries: counters include their `_total`. Label values are in the order of `labels`,
then `optional_labels`; an optional label whose value is empty is left out of the exposition.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MetricType(str, Enum):
    """OpenMetrics types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"
    UNKNOWN = "unknown"
    """A number whose name the contract fixes, but which no OpenMetrics type fits."""


UNITS = ("bytes_per_second", "seconds", "bytes", "joules", "watts", "celsius", "hertz", "ratio", "cores")
"""Base units, each the last part of the names that carry it; the longest first."""


@dataclass(frozen=True, eq=False)  # compared by identity: a family is a dictionary key in every round
class Family:
    """One metric family: everything that the exposition and the documentation say about it."""

    name: str
    type: MetricType
    help: str
    """Meaning, and in brackets the source field that it is read from."""
    labels: tuple[str, ...] = ()
    optional_labels: tuple[str, ...] = ()
    values: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Labels whose values are a closed list, with that list."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without +Inf."""
    provider: str = ""
    """The module of `stallscope.node` that fills it."""
    optional: bool = False
    """A GPU signal that not every GPU and driver has: announced in `stallscope_gpu_signal_supported`."""

    @property
    def unit(self) -> str:
        """The base unit in the name, or the empty string."""
        stem = self.openmetrics_name
        return next((unit for unit in UNITS if stem.endswith("_" + unit)), "")

    @property
    def openmetrics_name(self) -> str:
        """The name on TYPE, UNIT and HELP lines in OpenMetrics, where a counter goes without its suffix."""
        return self.name.removesuffix("_total") if self.type is MetricType.COUNTER else self.name

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Required labels, then optional ones: the order of a sample's label values."""
        return self.labels + self.optional_labels

    @property
    def signal(self) -> str:
        """The family's name in `stallscope_gpu_signal_supported{signal}`."""
        return self.name.removeprefix("stallscope_gpu_")

    @property
    def series_names(self) -> tuple[str, ...]:
        """The sample names that queries may use."""
        if self.type is MetricType.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        if self.type is MetricType.SUMMARY:
            return (f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


_COUNTER, _GAUGE, _HISTOGRAM = MetricType.COUNTER, MetricType.GAUGE, MetricType.HISTOGRAM
_Values = dict[str, tuple[str, ...]]

CLOCKS = ("sm", "memory", "graphics", "video")
THROTTLE_REASONS = ("sw_thermal", "hw_thermal", "hw_slowdown", "power_cap", "power_brake", "sync_boost", "other")
OWNER_LABELS = ("namespace", "pod", "container", "slurm_job", "user")
UTILIZATION_BUCKETS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.7, 0.9, 1.0)
BELOW_LEVELS = (0.1, 0.5)
STEP_BUCKETS = (
    *(round(mantissa * 10.0**exponent, 6) for exponent in (-3, -2, -1, 0, 1, 2) for mantissa in (1, 2, 5)),
    1000.0,
)
"""1 ms to 1000 s, three buckets a decade."""
RUN_STATES = ("starting", "running", "finished", "failed", "terminated", "lost")
GONE_STATES = ("failed", "terminated", "lost")
"""States of a rank that has ended without finishing, so that other ranks may wait for it in vain."""
ACTIVITIES = ("initialization", "training", "evaluation", "checkpoint", "restore", "paused", "rollout")
PHASES = (
    "data_wait",
    "host_copy",
    "rollout",
    "reward",
    "forward",
    "backward",
    "communication",
    "optimizer",
    "weight_sync",
    "checkpoint",
    "evaluation",
    "logging",
    "other",
)
"""Phases that rules know by name; users may name more."""
OUTSIDE_PHASES = ("initialization", "evaluation", "restore", "paused")
"""Phases outside of steps; with the phases inside steps they sum to the loop's wall time."""
NOT_OF_THE_LOOP = frozenset({"initialization", "paused"})
"""Phases before, between and after loops."""


def _gpu(
    name: str,
    kind: MetricType,
    help_text: str,
    *,
    labels: tuple[str, ...] = (),
    values: _Values | None = None,
    buckets: tuple[float, ...] = (),
    optional: bool = False,
    optional_labels: tuple[str, ...] = (),
    provider: str = "collectors.gpu",
) -> Family:
    return Family(
        name=f"stallscope_gpu_{name}",
        type=kind,
        help=help_text,
        labels=("gpu", "uuid", *labels),
        optional_labels=("mig", *optional_labels),
        values=tuple((values or {}).items()),
        buckets=buckets,
        provider=provider,
        optional=optional,
    )


def _host(
    name: str,
    kind: MetricType,
    help_text: str,
    provider: str,
    *,
    labels: tuple[str, ...] = (),
    values: _Values | None = None,
) -> Family:
    return Family(
        name=f"stallscope_host_{name}",
        type=kind,
        help=help_text,
        labels=labels,
        values=tuple((values or {}).items()),
        provider=f"collectors.{provider}",
    )


def _nccl(name: str, kind: MetricType, help_text: str, *labels: str) -> Family:
    return Family(
        name=f"stallscope_nccl_{name}",
        type=kind,
        help=f"{help_text} (NCCL Inspector).",
        labels=("communicator", "comm_rank", *labels),
        provider="collectors.nccl_inspector",
    )


def _training(
    name: str,
    kind: MetricType,
    help_text: str,
    *,
    labels: tuple[str, ...] = (),
    values: _Values | None = None,
    buckets: tuple[float, ...] = (),
) -> Family:
    return Family(
        name=f"stallscope_training_{name}",
        type=kind,
        help=help_text,
        labels=("run", "rank", *labels),
        values=tuple((values or {}).items()),
        buckets=buckets,
        provider="intake.runs",
    )


def _exporter(
    name: str,
    kind: MetricType,
    help_text: str,
    *,
    labels: tuple[str, ...] = (),
    values: _Values | None = None,
    provider: str = "sampling.sampler",
) -> Family:
    return Family(
        name=f"stallscope_{name}",
        type=kind,
        help=help_text,
        labels=labels,
        values=tuple((values or {}).items()),
        provider=provider,
    )


GPU_FAMILIES = (
    _gpu(
        "info",
        _GAUGE,
        "1; what this GPU is (NVML name, serial, pciInfo, driver and CUDA driver version, VBIOS, architecture, "
        "compute capability). `sharing` is how the orchestrator or the driver hands it out; `memory` is for a GPU that "
        "uses the host's memory as its own.",
        labels=(
            "model",
            "serial",
            "pci_bus_id",
            "driver_version",
            "cuda_version",
            "vbios_version",
            "architecture",
            "compute_capability",
            "sharing",
        ),
        values={"sharing": ("exclusive", "mig", "mps", "time_sliced"), "memory": ("unified",)},
        optional_labels=("memory",),
    ),
    _gpu(
        "up",
        _GAUGE,
        "1 while the newest reading is younger than three sampling intervals; 0 when the GPU is lost, hung or "
        "failing. Stays exported for a week after a GPU left, for ten minutes after a MIG instance was taken apart.",
        provider="collectors.gpu.source",
    ),
    _gpu(
        "lost_info",
        _GAUGE,
        "1 while `up` is 0, with the reason: what the driver says (gpu_lost, reset_required, driver_not_loaded ...), "
        "or hung, stale, not_enumerated, released (on request), mig_reconfigured.",
        labels=("reason",),
        provider="collectors.gpu.source",
    ),
    _gpu(
        "last_reading_timestamp_seconds",
        _GAUGE,
        "Wall clock of the newest reading, Unix time.",
        provider="collectors.gpu.source",
    ),
    _gpu(
        "signal_supported",
        _GAUGE,
        "1 if this GPU and driver answer the optional signal now, else 0: also while the driver refuses a signal that "
        "it had, or fails at three queries; it is queried again. The signal's name is its family's without "
        "`stallscope_gpu_`.",
        labels=("signal",),
    ),
    _gpu(
        "busy_seconds_total",
        _COUNTER,
        "Time with at least one kernel resident (NVML GPU utilisation samples, integrated; the snapshot "
        "utilization.gpu where the driver keeps no samples).",
        optional=True,
    ),
    _gpu(
        "memory_busy_seconds_total",
        _COUNTER,
        "Time in which device memory was read or written (NVML memory utilisation samples, integrated; the snapshot "
        "utilization.memory where the driver keeps no samples).",
        optional=True,
    ),
    _gpu(
        "observed_seconds_total",
        _COUNTER,
        "Time in which utilisation was observed (same samples as busy_seconds_total). A share of time is a growth over "
        "this one's.",
    ),
    _gpu("idle_seconds_total", _COUNTER, "Time in samples of utilisation 0 (same samples as busy_seconds_total)."),
    _gpu(
        "below_seconds_total",
        _COUNTER,
        "Time with utilisation under the level (same samples as busy_seconds_total).",
        labels=("level",),
        values={"level": ("0.1", "0.5")},
    ),
    _gpu(
        "dips_total",
        _COUNTER,
        "Falls of utilisation under 0.1 after at least 1 s above 0.5 (same samples as busy_seconds_total).",
    ),
    _gpu(
        "dip_interval_seconds",
        MetricType.SUMMARY,
        "Time between the starts of successive dips: with the sum of squares its mean and spread give the period, "
        "and periodic from random.",
    ),
    _gpu(
        "dip_interval_seconds_sumsq",
        MetricType.UNKNOWN,
        "Sum of the squared times between the starts of successive dips; it only grows.",
    ),
    _gpu(
        "utilization_samples",
        _HISTOGRAM,
        "Utilisation as a ratio, one observation a driver sample (or poll): shows dips between scrapes.",
        buckets=UTILIZATION_BUCKETS,
    ),
    _gpu(
        "utilization_ratio",
        _GAUGE,
        "Mean utilisation over the newest sampling interval (same samples as busy_seconds_total).",
    ),
    _gpu(
        "memory_utilization_ratio",
        _GAUGE,
        "Mean memory utilisation over the newest sampling interval (same samples as memory_busy_seconds_total).",
    ),
    _gpu(
        "sm_active_seconds_total",
        _COUNTER,
        "Share of SMs with work, integrated (NVML GPM SM_UTIL; Hopper and newer).",
        optional=True,
    ),
    _gpu(
        "sm_occupancy_seconds_total",
        _COUNTER,
        "Resident warps over the maximum, integrated (NVML GPM SM_OCCUPANCY; Hopper and newer).",
        optional=True,
    ),
    _gpu(
        "pipe_active_seconds_total",
        _COUNTER,
        "Share of time in which the pipe issued work, integrated (NVML GPM pipe utilisations; Hopper and newer).",
        labels=("pipe",),
        values={"pipe": ("tensor", "fp64", "fp32", "fp16", "integer")},
        optional=True,
    ),
    _gpu(
        "dram_active_seconds_total",
        _COUNTER,
        "Share of peak DRAM bandwidth, integrated (NVML GPM DRAM_BW_UTIL; Hopper and newer).",
        optional=True,
    ),
    _gpu(
        "engine_busy_seconds_total",
        _COUNTER,
        "Time in which the fixed-function engine worked (NVML encoder, decoder, JPEG and OFA utilisation, integrated).",
        labels=("engine",),
        values={"engine": ("encoder", "decoder", "jpeg", "ofa")},
        optional=True,
    ),
    _gpu(
        "memory_total_bytes",
        _GAUGE,
        "Frame buffer, installed (NVML memory v2: total); with unified memory that of the host (MemTotal).",
        optional=True,
    ),
    _gpu(
        "memory_used_bytes",
        _GAUGE,
        "Frame buffer held by processes (NVML memory v2: used); with unified memory what the host has not available "
        "(MemTotal - MemAvailable).",
        optional=True,
    ),
    _gpu(
        "memory_reserved_bytes",
        _GAUGE,
        "Frame buffer that driver and firmware keep (NVML memory v2: reserved).",
        optional=True,
    ),
    _gpu("bar1_total_bytes", _GAUGE, "BAR1 aperture (NVML BAR1 memory: total).", optional=True),
    _gpu("bar1_used_bytes", _GAUGE, "BAR1 aperture in use (NVML BAR1 memory: used).", optional=True),
    _gpu("power_watts", _GAUGE, "Board power now (NVML power usage).", optional=True),
    _gpu("power_limit_watts", _GAUGE, "Power limit in force (NVML enforced power limit).", optional=True),
    _gpu("power_limit_default_watts", _GAUGE, "Power limit from the factory (NVML default limit).", optional=True),
    _gpu(
        "energy_joules_total",
        _COUNTER,
        "Energy used (NVML total energy consumption; integrated power where the GPU has no energy counter).",
        optional=True,
    ),
    _gpu(
        "temperature_celsius",
        _GAUGE,
        "Temperature (NVML temperature; field MEMORY_TEMP for the memory).",
        labels=("sensor",),
        values={"sensor": ("gpu", "memory")},
        optional=True,
    ),
    _gpu(
        "temperature_limit_celsius",
        _GAUGE,
        "Temperature at which the driver acts (NVML temperature thresholds).",
        labels=("limit",),
        values={"limit": ("slowdown", "shutdown", "gpu_max", "memory_max")},
        optional=True,
    ),
    _gpu("fan_speed_ratio", _GAUGE, "Fan speed over its maximum (NVML fan speed).", labels=("fan",), optional=True),
    _gpu(
        "clock_configured_hertz",
        _GAUGE,
        "Application or locked clock, where one is set below the maximum (NVML applications clock).",
        labels=("clock",),
        values={"clock": CLOCKS},
        optional=True,
    ),
    _gpu(
        "clock_hertz",
        _GAUGE,
        "Clock now (NVML clock info).",
        labels=("clock",),
        values={"clock": CLOCKS},
        optional=True,
    ),
    _gpu(
        "clock_max_hertz",
        _GAUGE,
        "Highest clock of this model (NVML max clock info).",
        labels=("clock",),
        values={"clock": CLOCKS},
        optional=True,
    ),
    _gpu(
        "throttled_seconds_total",
        _COUNTER,
        "Time in which clocks were held down for the reason (NVML cumulative clock-event counters; else time in "
        "samples with the clock-event bit set). `other` is any reason that only newer drivers have. Idle, "
        "application-clock and display bits are not throttling.",
        labels=("reason",),
        values={"reason": THROTTLE_REASONS},
        optional=True,
    ),
    _gpu(
        "pcie_receive_bytes_total",
        _COUNTER,
        "Bytes from host to device (NVML PCIe receive counter, GPM, or integrated throughput, in that order).",
        optional=True,
    ),
    _gpu(
        "pcie_transmit_bytes_total",
        _COUNTER,
        "Bytes from device to host (NVML PCIe transmit counter, GPM, or integrated throughput, in that order).",
        optional=True,
    ),
    _gpu("pcie_link_generation", _GAUGE, "PCIe generation now (NVML current link generation).", optional=True),
    _gpu("pcie_link_generation_max", _GAUGE, "PCIe generation possible (NVML max link generation).", optional=True),
    _gpu("pcie_link_width", _GAUGE, "PCIe lanes now (NVML current link width).", optional=True),
    _gpu("pcie_link_width_max", _GAUGE, "PCIe lanes possible (NVML max link width).", optional=True),
    _gpu("pcie_replays_total", _COUNTER, "PCIe packets sent again (NVML PCIe replay counter).", optional=True),
    _gpu(
        "nvlink_receive_bytes_total",
        _COUNTER,
        "Bytes received over all NVLinks (NVML NVLink data RX fields).",
        optional=True,
    ),
    _gpu(
        "nvlink_transmit_bytes_total",
        _COUNTER,
        "Bytes sent over all NVLinks (NVML NVLink data TX fields).",
        optional=True,
    ),
    _gpu(
        "nvlink_errors_total",
        _COUNTER,
        "NVLink errors over all links (NVML NVLink error counters).",
        labels=("kind",),
        values={"kind": ("replay", "recovery", "crc")},
        optional=True,
    ),
    _gpu("nvlink_links_active", _GAUGE, "NVLinks that are up (NVML NVLink state).", optional=True),
    _gpu("nvlink_links", _GAUGE, "NVLinks that this GPU has (NVML NVLink state answers).", optional=True),
    _gpu(
        "ecc_errors_total",
        _COUNTER,
        "ECC errors since the driver was loaded (NVML volatile ECC counters).",
        labels=("kind",),
        values={"kind": ("corrected", "uncorrected")},
        optional=True,
    ),
    _gpu(
        "remapped_rows",
        _GAUGE,
        "Memory rows replaced by spares (NVML remapped rows).",
        labels=("kind",),
        values={"kind": ("corrected", "uncorrected")},
        optional=True,
    ),
    _gpu("row_remap_pending", _GAUGE, "1 if a row remap waits for a reset (NVML remapped rows).", optional=True),
    _gpu("row_remap_failed", _GAUGE, "1 if a row remap failed (NVML remapped rows).", optional=True),
    _gpu(
        "retired_pages",
        _GAUGE,
        "Memory pages taken out of use (NVML retired pages).",
        labels=("cause",),
        values={"cause": ("single_bit", "double_bit")},
        optional=True,
    ),
    _gpu(
        "xid_events_total",
        _COUNTER,
        "Xid events by code since the exporter listens (NVML event set).",
        labels=("xid",),
        optional=True,
    ),
    _gpu(
        "xid_last_timestamp_seconds",
        _GAUGE,
        "Wall clock of the newest Xid event of this code, Unix time (NVML event set).",
        labels=("xid",),
        optional=True,
    ),
    _gpu(
        "peak_flops",
        _GAUGE,
        "Dense peak of this model in floating-point operations a second, from a dated table; absent when the model is "
        "unknown.",
        labels=("precision",),
        optional=True,
    ),
    _gpu(
        "processes",
        _GAUGE,
        "Processes with a context on this GPU (NVML compute and graphics running processes).",
        labels=("kind",),
        values={"kind": ("compute", "graphics")},
        optional=True,
    ),
    _gpu(
        "owner_info",
        _GAUGE,
        "1: who holds the GPU now; labels that do not apply are empty.",
        labels=OWNER_LABELS,
        provider="collectors.owners",
    ),
    _gpu(
        "owner_workload_info",
        _GAUGE,
        "1: queue (Kueue, Volcano) and workload (Job, PyTorchJob, RayJob, TrainJob and others) of a pod that holds the "
        "GPU, from the Kubernetes API (--kubernetes.node); absent if both are unknown.",
        labels=("namespace", "pod", "queue", "workload_kind", "workload"),
        optional=True,
        provider="collectors.owners",
    ),
    _gpu(
        "owner_memory_used_bytes",
        _GAUGE,
        "Frame buffer held by that owner's processes (NVML running processes). Memory that no known owner holds is "
        "under empty labels. Owners never sum to more than the memory in use: where processes share memory, each "
        "owner has less, in proportion.",
        labels=OWNER_LABELS,
        provider="collectors.owners",
    ),
    _gpu(
        "owner_busy_seconds_total",
        _COUNTER,
        "Time in which that owner's processes had kernels resident (NVML process utilisation, integrated since the "
        "exporter met the owner).",
        labels=OWNER_LABELS,
        provider="collectors.owners",
    ),
    _gpu(
        "persistence_mode",
        _GAUGE,
        "1 if the driver keeps the GPU initialised while it is not in use; where it does not, every first use pays for "
        "it (NVML persistence mode).",
        optional=True,
    ),
)

HOST_FAMILIES = (
    _host(
        "info",
        _GAUGE,
        "1; the kernel (uname) and the CPU (/proc/cpuinfo: model name).",
        "cpu",
        labels=("kernel", "cpu_model"),
    ),
    _host("cpus", _GAUGE, "Logical CPUs online (/proc/stat).", "cpu"),
    _host(
        "cpu_seconds_total",
        _COUNTER,
        "CPU time by mode, summed over CPUs (/proc/stat: cpu).",
        "cpu",
        labels=("mode",),
        values={"mode": ("user", "system", "iowait", "idle", "other")},
    ),
    _host(
        "busiest_cpu_seconds_total",
        _COUNTER,
        "Busy time of the busiest CPU in each sampling interval: a single-threaded input pipeline "
        "shows here (/proc/stat: cpuN).",
        "cpu",
    ),
    _host("memory_total_bytes", _GAUGE, "Installed memory (/proc/meminfo: MemTotal).", "memory"),
    _host(
        "memory_available_bytes",
        _GAUGE,
        "Memory that can be had without swapping (/proc/meminfo: MemAvailable).",
        "memory",
    ),
    _host("page_cache_bytes", _GAUGE, "Page cache (/proc/meminfo: Cached less Shmem).", "memory"),
    _host("swap_in_bytes_total", _COUNTER, "Bytes read back from swap (/proc/vmstat: pswpin).", "memory"),
    _host("swap_out_bytes_total", _COUNTER, "Bytes written to swap (/proc/vmstat: pswpout).", "memory"),
    _host("major_page_faults_total", _COUNTER, "Page faults that needed a read (/proc/vmstat: pgmajfault).", "memory"),
    _host("oom_kills_total", _COUNTER, "Processes killed for want of memory (/proc/vmstat: oom_kill).", "memory"),
    _host(
        "cgroup_oom_kills_total",
        _COUNTER,
        "Processes killed for want of memory since the exporter started, by cgroup: the cgroup of the process, or the "
        "nearest one above that still exists (/sys/fs/cgroup: oom_kill in memory.events or memory.oom_control). Only "
        "cgroups with kills, at most 32, those killed in last; absent in a container that sees only its own cgroup.",
        "memory",
        labels=("cgroup",),
    ),
    _host(
        "shared_memory_total_bytes",
        _GAUGE,
        "Size of the shared-memory file system (statvfs of /dev/shm).",
        "shared_memory",
    ),
    _host(
        "shared_memory_used_bytes",
        _GAUGE,
        "Used part of the shared-memory file system (statvfs of /dev/shm).",
        "shared_memory",
    ),
    _host(
        "disk_read_bytes_total",
        _COUNTER,
        "Bytes read from the physical device (/proc/diskstats: sectors read).",
        "disk",
        labels=("device",),
    ),
    _host(
        "disk_written_bytes_total",
        _COUNTER,
        "Bytes written to the physical device (/proc/diskstats: sectors written).",
        "disk",
        labels=("device",),
    ),
    _host(
        "disk_busy_seconds_total",
        _COUNTER,
        "Time in which the physical device had work (/proc/diskstats: time doing I/Os).",
        "disk",
        labels=("device",),
    ),
    _host(
        "network_receive_bytes_total",
        _COUNTER,
        "Bytes received on a physical or bonded interface (/proc/net/dev: receive bytes).",
        "network",
        labels=("device",),
    ),
    _host(
        "network_transmit_bytes_total",
        _COUNTER,
        "Bytes sent on a physical or bonded interface (/proc/net/dev: transmit bytes).",
        "network",
        labels=("device",),
    ),
    _host(
        "network_link_bytes_per_second",
        _GAUGE,
        "Link speed, where the interface reports one (/sys/class/net/*/speed).",
        "network",
        labels=("device",),
    ),
    _host(
        "network_drops_total",
        _COUNTER,
        "Packets dropped, both ways (/proc/net/dev: drop).",
        "network",
        labels=("device",),
    ),
    _host(
        "network_errors_total",
        _COUNTER,
        "Packets with errors, both ways (/proc/net/dev: errs).",
        "network",
        labels=("device",),
    ),
    _host(
        "rdma_receive_bytes_total",
        _COUNTER,
        "Bytes received by an InfiniBand or RoCE port (/sys/class/infiniband: port_rcv_data times 4).",
        "rdma",
        labels=("device", "port"),
    ),
    _host(
        "rdma_transmit_bytes_total",
        _COUNTER,
        "Bytes sent by an InfiniBand or RoCE port (/sys/class/infiniband: port_xmit_data times 4).",
        "rdma",
        labels=("device", "port"),
    ),
    _host(
        "rdma_link_bytes_per_second",
        _GAUGE,
        "Speed of an InfiniBand or RoCE port, 0 while its link is not active (/sys/class/infiniband: state, rate).",
        "rdma",
        labels=("device", "port"),
    ),
    _host(
        "nfs_read_bytes_total",
        _COUNTER,
        "Bytes read from the server of this NFS mount (/proc/self/mountstats: bytes, server read).",
        "nfs",
        labels=("mount",),
    ),
    _host(
        "nfs_operations_total",
        _COUNTER,
        "NFS operations of this mount (/proc/self/mountstats: per-op operations).",
        "nfs",
        labels=("mount",),
    ),
    _host(
        "nfs_operation_wait_seconds_total",
        _COUNTER,
        "Queue plus round trip, summed over NFS operations, so that its rate is the mean number in flight "
        "(/proc/self/mountstats: per-op queue and response time).",
        "nfs",
        labels=("mount",),
    ),
    _host(
        "pressure_waiting_seconds_total",
        _COUNTER,
        "Time in which some task waited for the resource (/proc/pressure: some total).",
        "pressure",
        labels=("resource",),
        values={"resource": ("cpu", "memory", "io")},
    ),
    _host(
        "pressure_stalled_seconds_total",
        _COUNTER,
        "Time in which every task waited for the resource (/proc/pressure: full total).",
        "pressure",
        labels=("resource",),
        values={"resource": ("cpu", "memory", "io")},
    ),
)

NCCL_FAMILIES = (
    _nccl(
        "communicator_info",
        _GAUGE,
        "1; name, ranks and nodes of a communicator, and the process of its rank",
        *("comm_name", "ranks", "nodes", "hostname", "process"),
    ),
    _nccl("operations_total", _COUNTER, "Completed operations of a rank", "operation"),
    _nccl(
        "operation_seconds_total", _COUNTER, "Time of completed operations, waits for other ranks included", "operation"
    ),
    _nccl("operation_bytes_total", _COUNTER, "Message bytes of completed operations", "operation"),
    _nccl(
        "bus_bytes_total",
        _COUNTER,
        "Bus bandwidth of completed operations times their time; divided by their time it is the mean bandwidth",
        "operation",
    ),
    _nccl("last_operation_timestamp_seconds", _GAUGE, "Unix time at which the newest completed operation was written"),
    _nccl("last_sequence_number", _GAUGE, "Number of the newest completed collective, the same on all ranks"),
)
TRAINING_FAMILIES = (
    _training(
        "rank_info",
        _GAUGE,
        "1; where this rank runs and who owns it (reported by the shim).",
        labels=(
            "local_rank",
            "world_size",
            "framework",
            "hostname",
            "namespace",
            "pod",
            "slurm_job",
            "user",
            "git_commit",
            "job_class",
            "pipeline_stage",
            "tensor_rank",
            "data_rank",
        ),
        values={"job_class": ("production", "experiment")},
    ),
    _training(
        "rank_gpu_info",
        _GAUGE,
        "1: this rank computes on that GPU; the join between training and hardware.",
        labels=("gpu", "uuid"),
    ),
    _training(
        "process_info",
        _GAUGE,
        "1; host and pid (label `process`) of the rank's process, as it sees them itself, also in a container.",
        labels=("hostname", "process"),
    ),
    _training(
        "state",
        _GAUGE,
        "1 for the present state of the rank's process, 0 for the others.",
        labels=("state",),
        values={"state": RUN_STATES},
    ),
    _training(
        "activity",
        _GAUGE,
        "1 for what the rank does now, 0 for the others.",
        labels=("activity",),
        values={"activity": ACTIVITIES},
    ),
    _training("start_timestamp_seconds", _GAUGE, "When this session of the rank started, Unix time."),
    _training("first_step_timestamp_seconds", _GAUGE, "When the first step ended, Unix time."),
    _training("last_step_timestamp_seconds", _GAUGE, "When the newest step ended, Unix time."),
    _training("last_push_timestamp_seconds", _GAUGE, "When the newest report arrived, Unix time."),
    _training("restarts_total", _COUNTER, "Sessions of this rank after the first."),
    _training(
        "step_seconds",
        _HISTOGRAM,
        "Duration of one training step, boundary to boundary: without the phases evaluation, restore, paused.",
        buckets=STEP_BUCKETS,
    ),
    _training(
        "phase_seconds_total",
        _COUNTER,
        "Time by phase on the host's clock; `other` is the rest, so that phases sum to the loop's wall time.",
        labels=("phase",),
    ),
    _training(
        "phase_gpu_seconds_total",
        _COUNTER,
        "Time by phase on the GPU's clock, where it can be measured.",
        labels=("phase",),
    ),
    _training(
        "slow_steps_total",
        _COUNTER,
        "Steps over median + 3 MAD, and over 1.1 times the median, of the recent window, not explained by a "
        "named phase. Contract amendment: where the client reports the tokens, else the samples, of most steps, and "
        "these differ, the seconds for each of them are compared, and a step up to the median length is not slow.",
    ),
    _training(
        "slow_step_excess_seconds_total",
        _COUNTER,
        "Time that slow steps lost against the median, or against the median for their tokens or samples.",
    ),
    _training(
        "own_work_seconds_total",
        _COUNTER,
        "Time of the rank's own work in steps: without data wait, communication and phases of the program's own; where "
        "communication is not measured, three times the forward pass; absent where neither is measured.",
    ),
    _training(
        "uneven_work_square_seconds_total",
        _COUNTER,
        "Half the product of the changes of own work and of the rest of the step, from one step to the next, summed "
        "over the steps where one falls as the other rises: a rank with less work waits for others. Seconds squared.",
    ),
    _training(
        "even_work_square_seconds_total",
        _COUNTER,
        "The same, summed over the steps where both rise or both fall. The former minus this, by the number of steps, "
        "is the variance of own work that ranks do not share.",
    ),
    _training(
        "late_batch_steps_total",
        _COUNTER,
        "Steps, each weighted by the sixth power of its data wait over a tenth of the mean step, at most 30: nearly "
        "all weight is that of late batches.",
    ),
    _training(
        "late_batch_rest_seconds_total",
        _COUNTER,
        "Time of these steps that is neither data wait nor own work, with the same weights. Divided by the former, "
        "what a rank spends in communication while the others wait for its batch. In other steps it waits for theirs "
        "as well.",
    ),
    _training("phase_occurrences_total", _COUNTER, "How often the phase was entered.", labels=("phase",)),
    _training("phase_max_seconds", _GAUGE, "Longest occurrence of the phase in the last minute.", labels=("phase",)),
    _training(
        "code_seconds_total",
        _COUNTER,
        "Time of the phase in one line of the program, estimated from samples of stacks: up to five lines of a phase, "
        "while the newest samples contain them.",
        labels=("phase", "location", "function"),
    ),
    _training("samples_total", _COUNTER, "Samples processed, where reported."),
    _training("tokens_total", _COUNTER, "Tokens processed, where reported."),
    _training("flops_total", _COUNTER, "Floating-point operations of the model, where reported."),
    _training("epoch", _GAUGE, "Epoch, where reported."),
    _training("step", _GAUGE, "Steps done."),
    _training("steps_planned", _GAUGE, "Steps planned, where reported."),
    _training("batch_size", _GAUGE, "Samples per step of this rank, where reported."),
    _training("loss", _GAUGE, "Loss as last reported."),
    _training("learning_rate", _GAUGE, "Learning rate as last reported."),
    _training("gradient_norm", _GAUGE, "Gradient norm as last reported."),
    _training("nonfinite_losses_total", _COUNTER, "Reported losses that were NaN or infinite."),
    _training("nonfinite_since_step", _GAUGE, "Steps done at the first of the last losses, all NaN or infinite."),
    _training("value", _GAUGE, "Further value that the user reports, as last reported.", labels=("name",)),
    _training("dataloader_workers", _GAUGE, "Loader workers, where reported."),
    _training("process_cpu_seconds_total", _COUNTER, "CPU time of this process and its children."),
    _training("main_thread_cpu_seconds_total", _COUNTER, "CPU time of the main thread."),
    _training("process_memory_bytes", _GAUGE, "Resident memory of this process and its children."),
    _training("cpu_limit_cores", _GAUGE, "CPUs this rank may use: cgroup quota, or the affinity mask."),
    _training("cpu_throttled_seconds_total", _COUNTER, "Time throttled by the cgroup's quota (cpu.stat)."),
    _training("cpu_throttled_periods_total", _COUNTER, "Periods throttled by the cgroup's quota (cpu.stat)."),
    _training("cpu_periods_total", _COUNTER, "Periods of the cgroup's quota (cpu.stat)."),
    _training(
        "cgroup_oom_kills_total",
        _COUNTER,
        "Processes of the rank's cgroup that the kernel killed for want of memory, since the cgroup exists "
        "(memory.events or memory.oom_control: oom_kill).",
    ),
    _training("garbage_collection_seconds_total", _COUNTER, "Time in the interpreter's garbage collector."),
    _training("recompilations_total", _COUNTER, "Graph compilations, where the framework reports them."),
    _training("allocator_reserved_bytes", _GAUGE, "Memory that the framework's GPU allocator holds."),
    _training("allocator_used_bytes", _GAUGE, "Memory that tensors use in the framework's GPU allocator."),
    _training("allocator_peak_bytes", _GAUGE, "Highest memory that tensors used in the framework's GPU allocator."),
    _training("allocator_retries_total", _COUNTER, "Allocations that had to flush the allocator's cache first."),
    _training("out_of_memory_total", _COUNTER, "Allocations that failed for want of GPU memory."),
    _training(
        "precision_info",
        _GAUGE,
        "1 for the precision of the model's arithmetic.",
        labels=("precision",),
        values={"precision": ("fp32", "tf32", "fp16", "bf16", "fp8")},
    ),
    _training(
        "stack_info",
        _GAUGE,
        "1 for the place in the code of a rank that has made no report for over a minute, by the stack that it left: "
        "the innermost line of the user's own code, the function that contains it, and the library's function that it "
        "called.",
        labels=("location", "function", "call"),
    ),
    _training(
        "shim_dropped_reports_total", _COUNTER, "Reports that the shim could not send, by cause.", labels=("cause",)
    ),
    _training(
        "shim_overhead_seconds_total",
        _COUNTER,
        "Time that the shim itself took inside the loop: reports as measured, "
        "steps and phases by what one costs on this machine; in an unmodified PyTorch loop, "
        "phases by what those of a few steps after each report cost.",
    ),
)

EXPORTER_FAMILIES = (
    _exporter("build_info", _GAUGE, "1; the version of Stallscope and of Python.", labels=("version", "python")),
    _exporter(
        "exporter_source_up",
        _GAUGE,
        "1 while the collector's readers succeed and respond in time, else 0; absent where this machine "
        "has no such part.",
        labels=("source",),
    ),
    _exporter(
        "exporter_source_read_seconds", _GAUGE, "How long the newest reading of the source took.", labels=("source",)
    ),
    _exporter(
        "exporter_source_last_success_timestamp_seconds",
        _GAUGE,
        "Wall clock of the newest reading that succeeded, Unix time.",
        labels=("source",),
    ),
    _exporter(
        "exporter_source_failures_total",
        _COUNTER,
        "Readings that raised, returned nonsense or hung.",
        labels=("source",),
    ),
    _exporter("exporter_source_readings_total", _COUNTER, "Readings that came to an end.", labels=("source",)),
    _exporter(
        "exporter_source_reading_seconds_total",
        _COUNTER,
        "Time that readings took, summed over the source's threads (wall clock).",
        labels=("source",),
    ),
    _exporter(
        "exporter_source_cpu_seconds_total",
        _COUNTER,
        "CPU time of readings, summed over the collector's threads.",
        labels=("source",),
    ),
    _exporter(
        "exporter_source_stuck_threads",
        _GAUGE,
        "Threads of the source that are in a reading which has not come back in time.",
        labels=("source",),
    ),
    _exporter(
        "exporter_driver_calls_total",
        _COUNTER,
        "Calls made to a GPU driver.",
        labels=("source",),
        provider="collectors.gpu.source",
    ),
    _exporter(
        "exporter_values_rejected_total",
        _COUNTER,
        "Implausible values of a GPU driver, which are not exposed, by reason.",
        labels=("source", "reason"),
        provider="collectors.gpu.source",
    ),
    _exporter(
        "exporter_attribution_errors_total",
        _COUNTER,
        "Failed attempts to find out who holds a GPU, by reason.",
        labels=("reason",),
        provider="collectors.owners",
    ),
    _exporter(
        "exporter_reports_total",
        _COUNTER,
        "Training reports received, by transport, including those skipped because a newer one had arrived.",
        labels=("transport",),
        values={"transport": ("unix", "udp", "http")},
        provider="intake.runs",
    ),
    _exporter(
        "exporter_receiver_up",
        _GAUGE,
        "1 while the receiver of training reports is open, else 0, by transport; absent where it is switched off.",
        labels=("transport",),
        values={"transport": ("unix", "udp")},
        provider="intake.service",
    ),
    _exporter(
        "exporter_reports_rejected_total",
        _COUNTER,
        "Training reports refused, of those that were read, by reason.",
        labels=("reason",),
        values={
            "reason": (
                *("too_large", "not_json", "version", "missing_field", "bad_field", "bad_name"),
                *("too_many_values", "too_many_phases", "too_many_gpus", "too_many_lines"),
                *("future", "run_limit", "rank_limit", "series_limit", "memory_limit", "superseded", "not_owner"),
                *("unsigned", "unknown_token", "expired", "bad_signature", "replayed"),
            )
        },
        provider="intake.runs",
    ),
    _exporter(
        "exporter_requests_refused_total",
        _COUNTER,
        "Requests and connections that the web server refused: for want of credentials that are right, of a "
        "certificate that is trusted, of permission for the request, of a TLS handshake, of the form of HTTP, or "
        "beyond limits of size, time and number at once.",
        labels=("reason",),
        values={"reason": ("credentials", "certificate", "forbidden", "handshake", "malformed", "limits")},
        provider="web.http.refusals",
    ),
    _exporter(
        "exporter_config_last_reload_successful",
        _GAUGE,
        "1 if the exporter's configuration (config) and its web configuration file (web_config) were valid when they "
        "were last read, else 0; the last valid ones stay in force.",
        labels=("file",),
        values={"file": ("config", "web_config")},
        provider="web.reloads",
    ),
    _exporter(
        "exporter_runs",
        _GAUGE,
        "Runs held, up to 64 ended ones included (32 of one user).",
        provider="intake.runs",
    ),
    _exporter("exporter_series", _GAUGE, "Series on the newest page."),
    _exporter(
        "exporter_series_dropped_total",
        _COUNTER,
        "Series not exposed because a limit was reached.",
        labels=("limit",),
        values={"limit": ("max_series", "value_names_per_run", "series_quota")},
    ),
)


def _process(name: str, kind: MetricType, help_text: str) -> Family:
    return Family(name=f"process_{name}", type=kind, help=help_text, provider="collectors.process")


PROCESS_FAMILIES = (
    _process("virtual_memory_bytes", _GAUGE, "Virtual memory size in bytes (the exporter's own process)."),
    _process("resident_memory_bytes", _GAUGE, "Resident memory size in bytes (the exporter's own process)."),
    _process("start_time_seconds", _GAUGE, "Start time of the exporter's process since unix epoch in seconds."),
    _process("cpu_seconds_total", _COUNTER, "Total user and system CPU time of the exporter's process in seconds."),
    _process("open_fds", _GAUGE, "Number of open file descriptors of the exporter's process."),
    _process("max_fds", _GAUGE, "Maximum number of open file descriptors of the exporter's process."),
)

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *GPU_FAMILIES,
        *HOST_FAMILIES,
        *NCCL_FAMILIES,
        *TRAINING_FAMILIES,
        *EXPORTER_FAMILIES,
        *PROCESS_FAMILIES,
    )
}
"""Every family by name, in the order of the exposition."""


def family(name: str) -> Family:
    """Look up a family by its full name.

    Raises:
        KeyError: the catalogue has no such name; add the metric here first.
    """
    return FAMILIES[name]
