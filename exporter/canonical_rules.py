"""Write prometheus/rules/canonical*.yml: what other people's exporters tell, under the names of our catalogue.

Run by `make generate`; a test fails when a committed file is not what this prints. What the exporters' names mean, and
which of them are refused, is told in prometheus/README.md.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from stallscope.catalogue import BELOW_LEVELS, UTILIZATION_BUCKETS

FOLDER = Path(__file__).parents[1] / "prometheus" / "rules"

SUBJECT = "cluster, job, instance, gpu, uuid, mig, measured_by"
MEBI = "1048576"


@dataclass(frozen=True)
class Rule:
    """A recording rule; one without a comment goes with the one above it."""

    record: str
    expression: str
    labels: dict[str, str] = field(default_factory=dict)
    comment: str = ""


def block(text: str, spaces: int = 2) -> str:
    """The text, further in."""
    return textwrap.indent(text, " " * spaces)


def first_of(*expressions: str) -> str:
    """Whichever of them is told first."""
    return "\nor\n".join(block(each) for each in expressions) if len(expressions) > 1 else expressions[0]


def renamed(expression: str, label: str, source: str, pattern: str = "(.+)", value: str = "$1") -> str:
    """The series with a label made from another."""
    if "\n" not in expression and len(expression) < 60:
        return f'label_replace({expression}, "{label}", "{value}", "{source}", "{pattern}")'
    return f'label_replace(\n{block(expression)},\n  "{label}", "{value}", "{source}", "{pattern}"\n)'


def label_join(expression: str, label: str, between: str, *sources: str) -> str:
    """The series with a label made of several."""
    names = ", ".join(f'"{source}"' for source in sources)
    return f'label_join(\n{block(expression)},\n  "{label}", "{between}", {names}\n)'


def with_host(expression: str) -> str:
    """The series with the host that their target's address begins with."""
    return renamed(expression, "host", "instance", "(.+?)(:[0-9]+)?")


@dataclass(frozen=True)
class GpuSource:
    """An exporter of GPUs."""

    name: str
    keys: tuple[str, ...]
    """Labels that together tell its GPUs apart."""

    def found(self, expression: str, *labels: str) -> Rule:
        """1 for each GPU that the exporter tells of, once, should it be scraped twice.

        Args:
            expression: series with `gpu`, the driver's index, and `UUID`, which is the card's.
            labels: what they tell besides; `uuid` only where a GPU can be a part of a card.
        """
        series = with_host(self._keyed(expression))
        if "uuid" not in labels:
            series = renamed(series, "uuid", "UUID")
            labels = ("uuid", *labels)
        kept = f"cluster, job, instance, key, gpu, UUID, {', '.join(labels)}, host"
        return Rule(
            "gpu:found:info",
            f"topk by (cluster, key) (1,\n  group by ({kept}) (\n{block(series, 4)}\n  )\n)",
            {"measured_by": self.name},
            f"1 for each GPU that {self.name} tells of.",
        )

    def of_each(self, *expressions: str) -> str:
        """The first of the values that is told of a GPU, under the labels that the rules know the GPU by."""
        # What is no number, below zero, or as great as DCGM's "not supported" (2^47 and 2^63) means that there is
        # none: a counter made of it would never recover.
        value = f"max by (cluster, {', '.join(self.keys)}) (\n{block(first_of(*expressions))}\n) >= 0 < 1e14"
        return (
            f"max by ({SUBJECT}) (\n"
            f'    gpu:identity:info{{measured_by="{self.name}"}}\n'
            f"  * on (cluster, key) group_left ()\n{block(self._keyed(value), 4)}\n)"
        )

    def with_labels(self, labels: str, expression: str) -> str:
        """1 for each GPU and what further labels say of it."""
        return self._labelled("group", labels, expression)

    def of_each_with(self, labels: str, expression: str) -> str:
        """The value of each GPU and further labels."""
        return self._labelled("max", labels, expression)

    def _labelled(self, aggregation: str, labels: str, expression: str) -> str:
        value = f"{aggregation} by (cluster, {', '.join(self.keys)}, {labels}) (\n{block(expression)}\n)"
        return (
            f"max by ({SUBJECT}, {labels}) (\n{block(self._keyed(value), 4)}\n"
            f"  * on (cluster, key) group_left (job, instance, gpu, uuid, mig, measured_by)\n"
            f'    gpu:identity:info{{measured_by="{self.name}"}}\n)'
        )

    def _keyed(self, expression: str) -> str:
        return label_join(expression, "key", "/", *self.keys)


def owners(source: GpuSource, series: tuple[str, ...], jobs: dict[str, str]) -> Rule:
    """Who holds a GPU, as labels of the exporter's series tell.

    Args:
        source: the exporter.
        series: those that have the labels.
        jobs: our labels for what a scheduler told the exporter, with theirs.
    """
    alternatives: list[str] = []
    for name in series:
        gave_way = f'{name}{{exported_pod!=""}}'
        for label in ("namespace", "pod", "container"):
            gave_way = renamed(gave_way, label, f"exported_{label}", "(.*)")
        # Not by instance: relabelling of metrics may put the node's name there, and `up` is not relabelled.
        own = 'unless on (cluster, job, namespace, pod)\n  up{pod!=""}'
        job = next(iter(jobs.values()))
        alternatives += [
            gave_way,
            f'{name}{{exported_pod="",pod!=""}}\n{own}',
            f'{name}{{exported_pod="",pod="",{job}!=""}}',
        ]
    told = first_of(*alternatives)
    for label, theirs in jobs.items():
        told = renamed(told, label, theirs)
    return Rule(
        "stallscope_gpu_owner_info",
        source.with_labels(", ".join(("namespace", "pod", "container", *jobs)), told),
        comment="Who holds the GPU. A pod that the target itself has is the exporter's own, and holds nothing; where "
        "the holder's labels gave way to the target's, they begin with exported_.",
    )


DCGM = GpuSource("dcgm-exporter", ("UUID", "GPU_I_ID"))
NVIDIA_SMI = GpuSource("nvidia_gpu_exporter", ("uuid",))
NVITOP = GpuSource("nvitop-exporter", ("uuid",))
AMD = GpuSource("amd-device-metrics-exporter", ("hostname", "gpu_id"))
"""In this order the first that tells of a GPU is taken."""
NODE = "node_exporter"

Readings = tuple[tuple[str, dict[str, str], tuple[str, ...]], ...]
"""Rows of what to record, its further labels, and what to make it from, the best first."""


def rules_of(source: GpuSource, readings: Readings) -> Iterator[Rule]:
    """A rule for each row."""
    for name, labels, expressions in readings:
        yield Rule(name, source.of_each(*expressions), labels)


def integral(counter: str, value: str, labels: dict[str, str] | None = None, comment: str = "") -> Rule:
    """A counter that grows by a value for as long as it is told.

    Its own last sample tells since when: an evaluation that is missed is made up for, 90 s of them at most. With the
    value the counter ends, and begins anew as any counter does.
    """
    matchers = "".join(f',{name}="{label}"' for name, label in (labels or {}).items())
    itself = f'{counter}{{measured_by!=""{matchers}}}'
    # What has a label besides is made from a value without it.
    on = f" on ({SUBJECT})" if labels else ""
    return Rule(
        counter,
        f"  {itself}\n+{on}\n{block(value, 4)}\n  *{on}\n    clamp_max(time() - timestamp({itself}), 90)\n"
        f"or\n  0 * {value}",
        labels or {},
        comment,
    )


def missed() -> Rule:
    """The only GPU of an exporter that answers and tells of it no more."""
    target = "cluster, job, instance"
    pages = (
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_BOARD_POWER_WATTS",
        "nvidia_smi_gpu_info",
        *(f"nvidia_smi_{code} != 0 != 6 != 15" for code in ("command_exit_code", "nvml_return_code")),
        "gpu_memory_total_MiB",
        *_amd("gpu_total_vram"),
    )
    return Rule(
        "gpu:missed:info",
        "topk by (cluster, UUID) (1,\n"
        "  (\n"
        '        last_over_time(gpu:found:info{mig=""}[5m])\n'
        f"      unless on ({target})\n        last_over_time(gpu:found:info[2m])\n"
        f"      and on ({target})\n"
        f"        count by ({target}) (last_over_time(gpu:found:info[5m])) == 1\n"
        f"      and on ({target})\n        (up == 1 and min_over_time(up[5m]) == 1 and up offset 5m)\n"
        "    or\n"
        f"        gpu:missed:info\n      and on ({target})\n        max_over_time(up[5m]) == 1\n"
        "  )\n"
        "  unless on (cluster, UUID)\n    gpu:found:info\n"
        + "".join(f"  unless on ({target})\n    {page}\n" for page in pages)
        + ")",
        comment="1 for each GPU that was the only one of its exporter, of which that tells nothing for two minutes, "
        "though it has answered before and ever since; remembered while it answers, until it tells of one. Silent "
        "about all of several it is at fault itself, and nvidia-smi is where it fails but for finding no GPU (6) or a "
        "lost one (15). Asked is the page: families may be taken off it, and evaluations may be missed.",
    )


def canonical() -> Iterator[Rule]:
    """What all sources share: whose word counts, under which labels, and counters made of readings."""
    yield missed()
    found = [f'gpu:found:info{{measured_by="{source.name}"}}' for source in (DCGM, NVIDIA_SMI, NVITOP, AMD)]
    known = renamed('last_over_time(stallscope_gpu_up{measured_by=""}[90s])', "UUID", "uuid")
    yield Rule(
        "gpu:chosen:info",
        f"(\n{block(found[0], 4)}\n"
        + "".join(f"  or on (cluster, UUID)\n{block(each, 4)}\n" for each in (*found[1:], "gpu:missed:info"))
        + f")\nunless on (cluster, UUID)\n{block(known)}",
        comment=(
            "1 for each GPU that only others tell of, from the first of them that does: a card of which an exporter "
            "of ours has told within 90 s is left to it, whatever it says of the card."
        ),
    )
    yield Rule(
        "host:exporter:info",
        "topk by (cluster, host) (1,\n  group by (cluster, host, job, instance) (\n"
        f"{block(with_host('last_over_time(stallscope_build_info[90s])'), 4)}\n  )\n)",
        comment="1 for each host with an exporter of ours.",
    )
    claims = (
        "topk by (cluster, UUID) (1,\n  group by (cluster, UUID, job, instance) (\n"
        + block(
            renamed('rank_gpu:claimed:info{uuid!=""} and on (cluster, uuid) gpu:chosen:info', "UUID", "uuid"),
            4,
        )
        + "\n  )\n)"
    )
    by_name = renamed("host:exporter:info", "hostname", "host")
    own_source = renamed(
        'last_over_time(stallscope_exporter_source_up{source="amd"}[90s])', "measured_by", "", "", AMD.name
    )
    yield Rule(
        "gpu:identity:info",
        f"(\n    gpu:chosen:info\n  * on (cluster, UUID) group_left (job, instance)\n{block(claims, 4)}\n"
        "or on (cluster, key, measured_by)\n"
        "    gpu:chosen:info\n  * on (cluster, host) group_left (job, instance)\n    host:exporter:info\n"
        "or on (cluster, key, measured_by)\n"
        f"    gpu:chosen:info\n  * on (cluster, hostname) group_left (job, instance)\n{block(by_name, 4)}\n"
        "or on (cluster, key, measured_by)\n"
        "    gpu:chosen:info\n)\n"
        f"unless on (cluster, job, instance, measured_by)\n{block(own_source)}",
        comment=(
            "The GPUs under the job and instance that their readings are recorded with: of the exporter of ours to "
            "which a rank on it reports, else of the one on its host, by the target's address or by the host's name; "
            "else its own. An AMD card has another identity with us than there, so that ours goes first by host."
        ),
    )
    yield Rule(
        "host:gpus:info",
        "topk by (cluster, host) (1,\n  group by (cluster, host, job, instance) (\n"
        f"{block(first_of('gpu:identity:info', renamed('gpu:identity:info', 'host', 'hostname')), 4)}\n  )\n)",
        comment="1 for each host of such GPUs, by the target's address and by the host's name, with their job and "
        "instance: what is known of the host is recorded under the same, so that it can be joined.",
    )
    yield Rule(
        "stallscope_gpu_up",
        f"  group by ({SUBJECT}) (\n    gpu:identity:info unless on (cluster, UUID) gpu:missed:info\n  )\n"
        "or\n"
        f"  0 * group by ({SUBJECT}) (gpu:identity:info)\n"
        "or\n"
        "    0\n"
        "  * (\n"
        '        last_over_time(stallscope_gpu_up{measured_by!="",mig=""}[90s])\n'
        "      and on (cluster, job, instance, measured_by)\n"
        "        gpu:identity:info\n"
        "      unless on (cluster, uuid)\n"
        f"{block(renamed('gpu:found:info', 'uuid', 'UUID'), 8)}\n"
        "      unless on (cluster, uuid)\n"
        "        last_over_time(gpu:missed:info[2m])\n"
        "    )",
        comment="1 for each such GPU. 0 for one that no exporter tells of any longer while its own tells of others on "
        "the host, or is missed: that one is lost. Forgotten once the exporter was silent for 90 s. A rank that makes "
        "steps since then shows that it is not the GPU that is lost.",
    )
    lost = 'stallscope_gpu_up{measured_by!=""} == bool 0 > 0'
    yield Rule("stallscope_gpu_lost_info", lost, {"reason": "not_enumerated"})
    success = "stallscope_exporter_source_last_success_timestamp_seconds"
    yield Rule(
        success,
        f'  {success}{{measured_by!="",source="nvidia"}}\n'
        "and on (cluster, job, instance, measured_by)\n"
        f"  {lost}\n"
        "or on (cluster, job, instance, measured_by)\n"
        f"  0 * group by (cluster, job, instance, measured_by) ({lost}) + time()",
        {"source": "nvidia"},
    )

    utilization = 'stallscope_gpu_utilization_ratio{measured_by!=""}'
    yield integral(
        "stallscope_gpu_busy_seconds_total",
        utilization,
        comment=(
            "Counters of what others only have a gauge for. Each grows by the value since its own last sample, so "
            "that a missed evaluation is made up for (90 s at most); it ends with the value, and begins anew like any "
            "counter."
        ),
    )
    yield integral("stallscope_gpu_idle_seconds_total", f"({utilization} == bool 0)")
    for level in BELOW_LEVELS:
        yield integral("stallscope_gpu_below_seconds_total", f"({utilization} < bool {level})", {"level": f"{level}"})
    yield integral(
        "stallscope_gpu_utilization_samples_sum",
        utilization,
        comment="A gauge counts as a sample a second for as long as it holds.",
    )
    yield integral("stallscope_gpu_utilization_samples_count", f"({utilization} >= bool 0)")
    for bound in (*UTILIZATION_BUCKETS, math.inf):
        told = "+Inf" if math.isinf(bound) else f"{bound}"
        yield integral("stallscope_gpu_utilization_samples_bucket", f"({utilization} <= bool {told})", {"le": told})
    for counter, gauge in {
        "stallscope_gpu_memory_busy_seconds_total": "stallscope_gpu_memory_utilization_ratio",
        "stallscope_gpu_sm_active_seconds_total": "gpu:sm_active:ratio",
        "stallscope_gpu_pipe_active_seconds_total": "gpu_pipe:active:ratio",
        "stallscope_gpu_dram_active_seconds_total": "gpu:dram_active:ratio",
        "stallscope_gpu_throttled_seconds_total": "gpu_reason:throttled:ratio",
        "stallscope_gpu_energy_joules_total": "gpu:unmetered_power:watts",
        "stallscope_gpu_pcie_receive_bytes_total": "gpu:pcie_receive:bytes_per_second",
        "stallscope_gpu_pcie_transmit_bytes_total": "gpu:pcie_transmit:bytes_per_second",
        "stallscope_gpu_nvlink_receive_bytes_total": "gpu:nvlink_receive:bytes_per_second",
        "stallscope_gpu_nvlink_transmit_bytes_total": "gpu:nvlink_transmit:bytes_per_second",
        "stallscope_host_busiest_cpu_seconds_total": "host:busiest_cpu:ratio",
    }.items():
        yield integral(counter, f'{gauge}{{measured_by!=""}}')


def _whole(name: str) -> str:
    """A series of DCGM about a card; what it repeats for each MIG instance is left out."""
    return f'{name}{{GPU_I_ID=""}}'


def _profiled(*names: str) -> tuple[str, ...]:
    """Series of DCGM's profiling, but for GPUs of which it has stopped to tell."""
    return tuple(f"{name} unless on (cluster, UUID) gpu:profiling_stuck:info" for name in names)


_REASONS = (
    ("power_cap", 4, "GPU_POWER_THROTTLE_SECONDS_TOTAL", "CLOCKS_EVENT_REASON_SW_POWER_CAP_NS"),
    ("hw_slowdown", 8, "", ""),
    ("sync_boost", 16, "GPU_SYNC_BOOST_THROTTLE_SECONDS_TOTAL", "CLOCKS_EVENT_REASON_SYNC_BOOST_NS"),
    ("sw_thermal", 32, "GPU_THERMAL_THROTTLE_SECONDS_TOTAL", "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS"),
    ("hw_thermal", 64, "", "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS"),
    ("power_brake", 128, "", "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS"),
)
"""Each reason of the catalogue with NVML's clock-event bit, and DCGM's counters in seconds and in nanoseconds."""

_DCGM_READINGS: Readings = (
    (
        "stallscope_gpu_memory_utilization_ratio",
        {},
        (
            f"{_whole('DCGM_FI_DEV_MEM_COPY_UTIL')} / 100 <= 1",
            f"{_whole('DCGM_FI_DEV_MEMORY_UTIL_RATIO')} <= 1",
        ),
    ),
    ("stallscope_gpu_memory_used_bytes", {}, ("DCGM_FI_DEV_FB_USED_BYTES", f"DCGM_FI_DEV_FB_USED * {MEBI}")),
    (
        "stallscope_gpu_memory_reserved_bytes",
        {},
        ("DCGM_FI_DEV_FB_RESERVED_BYTES", f"DCGM_FI_DEV_FB_RESERVED * {MEBI}"),
    ),
    (
        "stallscope_gpu_memory_total_bytes",
        {},
        (
            "DCGM_FI_DEV_FB_CAPACITY_BYTES",
            f"DCGM_FI_DEV_FB_TOTAL * {MEBI}",
            f"(DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE + DCGM_FI_DEV_FB_RESERVED) * {MEBI}",
            f"(DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) * {MEBI}",
        ),
    ),
    (
        "stallscope_gpu_power_watts",
        {},
        (_whole("DCGM_FI_DEV_POWER_USAGE"), _whole("DCGM_FI_DEV_BOARD_POWER_WATTS")),
    ),
    (
        "stallscope_gpu_power_limit_watts",
        {},
        (
            _whole("DCGM_FI_DEV_ENFORCED_POWER_LIMIT"),
            _whole("DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"),
            _whole("DCGM_FI_DEV_POWER_MGMT_LIMIT"),
            _whole("DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS"),
        ),
    ),
    (
        "stallscope_gpu_power_limit_default_watts",
        {},
        (_whole("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF"), _whole("DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS")),
    ),
    (
        "stallscope_gpu_energy_joules_total",
        {},
        (
            _whole("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL"),
            f"{_whole('DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION')} / 1000",
        ),
    ),
    (
        "gpu:unmetered_power:watts",
        {},
        tuple(
            f"{_whole(power)}\n"
            "unless on (cluster, UUID) last_over_time(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL[5m])\n"
            "unless on (cluster, UUID) last_over_time(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m])"
            for power in ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS")
        ),
    ),
    (
        "stallscope_gpu_temperature_celsius",
        {"sensor": "gpu"},
        (_whole("DCGM_FI_DEV_GPU_TEMP"), _whole("DCGM_FI_DEV_GPU_TEMP_CELSIUS")),
    ),
    (
        "stallscope_gpu_temperature_celsius",
        {"sensor": "memory"},
        (_whole("DCGM_FI_DEV_MEMORY_TEMP"), _whole("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS")),
    ),
    (
        "stallscope_gpu_clock_hertz",
        {"clock": "sm"},
        (_whole("DCGM_FI_DEV_SM_CLOCK_HERTZ"), f"{_whole('DCGM_FI_DEV_SM_CLOCK')} * 1e6"),
    ),
    (
        "stallscope_gpu_clock_hertz",
        {"clock": "memory"},
        (_whole("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ"), f"{_whole('DCGM_FI_DEV_MEM_CLOCK')} * 1e6"),
    ),
    (
        "stallscope_gpu_clock_max_hertz",
        {"clock": "sm"},
        (_whole("DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ"), f"{_whole('DCGM_FI_DEV_MAX_SM_CLOCK')} * 1e6"),
    ),
    (
        "stallscope_gpu_pcie_replays_total",
        {},
        (_whole("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), _whole("DCGM_FI_DEV_PCIE_REPLAY_TOTAL")),
    ),
    ("stallscope_gpu_pcie_link_generation", {}, (_whole("DCGM_FI_DEV_PCIE_LINK_GEN"),)),
    ("stallscope_gpu_pcie_link_generation_max", {}, (_whole("DCGM_FI_DEV_PCIE_MAX_LINK_GEN"),)),
    ("stallscope_gpu_pcie_link_width", {}, (_whole("DCGM_FI_DEV_PCIE_LINK_WIDTH"),)),
    ("stallscope_gpu_pcie_link_width_max", {}, (_whole("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH"),)),
    ("stallscope_gpu_ecc_errors_total", {"kind": "corrected"}, (_whole("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"),)),
    ("stallscope_gpu_ecc_errors_total", {"kind": "uncorrected"}, (_whole("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),)),
    (
        "stallscope_gpu_remapped_rows",
        {"kind": "corrected"},
        (_whole("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"), _whole("DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL")),
    ),
    (
        "stallscope_gpu_remapped_rows",
        {"kind": "uncorrected"},
        (_whole("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"), _whole("DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL")),
    ),
    ("stallscope_gpu_row_remap_pending", {}, (_whole("DCGM_FI_DEV_ROW_REMAP_PENDING"),)),
    (
        "stallscope_gpu_row_remap_failed",
        {},
        (_whole("DCGM_FI_DEV_ROW_REMAP_FAILURE"), _whole("DCGM_FI_DEV_ROW_REMAP_FAILED")),
    ),
    ("gpu:sm_active:ratio", {}, _profiled("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO")),
    ("gpu:dram_active:ratio", {}, _profiled("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO")),
    (
        "gpu_pipe:active:ratio",
        {"pipe": "tensor"},
        _profiled("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
    ),
    (
        "gpu_pipe:active:ratio",
        {"pipe": "fp64"},
        _profiled("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "DCGM_FI_PROF_FP64_UTIL_RATIO"),
    ),
    ("gpu:pcie_receive:bytes_per_second", {}, _profiled(_whole("DCGM_FI_PROF_PCIE_RX_BYTES"))),
    ("gpu:pcie_transmit:bytes_per_second", {}, _profiled(_whole("DCGM_FI_PROF_PCIE_TX_BYTES"))),
    ("gpu:nvlink_receive:bytes_per_second", {}, _profiled(_whole("DCGM_FI_PROF_NVLINK_RX_BYTES"))),
    ("gpu:nvlink_transmit:bytes_per_second", {}, _profiled(_whole("DCGM_FI_PROF_NVLINK_TX_BYTES"))),
)


def dcgm() -> Iterator[Rule]:
    """dcgm-exporter in its three dialects: names of 4.8 and older, DCGM's aliases of them, base units of 4.9."""
    told = ("FB_USED", "FB_USED_BYTES", "GPU_TEMP", "GPU_TEMP_CELSIUS")
    # Without it the GPUs of a whole cluster would be one.
    seen = first_of(*(f'DCGM_FI_DEV_{name}{{UUID!=""}}' for name in told))
    parts = renamed(label_join(seen, "uuid", "/", "UUID", "GPU_I_ID"), "uuid", "uuid", "(.*)/")
    named = renamed(renamed(parts, "mig", "GPU_I_PROFILE"), "hostname", "Hostname")
    yield replace(
        DCGM.found(named, "uuid", "mig", "hostname"),
        comment="1 for each GPU that dcgm-exporter tells of. It doesn't tell the UUID of a MIG instance: the card's "
        "with the instance's number stands for it.",
    )
    driver = label_join(seen, "driver_version", "", "DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION")
    yield Rule(
        "stallscope_gpu_info",
        DCGM.with_labels("model, pci_bus_id, driver_version", renamed(driver, "model", "modelName")),
    )
    yield owners(DCGM, ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES"), {"slurm_job": "hpc_job"})
    newer = first_of(
        "DCGM_FI_DEV_FB_USED_BYTES",
        "DCGM_FI_DEV_SM_CLOCK_HERTZ",
        "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL",
        "DCGM_FI_DEV_MEMORY_UTIL_RATIO",
    )
    yield Rule(
        "exporter:utilization_percent:info",
        "  group by (cluster, job, instance) (DCGM_FI_DEV_GPU_UTIL_RATIO > 1)\n"
        "or\n"
        "    last_over_time(exporter:utilization_percent:info[1h])\n"
        "  and on (cluster, job, instance)\n"
        "    DCGM_FI_DEV_GPU_UTIL_RATIO\n"
        "  unless on (cluster, job, instance)\n"
        f"    (\n{block(newer, 6)}\n    )",
        comment="DCGM_FI_DEV_GPU_UTIL_RATIO is a percentage up to DCGM 4.6 and a ratio from 4.7 on. 1 for each target "
        "where a value over 1 was seen, which proves the former; remembered over gaps of an hour, and until a name "
        "that only 4.7 has proves the latter. Where nothing is proven, only a zero counts.",
    )
    ratio = _whole("DCGM_FI_DEV_GPU_UTIL_RATIO")
    yield Rule(
        "stallscope_gpu_utilization_ratio",
        DCGM.of_each(
            f"{_whole('DCGM_FI_DEV_GPU_UTIL')} / 100 <= 1",
            f"{ratio} / 100 <= 1 and on (cluster, job, instance) exporter:utilization_percent:info",
            f"{ratio} <= 1\nand on (cluster, job, instance)\n  (\n{block(newer, 4)}\n  )",
            f"{ratio} == 0",
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE <= 1",
            "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO <= 1",
        ),
        comment="A MIG instance has no utilisation of its own there, or a zero: the share of time in which its "
        "graphics or compute engine worked stands for it. Here and below, what belongs to the card is left "
        "out for its instances.",
    )
    engines = first_of(
        *(
            f"{_whole(f'DCGM_FI_PROF_{name}')} == 0"
            for name in ("GR_ENGINE_ACTIVE", "GR_ENGINE_UTIL_RATIO", "SM_ACTIVE", "SM_UTIL_RATIO")
        )
    )
    busy = renamed('stallscope_gpu_utilization_ratio{measured_by="dcgm-exporter",mig=""} > 0.5', "UUID", "uuid")
    yield Rule(
        "gpu:profiling_stuck:info",
        f"group by (cluster, UUID) (\n  (\n{block(engines, 4)}\n  )\n  and on (cluster, UUID)\n{block(busy, 4)}\n)",
        comment="1 for each GPU that is busy, but not by DCGM's profiling. That tells zeros where it has lost its hold "
        "of the counters, until it is restarted: all that it tells of the GPU is left out.",
    )
    yield from rules_of(DCGM, _DCGM_READINGS)

    comment = (
        "Time in which clocks were held down: DCGM's counters whose unit is certain, else the bits that are set when "
        "it is scraped."
    )
    for reason, bit, *names in _REASONS:
        counters = [f"DCGM_FI_DEV_{name}" for name in names if name]
        bits = [
            f"floor({_whole(name)} / {bit}) % 2"
            for name in ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
        ]
        if counters:
            seconds = [f"{name} / 1e9" if name.endswith("_NS") else name for name in counters]
            yield Rule("stallscope_gpu_throttled_seconds_total", DCGM.of_each(*seconds), {"reason": reason}, comment)
            comment = ""
            counted = first_of(*(f"group by (cluster, UUID) (last_over_time({name}[5m]))" for name in counters))
            bits = [f"{each}\nunless on (cluster, UUID)\n  (\n{block(counted, 4)}\n  )" for each in bits]
        yield Rule("gpu_reason:throttled:ratio", DCGM.of_each(*bits), {"reason": reason}, comment)

    codes = [_whole(f"DCGM_FI_DEV_{name}") for name in ("XID_ERRORS", "XID_ERROR")]
    total = _whole("DCGM_EXP_XID_ERRORS_TOTAL")
    counts = (total, 'DCGM_EXP_XID_ERRORS_COUNT{GPU_I_ID="",xid!=""}')

    def earlier(series: str) -> str:
        """What was last told before; an evaluation may be missed, or a minute apart from the next."""
        return f"last_over_time({series}[10m] offset 90s)"

    def as_labels(values: list[str]) -> str:
        code = DCGM.of_each(*(f"{value} > 0" for value in values))
        return f'count_values by ({SUBJECT}) (\n  "xid",\n{block(code)}\n)'

    def risen(count: str) -> str:
        """Of events that are counted those that are more than before, whichever pod has the GPU."""
        now, before = (f"max by (cluster, UUID, GPU_I_ID, xid) ({each})" for each in (count, earlier(count)))
        return DCGM.of_each_with("xid", f"{now} > 0\nunless\n    {now}\n  <=\n    {before}")

    known = f'gpu:found:info{{measured_by="{DCGM.name}"}} offset 90s'
    yield Rule("stallscope_gpu_xid_events_total", DCGM.of_each_with("xid", total))
    yield Rule(
        "gpu_xid:told:info",
        as_labels(codes),
        comment="The last Xid error of each GPU, which DCGM tells until there is another; and when it came: when it "
        "was first told of a GPU that was known before, with another or with none (newer releases tell no zero). Where "
        "errors are counted, for good or for some minutes, also one that repeats. What was there when scrapes began is "
        "not dated, and what is dated stays so when a rank's exporter takes the GPU over.",
    )
    stamp = f'stallscope_gpu_xid_last_timestamp_seconds{{measured_by="{DCGM.name}"}}'
    yield Rule(
        "stallscope_gpu_xid_last_timestamp_seconds",
        "    0\n"
        f"  * (\n      (\n{block(first_of(*map(risen, counts)), 8)}\n      )\n"
        f"      and on (cluster, uuid)\n        {known}\n"
        "    )\n"
        "  + time()\n"
        "or\n"
        "  gpu_xid:told:info\n"
        f"* on (cluster, uuid, xid) group_left ()\n  max by (cluster, uuid, xid) ({stamp})\n"
        "or\n"
        "    0\n"
        "  * (\n"
        "        gpu_xid:told:info\n"
        f"      unless\n{block(as_labels([earlier(code) for code in codes]), 8)}\n"
        f"      and on (cluster, uuid)\n        {known}\n"
        "    )\n"
        "  + time()",
    )


_NVIDIA_SMI_READINGS: Readings = (
    ("stallscope_gpu_utilization_ratio", {}, ("nvidia_smi_utilization_gpu_ratio <= 1",)),
    ("stallscope_gpu_memory_utilization_ratio", {}, ("nvidia_smi_utilization_memory_ratio <= 1",)),
    ("stallscope_gpu_memory_used_bytes", {}, ("nvidia_smi_memory_used_bytes",)),
    ("stallscope_gpu_memory_total_bytes", {}, ("nvidia_smi_memory_total_bytes",)),
    ("stallscope_gpu_memory_reserved_bytes", {}, ("nvidia_smi_memory_reserved_bytes",)),
    ("stallscope_gpu_power_watts", {}, ("nvidia_smi_power_draw_watts",)),
    ("stallscope_gpu_power_limit_watts", {}, ("nvidia_smi_enforced_power_limit_watts", "nvidia_smi_power_limit_watts")),
    ("stallscope_gpu_power_limit_default_watts", {}, ("nvidia_smi_power_default_limit_watts",)),
    ("stallscope_gpu_energy_joules_total", {}, ("nvidia_smi_energy_joules_total",)),
    (
        "gpu:unmetered_power:watts",
        {},
        ("nvidia_smi_power_draw_watts unless on (cluster, uuid) last_over_time(nvidia_smi_energy_joules_total[5m])",),
    ),
    ("stallscope_gpu_temperature_celsius", {"sensor": "gpu"}, ("nvidia_smi_temperature_gpu",)),
    ("stallscope_gpu_temperature_celsius", {"sensor": "memory"}, ("nvidia_smi_temperature_memory",)),
    ("stallscope_gpu_clock_hertz", {"clock": "sm"}, ("nvidia_smi_clocks_current_sm_clock_hz",)),
    ("stallscope_gpu_clock_hertz", {"clock": "memory"}, ("nvidia_smi_clocks_current_memory_clock_hz",)),
    ("stallscope_gpu_clock_max_hertz", {"clock": "sm"}, ("nvidia_smi_clocks_max_sm_clock_hz",)),
    ("stallscope_gpu_pcie_link_generation", {}, ("nvidia_smi_pcie_link_gen_current",)),
    ("stallscope_gpu_pcie_link_generation_max", {}, ("nvidia_smi_pcie_link_gen_max",)),
    ("stallscope_gpu_pcie_link_width", {}, ("nvidia_smi_pcie_link_width_current",)),
    ("stallscope_gpu_pcie_link_width_max", {}, ("nvidia_smi_pcie_link_width_max",)),
    ("gpu:pcie_receive:bytes_per_second", {}, ("nvidia_smi_pcie_throughput_rx_bytes_per_second",)),
    ("gpu:pcie_transmit:bytes_per_second", {}, ("nvidia_smi_pcie_throughput_tx_bytes_per_second",)),
    (
        "stallscope_gpu_ecc_errors_total",
        {"kind": "corrected"},
        ("nvidia_smi_ecc_errors_corrected_volatile_total",),
    ),
    (
        "stallscope_gpu_ecc_errors_total",
        {"kind": "uncorrected"},
        ("nvidia_smi_ecc_errors_uncorrected_volatile_total",),
    ),
    ("stallscope_gpu_remapped_rows", {"kind": "corrected"}, ("nvidia_smi_remapped_rows_correctable",)),
    ("stallscope_gpu_remapped_rows", {"kind": "uncorrected"}, ("nvidia_smi_remapped_rows_uncorrectable",)),
    ("stallscope_gpu_row_remap_pending", {}, ("nvidia_smi_remapped_rows_pending",)),
    ("stallscope_gpu_row_remap_failed", {}, ("nvidia_smi_remapped_rows_failure",)),
    ("stallscope_gpu_persistence_mode", {}, ("nvidia_smi_persistence_mode",)),
    ("stallscope_gpu_processes", {"kind": "compute"}, ("nvidia_smi_compute_apps",)),
    *(
        (
            "stallscope_gpu_throttled_seconds_total",
            {"reason": reason},
            (f"nvidia_smi_clocks_event_reasons_counters_{name}_seconds",),
        )
        for reason, name in (
            ("power_cap", "sw_power_cap"),
            ("sync_boost", "sync_boost"),
            ("sw_thermal", "sw_thermal_slowdown"),
            ("hw_thermal", "hw_thermal_slowdown"),
            ("power_brake", "hw_power_brake_slowdown"),
        )
    ),
    (
        "gpu_reason:throttled:ratio",
        {"reason": "hw_slowdown"},
        ("nvidia_smi_clocks_event_reasons_hw_slowdown", "nvidia_smi_clocks_throttle_reasons_hw_slowdown"),
    ),
)


def nvidia_smi() -> Iterator[Rule]:
    """nvidia_gpu_exporter, whose UUIDs lack their beginning, and until the middle of 2026 the label with the index."""
    target = "cluster, job, instance, uuid"
    numbered = (
        "    nvidia_smi_gpu_info\n"
        f"  * on ({target}) group_left (gpu)\n"
        f'    count_values by ({target}) ("gpu", nvidia_smi_index)\n'
        f"or on ({target})\n"
        "    nvidia_smi_gpu_info"
    )
    indexed = renamed(numbered, "gpu", "index")
    yield NVIDIA_SMI.found(renamed(indexed, "UUID", "uuid", "(?:GPU-)?(.+)", "GPU-$1"))
    labels = "model, serial, pci_bus_id, driver_version, cuda_version, vbios_version"
    yield Rule("stallscope_gpu_info", NVIDIA_SMI.with_labels(labels, renamed("nvidia_smi_gpu_info", "model", "name")))
    yield from rules_of(NVIDIA_SMI, _NVIDIA_SMI_READINGS)
    yield Rule("stallscope_gpu_xid_events_total", NVIDIA_SMI.of_each_with("xid", "nvidia_smi_xid_errors_total"))
    yield Rule(
        "stallscope_gpu_xid_last_timestamp_seconds",
        NVIDIA_SMI.of_each_with("xid", "nvidia_smi_xid_last_timestamp_seconds"),
    )


_NVITOP_READINGS: Readings = (
    ("stallscope_gpu_utilization_ratio", {}, ("gpu_utilization_Percentage / 100 <= 1",)),
    ("stallscope_gpu_memory_utilization_ratio", {}, ("gpu_memory_utilization_Percentage / 100 <= 1",)),
    ("stallscope_gpu_memory_used_bytes", {}, (f"gpu_memory_used_MiB * {MEBI}",)),
    ("stallscope_gpu_memory_total_bytes", {}, (f"gpu_memory_total_MiB * {MEBI}",)),
    ("stallscope_gpu_power_watts", {}, ("gpu_power_usage_W",)),
    ("stallscope_gpu_power_limit_watts", {}, ("gpu_power_limit_W",)),
    ("gpu:unmetered_power:watts", {}, ("gpu_power_usage_W",)),
    ("stallscope_gpu_temperature_celsius", {"sensor": "gpu"}, ("gpu_temperature_C",)),
    ("stallscope_gpu_clock_hertz", {"clock": "sm"}, ("gpu_clock_sm_MHz * 1e6",)),
    ("stallscope_gpu_clock_hertz", {"clock": "memory"}, ("gpu_clock_memory_MHz * 1e6",)),
    ("gpu:pcie_receive:bytes_per_second", {}, (f"gpu_pcie_rx_throughput_MiBps * {MEBI}",)),
    ("gpu:pcie_transmit:bytes_per_second", {}, (f"gpu_pcie_tx_throughput_MiBps * {MEBI}",)),
    ("gpu:nvlink_receive:bytes_per_second", {}, (f"gpu_nvlink_total_rx_throughput_MiBps * {MEBI}",)),
    ("gpu:nvlink_transmit:bytes_per_second", {}, (f"gpu_nvlink_total_tx_throughput_MiBps * {MEBI}",)),
)


def nvitop() -> Iterator[Rule]:
    """nvitop-exporter: whole GPUs, with their processes."""
    named = renamed('gpu_memory_total_MiB{uuid=~"GPU-.+"}', "gpu", "index")
    yield NVITOP.found(renamed(named, "UUID", "uuid"), "hostname")
    described = renamed("gpu_memory_total_MiB", "model", "devicename")
    yield Rule("stallscope_gpu_info", NVITOP.with_labels("model", described))
    yield from rules_of(NVITOP, _NVITOP_READINGS)
    held = "count by (cluster, uuid) (\n  group by (cluster, uuid, pid) (process_gpu_memory_MiB)\n)"
    yield Rule(
        "stallscope_gpu_processes",
        NVITOP.of_each(held, "0 * gpu_memory_total_MiB"),
        {"kind": "compute"},
        "It tells of processes only while there are any, and not of their kind.",
    )
    yield Rule(
        "stallscope_gpu_owner_info", NVITOP.with_labels("user", renamed("process_gpu_memory_MiB", "user", "username"))
    )


def _amd(name: str, factor: str = "") -> tuple[str, ...]:
    """A series of AMD's exporter, which may be told to begin all names with amd_."""
    return tuple(f"{prefix}{name}{factor}" for prefix in ("", "amd_"))


_AMD_READINGS: Readings = (
    ("stallscope_gpu_utilization_ratio", {}, _amd("gpu_gfx_activity", " / 100 <= 1")),
    ("stallscope_gpu_memory_utilization_ratio", {}, _amd("gpu_umc_activity", " / 100 <= 1")),
    ("stallscope_gpu_memory_used_bytes", {}, _amd("gpu_used_vram", f" * {MEBI}")),
    ("stallscope_gpu_memory_total_bytes", {}, _amd("gpu_total_vram", f" * {MEBI}")),
    (
        "stallscope_gpu_power_watts",
        {},
        (*_amd("gpu_package_power"), *_amd("gpu_average_package_power"), *_amd("gpu_power_usage")),
    ),
    ("stallscope_gpu_energy_joules_total", {}, _amd("gpu_energy_consumed", " / 1e6")),
    (
        "stallscope_gpu_temperature_celsius",
        {"sensor": "gpu"},
        (*_amd("gpu_junction_temperature"), *_amd("gpu_edge_temperature")),
    ),
    ("stallscope_gpu_temperature_celsius", {"sensor": "memory"}, _amd("gpu_memory_temperature")),
    ("stallscope_gpu_pcie_replays_total", {}, _amd("pcie_replay_count")),
    ("stallscope_gpu_ecc_errors_total", {"kind": "corrected"}, _amd("gpu_ecc_correct_total")),
    ("stallscope_gpu_ecc_errors_total", {"kind": "uncorrected"}, _amd("gpu_ecc_uncorrect_total")),
)


def amd() -> Iterator[Rule]:
    """AMD's device-metrics-exporter."""
    seen = first_of(*_amd("gpu_total_vram"))
    numbered = label_join(renamed(seen, "gpu", "gpu_id"), "UUID", "/", *AMD.keys)
    # Exported only where it is asked for, and all zeros in a virtual machine.
    yield AMD.found(renamed(numbered, "UUID", "gpu_uuid", "(.*[1-9a-f].*)"), "hostname")
    yield Rule(
        "stallscope_gpu_info",
        AMD.with_labels("model, serial, driver_version, vbios_version", described(seen)),
    )
    yield owners(AMD, _amd("gpu_total_vram"), {"slurm_job": "job_id", "user": "job_user"})
    yield from rules_of(AMD, _AMD_READINGS)


def described(seen: str) -> str:
    """AMD's labels of a GPU under our names."""
    return renamed(renamed(seen, "model", "card_series"), "serial", "serial_number")


_DISKS = 'device!~"(dm-|md|loop|ram|zram|sr|drbd|nbd|rbd|zd).*"'
_NICS = 'device!~"(lo|veth|docker|br-|virbr|cni|cali|flannel|cilium|lxc|vxlan|tun|tap|ipvl|macvl|ifb|dummy|kube|ovs).*"'
_NFS = "node_mountstats_nfs_operations"
_PAGE = "4096"
"""Bytes; the least of any machine that has GPUs. Others swap more than is told."""


def node() -> Iterator[Rule]:
    """node_exporter, for hosts."""
    found = first_of(renamed("node_uname_info", "hostname", "nodename"), "node_memory_MemTotal_bytes").replace(
        "\nor\n", "\nor on (cluster, job, instance)\n"
    )
    yield Rule(
        "host:found:info",
        "group by (cluster, job, instance, key, host, hostname) (\n"
        + block(with_host(label_join(found, "key", "/", "job", "instance")))
        + "\n)",
        {"measured_by": NODE},
        "1 for each host that node_exporter tells of.",
    )
    ways = [
        f"  host:found:info\n* on (cluster, {label}) group_left (job, instance)\n"
        + block(known if label == "host" else renamed(known, "hostname", "host"))
        for known in ("host:exporter:info", "host:gpus:info")
        for label in ("host", "hostname")
    ]
    mapped = "\nor on (cluster, key)\n".join(block(way) for way in ways)
    yield Rule(
        "host:placed:info",
        f"topk by (cluster, job, instance) (1,\n{block(mapped)}\n)",
        comment="Those with an exporter of ours or with GPUs of another, under its job and instance; other machines "
        "are none of our business.",
    )
    for name, told in (("identity", "cpus"), ("network_identity", "network_receive_bytes_total")):
        yield Rule(
            f"host:{name}:info",
            "host:placed:info\n"
            "unless on (cluster, job, instance)\n"
            f'  last_over_time(stallscope_host_{told}{{measured_by=""}}[90s])',
            comment="Those of which no exporter of ours tells; one in a container may tell of all but the network."
            if name == "identity"
            else "",
        )

    def of_host(expression: str, labels: str = "", identity: str = "host:identity:info") -> str:
        kept = f", {labels}" if labels else ""
        told = label_join(f"sum by (cluster, job, instance{kept}) ({expression})", "key", "/", "job", "instance")
        return (
            f"sum by (cluster, job, instance, measured_by{kept}) (\n{block(told, 4)}\n"
            "  * on (cluster, key) group_left (job, instance, measured_by)\n"
            f"    {identity}\n"
            ")"
        )

    yield Rule(
        "stallscope_host_cpus", of_host('count by (cluster, job, instance) (node_cpu_seconds_total{mode="idle"})')
    )
    for mode, modes in (
        ("user", "user|nice"),
        ("system", "system|irq|softirq"),
        ("iowait", "iowait"),
        ("idle", "idle"),
        ("other", "steal"),
    ):
        yield Rule(
            "stallscope_host_cpu_seconds_total",
            of_host(f'node_cpu_seconds_total{{mode=~"{modes}"}}'),
            {"mode": mode},
        )
    busiest = (
        "max by (cluster, job, instance) (\n"
        '  sum by (cluster, job, instance, cpu) (rate(node_cpu_seconds_total{mode!~"idle|iowait|steal"}[1m]))\n)'
    )
    yield Rule("host:busiest_cpu:ratio", of_host(f"\n{block(busiest)}\n"))
    for name, expression in (
        ("memory_total_bytes", "node_memory_MemTotal_bytes"),
        ("memory_available_bytes", "node_memory_MemAvailable_bytes"),
        ("page_cache_bytes", "node_memory_Cached_bytes - node_memory_Shmem_bytes"),
        ("swap_in_bytes_total", f"node_vmstat_pswpin * {_PAGE}"),
        ("swap_out_bytes_total", f"node_vmstat_pswpout * {_PAGE}"),
        ("major_page_faults_total", "node_vmstat_pgmajfault"),
        ("oom_kills_total", "node_vmstat_oom_kill"),
    ):
        yield Rule(f"stallscope_host_{name}", of_host(expression))
    for name, expression in (
        ("disk_read_bytes_total", f"node_disk_read_bytes_total{{{_DISKS}}}"),
        ("disk_written_bytes_total", f"node_disk_written_bytes_total{{{_DISKS}}}"),
        ("disk_busy_seconds_total", f"node_disk_io_time_seconds_total{{{_DISKS}}}"),
        ("network_receive_bytes_total", f"node_network_receive_bytes_total{{{_NICS}}}"),
        ("network_transmit_bytes_total", f"node_network_transmit_bytes_total{{{_NICS}}}"),
        ("network_link_bytes_per_second", f"node_network_speed_bytes{{{_NICS}}} > 0"),
        ("network_drops_total", f"node_network_receive_drop_total{{{_NICS}}} + node_network_transmit_drop_total"),
        ("network_errors_total", f"node_network_receive_errs_total{{{_NICS}}} + node_network_transmit_errs_total"),
    ):
        identity = "host:network_identity:info" if name.startswith("network") else "host:identity:info"
        yield Rule(f"stallscope_host_{name}", of_host(expression, "device", identity))
    for way, theirs in (("receive", "received"), ("transmit", "transmitted")):
        yield Rule(
            f"stallscope_host_rdma_{way}_bytes_total",
            of_host(f"node_infiniband_port_data_{theirs}_bytes_total", "device, port"),
        )
    for name, expression in (
        ("read_bytes_total", "node_mountstats_nfs_total_read_bytes_total"),
        ("operations_total", f"{_NFS}_requests_total"),
        (
            "operation_wait_seconds_total",
            f"{_NFS}_queue_time_seconds_total + {_NFS}_response_time_seconds_total",
        ),
    ):
        yield Rule(f"stallscope_host_nfs_{name}", of_host(renamed(expression, "mount", "export"), "mount"))
    for resource, waits in (("cpu", ("waiting",)), ("memory", ("waiting", "stalled")), ("io", ("waiting", "stalled"))):
        for wait in waits:
            yield Rule(
                f"stallscope_host_pressure_{wait}_seconds_total",
                of_host(f"node_pressure_{resource}_{wait}_seconds_total"),
                {"resource": resource},
            )


FILES: dict[str, tuple[str, Callable[[], Iterator[Rule]]]] = {
    "canonical": (
        "What other exporters tell, under our names (label `measured_by`): whose word counts, and counters of gauges.",
        canonical,
    ),
    "canonical_dcgm": ("dcgm-exporter's series under our names.", dcgm),
    "canonical_nvidia_gpu_exporter": ("nvidia_gpu_exporter's series under our names.", nvidia_smi),
    "canonical_nvitop": ("nvitop-exporter's series of GPUs under our names.", nvitop),
    "canonical_amd": ("The series of AMD's device-metrics-exporter under our names.", amd),
    "canonical_node_exporter": ("node_exporter's series under our names.", node),
}


def _comment(text: str, indent: str, width: int = 120) -> str:
    return textwrap.fill(text, width, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ") + "\n"


def _scalar(value: str) -> str:
    """A label's value as YAML takes it for text."""
    return value if value[0].isalpha() else f'"{value}"'


def rule_file(name: str) -> str:
    """Return one file of rules."""
    subject, rules = FILES[name]
    text = _comment(f"{subject} Generated by exporter/canonical_rules.py (`make generate`); do not edit.", "")
    text += f"groups:\n  - name: stallscope-{name.replace('_', '-')}\n    rules:\n"
    for place, rule in enumerate(rules()):
        if rule.comment:
            text += ("\n" if place else "") + _comment(rule.comment, " " * 6)
        text += f"      - record: {rule.record}\n"
        if rule.labels:
            labels = ", ".join(f"{label}: {_scalar(value)}" for label, value in rule.labels.items())
            text += f"        labels: {{{labels}}}\n"
        style = "|2" if rule.expression.startswith(" ") else "|"
        text += f"        expr: {style}\n{block(rule.expression, 10)}\n"
    return text


if __name__ == "__main__":
    for file in FILES:
        (FOLDER / f"{file}.yml").write_text(rule_file(file), encoding="utf-8")
