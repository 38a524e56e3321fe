"""The graphs that people know from experiment trackers: use, memory, power, temperature, clocks."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import Text, limit_line, limits_of_each, texts
from grafana.builders.panel import Panel, status_history, time_series
from grafana.builders.query import Query
from grafana.gpu_rows.asking import CURVE, NAME, share


def row() -> Row:
    """Return the row."""
    return Row(
        "Use, power, temperature and clocks",
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
        "Share of time with at least one kernel resident. It says that the GPU was in use, not that it was used well: "
        "read it beside the activity of its multiprocessors.",
        [Query(share("stallscope_gpu_busy_seconds_total"), NAME)],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )


def _memory_access() -> Panel:
    return time_series(
        "Time accessing memory",
        "Share of time in which device memory was read or written. Near the utilisation at a small batch, it means "
        "much traffic for little computing; it isn't bandwidth.",
        [Query(share("stallscope_gpu_memory_busy_seconds_total"), NAME)],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )


def _memory_allocated() -> Panel:
    return time_series(
        "Memory allocated",
        "Frame buffer held by processes, of all that there is. Frameworks that reserve everything show 100 % whatever "
        "they need: the run's dashboard has what tensors use.",
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
        "Board power, and the limit in force as a dashed line. Well under the limit while busy: too little work at a "
        "time. At the limit: raise the limit, or cool better.",
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
        "Of the GPU and of its memory, and the lowest limits among the GPUs chosen, at which the driver slows down or "
        "shuts down. Near them: check fans, airflow and hot neighbours.",
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
        "Clock of the multiprocessors",
        "The clock now; dashed, the highest of this model or, where somebody set a lower one, that. Under it while "
        "busy: see what holds it down beside this.",
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
        "What held clocks down",
        "Share of time in which clocks were held down, by reason; empty: never. Thermal reasons want cooling, a power "
        "cap a higher limit, a power brake or hardware slowdown a look at the power supply.",
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
        "Fans",
        "Speed over the maximum. At the maximum while hot: the air is too warm or blocked. Passively cooled GPUs have "
        "none.",
        [Query(f"stallscope_gpu_fan_speed_ratio{{{GPU}}}", f"{NAME} fan {{{{fan}}}}")],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )
