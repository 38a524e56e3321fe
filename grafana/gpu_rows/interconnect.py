"""PCIe and NVLink throughput relative to their limits."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import RED, Override, limits_of_each
from grafana.builders.panel import Panel, table, time_series
from grafana.builders.query import Query
from grafana.gpu_rows.gpu_queries import CURVE, MINUTE, NAME, ONE, PLACE, PLACE_LINKS, rate


def row() -> Row:
    """Return the row."""
    return Row(
        "PCIe and NVLink", (_pcie(), _nvlink(), _pcie_state(), _replays(), _pcie_link(), _links_up()), collapsed=True
    )


def _pcie() -> Panel:
    return time_series(
        "PCIe throughput",
        "Bytes per second in each direction. Dashed: maximum of the link as it is now: lanes x 2 ^ generation x bytes "
        "per second of a lane per such unit (threshold h2d_lane_bytes). Near it: copy fewer bytes, or overlap copies "
        "with computation.",
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
        "Bytes per second over all links, in each direction. The driver does not report the links' maximum, so no "
        "limit is shown. Empty: this GPU has no NVLink.",
        [
            Query(rate("stallscope_gpu_nvlink_receive_bytes_total"), f"{NAME} received"),
            Query(rate("stallscope_gpu_nvlink_transmit_bytes_total"), f"{NAME} sent"),
        ],
        unit="Bps",
        links=CURVE,
    )


def _pcie_state() -> Panel:
    return time_series(
        "PCIe link relative to its maximum",
        "Generation and lanes relative to the maximum; 100 % is correct. The generation may fall while idle. The last "
        "line is the degradation that the rules use.",
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
        "PCIe replays per minute",
        "Replayed packets. A few are normal. If the rules find too many for this link, that line is shown too: reseat "
        "the card or its riser.",
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
        "Current generation and lanes, and the maximum of GPU and slot. Fewer lanes than possible: reseat the card. A "
        "lower generation is normal while idle.",
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
            "Value #D": "maximum lanes",
        },
        unit="none",
        width=12,
        overrides=PLACE_LINKS,
        no_value="No selected GPU reports its PCIe link.",
    )


def _links_up() -> Panel:
    return time_series(
        "Active NVLinks",
        "Active links; dashed: all links of the GPU. If only this GPU has inactive links, check the fabric manager, "
        "then the bridge or baseboard.",
        [
            Query(f"stallscope_gpu_nvlink_links_active{{{GPU}}}", NAME),
            Query(f"stallscope_gpu_nvlink_links{{{GPU}}}", f"{NAME} limit"),
        ],
        unit="none",
        decimals=0,
        overrides=limits_of_each(),
        links=CURVE,
    )
