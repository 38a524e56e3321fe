"""Dashboard of one or a few nodes, for their operators: CPUs, memory, disks and network that slow the GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grafana.builders import choices
from grafana.builders.alerts import alert_table, fired, firing, severities
from grafana.builders.annotations import alert_marks
from grafana.builders.choices import CLUSTER, HOST
from grafana.builders.dashboard import Dashboard, Row
from grafana.builders.field import ORANGE, QUIET, by_name, fixed_colours
from grafana.builders.lines import lines
from grafana.builders.links import to_dashboard
from grafana.builders.panel import Panel, state_timeline, table, time_series
from grafana.builders.query import Query, level
from grafana.builders.variables import datasource
from grafana.builders.verdicts import columns, of_gpus, with_remedy

_NODE = "{{instance}}"
_DEVICE = "{{instance}} {{device}}"

_TO_RUN = to_dashboard("stallscope-run", "The run", {"run": "${__data.fields.Run}"})
_TO_GPU = to_dashboard("stallscope-gpu", "The GPU", {"gpu": "${__data.fields.GPU}"}, kept=["instance"])
_TO_HOST = to_dashboard("stallscope-host", "Filter by this node", {"instance": "${__data.fields.Node}"})
_CURVE = (
    to_dashboard("stallscope-host", "Filter by this node", {"instance": "${__field.labels.instance}"}),
    to_dashboard("stallscope-gpu", "Open GPUs", {"instance": "${__field.labels.instance}"}),
)
_RANK_CURVE = (
    to_dashboard("stallscope-run", "Open rank", {"run": "${__field.labels.run}", "rank": "${__field.labels.rank}"}),
)


def _rate(counter: str, labels: str = "") -> str:
    """Return the rate of a counter per second."""
    return f"rate({counter}{{{HOST}{labels}}}[$__rate_interval])"


def _runs() -> Panel:
    here = f"count by (cluster, instance, namespace, run) (rank:live:info{{{HOST}}})"
    judged = f"(0 * {here} + on (cluster, namespace, run) group_left (cause) run:verdict:ratio5m{{{CLUSTER}}})"
    return table(
        "Runs on this node",
        "Training runs with a rank on this node, the costliest cause of each run (over all its nodes), and its remedy. "
        "Click a run for its phases.",
        [
            Query(
                with_remedy(f"max by (cluster, instance, namespace, run, cause) ({judged})"),
                table=True,
            ),
        ],
        columns={
            "instance": "Node",
            "run": "Run",
            "cause": "Verdict",
            "Value": "Time lost",
            "remedy": "What to change",
        },
        unit="none",
        height=5,
        sort="Time lost",
        overrides=[
            by_name("Node", links=[_TO_HOST], custom__width=150),
            by_name("Run", links=[_TO_RUN], custom__width=130),
            by_name("Time lost", unit="percentunit", decimals=0, custom__width=105),
            *columns(),
        ],
        no_value="No run reports from this node. Add the shim to the training code.",
    )


def _gpus() -> Panel:
    return table(
        "GPUs of this node",
        "Costliest cause of each GPU, the share of the last five minutes that it costs, its remedy, and the run on it. "
        "Click a GPU for its dashboard.",
        [
            Query(
                with_remedy(f"max by (cluster, instance, gpu, uuid, mig, run, cause) ({of_gpus(HOST)})"),
                table=True,
            )
        ],
        columns={
            "instance": "Node",
            "gpu": "GPU",
            "mig": "MIG",
            "run": "Run",
            "cause": "Verdict",
            "Value": "Time lost",
            "remedy": "What to change",
        },
        unit="percentunit",
        height=6,
        sort="Time lost",
        overrides=[
            by_name("Node", links=[_TO_HOST], custom__width=150),
            by_name("GPU", links=[_TO_GPU], custom__width=60),
            by_name("MIG", custom__width=85),
            by_name("Time lost", decimals=0, custom__width=105),
            by_name("Run", links=[_TO_RUN], custom__width=130),
            *columns(),
        ],
        no_value="No verdict: no GPU reports on this node, or Prometheus has not loaded the Stallscope rules.",
    )


def _alerts() -> Panel:
    return alert_table(
        "Firing alerts of this node and its GPUs",
        "Alerts that fire now. Click an alert for its runbook.",
        firing(HOST),
        {"gpu": "GPU", "device": "Device"},
        [
            by_name("Device", custom__width=90),
            by_name("GPU", links=[_TO_GPU], custom__width=60),
        ],
        width=12,
    )


def _alerts_over_time() -> Panel:
    return state_timeline(
        "Alerts over time",
        "Alerts on these nodes and their GPUs that fired longest in the time range.",
        [fired(firing(HOST))],
        mappings=severities(),
        width=12,
        height=6,
    )


def _line(title: str, description: str, values: str | Mapping[str, str], **options: Any) -> Panel:
    """Draw values of nodes or their devices; options as for `lines`."""
    return lines(title, description, {_NODE: values} if isinstance(values, str) else values, links=_CURVE, **options)


def _of_ranks(title: str, description: str, expression: str, **options: Any) -> Panel:
    """Draw values of ranks on these nodes; options as for `lines`."""
    return lines(title, description, {"{{run}} {{rank}}": expression}, links=_RANK_CURVE, **options)


def _first_lines() -> tuple[Panel, ...]:
    return (
        _line(
            "Busiest CPU and mean",
            "If one CPU is at its limit (dashed) while the mean is low, a single thread limits the input: move its "
            "work into loader workers.",
            {
                f"{_NODE} busiest": f"clamp_max({_rate('stallscope_host_busiest_cpu_seconds_total')}, 1)",
                f"{_NODE} mean": f"host:cpu_busy:ratio5m{{{HOST}}}",
            },
            unit="percentunit",
            limits={
                "one CPU saturated": level("single_thread_core"),
                "all CPUs saturated": level("cpu_saturated"),
            },
            width=8,
        ),
        _line(
            "Pressure (PSI): CPU, memory, I/O",
            "Share of the last five minutes in which some task waited; dashed: the thresholds of the rules. Empty on "
            "kernels without pressure stall information.",
            {
                f"{_NODE} CPU": f"host:cpu_pressure:ratio5m{{{HOST}}}",
                f"{_NODE} memory": f"host:memory_waiting:ratio5m{{{HOST}}}",
                f"{_NODE} I/O": f"host:io_pressure:ratio5m{{{HOST}}}",
            },
            unit="percentunit",
            limits={"memory threshold": level("memory_pressure"), "I/O threshold": level("disk_pressure")},
            width=8,
        ),
        _line(
            "Memory and shared memory used",
            "Memory that is not available without swapping, and used part of /dev/shm; dashed: the alert thresholds. "
            "Full: use fewer loader workers and less prefetching; for /dev/shm, a larger mount.",
            {
                f"{_NODE} memory": f"host:memory_used:ratio{{{HOST}}}",
                f"{_NODE} shared memory": f"host:shared_memory_used:ratio{{{HOST}}}",
            },
            unit="percentunit",
            limits={
                "memory threshold": level("host_memory_used"),
                "shared memory threshold": level("shared_memory_used"),
            },
            width=8,
        ),
    )


def _modes() -> Panel:
    return time_series(
        "CPU time by mode",
        "Mean of the selected nodes. High user time: decoding and augmentation. High system time: copies, page faults, "
        "many small files. High I/O wait: disks.",
        [
            Query(
                f"""
                  sum by (mode) ({_rate("stallscope_host_cpu_seconds_total")})
                /
                  scalar(sum({_rate("stallscope_host_cpu_seconds_total")}))
                """,
                "{{mode}}",
            )
        ],
        unit="percentunit",
        maximum=1,
        width=8,
        stacked=True,
        overrides=fixed_colours(
            {
                "user": "#2A69BE",
                "system": "#D47F15",
                "iowait": "#E72620",
                "other": "#8851F6",
                "idle": QUIET,
            }
        ),
    )


def _cpu_lines() -> tuple[Panel, ...]:
    periods = _rate("stallscope_training_cpu_periods_total")
    return (
        _of_ranks(
            "CPUs used by ranks, relative to the limit",
            "CPU time of each rank with its loader workers, relative to its quota or affinity. At 100 %, the rank "
            "cannot load faster.",
            f"{_rate('stallscope_training_process_cpu_seconds_total')} / stallscope_training_cpu_limit_cores{{{HOST}}}",
            unit="percentunit",
            soft_maximum=1,
            width=8,
        ),
        _of_ranks(
            "CPU throttling of ranks",
            "Share of CFS periods in which a rank's cgroup used up its CPU quota; dashed: the threshold. Raise or "
            "remove the limit, or run no more loader workers than it allows.",
            f"{_rate('stallscope_training_cpu_throttled_periods_total')} / ({periods} > 0)",
            unit="percentunit",
            limits={"throttled": level("quota_throttled")},
            width=8,
        ),
    )


def _network_lines() -> tuple[Panel, ...]:
    return (
        _line(
            "Network: bytes per second",
            "Received and sent, by interface; dashed: the lowest link speed that an interface reports. At the line: "
            "cache data locally, compress them, or shard them by node.",
            {
                f"{_DEVICE} received": _rate("stallscope_host_network_receive_bytes_total"),
                f"{_DEVICE} sent": _rate("stallscope_host_network_transmit_bytes_total"),
            },
            unit="Bps",
            limits={"link speed": f"min(stallscope_host_network_link_bytes_per_second{{{HOST}}})"},
        ),
        _line(
            "Network: share of link speed used for data",
            "Received data relative to the link speed, on the busiest interface that receives much more than it sends "
            "(so that gradients do not count); dashed: the threshold of the rules.",
            f"host:network_data:ratio5m{{{HOST}}}",
            unit="percentunit",
            limits={"the limit": level("network_high")},
        ),
        _line(
            "Network: packet loss, over an hour",
            "Share of dropped or faulty packets, if it exceeds the threshold (dashed): change cable or transceiver. "
            "Empty: no interface loses too many.",
            {_DEVICE: f"host:network_errors:ratio1h{{{HOST}}}"},
            unit="percentunit",
            soft_maximum=0.01,
            limits={"too many": level("network_error_ratio")},
        ),
        _line(
            "InfiniBand and RoCE: bytes per second",
            "Received and sent, by port; mostly gradients between nodes. If one port is idle among busy ones, check "
            "its cable and the interfaces that the communication library uses.",
            {
                f"{_DEVICE} {{{{port}}}} received": _rate("stallscope_host_rdma_receive_bytes_total"),
                f"{_DEVICE} {{{{port}}}} sent": _rate("stallscope_host_rdma_transmit_bytes_total"),
            },
            unit="Bps",
        ),
        _line(
            "Links slower than on the other hosts of the run",
            "Speed of a network interface, InfiniBand or RoCE port over the median of those of the same name on the "
            "hosts of its run, if it is lower; 0 is a link that is down. Check cable, transceiver and switch port. "
            "Empty: no link is slower, or the run has fewer than three hosts.",
            {f"{_DEVICE} {{{{port}}}}": f"run_link:speed_of_peers:ratio{{{HOST}}}"},
            unit="percentunit",
        ),
    )


def _memory_lines() -> tuple[Panel, ...]:
    return (
        _line(
            "Memory",
            "Available memory, the page cache within it, and (dashed) the smallest total. If the page cache holds the "
            "whole data set, only the first epoch is slow.",
            {
                f"{_NODE} available": f"stallscope_host_memory_available_bytes{{{HOST}}}",
                f"{_NODE} page cache": f"stallscope_host_page_cache_bytes{{{HOST}}}",
            },
            unit="bytes",
            limits={"total": f"min(stallscope_host_memory_total_bytes{{{HOST}}})"},
        ),
        _line(
            "Swapping",
            "Bytes per second read from and written to swap; dashed: the threshold, together with many major page "
            "faults. Reads slow training: use less memory.",
            {
                f"{_NODE} in": _rate("stallscope_host_swap_in_bytes_total"),
                f"{_NODE} out": _rate("stallscope_host_swap_out_bytes_total"),
            },
            unit="Bps",
            limits={"swap-in threshold": level("swap_in_bytes")},
        ),
        _line(
            "OOM kills",
            "Processes killed within ten minutes, by cgroup if the exporter can see it. If a loader worker is killed, "
            "the run ends: use fewer workers, less prefetching, or more memory. Empty: no kills.",
            {
                _NODE: f"host:oom_kills:increase10m{{{HOST}}}",
                f"{_NODE} {{{{cgroup}}}}": f"host_cgroup:oom_kills:increase10m{{{HOST}}}",
            },
            unit="none",
            decimals=0,
            bars=True,
            no_value="No kills.",
        ),
        _of_ranks(
            "Memory of ranks",
            "Resident memory of each rank with its loader workers. Steady growth without an end: samples are kept, or "
            "workers copy the memory that they access.",
            f"stallscope_training_process_memory_bytes{{{HOST}}}",
            unit="bytes",
        ),
    )


def _storage_lines() -> tuple[Panel, ...]:
    mount = f"{_NODE} {{{{mount}}}}"
    wait = _rate("stallscope_host_nfs_operation_wait_seconds_total")
    return (
        _line(
            "Disks: bytes per second",
            "Read and written, by device. If nothing is read while the input is slow, data come from the page cache "
            "or over the network: check these.",
            {
                f"{_DEVICE} read": _rate("stallscope_host_disk_read_bytes_total"),
                f"{_DEVICE} written": _rate("stallscope_host_disk_written_bytes_total"),
            },
            unit="Bps",
            width=8,
        ),
        _line(
            "NFS: operation latency",
            "Mean queue and round-trip time of an operation; dashed: the threshold for many operations in flight. "
            "Slow: use larger objects, more parallel requests (nconnect), or stage data locally.",
            {mount: f"{wait} / ({_rate('stallscope_host_nfs_operations_total')} > 0)"},
            unit="s",
            limits={"slow": level("nfs_wait_seconds")},
            width=8,
        ),
        _line(
            "NFS: operations in flight",
            "Mean number of operations in flight; dashed: the number that fills the client's slots. At the line: "
            "mount with nconnect, or read larger pieces.",
            {mount: wait},
            unit="short",
            limits={"many": level("nfs_in_flight")},
            width=8,
        ),
    )


def _what_it_is() -> Panel:
    return table(
        "Nodes",
        "CPU model, kernel and number of CPUs. Nodes of one run that differ here may differ in speed.",
        [
            Query(f"max by (cluster, instance, cpu_model, kernel) (stallscope_host_info{{{HOST}}})", table=True),
            Query(f"max by (cluster, instance) (stallscope_host_cpus{{{HOST}}})", table=True),
            Query(f"max by (cluster, instance) (stallscope_host_memory_total_bytes{{{HOST}}})", table=True),
            Query(f"count by (cluster, instance) (gpu:up:max{{{HOST}}} == 1)", table=True),
        ],
        columns={
            "instance": "Node",
            "cpu_model": "CPU model",
            "Value #B": "CPUs",
            "Value #C": "Memory",
            "Value #D": "GPUs up",
            "kernel": "Kernel",
        },
        unit="none",
        height=5,
        overrides=[by_name("Node", links=[_TO_HOST], custom__width=150), by_name("Memory", unit="bytes")],
        no_value="No exporter reports from this node.",
    )


def dashboard() -> Dashboard:
    """Return the dashboard of nodes."""
    return Dashboard(
        uid="stallscope-host",
        title="Stallscope / Host",
        description="CPUs, memory, disks and network of a node, and whether they slow its GPUs.",
        variables=(datasource(), choices.cluster(), choices.instance(everything=False)),
        rows=(
            Row("", (_runs(), _gpus(), _alerts_over_time(), _alerts())),
            Row("Saturation", _first_lines()),
            Row("CPUs", (_modes(), *_cpu_lines())),
            Row("Network", (*_network_lines(), _what_it_is()), collapsed=True),
            Row("Memory", _memory_lines(), collapsed=True),
            Row("Disks and NFS", _storage_lines(), collapsed=True),
        ),
        annotations=(alert_marks(firing(HOST), "instance", "gpu", colour=ORANGE),),
    )
