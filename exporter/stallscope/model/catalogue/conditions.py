"""Conditions under which the rules find a cause, as data: a recorded series and the threshold beside it.

`stallscope why` shows the values of both. The rules in `prometheus/rules/` decide; `tests/catalogue/test_conditions.py`
compares each row with them. Conditions on series that the rules do not record are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stallscope.model.catalogue.causes import CAUSES, Expression, Loss, Over, Straggler, Value

Unit = Literal["share", "number", "cores", "seconds", "bytes"]


@dataclass(frozen=True)
class Signal:
    """A recorded series that a condition reads."""

    words: str
    """A noun phrase of at most 27 characters."""
    unit: Unit = "share"
    source: str = ""
    """The program or feature that measures it; empty if the series is also missing for other reasons."""
    instead: str = ""
    """Series that the rules read in its place where there is one, such as that of a young run's GPU; or empty."""
    complement: bool = False
    """True if one minus the other series is read."""
    is_time: bool = False
    """True if the values are Unix times; the rules compare the time since then."""
    least: float = 0.0
    """Smallest value that the rules distinguish; a smaller value is shown as under this one."""


@dataclass(frozen=True)
class Condition:
    """A comparison in the rule of a cause."""

    series: str
    threshold: str | float | None
    """Name of a threshold, or a constant of the rule; None if it depends on the GPU."""
    below: bool = False
    """True if the value must be below the threshold."""
    recorded: str = ""
    """The comparison as the rule of the series makes it, which has no value otherwise; empty for other comparisons."""
    of: str = ""
    """Words that follow the threshold: the GPUs to which the condition applies."""


SIGNALS: Mapping[str, Signal] = {
    "rank:exposed_wait:ratio5m": Signal("waiting for data"),
    "rank:exposed_copy:ratio5m": Signal("copying to the GPU"),
    "rank:exposed_other:ratio5m": Signal("time outside the phases"),
    "rank:rollouts:ratio5m": Signal("rollouts"),
    "run_rank:collectives:ratio5m": Signal("communication", instead="run_rank:communication:ratio5m"),
    "rank:cpu_of_limit:ratio5m": Signal("CPUs used of the limit"),
    "rank:workers_of_cpus:ratio": Signal("loader workers per CPU", "number"),
    "rank:cpu:cores5m": Signal("CPUs used by a rank", "cores"),
    "host:cpu_busy:ratio1m": Signal("CPUs of the host busy", source="the exporter of the host"),
    "host:cpu_pressure:ratio1m": Signal("tasks that wait for a CPU", source="pressure information (PSI) of Linux"),
    "host:io_pressure:ratio1m": Signal("tasks that wait for I/O", source="pressure information (PSI) of Linux"),
    "host:network_data:ratio1m": Signal("network link, data received"),
    "gpu:busy:ratio5m": Signal(
        "GPU busy", source="the exporter of the GPU", instead="gpu:early_idle:ratio", complement=True
    ),
    "gpu:sm_active:ratio5m": Signal(
        "SMs active", source="GPM or DCGM's profiling", instead="gpu:early_sm_active:ratio"
    ),
    "gpu:power_of_limit:ratio5m": Signal("power of the limit", source="the energy counter of the GPU"),
    "gpu:low_samples:ratio5m": Signal("GPU samples under 70 %"),
    "gpu:sm_clock:ratio5m": Signal("SM clock of the highest"),
    "gpu:thermal_throttled:ratio5m": Signal("time slowed by heat"),
    "gpu:power_braked:ratio5m": Signal("time slowed by power brake"),
    "gpu:busy_in_stall:ratio1m": Signal("GPU busy in the standstill"),
    "run:mfu:ratio5m": Signal("model FLOP/s of the peak", source="flops_per_sample of the run"),
    "run_rank:clock_of_peers:ratio5m": Signal("its SM clock of its peers'"),
    "rank:step_lateness:ratio": Signal("step age over its limit", "number"),
    "run:restarts:increase1h": Signal("restarts within an hour", "number"),
    "gpu:ecc_uncorrected:count": Signal("uncorrected memory errors", "number"),
    "gpu:pcie_degraded:ratio": Signal("PCIe link of its best"),
    "gpu:pcie_replays:per_minute5m": Signal("PCIe replays a minute", "number"),
    "gpu:nvlink_errors:increase5m": Signal("NVLink errors in 5 minutes", "number"),
    "gpu:nvlinks_down:count": Signal("NVLinks that are down", "number"),
    "gpu:xid_hw:timestamp_seconds": Signal("time since the Xid", "seconds", is_time=True),
    "gpu:last_use:timestamp_seconds": Signal(
        "time since its last work", "seconds", instead="gpu:idle_allocated:seconds", is_time=True, least=120.0
    ),
    "gpu:zombie_memory:bytes5m": Signal("memory without a process", "bytes"),
    "gpu:sharers:count": Signal("owners or runs on the GPU", "number"),
    "gpu:spin_power:ratio10m": Signal("power of the limit, 10 min"),
}
"""By name of the series."""

CONDITIONS: Mapping[str, tuple[Condition, ...]] = {
    "input_cpu_saturated": (
        Condition("host:cpu_busy:ratio1m", "cpu_saturated"),
        Condition("rank:cpu_of_limit:ratio5m", "cpu_saturated"),
        Condition("host:cpu_pressure:ratio1m", "cpu_pressure"),
    ),
    "input_few_workers": (
        Condition("rank:workers_of_cpus:ratio", "workers_few", below=True),
        Condition("host:cpu_busy:ratio1m", "few_workers_cpu", below=True),
        Condition("host:io_pressure:ratio1m", 0.05, below=True),
        Condition("host:network_data:ratio1m", 0.50, below=True),
    ),
    "input_single_thread": (
        Condition("rank:cpu:cores5m", "single_thread_core"),
        Condition("host:cpu_busy:ratio1m", 0.30, below=True),
    ),
    "input_too_many_workers": (
        Condition("rank:workers_of_cpus:ratio", "workers_too_many"),
        Condition("host:cpu_pressure:ratio1m", 0.20),
    ),
    "input_disk_bound": (Condition("host:io_pressure:ratio1m", "disk_pressure"),),
    "input_network_bound": (Condition("host:network_data:ratio1m", "network_high"),),
    "small_batch": (
        Condition("gpu:sm_active:ratio5m", "small_batch_sm", below=True),
        Condition("gpu:power_of_limit:ratio5m", "small_batch_power", below=True),
    ),
    "launch_bound": (
        Condition("gpu:sm_active:ratio5m", "launch_sm", below=True),
        Condition("gpu:busy:ratio5m", "launch_busy"),
    ),
    "tensor_cores_unused": (Condition("gpu:sm_active:ratio5m", 0.50),),
    "low_mfu": (
        Condition("run:mfu:ratio5m", "mfu_low", below=True),
        Condition("gpu:busy:ratio5m", 0.80),
    ),
    "compute_bound": (Condition("gpu:power_of_limit:ratio5m", 0.80),),
    "stalled": (Condition("rank:step_lateness:ratio", 1.0),),
    "hang_spin": (Condition("gpu:busy_in_stall:ratio1m", 0.95),),
    "restart_loop": (Condition("run:restarts:increase1h", "restart_count"),),
    "straggler_hw": (Condition("run_rank:clock_of_peers:ratio5m", "straggler_clock", below=True),),
    "thermal_throttle": (
        Condition("gpu:thermal_throttled:ratio5m", "thermal_share"),
        Condition("gpu:sm_clock:ratio5m", "thermal_clock", below=True),
    ),
    "power_brake": (Condition("gpu:power_braked:ratio5m", "power_brake_share"),),
    "ecc_uncorrected": (Condition("gpu:ecc_uncorrected:count", 1, recorded="> 0"),),
    "pcie_degraded": (Condition("gpu:pcie_degraded:ratio", 1, below=True, recorded="< 1"),),
    "pcie_replays": (
        Condition("gpu:pcie_replays:per_minute5m", None, recorded="> ceil(", of="over the limit of its link"),
    ),
    "nvlink_errors": (
        Condition(
            "gpu:nvlink_errors:increase5m",
            "nvlink_errors",
            recorded='>= scalar(stallscope:threshold{name="nvlink_errors"})',
        ),
    ),
    "nvlink_down": (Condition("gpu:nvlinks_down:count", 1, recorded="> 0"),),
    "xid_hw": (Condition("gpu:xid_hw:timestamp_seconds", "xid_hold_seconds", below=True),),
    "underused": (
        Condition("gpu:busy:ratio5m", "underused_busy"),
        Condition("gpu:low_samples:ratio5m", "underused_samples"),
        Condition("gpu:busy:ratio5m", 0.5, below=True),
    ),
    "idle_allocated": (
        Condition("gpu:last_use:timestamp_seconds", "idle_seconds"),
        Condition("gpu:last_use:timestamp_seconds", "idle_interactive_seconds", of="interactive"),
        Condition("gpu:last_use:timestamp_seconds", "idle_unused_seconds", of="unused in Slurm"),
        Condition("gpu:busy:ratio5m", "idle_busy", below=True),
    ),
    "mem_zombie": (
        Condition(
            "gpu:zombie_memory:bytes5m", "zombie_bytes", recorded='> scalar(stallscope:threshold{name="zombie_bytes"})'
        ),
    ),
    "shared_unexpectedly": (Condition("gpu:sharers:count", 2, recorded="> 1"),),
    "spin_suspected": (
        Condition("gpu:spin_power:ratio10m", 0.40, below=True, recorded="< 0.40"),
        Condition("gpu:busy:ratio5m", 0.95),
    ),
}
"""By cause. A cause with several conditions needs most of them, or one of several groups: the runbook has the rule."""

GPU_SIDE: tuple[Condition, ...] = (
    Condition("rank:exposed_wait:ratio5m", "device_waits"),
    Condition("rank:exposed_copy:ratio5m", "device_waits"),
    Condition("rank:exposed_other:ratio5m", "device_waits"),
    Condition("rank:rollouts:ratio5m", "device_waits"),
    Condition("run_rank:collectives:ratio5m", 0.10),
)
"""Conditions under which the rules do not judge causes of the tiers `device` and `harmless` on a GPU: it waits."""

USED = Condition("gpu:busy:ratio5m", 0.5)
"""Condition under which evidence on a held GPU without a run is enough: without a cause, it is healthy."""

UNUSED = ("idle_allocated", "underused")
"""Causes of a held GPU without a run that is mostly idle, once it is known which of them applies."""


def general_of(cause: str) -> str | None:
    """Return the cause that is the verdict until the reason is known, of a cause that names the reason; else None."""
    known = CAUSES.get(cause)
    if known is None or cause in GENERAL:
        return None
    return next((each for each in known.mutes if each in GENERAL and CAUSES[each].domain == known.domain), None)


GENERAL = frozenset({"input_bound", "stalled", "straggler_rank"})
"""Causes that are the verdict only until the reason is known."""


def alert_thresholds(cause: str) -> tuple[str, ...]:
    """Return the names of the thresholds of the lost share from which the alert of a cause fires."""
    rule = CAUSES[cause].rule
    shape = None if rule is None else rule.shape
    if isinstance(shape, Loss):
        return (shape.warning,)
    if isinstance(shape, Straggler):
        return ("straggler_warning",)
    if isinstance(shape, Over):
        return (shape.threshold,) if shape.loses else ()
    if isinstance(shape, (Value, Expression)) and shape.loses:
        return tuple(name for name in re.findall(r"threshold\((\w+)\)", shape.promql) if name != "clear_ratio")
    return ()
