"""The graphs known from experiment trackers: utilisation, memory, power, temperature, clocks."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import Text, limit_line, limits_of_each, texts
from grafana.builders.panel import Panel, status_history, time_series
from grafana.builders.query import Query
from grafana.gpu_rows.gpu_queries import CURVE, NAME, share


def row() -> Row:
    """Return the row."""
    return Row(
        "Utilisation, power, temperature and clocks",
        (
            _utilisation(),
            _memory_access(),
            _memory_allocated(),
            _power(),
            _temperature(),
            _clocks(),
            _throttling(),
            _fans(),
        ),
    )


def _utilisation() -> Panel:
    return time_series(
        "GPU utilisation",
        "Share of time with at least one kernel resident. High utilisation does not prove good use: compare with SM "
        "activity.",
        [Query(share("stallscope_gpu_busy_seconds_total"), NAME)],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )


def _memory_access() -> Panel:
    return time_series(
        "Memory utilisation (time)",
        "Share of time in which GPU memory was read or written. If it is close to the GPU utilisation at a small "
        "batch, there is much traffic for little computation. This is not bandwidth.",
        [Query(share("stallscope_gpu_memory_busy_seconds_total"), NAME)],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )


def _memory_allocated() -> Panel:
    return time_series(
        "GPU memory used",
        "Framebuffer memory used by processes, as a share of the total. Frameworks that preallocate show 100 % "
        "whatever they need: the run's dashboard shows the memory of tensors.",
        [
            Query(
                f"stallscope_gpu_memory_used_bytes{{{GPU}}} / stallscope_gpu_memory_total_bytes{{{GPU}}}",
                NAME,
            )
        ],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )


def _power() -> Panel:
    return time_series(
        "Power",
        "Board power; dashed: the enforced power limit. Far below the limit while busy: too little work per kernel. At "
        "the limit: raise the limit, or improve cooling.",
        [
            Query(f"stallscope_gpu_power_watts{{{GPU}}}", NAME),
            Query(f"stallscope_gpu_power_limit_watts{{{GPU}}}", f"{NAME} limit"),
        ],
        unit="watt",
        overrides=limits_of_each(),
        links=CURVE,
    )


def _temperature() -> Panel:
    return time_series(
        "Temperature",
        "Temperature of the GPU and its memory, and the lowest slowdown and shutdown limits of the selected GPUs. Near "
        "a limit: check fans, airflow and hot neighbours.",
        [
            Query(f"stallscope_gpu_temperature_celsius{{{GPU}}}", f"{NAME} {{{{sensor}}}}"),
            Query(f"min by (limit) (stallscope_gpu_temperature_limit_celsius{{{GPU}}})", "{{limit}} limit"),
        ],
        unit="celsius",
        minimum=None,
        overrides=limit_line("/ limit$/"),
        links=CURVE,
    )


def _clocks() -> Panel:
    return time_series(
        "SM clock",
        "Current SM clock; dashed: the maximum, or the configured clock if it is lower. If the clock is lower while "
        "busy, check the throttle reasons.",
        [
            Query(f'stallscope_gpu_clock_hertz{{{GPU}, clock="sm"}}', NAME),
            Query(f'stallscope_gpu_clock_max_hertz{{{GPU}, clock="sm"}}', f"{NAME} highest limit"),
            Query(f'stallscope_gpu_clock_configured_hertz{{{GPU}, clock="sm"}}', f"{NAME} configured limit"),
        ],
        unit="hertz",
        overrides=limits_of_each(),
        links=CURVE,
    )


def _throttling() -> Panel:
    return status_history(
        "Clock throttle reasons",
        "Share of time in which clocks were throttled, by reason; empty if never. Thermal: improve cooling. Power cap: "
        "raise the limit. Power brake or hardware slowdown: check the power supply.",
        [
            Query(
                f"max by (cluster, instance, gpu, mig, reason) ({share('stallscope_gpu_throttled_seconds_total')})",
                f"{NAME} {{{{reason}}}}",
                least_step="1m",
            )
        ],
        unit="percentunit",
        maximum=1,
        mappings=texts({"0": Text("never", "transparent")}),
        width=12,
        links=CURVE,
    )


def _fans() -> Panel:
    return time_series(
        "Fan speed",
        "Share of the maximum speed. At the maximum while hot: the air is too warm or blocked. Passively cooled GPUs "
        "have no fans.",
        [Query(f"stallscope_gpu_fan_speed_ratio{{{GPU}}}", f"{NAME} fan {{{{fan}}}}")],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )
