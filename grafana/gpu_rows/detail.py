"""Details of memory and clocks."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import GREEN, YELLOW, Text, limit_line, limits_of_each, texts
from grafana.builders.panel import Panel, state_timeline, time_series
from grafana.builders.query import Query, threshold
from grafana.gpu_rows.gpu_queries import CURVE, NAME


def row() -> Row:
    """Return the row."""
    return Row(
        "Memory and clock details",
        (_memory_bytes(), _zombies(), _bar1(), _persistence(), _clock_share(), _held_down(), _other_clocks()),
        collapsed=True,
    )


def _memory_bytes() -> Panel:
    return time_series(
        "Memory in bytes",
        "Framebuffer memory used by processes and reserved by the driver; dashed: total. If memory is used without any "
        "process, a dead process still holds it: find the process that has the device files open.",
        [
            Query(f"stallscope_gpu_memory_used_bytes{{{GPU}}}", f"{NAME} used"),
            Query(f"stallscope_gpu_memory_reserved_bytes{{{GPU}}}", f"{NAME} kept by the driver"),
            Query(f"stallscope_gpu_memory_total_bytes{{{GPU}}}", f"{NAME} limit"),
        ],
        unit="bytes",
        overrides=limits_of_each(),
        links=CURVE,
    )


def _zombies() -> Panel:
    return time_series(
        "Memory without a process",
        "Framebuffer memory used on a GPU without processes, above the threshold (dashed). Find processes that have "
        "/dev/nvidia* open and end them, or reset the GPU once it is drained. Empty: no such memory.",
        [
            Query(f"gpu:zombie_memory:bytes5m{{{GPU}}}", NAME),
            threshold("zombie_bytes", "least that counts"),
        ],
        unit="bytes",
        overrides=limit_line("least that counts"),
        links=CURVE,
    )


def _bar1() -> Panel:
    return time_series(
        "BAR1 memory",
        "Address window for other devices to access this GPU's memory, used and (dashed) total. Full: peer-to-peer and "
        "GPUDirect mappings fail.",
        [
            Query(f"stallscope_gpu_bar1_used_bytes{{{GPU}}}", NAME),
            Query(f"stallscope_gpu_bar1_total_bytes{{{GPU}}}", f"{NAME} limit"),
        ],
        unit="bytes",
        overrides=limits_of_each(),
        links=CURVE,
    )


def _persistence() -> Panel:
    return state_timeline(
        "Persistence mode",
        "With persistence mode, the driver keeps an unused GPU initialised. Without it, each first use is delayed: run "
        "nvidia-persistenced.",
        [Query(f"max by (cluster, instance, gpu, mig) (stallscope_gpu_persistence_mode{{{GPU}}})", NAME)],
        mappings=texts({"1": Text("enabled", GREEN), "0": Text("disabled", YELLOW)}),
        width=12,
        height=8,
        show_values=True,
        links=CURVE,
    )


def _clock_share() -> Panel:
    return time_series(
        "SM clock relative to its maximum, over five minutes",
        "Mean SM clock relative to the configured clock or, without one, the maximum. Below the dashed line and hot, "
        "the verdict is thermal throttling.",
        [
            Query(f"gpu:sm_clock:ratio5m{{{GPU}}}", NAME),
            threshold("thermal_clock", "slow"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("slow"),
        links=CURVE,
    )


def _held_down() -> Panel:
    return time_series(
        "Thermal and power brake throttling",
        "Share of the last ten minutes, as used by the alerts; dashed: their thresholds. Empty: never.",
        [
            Query(f"gpu:thermal_throttled:ratio10m{{{GPU}}}", f"{NAME} heat"),
            Query(f"gpu:power_braked:ratio10m{{{GPU}}}", f"{NAME} power brake"),
            threshold("thermal_share", "thermal threshold"),
            threshold("power_brake_share", "power brake threshold"),
        ],
        unit="percentunit",
        overrides=limit_line("thermal threshold", "power brake threshold"),
        links=CURVE,
    )


def _other_clocks() -> Panel:
    return time_series(
        "Other clocks",
        "Current clocks of memory, graphics and video; dashed: maximum and configured clocks.",
        [
            Query(f'stallscope_gpu_clock_hertz{{{GPU}, clock!="sm"}}', f"{NAME} {{{{clock}}}}"),
            Query(f'stallscope_gpu_clock_max_hertz{{{GPU}, clock!="sm"}}', f"{NAME} {{{{clock}}}} highest limit"),
            Query(
                f'stallscope_gpu_clock_configured_hertz{{{GPU}, clock!="sm"}}',
                f"{NAME} {{{{clock}}}} configured limit",
            ),
        ],
        unit="hertz",
        overrides=limits_of_each(),
        links=CURVE,
    )
