"""Errors that the driver reports."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import GREEN, GREY, ORANGE, RED, YELLOW, Text, by_name, limit_line, texts
from grafana.builders.panel import Panel, state_timeline, table, time_series
from grafana.builders.query import Query, threshold
from grafana.builders.verdicts import in_colour
from grafana.gpu_rows.gpu_queries import CURVE, MILLISECONDS, NAME, ONE, PLACE, PLACE_LINKS


def row() -> Row:
    """Return the row."""
    return Row(
        "Errors",
        (_xids(), _lost(), _reading_age(), _ecc(), _nvlink_errors(), _remapped(), _remap_state()),
        collapsed=True,
    )


def _xids() -> Panel:
    seen = f"max by ({ONE}, xid) (stallscope_gpu_xid_last_timestamp_seconds{{{GPU}}})"
    return table(
        "Xid errors",
        "Xid codes of each GPU since its exporter started, with the time of the last one, its class and the action. "
        "Class hardware: drain the node.",
        [
            Query(
                f"""
                {MILLISECONDS} * (
                    {seen}
                  * on (xid) group_left (class, action)
                    topk by (xid) (1, stallscope:xid:class)
                  or on ({ONE}, xid)
                    label_replace(
                      label_replace({seen}, "class", "unknown", "", ""),
                      "action", "look the code up in NVIDIA's Xid catalogue", "", ""
                    )
                )
                """,
                table=True,
            )
        ],
        columns={**PLACE, "xid": "Xid", "Value": "Last seen", "class": "Class", "action": "Action"},
        unit="none",
        height=7,
        sort="Last seen",
        overrides=[
            *PLACE_LINKS,
            by_name("Last seen", unit="dateTimeAsIso"),
            by_name(
                "Class",
                mappings=texts(
                    {
                        "hw": Text("hardware", RED),
                        "application": Text("application", YELLOW),
                        "workflow": Text("follow-up", ORANGE),
                        "log": Text("informational", GREY),
                        "unknown": Text("unknown", ORANGE),
                    }
                ),
                **in_colour(),
            ),
            by_name("Action", custom__minWidth=300),
        ],
        no_value="No Xid since the exporters started, or the driver reports no events.",
    )


def _lost() -> Panel:
    return table(
        "Lost GPUs",
        "GPUs that cannot be read now, with the reason. Off the bus: look for Xid 79 in the kernel log and reboot. "
        "Released: an operator requested it, and nothing is wrong.",
        [Query(f"stallscope_gpu_lost_info{{{GPU}}} == 1", table=True)],
        columns={**PLACE, "uuid": "UUID", "reason": "Reason"},
        unit="none",
        width=12,
        height=6,
        overrides=PLACE_LINKS,
        no_value="All selected GPUs report.",
    )


def _reading_age() -> Panel:
    return time_series(
        "Time since the last poll",
        "Time since each GPU was last polled. It grows while a driver hangs; other panels have no data then.",
        [Query(f"time() - stallscope_gpu_last_reading_timestamp_seconds{{{GPU}}}", NAME)],
        unit="s",
        height=6,
        links=CURVE,
    )


def _ecc() -> Panel:
    return time_series(
        "ECC errors",
        "Memory errors per interval of the graph. Corrected errors cost nothing but may precede others. An uncorrected "
        "error ends the job: reset the GPU.",
        [
            Query(
                f"increase(stallscope_gpu_ecc_errors_total{{{GPU}}}[$__rate_interval])",
                f"{NAME} {{{{kind}}}}",
            )
        ],
        unit="short",
        bars=True,
        links=CURVE,
    )


def _nvlink_errors() -> Panel:
    return time_series(
        "NVLink errors",
        "Errors over all links per interval of the graph; dashed: the threshold of the rules for five minutes. If "
        "recoveries and errors recur, check bridge or baseboard.",
        [
            Query(
                f"increase(stallscope_gpu_nvlink_errors_total{{{GPU}}}[$__rate_interval])",
                f"{NAME} {{{{kind}}}}",
            ),
            threshold("nvlink_errors", "a fault"),
        ],
        unit="short",
        overrides=limit_line("a fault"),
        links=CURVE,
    )


def _remapped() -> Panel:
    return time_series(
        "Remapped rows and retired pages",
        "Memory retired because of errors. Fast growth or many uncorrected errors qualify for a warranty claim (RMA).",
        [
            Query(f"stallscope_gpu_remapped_rows{{{GPU}}}", f"{NAME} rows {{{{kind}}}}"),
            Query(f"stallscope_gpu_retired_pages{{{GPU}}}", f"{NAME} pages {{{{cause}}}}"),
        ],
        unit="none",
        decimals=0,
        links=CURVE,
    )


def _remap_state() -> Panel:
    return state_timeline(
        "Row remapping",
        "Pending: reset the GPU when its job ends. Failed: replace the GPU.",
        [
            Query(
                f"max by (cluster, instance, gpu, mig) (stallscope_gpu_row_remap_pending{{{GPU}}})", f"{NAME} pending"
            ),
            Query(
                f"2 * max by (cluster, instance, gpu, mig) (stallscope_gpu_row_remap_failed{{{GPU}}})",
                f"{NAME} failed",
            ),
        ],
        mappings=texts({"0": Text("no", GREEN), "1": Text("waits for a reset", YELLOW), "2": Text("failed", RED)}),
        width=12,
        links=CURVE,
    )
