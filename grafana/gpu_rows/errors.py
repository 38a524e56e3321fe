"""What the driver reports as broken."""

from __future__ import annotations

from grafana.builders.choices import GPU
from grafana.builders.dashboard import Row
from grafana.builders.field import GREEN, GREY, ORANGE, RED, YELLOW, Text, by_name, limit_line, texts
from grafana.builders.panel import Panel, state_timeline, table, time_series
from grafana.builders.query import Query, threshold
from grafana.builders.verdicts import in_colour
from grafana.gpu_rows.asking import CURVE, MILLISECONDS, NAME, ONE, PLACE, PLACE_LINKS


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
        "The driver's error codes that each GPU has had since its exporter started, when each last came, what class "
        "it is, and what to do. Hardware: drain the node.",
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
        columns={**PLACE, "xid": "Xid", "Value": "Last time", "class": "Class", "action": "What to do"},
        unit="none",
        height=7,
        sort="Last time",
        overrides=[
            *PLACE_LINKS,
            by_name("Last time", unit="dateTimeAsIso"),
            by_name(
                "Class",
                mappings=texts(
                    {
                        "hw": Text("hardware", RED),
                        "application": Text("application", YELLOW),
                        "workflow": Text("follow-up", ORANGE),
                        "log": Text("for the record", GREY),
                        "unknown": Text("unknown", ORANGE),
                    }
                ),
                **in_colour(),
            ),
            by_name("What to do", custom__minWidth=300),
        ],
        no_value="No Xid since the exporters started, or the driver gives no events.",
    )


def _lost() -> Panel:
    return table(
        "GPUs that don't answer",
        "GPUs that are not read now, and why. Off the bus: read the kernel log for Xid 79 and reboot. Released: "
        "somebody asked for it, and nothing is wrong.",
        [Query(f"stallscope_gpu_lost_info{{{GPU}}} == 1", table=True)],
        columns={**PLACE, "uuid": "UUID", "reason": "Reason"},
        unit="none",
        width=12,
        height=6,
        overrides=PLACE_LINKS,
        no_value="Every GPU chosen is read.",
    )


def _reading_age() -> Panel:
    return time_series(
        "Age of the newest reading",
        "Time since each GPU was last read. It grows while a driver hangs, and what the other panels show is absent "
        "then.",
        [Query(f"time() - stallscope_gpu_last_reading_timestamp_seconds{{{GPU}}}", NAME)],
        unit="s",
        height=6,
        links=CURVE,
    )


def _ecc() -> Panel:
    return time_series(
        "ECC errors",
        "Memory errors within the step shown. Corrected ones cost nothing but may foretell others; an uncorrected one "
        "ends the job: reset the GPU.",
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
        "Errors over all links within the step shown; dashed, how many in five minutes the rules take for a fault. "
        "Recoveries and errors that come back: check bridge or baseboard.",
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
        "Memory rows remapped and pages retired",
        "Memory taken out of use for its errors. It only grows; fast growth or many uncorrected ones are a case for "
        "the maker.",
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
        "Whether a remap waits for a reset (reset the GPU when its job ends) or failed (replace the GPU).",
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
