"""Memory and clocks beyond the usual graphs."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import GREEN, YELLOW, Text, limit_line, limits_of_each, texts
from grafana.builders.panel import Panel, state_timeline, time_series
from grafana.builders.query import Query, threshold
from grafana.gpu_rows.asking import CURVE, NAME


def row() -> Row:
    """Return the row."""
    return Row(
        "Memory and clocks in detail",
        (_memory_bytes(), _zombies(), _bar1(), _persistence(), _clock_share(), _held_down(), _other_clocks()),
        collapsed=True,
    )


def _memory_bytes() -> Panel:
    return time_series(
        "Memory in bytes",
        "Frame buffer held by processes and kept by the driver; dashed, all that there is. Held without any process: "
        "a dead process still has it, find who holds the device's files.",
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
        "Memory that no process holds",
        "Frame buffer still taken on a GPU without processes, over the least that counts (dashed). Find holders of "
        "/dev/nvidia*, end them, or reset the GPU once it is drained. Nothing here: there is none.",
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
        "BAR1 aperture",
        "The window through which other devices reach this GPU's memory, used and (dashed) in all. Full: peer-to-peer "
        "and GPUDirect mappings fail.",
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
        "Whether the driver keeps the GPU initialised while nobody uses it. Where it doesn't, every first use waits: "
        "run nvidia-persistenced.",
        [Query(f"max by (cluster, instance, gpu, mig) (stallscope_gpu_persistence_mode{{{GPU}}})", NAME)],
        mappings=texts({"1": Text("kept initialised", GREEN), "0": Text("left between uses", YELLOW)}),
        width=12,
        height=8,
        show_values=True,
        links=CURVE,
    )


def _clock_share() -> Panel:
    return time_series(
        "Clock reached, over five minutes",
        "Mean clock of the multiprocessors over the one that is configured or, without one, the highest. Under the "
        "dashed line and hot, the rules speak of thermal throttling.",
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
        "Held down by heat or power supply",
        "Share of the last ten minutes as the alerts judge it, with their thresholds as dashed lines. Nothing here: "
        "never.",
        [
            Query(f"gpu:thermal_throttled:ratio10m{{{GPU}}}", f"{NAME} heat"),
            Query(f"gpu:power_braked:ratio10m{{{GPU}}}", f"{NAME} power brake"),
            threshold("thermal_share", "too much heat"),
            threshold("power_brake_share", "too much braking"),
        ],
        unit="percentunit",
        overrides=limit_line("too much heat", "too much braking"),
        links=CURVE,
    )


def _other_clocks() -> Panel:
    return time_series(
        "Other clocks",
        "Clocks of memory, graphics and video now; dashed, the highest of this model and those configured.",
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
