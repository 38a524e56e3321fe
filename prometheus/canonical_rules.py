"""Write prometheus/rules/canonical*.yml, the adapters that record other exporters' series under Stallscope's names.

Each exporter has one table: a `NameSet` for each range of versions, with its metric families, units and labels. A
release that renames families or changes units needs a new `NameSet` and no other code. `make generate` runs this file,
and a test compares its output with the committed files. prometheus/README.md describes the names.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stallscope.model.catalogue.metrics import BELOW_LEVELS, UTILIZATION_BUCKETS
from stallscope.node.drivers.signals import SIGNALS

FOLDER = Path(__file__).parents[1] / "prometheus" / "rules"

SUBJECT = "cluster, job, instance, gpu, uuid, mig, measured_by"
TARGET = "cluster, job, instance"
_MOST = {
    **{f"stallscope_gpu_{signal.name}": signal.most for signal in SIGNALS if not isinstance(signal.most, str)},
    "stallscope_gpu_utilization_ratio": 1,
    "stallscope_gpu_memory_utilization_ratio": 1,
    # DCGM's shares of activity are quotients of two counters, which may exceed 1 slightly.
    **dict.fromkeys(("gpu:sm_active:ratio", "gpu:dram_active:ratio", "gpu_pipe:active:ratio"), 1.1),
    **{
        f"gpu:{signal.name.removesuffix('_bytes_total')}:bytes_per_second": signal.most_per_second
        for signal in SIGNALS
        if signal.name.startswith(("pcie_", "nvlink_")) and signal.name.endswith("_bytes_total")
    },
}
"""Largest plausible value of each signal, as for those of Stallscope's own drivers."""
_MOST_OF_ALL = 1e14
MHZ, MEBI, PERCENT = 1e6, 2.0**20, 0.01


@dataclass(frozen=True)
class Rule:
    """A recording rule. A rule without a comment belongs to the one above it."""

    record: str
    expression: str
    labels: dict[str, str] = field(default_factory=dict)
    comment: str = ""


def block(text: str, spaces: int = 2) -> str:
    """Return a text with every line indented."""
    return textwrap.indent(text, " " * spaces)


def first_of(*expressions: str) -> str:
    """Return the first of these expressions that has a value."""
    return "\nor\n".join(block(each) for each in expressions) if len(expressions) > 1 else expressions[0]


def renamed(expression: str, label: str, source: str, pattern: str = "(.+)", value: str = "$1") -> str:
    """Return the series with a label derived from another label."""
    if "\n" not in expression and len(expression) < 60:
        return f'label_replace({expression}, "{label}", "{value}", "{source}", "{pattern}")'
    return f'label_replace(\n{block(expression)},\n  "{label}", "{value}", "{source}", "{pattern}"\n)'


def label_join(expression: str, label: str, between: str, *sources: str) -> str:
    """Return the series with a label joined from several labels."""
    names = ", ".join(f'"{source}"' for source in sources)
    return f'label_join(\n{block(expression)},\n  "{label}", "{between}", {names}\n)'


def with_host(expression: str) -> str:
    """Return the series with a label `host`: the host in the address of their target."""
    return renamed(expression, "host", "instance", "(.+?)(:[0-9]+)?")


@dataclass(frozen=True)
class Row:
    """One signal of one name set.

    Args:
        signal: our series.
        family: the exporter's metric family, or an expression of several families.
        factor: the value of one of the exporter's units in our unit.
        labels: further labels of our series.
    """

    signal: str
    family: str
    factor: float = 1
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def value(self) -> str:
        """The family converted to Stallscope's unit, without implausible values."""
        value = self.family
        if self.factor < 1:
            value += f" / {_number(1 / self.factor)}"
        elif self.factor > 1:
            value += f" * {_number(self.factor)}"
        if self.signal == _TEMPERATURE:
            value += " > 0"
        most = _MOST.get(self.signal)
        return value if most is None or most >= _MOST_OF_ALL else f"{value} <= {_number(most)}"


def _number(value: float) -> str:
    exponent = round(math.log10(value))
    if exponent >= 6 and value == 10.0**exponent:
        return f"1e{exponent}"
    return f"{value:.0f}" if value == int(value) else f"{value}"


@dataclass(frozen=True)
class NameSet:
    """The metric families of an exporter in a range of its versions."""

    versions: str
    rows: tuple[Row, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Stallscope's labels with those of the exporter."""


@dataclass(frozen=True)
class GpuCollector:
    """An exporter of GPUs."""

    name: str
    keys: tuple[str, ...]
    """Labels that together identify a GPU."""
    name_sets: tuple[NameSet, ...]
    """In order of preference. An exporter may mix them."""
    seen: tuple[str, ...]
    """Families that every GPU of the exporter has; any of them is enough."""
    page: str
    """Selects series that the exporter always has, independent of the names of its GPU families."""
    scoped: Callable[[Row], str] = lambda row: row.value
    """Returns the expression of a row, restricted to the GPUs for which it is valid."""

    @property
    def identified(self) -> tuple[str, ...]:
        """Selectors of the families in `seen`, restricted to series with the labels that identify a GPU."""
        needed = ",".join(f'{label}!=""' for label in self.keys if label != "GPU_I_ID")
        return tuple(f"{family}{{{needed}}}" for family in self.seen)

    def values(self, signal: str, labels: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Return the expressions of a signal, one for each name set that has it."""
        return tuple(
            self.scoped(row)
            for names in self.name_sets
            for row in names.rows
            if row.signal == signal and (labels is None or row.labels == labels)
        )

    def relabelled(self, expression: str, *labels: str) -> str:
        """Return the series with Stallscope's labels instead of those of any name set."""
        for label in labels:
            for theirs in dict.fromkeys(names.labels[label] for names in self.name_sets if label in names.labels):
                if theirs != label:
                    expression = renamed(expression, label, theirs)
        return expression

    def readings(self) -> Iterator[Rule]:
        """Yield one rule for each signal of the name sets."""
        signals = dict.fromkeys(
            (row.signal, tuple(row.labels.items())) for names in self.name_sets for row in names.rows
        )
        for signal, labels in signals:
            yield Rule(signal, self.of_each(*self.values(signal, dict(labels))), dict(labels))
        card = ", ".join(key for key in self.keys if key != "GPU_I_ID")
        energies = (
            f"unless on (cluster, {card}) last_over_time({row.family}[5m])"
            for names in self.name_sets
            for row in names.rows
            if row.signal == "stallscope_gpu_energy_joules_total"
        )
        unmetered = "\n".join(energies)
        yield Rule(
            "gpu:unmetered_power:watts",
            self.of_each(*(f"{power}\n{unmetered}".rstrip() for power in self.values("stallscope_gpu_power_watts"))),
            comment="Power of the GPUs without an energy counter.",
        )

    def found(self, expression: str, *labels: str) -> Iterator[Rule]:
        """Yield the rules with 1 for each GPU of the exporter: once per target, and once per GPU.

        Args:
            expression: series with `gpu`, the driver's index, and `UUID`, which is the card's.
            labels: further labels of the series; `uuid` only where a GPU can be a part of a card.
        """
        # Without an index no verdict would be the GPU's: rules take such a series for a rank without a GPU.
        series = with_host(self._keyed(renamed(expression, "gpu", "gpu", "", "unknown")))
        if "uuid" not in labels:
            series = renamed(series, "uuid", "UUID")
            labels = ("uuid", *labels)
        kept = f"cluster, job, instance, key, gpu, UUID, {', '.join(labels)}, host"
        yield Rule(
            "gpu:scraped:info",
            f"group by ({kept}) (\n{block(series)}\n)",
            {"measured_by": self.name},
            f"1 for each GPU on each page of {self.name}.",
        )
        yield Rule(
            "gpu:found:info",
            f'topk by (cluster, key) (1, gpu:scraped:info{{measured_by="{self.name}"}})',
            {"measured_by": self.name},
            "The same once for each GPU, also where two jobs scrape its exporter.",
        )

    def of_each(self, *expressions: str) -> str:
        """Return the first value of each GPU, under the labels that the rules use for the GPU."""
        # NaN, negative values and DCGM's "not supported" (2^47 and 2^63) are missing values: a counter integrated from
        # them would never recover.
        value = f"max by (cluster, {', '.join(self.keys)}) (\n{block(first_of(*expressions))}\n) >= 0"
        value += f" < {_number(_MOST_OF_ALL)}"
        return (
            f"max by ({SUBJECT}) (\n"
            f'    gpu:identity:info{{measured_by="{self.name}"}}\n'
            f"  * on (cluster, key) group_left ()\n{block(self._keyed(value), 4)}\n)"
        )

    def with_labels(self, labels: str, expression: str) -> str:
        """Return 1 for each GPU and its values of further labels."""
        return self._labelled("group", labels, expression)

    def of_each_with(self, labels: str, expression: str) -> str:
        """Return the value of each GPU and further labels."""
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


def owners(source: GpuCollector, series: tuple[str, ...], jobs: dict[str, str]) -> Rule:
    """Return the rule on the holders of GPUs, from the labels of the exporter's series.

    Args:
        source: the exporter.
        series: the series with these labels.
        jobs: Stallscope's labels for the values of a scheduler, with those of the exporter.
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
    holders = first_of(*alternatives)
    for label, theirs in jobs.items():
        holders = renamed(holders, label, theirs)
    return Rule(
        "stallscope_gpu_owner_info",
        source.with_labels(", ".join(("namespace", "pod", "container", *jobs)), holders),
        comment=(
            "Holder of the GPU. The pod of the target is the exporter's own and is not a holder. If the target's "
            "labels overrode the holder's, the latter begin with exported_."
        ),
    )


def _dcgm_scoped(row: Row) -> str:
    """Restrict values of a card to the card, and profiling values to GPUs on which profiling works.

    dcgm-exporter repeats a card's values for each MIG instance. Memory and engine activity are the instance's own.
    """
    profiled = "_PROF_" in row.family
    of_instance = "DCGM_FI_DEV_FB_" in row.family or (profiled and not row.family.endswith("_BYTES"))
    value = row.value if of_instance else replace(row, family=_whole(row.family)).value
    return _profiled(value) if profiled else value


def _whole(name: str) -> str:
    """Return a DCGM family for whole cards."""
    return f'{name}{{GPU_I_ID=""}}'


def _profiled(value: str) -> str:
    """Return values of DCGM's profiling, without GPUs whose profiling is stuck."""
    return f"{value} unless on (cluster, UUID) gpu:profiling_stuck:info"


_ECC = "stallscope_gpu_ecc_errors_total"
_REMAPPED = "stallscope_gpu_remapped_rows"
_CLOCK = "stallscope_gpu_clock_hertz"
_TEMPERATURE = "stallscope_gpu_temperature_celsius"
_CORRECTED, _UNCORRECTED = {"kind": "corrected"}, {"kind": "uncorrected"}
_SM, _MEMORY_CLOCK = {"clock": "sm"}, {"clock": "memory"}
_GPU_SENSOR, _MEMORY_SENSOR = {"sensor": "gpu"}, {"sensor": "memory"}

DCGM_NAMES = (
    # Identifiers from 1613 on exist since DCGM 4.7, those from 1600 to 1612 since 4.6.1.
    NameSet(
        "base units: dcgm-exporter 4.9",
        (
            Row("stallscope_gpu_memory_utilization_ratio", "DCGM_FI_DEV_MEMORY_UTIL_RATIO"),
            Row("stallscope_gpu_memory_used_bytes", "DCGM_FI_DEV_FB_USED_BYTES"),
            Row("stallscope_gpu_memory_reserved_bytes", "DCGM_FI_DEV_FB_RESERVED_BYTES"),
            Row("stallscope_gpu_memory_total_bytes", "DCGM_FI_DEV_FB_CAPACITY_BYTES"),
            Row("stallscope_gpu_energy_joules_total", "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL"),
            Row(_CLOCK, "DCGM_FI_DEV_SM_CLOCK_HERTZ", labels=_SM),
            Row(_CLOCK, "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", labels=_MEMORY_CLOCK),
            Row("stallscope_gpu_clock_max_hertz", "DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ", labels=_SM),
        ),
        {"driver_version": "DCGM_FI_SYSTEM_DRIVER_VERSION", "hostname": "hostname"},
    ),
    NameSet(
        "new names for the same units: dcgm-exporter 4.9, custom files with DCGM 4.6",
        (
            Row("stallscope_gpu_power_watts", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
            Row("stallscope_gpu_power_limit_watts", "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"),
            Row("stallscope_gpu_power_limit_watts", "DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS"),
            Row("stallscope_gpu_power_limit_default_watts", "DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS"),
            Row(_TEMPERATURE, "DCGM_FI_DEV_GPU_TEMP_CELSIUS", labels=_GPU_SENSOR),
            Row(_TEMPERATURE, "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", labels=_MEMORY_SENSOR),
            Row("stallscope_gpu_pcie_replays_total", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL"),
            Row(_REMAPPED, "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", labels=_CORRECTED),
            Row(_REMAPPED, "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", labels=_UNCORRECTED),
            Row("stallscope_gpu_row_remap_failed", "DCGM_FI_DEV_ROW_REMAP_FAILED"),
            Row("gpu:sm_active:ratio", "DCGM_FI_PROF_SM_UTIL_RATIO"),
            Row("gpu:dram_active:ratio", "DCGM_FI_PROF_DRAM_UTIL_RATIO"),
            Row("gpu_pipe:active:ratio", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", labels={"pipe": "tensor"}),
            Row("gpu_pipe:active:ratio", "DCGM_FI_PROF_FP64_UTIL_RATIO", labels={"pipe": "fp64"}),
        ),
        {"driver_version": "DCGM_FI_SYSTEM_DRIVER_VERSION"},
    ),
    NameSet(
        "dcgm-exporter up to 4.8",
        (
            Row("stallscope_gpu_memory_utilization_ratio", "DCGM_FI_DEV_MEM_COPY_UTIL", PERCENT),
            Row("stallscope_gpu_memory_used_bytes", "DCGM_FI_DEV_FB_USED", MEBI),
            Row("stallscope_gpu_memory_reserved_bytes", "DCGM_FI_DEV_FB_RESERVED", MEBI),
            Row("stallscope_gpu_memory_total_bytes", "DCGM_FI_DEV_FB_TOTAL", MEBI),
            Row(
                "stallscope_gpu_memory_total_bytes",
                "(DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE + DCGM_FI_DEV_FB_RESERVED)",
                MEBI,
            ),
            Row("stallscope_gpu_memory_total_bytes", "(DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)", MEBI),
            Row("stallscope_gpu_power_watts", "DCGM_FI_DEV_POWER_USAGE"),
            Row("stallscope_gpu_power_limit_watts", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"),
            Row("stallscope_gpu_power_limit_watts", "DCGM_FI_DEV_POWER_MGMT_LIMIT"),
            Row("stallscope_gpu_power_limit_default_watts", "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF"),
            Row("stallscope_gpu_energy_joules_total", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e-3),
            Row(_TEMPERATURE, "DCGM_FI_DEV_GPU_TEMP", labels=_GPU_SENSOR),
            Row(_TEMPERATURE, "DCGM_FI_DEV_MEMORY_TEMP", labels=_MEMORY_SENSOR),
            Row(_CLOCK, "DCGM_FI_DEV_SM_CLOCK", MHZ, _SM),
            Row(_CLOCK, "DCGM_FI_DEV_MEM_CLOCK", MHZ, _MEMORY_CLOCK),
            Row("stallscope_gpu_clock_max_hertz", "DCGM_FI_DEV_MAX_SM_CLOCK", MHZ, _SM),
            Row("stallscope_gpu_pcie_replays_total", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
            Row("stallscope_gpu_pcie_link_generation", "DCGM_FI_DEV_PCIE_LINK_GEN"),
            Row("stallscope_gpu_pcie_link_generation_max", "DCGM_FI_DEV_PCIE_MAX_LINK_GEN"),
            Row("stallscope_gpu_pcie_link_width", "DCGM_FI_DEV_PCIE_LINK_WIDTH"),
            Row("stallscope_gpu_pcie_link_width_max", "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH"),
            Row(_ECC, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", labels=_CORRECTED),
            Row(_ECC, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", labels=_UNCORRECTED),
            Row(_REMAPPED, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", labels=_CORRECTED),
            Row(_REMAPPED, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", labels=_UNCORRECTED),
            Row("stallscope_gpu_row_remap_pending", "DCGM_FI_DEV_ROW_REMAP_PENDING"),
            Row("stallscope_gpu_row_remap_failed", "DCGM_FI_DEV_ROW_REMAP_FAILURE"),
            Row("gpu:sm_active:ratio", "DCGM_FI_PROF_SM_ACTIVE"),
            Row("gpu:dram_active:ratio", "DCGM_FI_PROF_DRAM_ACTIVE"),
            Row("gpu_pipe:active:ratio", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", labels={"pipe": "tensor"}),
            Row("gpu_pipe:active:ratio", "DCGM_FI_PROF_PIPE_FP64_ACTIVE", labels={"pipe": "fp64"}),
            # Bytes a second, whatever the name.
            Row("gpu:pcie_receive:bytes_per_second", "DCGM_FI_PROF_PCIE_RX_BYTES"),
            Row("gpu:pcie_transmit:bytes_per_second", "DCGM_FI_PROF_PCIE_TX_BYTES"),
            Row("gpu:nvlink_receive:bytes_per_second", "DCGM_FI_PROF_NVLINK_RX_BYTES"),
            Row("gpu:nvlink_transmit:bytes_per_second", "DCGM_FI_PROF_NVLINK_TX_BYTES"),
        ),
        # `Hostname` up to 4.8.2.
        {"driver_version": "DCGM_FI_DRIVER_VERSION", "hostname": "Hostname"},
    ),
)
"""Utilisation, throttling and Xids are not here: `dcgm()` has a rule of its own for each."""

NVIDIA_SMI_NAMES = NameSet(
    "nvidia_gpu_exporter 1.x",
    (
        Row("stallscope_gpu_utilization_ratio", "nvidia_smi_utilization_gpu_ratio"),
        Row("stallscope_gpu_memory_utilization_ratio", "nvidia_smi_utilization_memory_ratio"),
        Row("stallscope_gpu_memory_used_bytes", "nvidia_smi_memory_used_bytes"),
        Row("stallscope_gpu_memory_total_bytes", "nvidia_smi_memory_total_bytes"),
        Row("stallscope_gpu_memory_reserved_bytes", "nvidia_smi_memory_reserved_bytes"),
        Row("stallscope_gpu_power_watts", "nvidia_smi_power_draw_watts"),
        Row("stallscope_gpu_power_limit_watts", "nvidia_smi_enforced_power_limit_watts"),
        Row("stallscope_gpu_power_limit_watts", "nvidia_smi_power_limit_watts"),
        Row("stallscope_gpu_power_limit_default_watts", "nvidia_smi_power_default_limit_watts"),
        Row("stallscope_gpu_energy_joules_total", "nvidia_smi_energy_joules_total"),
        Row(_TEMPERATURE, "nvidia_smi_temperature_gpu", labels=_GPU_SENSOR),
        Row(_TEMPERATURE, "nvidia_smi_temperature_memory", labels=_MEMORY_SENSOR),
        Row(_CLOCK, "nvidia_smi_clocks_current_sm_clock_hz", labels=_SM),
        Row(_CLOCK, "nvidia_smi_clocks_current_memory_clock_hz", labels=_MEMORY_CLOCK),
        Row("stallscope_gpu_clock_max_hertz", "nvidia_smi_clocks_max_sm_clock_hz", labels=_SM),
        Row("stallscope_gpu_pcie_link_generation", "nvidia_smi_pcie_link_gen_current"),
        Row("stallscope_gpu_pcie_link_generation_max", "nvidia_smi_pcie_link_gen_max"),
        Row("stallscope_gpu_pcie_link_width", "nvidia_smi_pcie_link_width_current"),
        Row("stallscope_gpu_pcie_link_width_max", "nvidia_smi_pcie_link_width_max"),
        Row("gpu:pcie_receive:bytes_per_second", "nvidia_smi_pcie_throughput_rx_bytes_per_second"),
        Row("gpu:pcie_transmit:bytes_per_second", "nvidia_smi_pcie_throughput_tx_bytes_per_second"),
        Row(_ECC, "nvidia_smi_ecc_errors_corrected_volatile_total", labels=_CORRECTED),
        Row(_ECC, "nvidia_smi_ecc_errors_uncorrected_volatile_total", labels=_UNCORRECTED),
        Row(_REMAPPED, "nvidia_smi_remapped_rows_correctable", labels=_CORRECTED),
        Row(_REMAPPED, "nvidia_smi_remapped_rows_uncorrectable", labels=_UNCORRECTED),
        Row("stallscope_gpu_row_remap_pending", "nvidia_smi_remapped_rows_pending"),
        Row("stallscope_gpu_row_remap_failed", "nvidia_smi_remapped_rows_failure"),
        Row("stallscope_gpu_persistence_mode", "nvidia_smi_persistence_mode"),
        Row("stallscope_gpu_processes", "nvidia_smi_compute_apps", labels={"kind": "compute"}),
        *(
            Row(
                "stallscope_gpu_throttled_seconds_total",
                f"nvidia_smi_clocks_event_reasons_counters_{name}_seconds",
                labels={"reason": reason},
            )
            for reason, name in (
                ("power_cap", "sw_power_cap"),
                ("sync_boost", "sync_boost"),
                ("sw_thermal", "sw_thermal_slowdown"),
                ("hw_thermal", "hw_thermal_slowdown"),
                ("power_brake", "hw_power_brake_slowdown"),
            )
        ),
        *(
            # `throttle` with older drivers.
            Row(
                "gpu_reason:throttled:ratio",
                f"nvidia_smi_clocks_{word}_reasons_hw_slowdown",
                labels={"reason": "hw_slowdown"},
            )
            for word in ("event", "throttle")
        ),
    ),
    {"model": "name"},
)

NVITOP_NAMES = NameSet(
    "nvitop-exporter 1.x",
    (
        Row("stallscope_gpu_utilization_ratio", "gpu_utilization_Percentage", PERCENT),
        Row("stallscope_gpu_memory_utilization_ratio", "gpu_memory_utilization_Percentage", PERCENT),
        Row("stallscope_gpu_memory_used_bytes", "gpu_memory_used_MiB", MEBI),
        Row("stallscope_gpu_memory_total_bytes", "gpu_memory_total_MiB", MEBI),
        Row("stallscope_gpu_power_watts", "gpu_power_usage_W"),
        Row("stallscope_gpu_power_limit_watts", "gpu_power_limit_W"),
        Row(_TEMPERATURE, "gpu_temperature_C", labels=_GPU_SENSOR),
        Row(_CLOCK, "gpu_clock_sm_MHz", MHZ, _SM),
        Row(_CLOCK, "gpu_clock_memory_MHz", MHZ, _MEMORY_CLOCK),
        Row("gpu:pcie_receive:bytes_per_second", "gpu_pcie_rx_throughput_MiBps", MEBI),
        Row("gpu:pcie_transmit:bytes_per_second", "gpu_pcie_tx_throughput_MiBps", MEBI),
        Row("gpu:nvlink_receive:bytes_per_second", "gpu_nvlink_total_rx_throughput_MiBps", MEBI),
        Row("gpu:nvlink_transmit:bytes_per_second", "gpu_nvlink_total_tx_throughput_MiBps", MEBI),
    ),
    {"model": "devicename"},
)

AMD_NAMES = tuple(
    NameSet(
        f"device-metrics-exporter 1.x, {words}",
        (
            Row("stallscope_gpu_utilization_ratio", f"{prefix}gpu_gfx_activity", PERCENT),
            Row("stallscope_gpu_memory_utilization_ratio", f"{prefix}gpu_umc_activity", PERCENT),
            Row("stallscope_gpu_memory_used_bytes", f"{prefix}gpu_used_vram", MEBI),
            Row("stallscope_gpu_memory_total_bytes", f"{prefix}gpu_total_vram", MEBI),
            Row("stallscope_gpu_power_watts", f"{prefix}gpu_package_power"),
            Row("stallscope_gpu_power_watts", f"{prefix}gpu_average_package_power"),
            Row("stallscope_gpu_power_watts", f"{prefix}gpu_power_usage"),
            Row("stallscope_gpu_energy_joules_total", f"{prefix}gpu_energy_consumed", 1e-6),
            Row(_TEMPERATURE, f"{prefix}gpu_junction_temperature", labels=_GPU_SENSOR),
            Row(_TEMPERATURE, f"{prefix}gpu_edge_temperature", labels=_GPU_SENSOR),
            Row(_TEMPERATURE, f"{prefix}gpu_memory_temperature", labels=_MEMORY_SENSOR),
            Row("stallscope_gpu_pcie_replays_total", f"{prefix}pcie_replay_count"),
            Row(_ECC, f"{prefix}gpu_ecc_correct_total", labels=_CORRECTED),
            Row(_ECC, f"{prefix}gpu_ecc_uncorrect_total", labels=_UNCORRECTED),
        ),
        {"model": "card_series", "serial": "serial_number"},
    )
    for prefix, words in (("", "without a prefix"), ("amd_", "with the prefix that it can be configured to use"))
)

OMNISTAT_NAMES = NameSet(
    "Omnistat 1.x",
    (
        Row("stallscope_gpu_utilization_ratio", "rocm_utilization_percentage", PERCENT),
        Row("stallscope_gpu_memory_used_bytes", "rocm_vram_used_percentage * rocm_vram_total_bytes", PERCENT),
        Row("stallscope_gpu_memory_total_bytes", "rocm_vram_total_bytes"),
        Row("stallscope_gpu_power_watts", "rocm_average_socket_power_watts"),
        Row("stallscope_gpu_power_limit_watts", "rocm_power_cap_watts"),
        Row("stallscope_gpu_energy_joules_total", "rocm_energy_joules"),
        Row(_TEMPERATURE, "rocm_temperature_celsius", labels=_GPU_SENSOR),
        Row(_TEMPERATURE, "rocm_temperature_memory_celsius", labels=_MEMORY_SENSOR),
        Row(_CLOCK, "rocm_sclk_clock_mhz", MHZ, _SM),
        Row(_CLOCK, "rocm_mclk_clock_mhz", MHZ, _MEMORY_CLOCK),
        # Errors of the memory controllers; the other blocks have families of their own.
        Row(_ECC, "rocm_ras_umc_correctable_count", labels=_CORRECTED),
        Row(_ECC, "rocm_ras_umc_uncorrectable_count", labels=_UNCORRECTED),
    ),
    {"model": "type", "driver_version": "driver_ver", "vbios_version": "vbios"},
)


def _prefixed(name: str) -> tuple[str, ...]:
    """Return a family of AMD's exporter, which can be configured to prefix all names with amd_."""
    return name, f"amd_{name}"


DCGM = GpuCollector(
    "dcgm-exporter",
    ("UUID", "GPU_I_ID"),
    DCGM_NAMES,
    tuple(
        row.family
        for signal in ("stallscope_gpu_memory_used_bytes", _TEMPERATURE)
        for names in DCGM_NAMES
        for row in names.rows
        if row.signal == signal and row.labels != _MEMORY_SENSOR
    ),
    # dcgm_gpu_temp is a name of its --use-old-namespace.
    '{__name__=~"DCGM_FI_.+|dcgm_gpu_temp",nvswitch="",nvlink="",cpu="",cpucore=""}',
    _dcgm_scoped,
)
NVIDIA_SMI = GpuCollector(
    "nvidia_gpu_exporter",
    ("uuid",),
    (NVIDIA_SMI_NAMES,),
    ("nvidia_smi_gpu_info",),
    # If nvidia-smi or NVML fails, there are no GPU families under any name.
    "nvidia_gpu_exporter_build_info\n"
    f"  unless on ({TARGET})\n    (nvidia_smi_command_exit_code or nvidia_smi_nvml_return_code) != 0",
)
NVITOP = GpuCollector(
    "nvitop-exporter",
    ("uuid",),
    (NVITOP_NAMES,),
    ("gpu_memory_total_MiB",),
    'nvitop_info{device_count!="0"}',
)
AMD = GpuCollector(
    "amd-device-metrics-exporter",
    ("hostname", "gpu_id"),
    AMD_NAMES,
    _prefixed("gpu_total_vram"),
    "(gpu_nodes_total or amd_gpu_nodes_total) > 0",
)
OMNISTAT = GpuCollector(
    "omnistat",
    ("instance", "card"),
    (OMNISTAT_NAMES,),
    ("rocm_vram_total_bytes",),
    "rocm_num_gpus > 0",
)
SOURCES = (DCGM, NVIDIA_SMI, NVITOP, AMD, OMNISTAT)
"""Precedence: the first exporter in this order that measures a GPU is used."""
NODE = "node_exporter"
NCCL = "nccl-inspector"


def integral(counter: str, value: str, labels: dict[str, str] | None = None, comment: str = "") -> Rule:
    """Return a rule for a counter that integrates a value as long as the value exists.

    The interval starts at the counter's own last sample, so a missed evaluation is compensated (90 s at most). The
    counter ends with the value, and starts again like any counter.
    """
    matchers = "".join(f',{name}="{label}"' for name, label in (labels or {}).items())
    itself = f'{counter}{{measured_by!=""{matchers}}}'
    # A counter with an additional label is built from a value without it.
    on = f" on ({SUBJECT})" if labels else ""
    return Rule(
        counter,
        f"  {itself}\n+{on}\n{block(value, 4)}\n  *{on}\n    clamp_max(time() - timestamp({itself}), 90)\n"
        f"or\n  0 * {value}",
        labels or {},
        comment,
    )


def missed() -> Rule:
    """Return the rule on the only GPU of an exporter that is up but no longer reports it."""
    pages = (
        *(family for source in SOURCES for family in source.seen),
        *(row.family for names in DCGM_NAMES for row in names.rows if row.signal == "stallscope_gpu_power_watts"),
        *(f"nvidia_smi_{code} != 0 != 6 != 15" for code in ("command_exit_code", "nvml_return_code")),
    )
    return Rule(
        "gpu:missed:info",
        "topk by (cluster, UUID) (1,\n"
        "  (\n"
        '        last_over_time(gpu:found:info{mig=""}[5m])\n'
        f"      unless on ({TARGET})\n        last_over_time(gpu:found:info[2m])\n"
        f"      and on ({TARGET})\n"
        f"        count by ({TARGET}) (last_over_time(gpu:found:info[5m])) == 1\n"
        f"      and on ({TARGET})\n        (up == 1 and min_over_time(up[5m]) == 1 and up offset 5m)\n"
        "    or\n"
        f"        gpu:missed:info\n      and on ({TARGET})\n        max_over_time(up[5m]) == 1\n"
        "  )\n"
        "  unless on (cluster, UUID)\n    gpu:found:info\n"
        + "".join(f"  unless on ({TARGET})\n    {page}\n" for page in pages)
        + ")",
        comment=(
            "1 for each GPU that was the only one of its exporter and has been missing for two minutes, while the "
            "exporter was up before and since. Kept while the exporter is up, until it reports a GPU. If all of "
            "several GPUs disappear at once, the exporter is the likely cause. Ignores GPUs that are missing because "
            "nvidia-smi fails, unless it finds no GPU (6) or a lost one (15). Checks the exporter's own families, "
            "because relabelling may remove some of them, and evaluations may be missed."
        ),
    )


def unusable() -> Iterator[Rule]:
    """Yield the rules on exporters whose metrics cannot be used, with the reason."""
    record = "exporter:unusable:info"
    instances = 'group by (cluster, instance) (last_over_time(stallscope_gpu_up{measured_by=""}[90s]))'
    yield Rule(
        "host:measured:info",
        f"group by (cluster, host) (\n{block(with_host(instances))}\n)",
        comment="1 for each host whose GPUs a Stallscope exporter measures.",
    )

    def unread(pages: str) -> str:
        """Return the targets on hosts whose GPUs no Stallscope exporter measures."""
        unmeasured = f"{block(with_host(pages))}\n  unless on (cluster, host)\n    host:measured:info"
        return f"group by ({TARGET}) (\n{unmeasured}\n)"

    comment = "1 for each exporter without any of the metric families that identify its GPUs."
    for source in SOURCES:
        seen = block(first_of(*source.seen), 4)
        yield Rule(
            record,
            unread(f"group by ({TARGET}) (\n{block(source.page)}\n)\nunless on ({TARGET})\n  (\n{seen}\n  )"),
            {"measured_by": source.name, "reason": "unknown_families"},
            comment,
        )
        comment = ""
    comment = "1 for each exporter with GPUs that lack a label which identifies them."
    for source in SOURCES:
        needed = [label for label in source.keys if label not in ("GPU_I_ID", "instance")]
        yield Rule(
            record,
            unread(first_of(*(f'{family}{{{label}=""}}' for family in source.seen for label in needed))),
            {"measured_by": source.name, "reason": "missing_label"},
            comment,
        )
        comment = ""
    same = "cluster, key, measured_by"
    yield Rule(
        record,
        f"group by ({TARGET}, measured_by) (\n    gpu:scraped:info\n  and on ({same})\n"
        f"    count by ({same}) (group by ({TARGET}, key, measured_by) (gpu:scraped:info)) > 1\n)",
        {"reason": "scraped_twice"},
        "1 for each target whose GPUs another target exports too: two jobs scrape one exporter.",
    )
    yield Rule(
        record,
        f"group by ({TARGET}) (\n    host:found:info\n  and on (cluster, instance)\n"
        f"    count by (cluster, instance) (group by ({TARGET}) (host:found:info)) > 1\n)",
        {"measured_by": NODE, "reason": "scraped_twice"},
    )
    own = 'stallscope_gpu_up{measured_by="",uuid!=""} == 1'
    yield Rule(
        record,
        f"group by ({TARGET}) (\n    {own}\n  and on (cluster, uuid, mig)\n"
        f"    count by (cluster, uuid, mig) ({own}) > 1\n)",
        {"measured_by": "stallscope", "reason": "scraped_twice"},
    )
    one = "cluster, instance, measured_by"
    hostnames = 'gpu:scraped:info{hostname!=""} or host:found:info{hostname!=""}'
    yield Rule(
        record,
        f"group by ({one}) (\n"
        f"    count by ({one}, gpu) (\n"
        f'      group by ({one}, gpu, UUID) (gpu:scraped:info{{mig="",gpu!="unknown"}})\n    ) > 1\n'
        f"  or\n    count by ({one}) (\n      group by ({one}, hostname) ({hostnames})\n    ) > 1\n)",
        {"reason": "shared_instance"},
        "1 for each instance that two machines share: they have a GPU with the same index, or two host names.",
    )
    yield Rule(
        record,
        f"group by ({TARGET}) (\n"
        f'  count by ({TARGET}, gpu) (stallscope_gpu_up{{measured_by="",mig="",uuid!=""}} == 1) > 1\n)',
        {"measured_by": "stallscope", "reason": "shared_instance"},
    )
    native = (
        f"{name} unless on ({TARGET}) {name}_count"
        for name in ("stallscope_training_step_seconds", "stallscope_gpu_utilization_samples")
    )
    yield Rule(
        record,
        f"group by ({TARGET}) (\n{block(first_of(*native), 2)}\n)",
        {"measured_by": "stallscope", "reason": "native_histograms"},
        "1 for each Stallscope exporter whose histograms Prometheus converts at the scrape: the rules need classic "
        "ones.",
    )
    moved = (
        f'{name}{{exported_{label}!=""}}'
        for name in ("stallscope_training_rank_info", "stallscope_gpu_owner_info")
        for label in ("namespace", "pod", "slurm_job", "user")
    )
    yield Rule(
        record,
        f"group by ({TARGET}) (\n{block(first_of(*moved))}\n)",
        {"measured_by": "stallscope", "reason": "labels_overridden"},
        "1 for each Stallscope exporter whose target has labels that replace those of trainings and owners.",
    )
    yield Rule(
        record,
        f'group by ({TARGET}) (stallscope_build_info{{__type__!=""}})',
        {"measured_by": "stallscope", "reason": "type_labels"},
        "1 for each exporter whose series get type and unit labels from Prometheus: the rules would not match them.",
    )


def canonical() -> Iterator[Rule]:
    """Yield the rules for all exporters: precedence, labels, and counters integrated from gauges."""
    yield missed()
    found = [f'gpu:found:info{{measured_by="{source.name}"}}' for source in SOURCES]
    # Omnistat's cards have no identifier in common with those of AMD's exporter.
    found[-1] += f"\nunless on (cluster, host)\n  {found[SOURCES.index(AMD)]}"
    # The few GPUs of other exporters limit those of Stallscope's own before these get another label.
    theirs = renamed("gpu:found:info or gpu:missed:info", "uuid", "UUID")
    own = f'last_over_time(stallscope_gpu_up{{measured_by=""}}[90s])\nand on (cluster, uuid)\n{block(theirs)}'
    known = renamed(own, "UUID", "uuid")
    yield Rule(
        "gpu:chosen:info",
        f"(\n{block(found[0], 4)}\n"
        + "".join(f"  or on (cluster, UUID)\n{block(each, 4)}\n" for each in (*found[1:], "gpu:missed:info"))
        + f")\nunless on (cluster, UUID)\n{block(known)}",
        comment=(
            "1 for each GPU that only other exporters report, from the first of them that does. A card that a "
            "Stallscope exporter has reported within 90 s is left to it, whatever its state there."
        ),
    )
    yield Rule(
        "host:exporter:info",
        "topk by (cluster, host) (1,\n  group by (cluster, host, job, instance) (\n"
        f"{block(with_host('last_over_time(stallscope_build_info[90s])'), 4)}\n  )\n)",
        comment="1 for each host with a Stallscope exporter.",
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
    own_source = first_of(
        *(
            renamed(
                'last_over_time(stallscope_exporter_source_up{source="amd"}[90s])', "measured_by", "", "", source.name
            )
            for source in (AMD, OMNISTAT)
        )
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
        f"unless on (cluster, job, instance, measured_by)\n  (\n{block(own_source, 4)}\n  )",
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
        comment=(
            "1 for each such GPU. 0 for a lost GPU: no exporter reports it any more, while its exporter still reports "
            "other GPUs of the host, or it was the only one and is missing. Forgotten once the exporter has been down "
            "for 90 s. If a rank on it has completed steps since then, the GPU is not lost."
        ),
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

    yield from unusable()

    utilization = 'stallscope_gpu_utilization_ratio{measured_by!=""}'
    yield integral(
        "stallscope_gpu_busy_seconds_total",
        utilization,
        comment=(
            "Counters integrated from gauges of other exporters. Each increases by the value times the time since its "
            "own last sample, so a missed evaluation is compensated (90 s at most). It ends with the value, and starts "
            "again like any counter."
        ),
    )
    yield integral("stallscope_gpu_observed_seconds_total", f"({utilization} >= bool 0)")
    yield integral("stallscope_gpu_idle_seconds_total", f"({utilization} == bool 0)")
    for level in BELOW_LEVELS:
        yield integral("stallscope_gpu_below_seconds_total", f"({utilization} < bool {level})", {"level": f"{level}"})
    yield integral(
        "stallscope_gpu_utilization_samples_sum",
        utilization,
        comment="A gauge counts as one sample per second while it has a value.",
    )
    yield integral("stallscope_gpu_utilization_samples_count", f"({utilization} >= bool 0)")
    for bound in (*UTILIZATION_BUCKETS, math.inf):
        le = "+Inf" if math.isinf(bound) else f"{bound}"
        yield integral("stallscope_gpu_utilization_samples_bucket", f"({utilization} <= bool {le})", {"le": le})
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


_REASONS = (
    ("power_cap", 4, "GPU_POWER_THROTTLE_SECONDS_TOTAL", "CLOCKS_EVENT_REASON_SW_POWER_CAP_NS"),
    ("hw_slowdown", 8, "", ""),
    ("sync_boost", 16, "GPU_SYNC_BOOST_THROTTLE_SECONDS_TOTAL", "CLOCKS_EVENT_REASON_SYNC_BOOST_NS"),
    ("sw_thermal", 32, "GPU_THERMAL_THROTTLE_SECONDS_TOTAL", "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS"),
    ("hw_thermal", 64, "", "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS"),
    ("power_brake", 128, "", "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS"),
)
"""Each throttle reason of the catalogue with NVML's clock-event bit, and DCGM's counters in seconds and in nanoseconds.
Each throttle reason of the catalogue with NVML's clock-event bit, and DCGM's counters in seconds and in nanoseconds."""
_BLANK_32 = 0x7FFF_FFF0
"""32-bit values from here on are DCGM's blanks. Read as bits, they would be several reasons at once."""


def dcgm() -> Iterator[Rule]:
    """Yield the rules for all name sets of dcgm-exporter."""
    # Without the UUID the GPUs of a whole cluster would be one.
    seen = first_of(*DCGM.identified)
    parts = renamed(label_join(seen, "uuid", "/", "UUID", "GPU_I_ID"), "uuid", "uuid", "(.*)/")
    named = renamed(DCGM.relabelled(parts, "hostname"), "mig", "GPU_I_PROFILE")
    scraped, found = DCGM.found(named, "uuid", "mig", "hostname")
    yield replace(
        scraped,
        comment=f"{scraped.comment} A MIG instance has no UUID there: the card's with the instance's number stands for "
        "it.",
    )
    yield found
    yield Rule(
        "stallscope_gpu_info",
        DCGM.with_labels(
            "model, pci_bus_id, driver_version", renamed(DCGM.relabelled(seen, "driver_version"), "model", "modelName")
        ),
    )
    yield owners(DCGM, ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES"), {"slurm_job": "hpc_job"})
    # Not SM_CLOCK_HERTZ and GPU_ENERGY_JOULES_TOTAL: DCGM 4.6.1 has them too, and a percentage.
    newer = first_of("DCGM_FI_DEV_FB_USED_BYTES", "DCGM_FI_DEV_MEMORY_UTIL_RATIO")
    yield Rule(
        "exporter:utilization_percent:info",
        "  group by (cluster, job, instance) (DCGM_FI_DEV_GPU_UTIL_RATIO > 1)\n"
        "or\n"
        "    last_over_time(exporter:utilization_percent:info[1h])\n"
        "  and on (cluster, job, instance)\n"
        "    DCGM_FI_DEV_GPU_UTIL_RATIO\n"
        "  unless on (cluster, job, instance)\n"
        f"    (\n{block(newer, 6)}\n    )",
        comment=(
            "DCGM_FI_DEV_GPU_UTIL_RATIO is a percentage up to DCGM 4.6 and a ratio from 4.7 on. 1 for each target with "
            "a value above 1, which proves the percentage. Kept over gaps of an hour, and until a name that only 4.7 "
            "has proves the ratio. Without proof, only a zero counts."
        ),
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
        comment=(
            "A MIG instance has no utilisation, or a zero. Instead, this is the share of time in which its graphics or "
            "compute engine worked. Here and below, values of the card are dropped for its instances."
        ),
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
        comment=(
            "1 for each GPU that is busy, but idle by DCGM's profiling. Profiling reports zeros after it has lost "
            "access to the counters, until it is restarted: all its values of the GPU are dropped."
        ),
    )
    yield from DCGM.readings()

    comment = (
        "Time in which clocks were throttled: DCGM's counters with a certain unit, otherwise the bits at the scrape."
    )
    for reason, bit, *names in _REASONS:
        counters = [f"DCGM_FI_DEV_{name}" for name in names if name]
        bits = [
            f"floor(({_whole(name)} < {_BLANK_32}) / {bit}) % 2"
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
        """Return the last value before; an evaluation may have been missed or be a minute ago."""
        return f"last_over_time({series}[10m] offset 90s)"

    def as_labels(values: list[str]) -> str:
        code = DCGM.of_each(*(f"{value} > 0" for value in values))
        return f'count_values by ({SUBJECT}) (\n  "xid",\n{block(code)}\n)'

    def risen(count: str) -> str:
        """Return the counted events that increased, whichever pod has the GPU."""
        now, before = (f"max by (cluster, UUID, GPU_I_ID, xid) ({each})" for each in (count, earlier(count)))
        return DCGM.of_each_with("xid", f"{now} > 0\nunless\n    {now}\n  <=\n    {before}")

    known = f'gpu:found:info{{measured_by="{DCGM.name}"}} offset 90s'
    yield Rule("stallscope_gpu_xid_events_total", DCGM.of_each_with("xid", total))
    yield Rule(
        "gpu_xid:told:info",
        as_labels(codes),
        comment=(
            "The last Xid error of each GPU, which DCGM reports until the next, and its time: when it first appeared "
            "on a known GPU, after another code or none (newer releases report no zero). With error counters, for all "
            "time or for some minutes, also repeated errors. An error from before the first scrape has no time, and a "
            "time is kept when a rank's exporter takes over the GPU."
        ),
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


def nvidia_smi() -> Iterator[Rule]:
    """Yield the rules for nvidia_gpu_exporter.

    Its UUIDs lack their prefix and, until mid 2026, the label with the index.
    """
    target = f"{TARGET}, uuid"
    (seen,) = NVIDIA_SMI.identified
    numbered = (
        f"    {seen}\n"
        f"  * on ({target}) group_left (gpu)\n"
        f'    count_values by ({target}) ("gpu", nvidia_smi_index)\n'
        f"or on ({target})\n"
        f"    {seen}"
    )
    indexed = renamed(numbered, "gpu", "index")
    yield from NVIDIA_SMI.found(renamed(indexed, "UUID", "uuid", "(?:GPU-)?(.+)", "GPU-$1"))
    labels = "model, serial, pci_bus_id, driver_version, cuda_version, vbios_version"
    yield Rule(
        "stallscope_gpu_info", NVIDIA_SMI.with_labels(labels, NVIDIA_SMI.relabelled("nvidia_smi_gpu_info", "model"))
    )
    yield from NVIDIA_SMI.readings()
    yield Rule("stallscope_gpu_xid_events_total", NVIDIA_SMI.of_each_with("xid", "nvidia_smi_xid_errors_total"))
    yield Rule(
        "stallscope_gpu_xid_last_timestamp_seconds",
        NVIDIA_SMI.of_each_with("xid", "nvidia_smi_xid_last_timestamp_seconds"),
    )


def nvitop() -> Iterator[Rule]:
    """Yield the rules for nvitop-exporter: whole GPUs, with their processes."""
    named = renamed('gpu_memory_total_MiB{uuid=~"GPU-.+"}', "gpu", "index")
    yield from NVITOP.found(renamed(named, "UUID", "uuid"), "hostname")
    described = NVITOP.relabelled("gpu_memory_total_MiB", "model")
    yield Rule("stallscope_gpu_info", NVITOP.with_labels("model", described))
    yield from NVITOP.readings()
    held = "count by (cluster, uuid) (\n  group by (cluster, uuid, pid) (process_gpu_memory_MiB)\n)"
    yield Rule(
        "stallscope_gpu_processes",
        NVITOP.of_each(held, "0 * gpu_memory_total_MiB"),
        {"kind": "compute"},
        "It exports processes only while there are any, and not their kind.",
    )
    yield Rule(
        "stallscope_gpu_owner_info", NVITOP.with_labels("user", renamed("process_gpu_memory_MiB", "user", "username"))
    )


def amd() -> Iterator[Rule]:
    """Yield the rules for AMD's device-metrics-exporter."""
    seen = first_of(*AMD.identified)
    numbered = label_join(renamed(seen, "gpu", "gpu_id"), "UUID", "/", *AMD.keys)
    # Exported only where it is configured, and all zeros in a virtual machine.
    yield from AMD.found(renamed(numbered, "UUID", "gpu_uuid", "(.*[1-9a-f].*)"), "hostname")
    yield Rule(
        "stallscope_gpu_info",
        AMD.with_labels("model, serial, driver_version, vbios_version", AMD.relabelled(seen, "model", "serial")),
    )
    yield owners(AMD, AMD.seen, {"slurm_job": "job_id", "user": "job_user"})
    yield from AMD.readings()


def omnistat() -> Iterator[Rule]:
    """Yield the rules for Omnistat, whose cards have a number on their host but no UUID."""
    (seen,) = OMNISTAT.identified
    numbered = with_host(renamed(seen, "gpu", "card"))
    yield from OMNISTAT.found(label_join(numbered, "UUID", "/", "host", "card"))
    yield Rule(
        "stallscope_gpu_info",
        OMNISTAT.with_labels(
            "model, serial, driver_version, vbios_version",
            OMNISTAT.relabelled("rocm_version_info", "model", "driver_version", "vbios_version"),
        ),
    )
    named = renamed('rmsjob_info{jobid!=""}', "slurm_job", "jobid")
    jobs = f"group by ({TARGET}, slurm_job, user) (\n{block(named)}\n)"
    held = (
        f"{seen}\n* on ({TARGET}) group_left (slurm_job, user)\n"
        f"  (\n{block(jobs, 4)}\n    and on ({TARGET})\n"
        f"      count by ({TARGET}) (\n{block(jobs, 8)}\n      ) == 1\n  )"
    )
    yield Rule(
        "stallscope_gpu_owner_info",
        OMNISTAT.with_labels("slurm_job, user", held),
        comment="The only job on a node holds all its GPUs. Which of several jobs holds a GPU is unknown.",
    )
    yield from OMNISTAT.readings()


def ceems() -> Iterator[Rule]:
    """Yield the rules for CEEMS, which does not measure GPUs but knows the job that holds one."""
    flag = 'ceems_compute_unit_gpu_index_flag{manager="slurm",gpuuuid!=""} > 0'
    named = label_join(renamed(flag, "slurm_job", "uuid"), "part", "/", "gpuuuid", "gpuiid")
    named = renamed(named, "part", "part", "(.*)/")
    yield Rule(
        "stallscope_gpu_owner_info",
        f"max by ({SUBJECT}, slurm_job) (\n"
        + block(f"group by (cluster, part, slurm_job) (\n{block(named)}\n)", 4)
        + "\n  * on (cluster, part) group_left (job, instance, gpu, uuid, mig, measured_by)\n"
        + block(renamed("gpu:identity:info", "part", "uuid"), 4)
        + "\n)",
        comment="The Slurm job that holds a GPU measured by another exporter. Two jobs may share a GPU.",
    )


_DISKS = 'device!~"(dm-|md|loop|ram|zram|sr|drbd|nbd|rbd|zd).*"'
_NICS = 'device!~"(lo|veth|docker|br-|virbr|cni|cali|flannel|cilium|lxc|vxlan|tun|tap|ipvl|macvl|ifb|dummy|kube|ovs).*"'
_NFS = "node_mountstats_nfs_operations"
_PAGE = "4096"
"""Minimum page size in bytes of machines with GPUs. With larger pages, more is swapped than recorded."""


def placed(found: str, *labels: str) -> str:
    """Pages of hosts under the job and instance of our exporter on the host, else of the exporter of its GPUs.

    Args:
        found: series with `key`, one for each page.
        labels: those of `host` and `hostname` that may name the host, the preferred one first.
    """
    ways = [
        f"  {found}\n* on (cluster, {label}) group_left (job, instance)\n"
        + block(known if label == "host" else renamed(known, "hostname", "host"))
        for known in ("host:exporter:info", "host:gpus:info")
        for label in labels
    ]
    return "\nor on (cluster, key)\n".join(block(way) for way in ways)


def node() -> Iterator[Rule]:
    """Yield the rules for hosts with node_exporter."""
    found = first_of(renamed("node_uname_info", "hostname", "nodename"), "node_memory_MemTotal_bytes").replace(
        "\nor\n", "\nor on (cluster, job, instance)\n"
    )
    yield Rule(
        "host:found:info",
        "group by (cluster, job, instance, key, host, hostname) (\n"
        + block(with_host(label_join(found, "key", "/", "job", "instance")))
        + "\n)",
        {"measured_by": NODE},
        "1 for each host with node_exporter.",
    )
    yield Rule(
        "host:placed:info",
        f"topk by ({TARGET}) (1,\n{block(placed('host:found:info', 'host', 'hostname'))}\n)",
        comment=(
            "Hosts with a Stallscope exporter or with GPUs of another one, under its job and instance; other machines "
            "are ignored."
        ),
    )
    for name, family in (("identity", "cpus"), ("network_identity", "network_receive_bytes_total")):
        yield Rule(
            f"host:{name}:info",
            "host:placed:info\n"
            "unless on (cluster, job, instance)\n"
            f'  last_over_time(stallscope_host_{family}{{measured_by=""}}[90s])',
            comment=(
                "Hosts that no Stallscope exporter reports. One in a container may report everything except the "
                "network."
            )
            if name == "identity"
            else "",
        )

    def of_host(expression: str, labels: str = "", identity: str = "host:identity:info") -> str:
        kept = f", {labels}" if labels else ""
        keyed = label_join(f"sum by (cluster, job, instance{kept}) ({expression})", "key", "/", "job", "instance")
        return (
            f"sum by (cluster, job, instance, measured_by{kept}) (\n{block(keyed, 4)}\n"
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
    yield Rule(
        "stallscope_host_rdma_link_bytes_per_second",
        of_host(
            "node_infiniband_rate_bytes_per_second"
            " * on (cluster, job, instance, device, port) (node_infiniband_state_id == bool 4)",
            "device, port",
        ),
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


def nccl() -> Iterator[Rule]:
    """Yield the rules for NCCL Inspector, whose files node_exporter's textfile collector exports."""
    duration, bandwidth = "nccl_collective_exec_time_microseconds", "nccl_bus_bandwidth_gbs"

    def page(expression: str) -> str:
        # A target that has a label `node` of its own, without honor_labels.
        named = renamed(renamed(expression, "hostname", "node"), "hostname", "exported_node")
        numbered = renamed(renamed(named, "gpu", "gpu", "GPU(.+)"), "gpu", "exported_gpu", "GPU(.+)")
        return label_join(with_host(numbered), "key", "/", "job", "instance", "hostname")

    def fresh(family: str) -> str:
        # A file outlives a job that was killed, and then its values stay the same.
        return f"{family} and changes({family}[5m]) > 1"

    def of_gpu(expression: str, labels: str = "") -> str:
        kept = f", {labels}" if labels else ""
        return (
            f"max by ({TARGET}, gpu{kept}, measured_by) (\n{block(expression, 4)}\n"
            "  * on (cluster, key) group_left (job, instance, measured_by)\n"
            "    host:collectives_placed:info\n"
            ")"
        )

    yield Rule(
        "host:collectives_found:info",
        f"group by ({TARGET}, key, host, hostname) (\n{block(page(duration))}\n)",
        {"measured_by": NCCL},
        "1 for each node of each target with metrics of NCCL Inspector.",
    )
    yield Rule(
        "host:collectives_placed:info",
        placed("host:collectives_found:info", "hostname", "host"),
        comment=(
            "Nodes under the job and instance of their GPUs: by their own name, which is the pod's name in a "
            "container, otherwise by the target's address."
        ),
    )
    yield Rule(
        "gpu:collectives:seconds",
        of_gpu("sum by (cluster, key, gpu) (\n" + block(f"{page(fresh(duration))} / 1e6") + "\n)"),
        comment=(
            "GPU seconds per collective of each kind: a kind is an operation on a communicator with a message size. "
            "Only of jobs whose values change, as they do with each dump of the Inspector."
        ),
    )
    yield Rule(
        "gpu_collective:bus_bandwidth:bytes_per_second",
        of_gpu(
            "min by (cluster, key, gpu, collective, n_nodes) (\n" + block(f"{page(fresh(bandwidth))} * 1e9") + "\n)",
            "collective, n_nodes",
        ),
        comment="Bus bandwidth of the slowest kind of each collective.",
    )


FILES: dict[str, tuple[str, Callable[[], Iterator[Rule]]]] = {
    "canonical": (
        "Series of other exporters under Stallscope's names (label `measured_by`): precedence, counters from gauges.",
        canonical,
    ),
    "canonical_dcgm": ("Series of dcgm-exporter under Stallscope's names.", dcgm),
    "canonical_nvidia_gpu_exporter": ("Series of nvidia_gpu_exporter under Stallscope's names.", nvidia_smi),
    "canonical_nvitop": ("GPU series of nvitop-exporter under Stallscope's names.", nvitop),
    "canonical_amd": ("Series of AMD's device-metrics-exporter under Stallscope's names.", amd),
    "canonical_omnistat": ("Series of Omnistat under Stallscope's names.", omnistat),
    "canonical_ceems": ("Holders of GPUs from CEEMS under Stallscope's names.", ceems),
    "canonical_node_exporter": ("Series of node_exporter under Stallscope's names.", node),
    "canonical_nccl_inspector": ("Metrics of NCCL Inspector under Stallscope's names.", nccl),
}


def _comment(text: str, indent: str, width: int = 120) -> str:
    return textwrap.fill(text, width, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ") + "\n"


def _scalar(value: str) -> str:
    """Return a label's value as a YAML string."""
    return value if value[0].isalpha() else f'"{value}"'


def rule_file(name: str) -> str:
    """Return one file of rules."""
    subject, rules = FILES[name]
    text = _comment(f"{subject} Generated by prometheus/canonical_rules.py (`make generate`); do not edit.", "")
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
