"""A cluster's series, as its exporters would expose them: eight GPUs a node, a rank on each, runs of `RANKS_A_RUN`
ranks.

A fifth of the runs is in trouble, each kind in turn; some GPUs throttle, had an Xid or lost link width; one node more
for every 32 is held by an owner and does nothing. Only series that the rules read are made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stallscope.model.catalogue.metrics import (
    ACTIVITIES,
    CLOCKS,
    FAMILIES,
    RUN_STATES,
    STEP_BUCKETS,
    THROTTLE_REASONS,
    UTILIZATION_BUCKETS,
)

GPUS_A_NODE = 8
RANKS_A_RUN = 64
HOUR = 3600

Floats = NDArray[np.float64]
_Value = float | Floats
_LABELS = {"cluster": "east", "job": "stallscope"}
_TROUBLES = ("input", "straggler", "checkpoint", "host_copy", "communication")
_CORES_A_RANK = 16
_GIB = float(1 << 30)
_ABSENT = {
    *("stallscope_gpu_utilization_samples", "stallscope_training_step_seconds"),  # histograms that Prometheus converts
    "stallscope_gpu_lost_info",
    "stallscope_gpu_owner_workload_info",
    "stallscope_gpu_retired_pages",
    "stallscope_exporter_values_rejected_total",
    "stallscope_host_cgroup_oom_kills_total",
    "stallscope_training_code_seconds_total",
    "stallscope_training_nonfinite_since_step",
    "stallscope_nccl_communicator_info",
    "stallscope_nccl_operations_total",
    "stallscope_nccl_operation_seconds_total",
    "stallscope_nccl_operation_bytes_total",
    "stallscope_nccl_bus_bytes_total",
}
"""Families that are absent in a cluster whose GPUs all respond and have row remapping, whose hosts kill no process,
whose stacks are not sampled, whose losses are finite, that has no Kubernetes, and that does not use NCCL Inspector."""


@dataclass(frozen=True)
class Columns:
    """Series that behave alike: each is `start` now, grows by `rate` a second and swings by `swing`."""

    name: str
    labels: Sequence[Mapping[str, str]]
    nodes: NDArray[np.int64]
    """Of each series, which exporter shows it: its samples share the moment of a scrape."""
    start: Floats
    rate: Floats
    swing: Floats


class _Subjects:
    """All GPUs, ranks or hosts, and the series made for them.

    Args:
        prefix: of all their series' names.
        labels: that each has.
        per_node: how many a node has.
        names: which series to make.
    """

    def __init__(self, prefix: str, labels: Sequence[Mapping[str, str]], per_node: int, names: Collection[str]) -> None:
        self.labels = labels
        self.columns: list[Columns] = []
        self.known: set[str] = set()
        """Names of all series that there could be."""
        self._prefix = prefix
        self._names = names
        self._nodes = np.arange(len(labels)) // per_node

    def gauge(
        self,
        family: str,
        start: _Value = 0.0,
        *,
        rate: _Value = 0.0,
        swing: _Value = 0.0,
        which: NDArray[np.bool_] | None = None,
        extra: Sequence[Mapping[str, str]] | None = None,
        **labels: str,
    ) -> None:
        """Make a series for each, or for those that `which` selects; `extra` are labels of one each."""
        name = f"{self._prefix}{family}"
        self.known.add(name)
        if name not in self._names:
            return
        count = len(self.labels)
        chosen: list[int] = list(range(count)) if which is None else np.flatnonzero(which).tolist()
        values = (np.broadcast_to(np.asarray(value, float), count)[chosen] for value in (start, rate, swing))
        of_each = [{**self.labels[place], **(extra[place] if extra else {}), **labels} for place in chosen]
        self.columns.append(Columns(name, of_each, self._nodes[chosen], *values))

    def counter(self, family: str, rate: _Value, **labels: str) -> None:
        """Make a series that has grown for two hours."""
        self.gauge(family, np.asarray(rate, float) * 2 * HOUR, rate=rate, extra=[labels] * len(self.labels))


@dataclass(frozen=True)
class _Runs:
    """Which run has which place among all ranks."""

    size: int
    """Ranks of each run."""

    def name(self, place: int) -> str:
        return f"pretrain-{place // self.size:03}"

    def rank(self, place: int) -> str:
        return f"{place % self.size}"

    def pod(self, place: int) -> str:
        return f"{self.name(place)}-{place % self.size // GPUS_A_NODE}"


class _Training:
    """How the runs fare.

    Args:
        ranks: of all runs.
        gpus: with those that do nothing.
        runs: that the ranks are of.
    """

    def __init__(self, ranks: int, gpus: int, runs: _Runs) -> None:
        index = np.arange(ranks)
        number = index // runs.size
        kind = np.where(number % 5 == 1, number // 5 % len(_TROUBLES), -1)
        trouble = {name: kind == place for place, name in enumerate(_TROUBLES)}
        slowest = trouble["straggler"] & (index % runs.size == 7)
        waiting = trouble["communication"] | trouble["straggler"] & ~slowest
        self.starved = trouble["input"]
        self.phases: dict[str, Floats] = {
            "data_wait": np.where(trouble["input"], 0.30, 0.01) + np.where(slowest, 0.2, 0.0),
            "host_copy": np.where(trouble["host_copy"], 0.25, 0.01),
            "communication": np.where(waiting, 0.25, 0.04),
            "checkpoint": np.where(trouble["checkpoint"], 0.15, 0.005),
            "optimizer": np.full(ranks, 0.05),
            "logging": np.full(ranks, 0.004),
            "other": np.full(ranks, 0.01),
            "evaluation": np.full(ranks, 0.001),
            "initialization": np.zeros(ranks),
        }
        computed = 1 - np.sum(list(self.phases.values()), axis=0)
        self.phases |= {"forward": computed / 3, "backward": computed * 2 / 3}
        idle = [self.phases[name] for name in ("data_wait", "host_copy", "checkpoint", "logging", "other")]
        self.idle: Floats = np.ones(gpus)
        """Share of its time in which a GPU has no work."""
        self.idle[:ranks] = np.sum(idle, axis=0)


class Cluster:
    """All series of a cluster.

    Args:
        gpus: GPUs with a rank each, a multiple of eight.
        names: which series to make, as queries name them.
        now: Unix time at which the series have their `start`.
        ranks_a_run: at most.

    Raises:
        ValueError: the cluster has no such series.
    """

    def __init__(self, gpus: int, names: Collection[str], now: float, *, ranks_a_run: int = RANKS_A_RUN) -> None:
        self._now = now
        runs = _Runs(ranks_a_run)
        working = gpus // GPUS_A_NODE
        self._nodes = working + max(1, working // 32)
        host_labels = [{**_LABELS, "instance": f"node{node:04}:19400"} for node in range(self._nodes)]
        gpu_labels = [
            {**host, "gpu": f"{index}", "uuid": f"GPU-{node:08x}-5ca1-4b1e-a5a5-{index:012x}"}
            for node, host in enumerate(host_labels)
            for index in range(GPUS_A_NODE)
        ]
        rank_labels = [
            {**host_labels[index // GPUS_A_NODE], "run": runs.name(index), "rank": runs.rank(index)}
            for index in range(gpus)
        ]
        self._gpus = _Subjects("stallscope_gpu_", gpu_labels, GPUS_A_NODE, names)
        self._ranks = _Subjects("stallscope_training_", rank_labels, GPUS_A_NODE, names)
        self._hosts = _Subjects("", host_labels, 1, names)
        training = _Training(gpus, len(gpu_labels), runs)
        _fill_gpus(self._gpus, training, now, runs)
        _fill_ranks(self._ranks, training, now, gpu_labels, runs)
        _fill_hosts(self._hosts, training, now)
        everything = (self._gpus, self._ranks, self._hosts)
        self.columns = [column for subjects in everything for column in subjects.columns]
        known = set().union(*(subjects.known for subjects in everything))
        missing = {name for name in names if name.startswith("stallscope_")} - known - _ABSENT
        if missing:
            raise ValueError(f"rules read series that this cluster does not have; add them: {sorted(missing)}")

    @property
    def series(self) -> int:
        """How many there are."""
        return sum(len(each.labels) for each in self.columns)

    def healthy(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Labels of a GPU without any trouble, and of the rank on it."""
        return self._gpus.labels[2], self._ranks.labels[2]

    def values(self, moments: Floats) -> Iterator[tuple[Columns, Floats]]:
        """Each column with its values, one row a series.

        Args:
            moments: Unix times of the scrapes.
        """
        # A scrape's jitter is the same in all of a node's series, so that histograms stay cumulative.
        scrape = np.random.default_rng(round(moments[0])).uniform(-0.2, 0.2, (self._nodes, len(moments)))
        for each in self.columns:
            jitter = scrape[each.nodes]
            grown = each.rate[:, None] * (moments - self._now + jitter)
            yield each, each.start[:, None] + grown + each.swing[:, None] * jitter * 5


def _fill_gpus(gpus: _Subjects, training: _Training, now: float, runs: _Runs) -> None:
    count = len(gpus.labels)
    every = np.arange(count)
    busy = 1 - training.idle
    works = training.idle < 1
    hot, capped = every % 64 == 37, every % 64 == 21
    xid = every % 256 == 77

    described = {name: "x" for name in FAMILIES["stallscope_gpu_info"].labels if name not in ("gpu", "uuid")}
    described |= {"model": "NVIDIA H100 80GB HBM3", "driver_version": "590.48.01", "sharing": "exclusive"}
    gpus.gauge("info", 1, extra=[described] * count)
    gpus.gauge("up", 1)
    gpus.gauge("last_reading_timestamp_seconds", now, rate=1)
    for signal in FAMILIES.values():
        if signal.optional:
            gpus.gauge("signal_supported", 1, signal=signal.signal)
    gpus.counter("busy_seconds_total", busy)
    gpus.counter("memory_busy_seconds_total", busy * 0.6)
    gpus.counter("observed_seconds_total", 1)
    gpus.counter("idle_seconds_total", training.idle)
    gpus.counter("below_seconds_total", training.idle, level="0.1")
    gpus.counter("below_seconds_total", training.idle, level="0.5")
    # Half a minute of idleness a dip, at random: the mean of the squared times between is twice their squared mean.
    dips = np.where(works, training.idle / 30, 0)
    gpus.counter("dips_total", dips)
    gpus.counter("dip_interval_seconds_count", dips)
    gpus.counter("dip_interval_seconds_sum", np.where(works, 1, 0))
    gpus.counter("dip_interval_seconds_sumsq", np.where(works, 60 / training.idle, 0))
    for bound in UTILIZATION_BUCKETS:
        at_most = np.maximum(training.idle, {0.9: 0.9, 1.0: 1.0}.get(bound, 0.0))
        gpus.counter("utilization_samples_bucket", 6 * at_most, le=f"{bound:g}")
    gpus.counter("utilization_samples_bucket", 6, le="+Inf")
    gpus.counter("utilization_samples_sum", 6 * busy)
    gpus.counter("utilization_samples_count", 6)
    gpus.gauge("utilization_ratio", busy * 0.95, swing=0.05 * busy)
    gpus.gauge("memory_utilization_ratio", busy * 0.6, swing=0.05 * busy)
    gpus.counter("sm_active_seconds_total", busy * 0.8)
    gpus.counter("sm_occupancy_seconds_total", busy * 0.4)
    for pipe, share in (("tensor", 0.45), ("fp64", 0.0), ("fp32", 0.05), ("fp16", 0.02), ("integer", 0.1)):
        gpus.counter("pipe_active_seconds_total", busy * share, pipe=pipe)
    gpus.counter("dram_active_seconds_total", busy * 0.4)
    for engine in ("encoder", "decoder", "jpeg", "ofa"):
        gpus.counter("engine_busy_seconds_total", 0, engine=engine)
    gpus.gauge("memory_total_bytes", 80 * _GIB)
    gpus.gauge("memory_used_bytes", np.where(works, 62 * _GIB, _GIB), swing=np.where(works, _GIB / 8, 0))
    gpus.gauge("memory_reserved_bytes", _GIB / 2)
    gpus.gauge("bar1_total_bytes", 128 * _GIB)
    gpus.gauge("bar1_used_bytes", _GIB)
    gpus.gauge("power_watts", np.where(works, 560, 70), swing=np.where(works, 60, 3))
    gpus.gauge("power_limit_watts", 700)
    gpus.gauge("power_limit_default_watts", 700)
    gpus.counter("energy_joules_total", np.where(works, 560, 70))
    for sensor, celsius in (("gpu", 62), ("memory", 75)):
        gpus.gauge("temperature_celsius", np.where(hot, celsius + 25, celsius), swing=3, sensor=sensor)
    for limit, celsius in (("slowdown", 89), ("shutdown", 92), ("gpu_max", 87), ("memory_max", 95)):
        gpus.gauge("temperature_limit_celsius", celsius, limit=limit)
    gpus.gauge("fan_speed_ratio", 0.5, fan="0")
    for clock in CLOCKS:
        hertz = np.where(hot, 1.3e9, np.where(capped, 1.5e9, 1.95e9))
        gpus.gauge("clock_hertz", hertz, swing=1e7, clock=clock)
        gpus.gauge("clock_max_hertz", 1.98e9, clock=clock)
    gpus.gauge("clock_configured_hertz", 1.5e9, which=every % 512 == 9, clock="sm")
    for reason in THROTTLE_REASONS:
        share = {"sw_thermal": hot * 0.4, "power_cap": capped * 0.6 + 0.05}.get(reason, np.zeros(count))
        gpus.counter("throttled_seconds_total", share, reason=reason)
    for way in ("receive", "transmit"):
        gpus.counter(f"pcie_{way}_bytes_total", busy * 2e9)
        gpus.counter(f"nvlink_{way}_bytes_total", busy * 4e10)
    for link, full in (("generation", 5.0), ("width", 16.0)):
        slow = (every % 256 == 33) & (link == "width")
        gpus.gauge(f"pcie_link_{link}", np.where(slow, full / 2, full))
        gpus.gauge(f"pcie_link_{link}_max", full)
    gpus.counter("pcie_replays_total", (every % 256 == 41) * 0.5)
    gpus.gauge("nvlink_links", 18)
    gpus.gauge("nvlink_links_active", np.where(every % 512 == 50, 17, 18))
    for kind in ("replay", "recovery", "crc"):
        gpus.counter("nvlink_errors_total", (every % 512 == 51) * 0.1, kind=kind)
    for kind in ("corrected", "uncorrected"):
        gpus.counter("ecc_errors_total", 0, kind=kind)
        gpus.gauge("remapped_rows", kind=kind)
    gpus.gauge("row_remap_pending", every % 512 == 60)
    gpus.gauge("row_remap_failed")
    gpus.gauge("persistence_mode", 1)
    for precision, flops in (
        ("fp32", 67e12),
        ("tf32", 495e12),
        ("fp16", 989e12),
        ("bf16", 989e12),
        ("fp8", 1979e12),
    ):
        gpus.gauge("peak_flops", flops, precision=precision)
    gpus.gauge("processes", np.where(works, 1, 0), kind="compute")
    gpus.gauge("processes", kind="graphics")
    gpus.gauge("xid_events_total", 1, which=xid, xid="31")
    gpus.gauge("xid_last_timestamp_seconds", now - 600, which=xid, xid="31")
    owners = [{"namespace": "research", "pod": runs.pod(place), "container": "train"} for place in range(count)]
    for family, start, rate in (
        ("info", 1.0, 0.0),
        ("memory_used_bytes", 60 * _GIB, 0.0),
        ("busy_seconds_total", 0.0, 0.9),
    ):
        gpus.gauge(f"owner_{family}", start, rate=rate, extra=owners, slurm_job="", user="")


def _fill_ranks(
    ranks: _Subjects, training: _Training, now: float, gpu_labels: Sequence[Mapping[str, str]], runs: _Runs
) -> None:
    count = len(ranks.labels)
    every = np.arange(count)
    step = np.full(count, 1.25)

    ranks.gauge(
        "rank_info",
        1,
        extra=[
            {"pod": runs.pod(place), "local_rank": str(place % GPUS_A_NODE), "hostname": f"node{place // 8:04}"}
            for place in range(count)
        ],
        world_size=str(min(runs.size, count)),
        framework="pytorch",
        namespace="research",
        git_commit="0f1e2d3c",
        job_class="production",
    )
    claims = [{"gpu": gpu["gpu"], "uuid": gpu["uuid"]} for gpu in gpu_labels[:count]]
    ranks.gauge("rank_gpu_info", 1, extra=claims)
    processes = [{"hostname": f"node{place // 8:04}", "process": str(4000 + place)} for place in range(count)]
    ranks.gauge("process_info", 1, extra=processes)
    for state in RUN_STATES:
        ranks.gauge("state", state == "running", state=state)
    for activity in ACTIVITIES:
        ranks.gauge("activity", activity == "training", activity=activity)
    ranks.gauge("start_timestamp_seconds", now - 2 * HOUR)
    ranks.gauge("first_step_timestamp_seconds", now - 2 * HOUR + 60)
    ranks.gauge("last_step_timestamp_seconds", now, rate=1)
    ranks.gauge("last_push_timestamp_seconds", now, rate=1)
    ranks.gauge("restarts_total")
    for bound in STEP_BUCKETS:
        ranks.counter("step_seconds_bucket", np.where(step <= bound, 1 / step, 0), le=f"{bound:g}")
    ranks.counter("step_seconds_bucket", 1 / step, le="+Inf")
    ranks.counter("step_seconds_sum", 1)
    ranks.counter("step_seconds_count", 1 / step)
    for phase, share in training.phases.items():
        ranks.counter("phase_seconds_total", share, phase=phase)
        ranks.counter("phase_occurrences_total", 1 / step, phase=phase)
        ranks.gauge("phase_max_seconds", share * step, swing=0.1 * share, phase=phase)
        if phase in ("host_copy", "forward", "backward", "communication", "optimizer"):
            ranks.counter("phase_gpu_seconds_total", share, phase=phase)
    ranks.counter("slow_steps_total", 0.001)
    ranks.counter("slow_step_excess_seconds_total", 0.0005)
    ranks.counter("own_work_seconds_total", 0.9)
    ranks.counter("uneven_work_square_seconds_total", 0.0009)
    ranks.counter("even_work_square_seconds_total", 0.0004)
    ranks.counter("late_batch_steps_total", 0.000001 / step)
    ranks.counter("late_batch_rest_seconds_total", 0.0000003)
    ranks.counter("samples_total", 8 / step)
    ranks.counter("tokens_total", 32768 / step)
    ranks.counter("flops_total", 4e14)
    ranks.counter("step", 1 / step)
    for family, value in (("epoch", 1), ("steps_planned", 1e5), ("batch_size", 8), ("learning_rate", 3e-4)):
        ranks.gauge(family, value)
    ranks.gauge("loss", 2.1, swing=0.05)
    ranks.gauge("gradient_norm", 0.8, swing=0.2)
    ranks.gauge("nonfinite_losses_total")
    ranks.gauge("value", 1, swing=0.1, name="perplexity")
    ranks.gauge("dataloader_workers", np.where(every % 512 == 400, 1, 8))
    burnt = np.where(training.starved, 0.95, 0.35) * _CORES_A_RANK
    ranks.counter("process_cpu_seconds_total", burnt)
    ranks.counter("main_thread_cpu_seconds_total", 0.6)
    ranks.gauge("process_memory_bytes", 20 * _GIB, swing=_GIB / 8)
    ranks.gauge("cpu_limit_cores", _CORES_A_RANK)
    ranks.counter("cpu_periods_total", 10)
    ranks.counter("cpu_throttled_periods_total", np.where(every % 512 == 401, 5, 0.01))
    ranks.counter("cpu_throttled_seconds_total", np.where(every % 512 == 401, 0.3, 0.001))
    ranks.gauge("cgroup_oom_kills_total", 0)
    ranks.counter("garbage_collection_seconds_total", 0.001)
    ranks.gauge("recompilations_total", 3)
    ranks.gauge("allocator_reserved_bytes", 58 * _GIB)
    ranks.gauge("allocator_used_bytes", 40 * _GIB, swing=8 * _GIB)
    ranks.gauge("allocator_peak_bytes", 54 * _GIB)
    ranks.gauge("allocator_retries_total")
    ranks.gauge("out_of_memory_total")
    ranks.gauge("precision_info", 1, precision="bf16")
    ranks.gauge("stack_info", 1, location="job/trainer.py:88", function="step", call="all_reduce")
    ranks.gauge("shim_dropped_reports_total", cause="send_failed")
    ranks.counter("shim_overhead_seconds_total", 0.0001)


def _fill_hosts(hosts: _Subjects, training: _Training, now: float) -> None:
    count = len(hosts.labels)

    cores = _CORES_A_RANK * GPUS_A_NODE
    busy = np.full(count, 0.02)
    busy[: len(training.starved) // GPUS_A_NODE] = np.where(training.starved[::GPUS_A_NODE], 0.96, 0.4)
    hosts.gauge("up", 1)
    hosts.gauge("stallscope_host_info", 1, kernel="6.8.0", cpu_model="AMD EPYC 9654")
    hosts.gauge("stallscope_host_cpus", cores)
    for mode, share in (
        ("user", busy * 0.9),
        ("system", busy * 0.1),
        ("iowait", 0.0),
        ("idle", 1 - busy),
        ("other", 0.0),
    ):
        hosts.counter("stallscope_host_cpu_seconds_total", np.asarray(share) * cores, mode=mode)
    hosts.counter("stallscope_host_busiest_cpu_seconds_total", np.minimum(1, busy * 2))
    for family, size in (
        ("memory_total_bytes", 2048),
        ("memory_available_bytes", 1500),
        ("page_cache_bytes", 900),
        ("shared_memory_total_bytes", 1024),
        ("shared_memory_used_bytes", 20),
    ):
        hosts.gauge(f"stallscope_host_{family}", size * _GIB)
    for family in ("swap_in_bytes_total", "swap_out_bytes_total", "oom_kills_total"):
        hosts.counter(f"stallscope_host_{family}", 0)
    hosts.counter("stallscope_host_major_page_faults_total", 3)
    for device in (f"nvme{index}n1" for index in range(4)):
        hosts.counter("stallscope_host_disk_read_bytes_total", 1e8, device=device)
        hosts.counter("stallscope_host_disk_written_bytes_total", 1e7, device=device)
        hosts.counter("stallscope_host_disk_busy_seconds_total", 0.1, device=device)
    for device in ("bond0", "eth0", "eth1"):
        hosts.counter("stallscope_host_network_receive_bytes_total", 2e8, device=device)
        hosts.counter("stallscope_host_network_transmit_bytes_total", 1e8, device=device)
        hosts.gauge("stallscope_host_network_link_bytes_per_second", 12.5e9, device=device)
        hosts.counter("stallscope_host_network_drops_total", 0, device=device)
        hosts.counter("stallscope_host_network_errors_total", 0, device=device)
    for device in (f"mlx5_{index}" for index in range(8)):
        hosts.counter("stallscope_host_rdma_receive_bytes_total", 1e10, device=device, port="1")
        hosts.counter("stallscope_host_rdma_transmit_bytes_total", 1e10, device=device, port="1")
        hosts.gauge("stallscope_host_rdma_link_bytes_per_second", 50e9, device=device, port="1")
    for mount in ("/data", "/home"):
        hosts.counter("stallscope_host_nfs_read_bytes_total", 2e8, mount=mount)
        hosts.counter("stallscope_host_nfs_operations_total", 200, mount=mount)
        hosts.counter("stallscope_host_nfs_operation_wait_seconds_total", 2, mount=mount)
    for resource, share in (("cpu", np.maximum(0, busy - 0.7)), ("memory", 0.0), ("io", 0.01)):
        hosts.counter("stallscope_host_pressure_waiting_seconds_total", share, resource=resource)
        hosts.counter("stallscope_host_pressure_stalled_seconds_total", np.asarray(share) / 4, resource=resource)
    hosts.gauge("stallscope_build_info", 1, version="1.0.0", python="3.11.7")
    for source in ("nvidia", "cpu", "memory", "disk", "network", "owners", "pressure", "process"):
        hosts.gauge("stallscope_exporter_source_up", 1, source=source)
        for family in ("failures_total", "stuck_threads"):
            hosts.gauge(f"stallscope_exporter_source_{family}", source=source)
        hosts.gauge("stallscope_exporter_source_read_seconds", 0.01, swing=0.002, source=source)
        hosts.gauge("stallscope_exporter_source_last_success_timestamp_seconds", now, rate=1, source=source)
        for family in ("readings_total", "reading_seconds_total", "cpu_seconds_total"):
            hosts.gauge(f"stallscope_exporter_source_{family}", rate=1, source=source)
        hosts.gauge("stallscope_exporter_driver_calls_total", rate=80, source=source)
    hosts.gauge("stallscope_exporter_receiver_up", 1, transport="unix")
    hosts.gauge("stallscope_exporter_reports_total", rate=16, transport="unix")
    for reason in ("too_large", "malformed", "unknown_version", "limit"):
        hosts.gauge("stallscope_exporter_reports_rejected_total", reason=reason)
    for reason in ("credentials", "certificate", "forbidden", "handshake", "malformed", "limits"):
        hosts.gauge("stallscope_exporter_requests_refused_total", reason=reason)
    hosts.gauge("stallscope_exporter_attribution_errors_total", reason="unknown_pid")
    hosts.gauge("stallscope_exporter_runs", 1)
    hosts.gauge("stallscope_exporter_series", 2000)
    for limit in ("runs", "series"):
        hosts.gauge("stallscope_exporter_series_dropped_total", limit=limit)
    hosts.gauge("process_start_time_seconds", now - 24 * HOUR)
    hosts.gauge("process_resident_memory_bytes", 25e6)
    hosts.gauge("process_cpu_seconds_total", rate=0.01)
