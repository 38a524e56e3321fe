"""The columns of the data frames and their series. The catalogue defines them, so they are the same for every run.

Counters become their change over the interval. Time becomes a ratio (`busy_ratio`: share of the interval), or `cores`
if several count at once; bytes and joules become `bytes_per_second` and `watts`; work becomes `samples_per_second`;
events stay counts (`slow_steps`: number in the interval). Gauges stay unchanged. A name ends with its unit. The value
of a label is part of the name (`throttled_sw_thermal_ratio`), unless values are unknown beforehand: disks, network
interfaces and mounts are summed, except that the busy time of disks is that of the busiest disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from stallscope.model.catalogue.metrics import GPU_FAMILIES, HOST_FAMILIES, TRAINING_FAMILIES, Family, MetricType


class Kind(str, Enum):
    """How a column is computed from samples."""

    GAUGE = "gauge"
    RATE = "rate"
    """Increase of a counter per second."""
    COUNT = "count"
    """Increase of a counter."""
    MEAN = "mean"
    """Increase of a sum divided by the increase of its count."""
    LAST = "last"
    """The last value of a gauge whose mean is meaningless, such as the step number."""
    PEAK = "peak"
    """The greatest value of a gauge that reports a peak."""
    LABEL = "label"
    """The label of the series whose value is 1."""


class Column(NamedTuple):
    """One column of a data frame."""

    name: str
    kind: Kind
    unit: str
    """`ratio`, `cores`, `seconds`, `bytes_per_second`, `count` ...; empty if it has no unit."""
    series: str
    """Series name; of a mean, the name of the sum."""
    label: str = ""
    """Label by which the series are selected."""
    value: str = ""
    """Value of that label; of kind `label` any."""
    combined: str = "sum"
    """How several series are combined: `sum` or `max`."""
    over: str = ""
    """Of a mean, the name of the count."""


_PER_SECOND = frozenset({"samples", "tokens", "flops"})
_CORES = frozenset({"stallscope_host_cpu_seconds_total", "stallscope_training_process_cpu_seconds_total"})
"""More than one CPU may be busy at once."""
_GREATEST = frozenset({"stallscope_host_disk_busy_seconds_total", "stallscope_gpu_fan_speed_ratio"})
_SPECIAL = MappingProxyType(
    {"stallscope_host_nfs_operation_wait_seconds_total": ("nfs_operations_in_flight", Kind.RATE, "count")}
)
"""Columns whose name does not follow from the unit."""
_EXCLUDED = frozenset(
    {
        # Constant during a run, or not a measurement.
        *("stallscope_gpu_signal_supported", "stallscope_gpu_peak_flops", "stallscope_gpu_temperature_limit_celsius"),
        *(
            "stallscope_gpu_power_limit_default_watts",
            "stallscope_gpu_bar1_total_bytes",
            "stallscope_gpu_bar1_used_bytes",
        ),
        *("stallscope_gpu_pcie_link_generation_max", "stallscope_gpu_pcie_link_width_max"),
        *("stallscope_gpu_persistence_mode", "stallscope_gpu_dip_interval_seconds_sumsq"),
        "stallscope_gpu_utilization_samples",
        "stallscope_training_shim_dropped_reports_total",
        "stallscope_training_code_seconds_total",
        # Of owners, of which a GPU may have any number.
        *("stallscope_gpu_owner_memory_used_bytes", "stallscope_gpu_owner_busy_seconds_total"),
    }
)
_PHASE_PREFIX = "stallscope_training_phase_"
_LABELLED = frozenset({"stallscope_training_state", "stallscope_training_activity"})
_LAST = frozenset(
    {f"stallscope_training_{name}" for name in ("step", "epoch", "steps_planned", "batch_size", "dataloader_workers")}
)
_PEAKS = frozenset({"stallscope_training_allocator_peak_bytes"})
VALUE_SERIES = "stallscope_training_value"


def _columns(families: Iterable[Family], prefix: str, own: frozenset[str]) -> tuple[Column, ...]:
    """Return the columns of families.

    Args:
        families: families of one subject.
        prefix: common prefix of their names, which columns omit.
        own: labels that identify the subject.
    """
    return tuple(column for family in families if _is_included(family) for column in _of(family, prefix, own))


def _is_included(family: Family) -> bool:
    return (
        family.name not in _EXCLUDED
        and not family.name.startswith(_PHASE_PREFIX)
        and not family.name.endswith(("_info", "_timestamp_seconds"))
        and family.name != VALUE_SERIES
    )


def _of(family: Family, prefix: str, own: frozenset[str]) -> Iterable[Column]:
    stem = family.name.removeprefix(prefix)
    if family.name in _LABELLED:
        (label,) = (label for label in family.labels if label not in own)
        yield Column(stem, Kind.LABEL, "", family.name, label)
        return
    if family.type in (MetricType.HISTOGRAM, MetricType.SUMMARY):
        yield Column(stem, Kind.MEAN, family.unit, f"{family.name}_sum", over=f"{family.name}_count")
        if family.type is MetricType.HISTOGRAM:
            yield Column(f"{stem.removesuffix('_seconds')}s", Kind.COUNT, "count", f"{family.name}_count")
        return
    combined = "max" if family.name in _GREATEST else "sum"
    name, kind, unit = _SPECIAL.get(family.name) or _name_kind_unit(family, stem)
    further = [(label, values) for label, values in family.values if label not in own]
    if not further:
        yield Column(name, kind, unit, family.name, combined=combined)
        return
    ((label, values),) = further
    base = name.removesuffix(f"_{unit}")
    for value in values:
        parts = (base, value.replace(".", "_"), unit if base != name else "")
        yield Column("_".join(filter(None, parts)), kind, unit, family.name, label, value, combined)


def _name_kind_unit(family: Family, stem: str) -> tuple[str, Kind, str]:
    if family.type is not MetricType.COUNTER:
        kind = Kind.LAST if family.name in _LAST else Kind.PEAK if family.name in _PEAKS else Kind.GAUGE
        return stem, kind, family.unit
    stem = stem.removesuffix("_total")
    base = stem.removesuffix(f"_{family.unit}")
    if family.unit == "seconds":
        unit = "cores" if family.name in _CORES else "ratio"
        return f"{base}_{unit}", Kind.RATE, unit
    if family.unit == "bytes":
        return f"{stem}_per_second", Kind.RATE, "bytes_per_second"
    if family.unit == "joules":
        return f"{base}_watts", Kind.RATE, "watts"
    if stem in _PER_SECOND:
        return f"{stem}_per_second", Kind.RATE, "per_second"
    return stem, Kind.COUNT, "count"


GPU_COLUMNS = _columns(GPU_FAMILIES, "stallscope_gpu_", frozenset({"gpu", "uuid", "mig"}))
HOST_COLUMNS = _columns(HOST_FAMILIES, "stallscope_host_", frozenset())
STEP_COLUMNS = _columns(TRAINING_FAMILIES, "stallscope_training_", frozenset({"run", "rank"}))
PHASE_COLUMNS = (
    Column("seconds", Kind.COUNT, "seconds", f"{_PHASE_PREFIX}seconds_total"),
    Column("ratio", Kind.RATE, "ratio", f"{_PHASE_PREFIX}seconds_total"),
    Column("gpu_seconds", Kind.COUNT, "seconds", f"{_PHASE_PREFIX}gpu_seconds_total"),
    Column("occurrences", Kind.COUNT, "count", f"{_PHASE_PREFIX}occurrences_total"),
    Column("max_seconds", Kind.PEAK, "seconds", f"{_PHASE_PREFIX}max_seconds"),
)
VALUE_COLUMNS = (Column("value", Kind.GAUGE, "", VALUE_SERIES),)
COLUMNS: Mapping[str, tuple[Column, ...]] = MappingProxyType(
    {
        "steps": STEP_COLUMNS,
        "phases": PHASE_COLUMNS,
        "gpu": GPU_COLUMNS,
        "host": HOST_COLUMNS,
        "values": VALUE_COLUMNS,
    }
)
"""The columns of each data frame, except those that identify the row."""
IDENTITY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "steps": ("rank", "instance"),
        "phases": ("rank", "instance", "phase"),
        "gpu": ("rank", "instance", "gpu", "uuid", "mig"),
        "host": ("rank", "instance"),
        "values": ("rank", "instance", "name"),
    }
)
"""The columns that identify a row; `step` and `interval_seconds` follow them."""


def units(columns: Iterable[Column]) -> Mapping[str, str]:
    """Return the unit of each column that has one."""
    return {column.name: column.unit for column in columns if column.unit}
