"""Utilisation, memory, power, temperature and clocks."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.lines import few
from grafana.builders.panel import Panel, shares_over_time
from grafana.builders.query import Query
from grafana.gpu_rows.gpu_queries import CURVE, NAME, ROWS, line, share


def row() -> Row:
    """Return the row."""
    return Row(
        "Utilisation, memory, power, temperature and clocks",
        (
            line(
                "GPU utilisation",
                "Share of time with at least one kernel resident. High utilisation does not prove good use: compare "
                "with SM activity.",
                share("stallscope_gpu_busy_seconds_total"),
                unit="percentunit",
                width=8,
            ),
            line(
                "Time at low utilisation",
                "Share of time with utilisation below 10 %, which a mean hides. The GPU waits for its host in that "
                "time, or no process uses it.",
                share("stallscope_gpu_below_seconds_total", ', level="0.1"'),
                unit="percentunit",
                width=8,
            ),
            line(
                "GPU memory used",
                "Framebuffer memory used by processes, as a share of the total. Frameworks that preallocate show "
                "100 % whatever they need: the run's dashboard shows the memory of tensors.",
                f"stallscope_gpu_memory_used_bytes{{{GPU}}} / stallscope_gpu_memory_total_bytes{{{GPU}}}",
                unit="percentunit",
                width=8,
            ),
            line(
                "Power",
                "Board power; dashed: the lowest enforced power limit of the selected GPUs. Far below it while busy: "
                "too little work per kernel. At the limit: raise the limit, or improve cooling.",
                f"stallscope_gpu_power_watts{{{GPU}}}",
                unit="watt",
                limits={"power limit": f"min(stallscope_gpu_power_limit_watts{{{GPU}}})"},
                width=8,
            ),
            line(
                "Temperature",
                "Temperature of the GPU and its memory; dashed: the lowest slowdown limit of the selected GPUs. Near "
                "it: check fans, airflow and hot neighbours.",
                f"stallscope_gpu_temperature_celsius{{{GPU}}}",
                unit="celsius",
                name=f"{NAME} {{{{sensor}}}}",
                minimum=None,
                limits={"slowdown limit": f'min(stallscope_gpu_temperature_limit_celsius{{{GPU}, limit="slowdown"}})'},
                width=8,
            ),
            line(
                "SM clock",
                "Current SM clock of the GPUs with the lowest; dashed: the lowest maximum or configured clock. If the "
                "clock is lower while busy, check the throttle reasons.",
                f'stallscope_gpu_clock_hertz{{{GPU}, clock="sm"}}',
                unit="hertz",
                lowest=True,
                limits={
                    "maximum": f'min(stallscope_gpu_clock_configured_hertz{{{GPU}, clock="sm"}}'
                    f' or stallscope_gpu_clock_max_hertz{{{GPU}, clock="sm"}})'
                },
                width=8,
            ),
            _throttling(),
        ),
    )


def _throttling() -> Panel:
    throttled = f"max by (cluster, instance, gpu, mig, reason) ({share('stallscope_gpu_throttled_seconds_total')}) > 0"
    return shares_over_time(
        "Clock throttle reasons",
        f"Share of time in which clocks were throttled, by reason, of the {ROWS} largest; empty if never. Thermal: "
        "improve cooling. Power cap: raise the limit. Power brake or hardware slowdown: check the power supply.",
        [Query(few(throttled, ROWS), f"{NAME} {{{{reason}}}}", least_step="1m")],
        height=7,
        links=CURVE,
    )
