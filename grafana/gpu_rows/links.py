"""The ways in and out: PCIe and NVLink against what they can do."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import RED, Override, limits_of_each
from grafana.builders.panel import Panel, table, time_series
from grafana.builders.query import Query
from grafana.gpu_rows.asking import CURVE, MINUTE, NAME, ONE, PLACE, PLACE_LINKS, rate


def row() -> Row:
    """Return the row."""
    return Row(
        "PCIe and NVLink", (_pcie(), _nvlink(), _pcie_state(), _replays(), _pcie_link(), _links_up()), collapsed=True
    )


def _pcie() -> Panel:
    return time_series(
        "PCIe throughput",
        "Bytes a second each way. Dashed, what the link can carry as it is now: lanes x 2 ^ generation x the bytes a "
        "second of a lane per such unit (threshold h2d_lane_bytes). Near it: send fewer bytes, or overlap copies with "
        "computing.",
        [
            Query(rate("stallscope_gpu_pcie_receive_bytes_total"), f"{NAME} to the GPU"),
            Query(rate("stallscope_gpu_pcie_transmit_bytes_total"), f"{NAME} from the GPU"),
            Query(
                f"""
                  stallscope_gpu_pcie_link_width{{{GPU}}}
                * 2 ^ stallscope_gpu_pcie_link_generation{{{GPU}}}
                * scalar(max(stallscope:threshold{{name="h2d_lane_bytes"}}))
                """,
                f"{NAME} limit",
            ),
        ],
        unit="Bps",
        overrides=limits_of_each(),
        links=CURVE,
    )


def _nvlink() -> Panel:
    return time_series(
        "NVLink throughput",
        "Bytes a second over all links, each way. The driver doesn't say what the links can carry, so that no limit "
        "is drawn. Nothing here: this GPU has no NVLink.",
        [
            Query(rate("stallscope_gpu_nvlink_receive_bytes_total"), f"{NAME} received"),
            Query(rate("stallscope_gpu_nvlink_transmit_bytes_total"), f"{NAME} sent"),
        ],
        unit="Bps",
        links=CURVE,
    )


def _pcie_state() -> Panel:
    return time_series(
        "PCIe link against what is possible",
        "Generation and lanes over the most possible; 100 % is right. The generation may fall while idle; the last "
        "curve is what the rules call degraded.",
        [
            Query(
                f"stallscope_gpu_pcie_link_generation{{{GPU}}} / stallscope_gpu_pcie_link_generation_max{{{GPU}}}",
                f"{NAME} generation",
            ),
            Query(
                f"stallscope_gpu_pcie_link_width{{{GPU}}} / stallscope_gpu_pcie_link_width_max{{{GPU}}}",
                f"{NAME} lanes",
            ),
            Query(f"gpu:pcie_degraded:ratio{{{GPU}}}", f"{NAME} degraded"),
        ],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )


def _replays() -> Panel:
    return time_series(
        "PCIe replays a minute",
        "Packets sent again. A few are normal; where the rules judge them too many for this link, that curve is drawn "
        "too: reseat the card or its riser.",
        [
            Query(f"{MINUTE} * {rate('stallscope_gpu_pcie_replays_total')}", NAME),
            Query(f"gpu:pcie_replays:per_minute5m{{{GPU}}}", f"{NAME} too many"),
        ],
        unit="short",
        overrides=[Override(("byRegexp", "/ too many$/"), {"color": {"mode": "fixed", "fixedColor": RED}})],
        links=CURVE,
    )


def _pcie_link() -> Panel:
    return table(
        "PCIe link",
        "Generation and lanes now, and the most that GPU and slot can do. Fewer lanes than possible: reseat the card. "
        "A lower generation is normal while idle.",
        [
            Query(f"max by ({ONE}) (stallscope_gpu_pcie_link_generation{{{GPU}}})", table=True),
            Query(f"max by ({ONE}) (stallscope_gpu_pcie_link_generation_max{{{GPU}}})", table=True),
            Query(f"max by ({ONE}) (stallscope_gpu_pcie_link_width{{{GPU}}})", table=True),
            Query(f"max by ({ONE}) (stallscope_gpu_pcie_link_width_max{{{GPU}}})", table=True),
        ],
        columns={
            **PLACE,
            "Value #A": "Generation",
            "Value #B": "possible",
            "Value #C": "Lanes",
            "Value #D": "possible lanes",
        },
        unit="none",
        width=12,
        overrides=PLACE_LINKS,
        no_value="No GPU here tells its PCIe link.",
    )


def _links_up() -> Panel:
    return time_series(
        "NVLinks up",
        "Links that are up; dashed, those that the GPU has. Fewer while its neighbours have all: check the fabric "
        "manager, then the bridge or baseboard.",
        [
            Query(f"stallscope_gpu_nvlink_links_active{{{GPU}}}", NAME),
            Query(f"stallscope_gpu_nvlink_links{{{GPU}}}", f"{NAME} limit"),
        ],
        unit="none",
        decimals=0,
        overrides=limits_of_each(),
        links=CURVE,
    )
