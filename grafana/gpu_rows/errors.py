"""Errors that the driver reports."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import GREY, ORANGE, RED, Text, by_name, texts
from grafana.builders.panel import Panel, table
from grafana.builders.query import Query, level
from grafana.builders.verdicts import in_colour
from grafana.gpu_rows.gpu_queries import MILLISECONDS, NAME, ONE, PLACE, PLACE_LINKS, line


def row() -> Row:
    """Return the row."""
    return Row(
        "Errors",
        (
            _xids(),
            _lost(),
            _remapping(),
            line(
                "ECC errors",
                "Memory errors per interval of the graph. Corrected errors cost nothing but may precede others. An "
                "uncorrected error ends the job: reset the GPU.",
                f"increase(stallscope_gpu_ecc_errors_total{{{GPU}}}[$__rate_interval])",
                unit="short",
                name=f"{NAME} {{{{kind}}}}",
            ),
            line(
                "NVLink errors",
                "Errors over all links per interval of the graph; dashed: the threshold of the rules for five "
                "minutes. If recoveries and errors recur, check bridge or baseboard.",
                f"increase(stallscope_gpu_nvlink_errors_total{{{GPU}}}[$__rate_interval])",
                unit="short",
                name=f"{NAME} {{{{kind}}}}",
                limits={"a fault": level("nvlink_errors")},
            ),
        ),
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
        height=6,
        sort="Last seen",
        overrides=[
            *PLACE_LINKS,
            by_name("Xid", custom__width=60),
            by_name("Last seen", unit="dateTimeAsIso", custom__width=170),
            by_name(
                "Class",
                mappings=texts(
                    {
                        "hw": Text("hardware", RED),
                        "application": Text("application"),
                        "workflow": Text("follow-up", ORANGE),
                        "log": Text("informational", GREY),
                        "unknown": Text("unknown", ORANGE),
                    }
                ),
                custom__width=120,
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


def _remapping() -> Panel:
    count = f"sum by ({ONE}) (stallscope_gpu_remapped_rows{{{GPU}}})"
    pending, failed = (f"max by ({ONE}) (stallscope_gpu_row_remap_{state}{{{GPU}}})" for state in ("pending", "failed"))
    return table(
        "Row remapping",
        "Memory rows retired because of errors. Pending: reset the GPU when its job ends. Failed: replace the GPU. "
        "Fast growth or many uncorrected errors qualify for a warranty claim (RMA).",
        [Query(f"topk(100, {query} > 0)", table=True) for query in (count, pending, failed)],
        columns={**PLACE, "Value #A": "Rows", "Value #B": "Pending", "Value #C": "Failed"},
        unit="none",
        width=12,
        height=6,
        sort="Rows",
        overrides=[
            *PLACE_LINKS,
            by_name("Rows", custom__width=80),
            by_name("Pending", mappings=texts({"1": Text("yes", ORANGE)}), custom__width=90, **in_colour()),
            by_name("Failed", mappings=texts({"1": Text("yes", RED)}), custom__width=90, **in_colour()),
        ],
        no_value="No row was remapped.",
    )
