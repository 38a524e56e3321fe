"""Details of memory and throttling."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.lines import lines
from grafana.builders.query import level
from grafana.gpu_rows.gpu_queries import CURVE, NAME, line


def row() -> Row:
    """Return the row."""
    return Row(
        "Memory and throttling details",
        (
            line(
                "BAR1 memory",
                "Address window for other devices to access this GPU's memory; dashed: the smallest window of the "
                "selected GPUs. Full: peer-to-peer and GPUDirect mappings fail.",
                f"stallscope_gpu_bar1_used_bytes{{{GPU}}}",
                unit="bytes",
                limits={"window": f"min(stallscope_gpu_bar1_total_bytes{{{GPU}}})"},
                width=8,
            ),
            line(
                "Memory without a process",
                "Framebuffer memory used on a GPU without processes, above the threshold (dashed). Find processes "
                "that have /dev/nvidia* open and end them, or reset the GPU once it is drained. Empty: no such memory.",
                f"gpu:zombie_memory:bytes5m{{{GPU}}}",
                unit="bytes",
                limits={"least that counts": level("zombie_bytes")},
                width=8,
            ),
            lines(
                "Thermal and power brake throttling",
                "Share of the last ten minutes, as used by the alerts; dashed: their thresholds. Empty: never.",
                {
                    f"{NAME} heat": f"gpu:thermal_throttled:ratio10m{{{GPU}}}",
                    f"{NAME} power brake": f"gpu:power_braked:ratio10m{{{GPU}}}",
                },
                unit="percentunit",
                limits={
                    "thermal threshold": level("thermal_share"),
                    "power brake threshold": level("power_brake_share"),
                },
                links=CURVE,
                width=8,
            ),
        ),
        collapsed=True,
    )
