"""PCIe and NVLink."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import by_name
from grafana.builders.panel import Panel, table
from grafana.builders.query import Query, level
from grafana.gpu_rows.gpu_queries import MINUTE, ONE, PLACE, PLACE_LINKS, line, rate


def row() -> Row:
    """Return the row."""
    return Row(
        "PCIe and NVLink",
        (
            line(
                "PCIe throughput",
                "Bytes per second in both directions. Dashed: maximum of the slowest link in one direction: lanes x "
                "2 ^ generation x bytes per second of a lane per such unit (threshold h2d_lane_bytes). Near it: copy "
                "fewer bytes, or overlap copies with computation.",
                f"{rate('stallscope_gpu_pcie_receive_bytes_total')}"
                f" + {rate('stallscope_gpu_pcie_transmit_bytes_total')}",
                unit="Bps",
                limits={
                    "link maximum": f"min(stallscope_gpu_pcie_link_width{{{GPU}}}"
                    f" * 2 ^ stallscope_gpu_pcie_link_generation{{{GPU}}}) * scalar({level('h2d_lane_bytes')})"
                },
                width=8,
            ),
            line(
                "NVLink throughput",
                "Bytes per second over all links, in both directions. The driver does not report the links' maximum, "
                "so no limit is shown. Empty: this GPU has no NVLink.",
                f"{rate('stallscope_gpu_nvlink_receive_bytes_total')}"
                f" + {rate('stallscope_gpu_nvlink_transmit_bytes_total')}",
                unit="Bps",
                width=8,
            ),
            line(
                "PCIe replays per minute",
                "Replayed packets. A few are normal. If the rules find too many for a link, the GPU's verdict is "
                "PCIe link errors: reseat the card or its riser.",
                f"{MINUTE} * {rate('stallscope_gpu_pcie_replays_total')}",
                unit="short",
                width=8,
            ),
            _links(),
        ),
        collapsed=True,
    )


def _links() -> Panel:
    families = (
        ("Generation", "pcie_link_generation"),
        ("possible", "pcie_link_generation_max"),
        ("Lanes", "pcie_link_width"),
        ("maximum lanes", "pcie_link_width_max"),
        ("NVLinks active", "nvlink_links_active"),
        ("of NVLinks", "nvlink_links"),
    )
    return table(
        "PCIe and NVLink links",
        "Current generation and lanes, the maximum of GPU and slot, and active NVLinks. Fewer lanes than possible: "
        "reseat the card. A lower generation is normal while idle. Fewer NVLinks than other GPUs: check the fabric "
        "manager, then the bridge or baseboard.",
        [Query(f"max by ({ONE}) (stallscope_gpu_{family}{{{GPU}}})", table=True) for _heading, family in families],
        columns={
            **PLACE,
            **{f"Value #{letter}": heading for letter, (heading, _family) in zip("ABCDEF", families, strict=True)},
        },
        unit="none",
        height=6,
        overrides=[*PLACE_LINKS, *(by_name(heading, custom__width=125) for heading, _family in families)],
        no_value="No selected GPU reports its links.",
    )
