"""Dashboard of one or a few nodes, for their operators: CPUs, memory, disks and network that slow the GPUs."""

from __future__ import annotations

from grafana.builders import choices
from grafana.builders.annotations import events
from grafana.builders.choices import CLUSTER, HOST
from grafana.builders.dashboard import Dashboard, Row
from grafana.builders.field import (
    GREY,
    ORANGE,
    RED,
    YELLOW,
    Text,
    by_name,
    fixed_colours,
    limit_line,
    limits_of_each,
    texts,
)
from grafana.builders.links import runbook, to_dashboard
from grafana.builders.panel import Panel, table, time_series
from grafana.builders.query import Query, threshold
from grafana.builders.variables import datasource
from grafana.builders.verdicts import columns, in_colour, of_gpus, remedy_by_cause, with_remedy

_NODE = "{{instance}}"
_DEVICE = "{{instance}} {{device}}"

_TO_RUN = to_dashboard("stallscope-run", "The run", {"run": "${__data.fields.Run}"})
_TO_GPU = to_dashboard(
    "stallscope-gpu", "The GPU", {"instance": "${__data.fields.Node}", "gpu": "${__data.fields.GPU}"}
)
_TO_HOST = to_dashboard("stallscope-host", "Filter by this node", {"instance": "${__data.fields.Node}"})
_CURVE = (
    to_dashboard("stallscope-host", "Filter by this node", {"instance": "${__field.labels.instance}"}),
    to_dashboard("stallscope-gpu", "Open GPUs", {"instance": "${__field.labels.instance}"}),
)
_RANK_CURVE = (
    to_dashboard("stallscope-run", "Open rank", {"run": "${__field.labels.run}", "rank": "${__field.labels.rank}"}),
)
_OTHERWISE = [{"type": "regex", "options": {"pattern": ".+", "result": {"text": "see runbook", "index": 0}}}]
"""Alerts on Stallscope itself have no cause of lost time."""


def _rate(counter: str, labels: str = "") -> str:
    """Return the rate of a counter per second."""
    return f"rate({counter}{{{HOST}{labels}}}[$__rate_interval])"


# First screen: verdicts and pressure of the node.


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
            Query(f"sum by (cluster, instance, namespace, run) ({here})", table=True),
        ],
        columns={
            "instance": "Node",
            "run": "Run",
            "namespace": "Namespace",
            "Value #B": "Ranks on this node",
            "cause": "Verdict",
            "Value #A": "Time lost",
            "remedy": "What to change",
        },
        unit="none",
        height=5,
        sort="Time lost",
        overrides=[
            by_name("Node", links=[_TO_HOST]),
            by_name("Run", links=[_TO_RUN]),
            by_name("Ranks on this node", custom__width=100),
            by_name("Time lost", unit="percentunit", decimals=0, custom__width=100),
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
                with_remedy(f"max by (cluster, instance, gpu, uuid, mig, run, rank, cause) ({of_gpus(HOST)})"),
                table=True,
            )
        ],
        columns={
            "instance": "Node",
            "gpu": "GPU",
            "mig": "MIG instance",
            "cause": "Verdict",
            "Value": "Time lost",
            "remedy": "What to change",
            "run": "Run",
            "rank": "Rank",
        },
        unit="percentunit",
        height=8,
        sort="Time lost",
        overrides=[
            by_name("Node", links=[_TO_HOST]),
            by_name("GPU", links=[_TO_GPU], custom__width=70),
            by_name("MIG instance", custom__width=110),
            by_name("Time lost", decimals=0, custom__width=100),
            by_name("Run", links=[_TO_RUN]),
            by_name("Rank", custom__width=70),
            *columns(),
        ],
        no_value="No verdict: no GPU reports on this node, or Prometheus has not loaded the Stallscope rules.",
    )


def _alerts() -> Panel:
    return table(
        "Firing alerts of this node and its GPUs",
        "Alerts that fire now, with their remedies. Click an alert for its runbook.",
        [
            Query(
                with_remedy(
                    f"""
                    max by (cluster, instance, alertname, severity, cause, gpu, device, run) (
                      ALERTS{{{HOST}, alertstate="firing", cause!=""}}
                    )
                    """
                ),
                table=True,
            )
        ],
        columns={
            "instance": "Node",
            "severity": "Severity",
            "alertname": "Alert",
            "gpu": "GPU",
            "device": "Device",
            "run": "Run",
            "remedy": "What to change",
        },
        unit="none",
        height=5,
        overrides=[
            by_name("Node", links=[_TO_HOST]),
            by_name("Alert", links=[runbook()], custom__minWidth=200),
            by_name("GPU", links=[_TO_GPU], custom__width=70),
            by_name("Run", links=[_TO_RUN]),
            by_name(
                "Severity",
                mappings=texts(
                    {
                        "critical": Text("critical", RED),
                        "warning": Text("warning", ORANGE),
                        "info": Text("info", GREY),
                    }
                ),
                **in_colour(),
                custom__width=100,
            ),
            by_name("What to change", mappings=[*remedy_by_cause(), *_OTHERWISE], custom__minWidth=260),
        ],
        no_value="No firing alerts on this node.",
    )


def _busy() -> Panel:
    return time_series(
        "CPU utilisation, over five minutes",
        "Busy share of all CPUs, as used by the rules; dashed: the threshold for saturation. Above it: decode and "
        "augment less per sample, or give each GPU more CPUs.",
        [
            Query(f"host:cpu_busy:ratio5m{{{HOST}}}", _NODE),
            threshold("cpu_saturated", "saturated"),
            threshold("cpu_saturated_under_pressure", "saturated under pressure"),
        ],
        unit="percentunit",
        maximum=1,
        width=8,
        overrides=[*limit_line("saturated"), *limit_line("saturated under pressure", colour=ORANGE)],
        links=_CURVE,
    )


def _memory_share() -> Panel:
    return time_series(
        "Memory and shared memory used",
        "Memory that is not available without swapping, and used part of /dev/shm; dashed: the alert thresholds. Full: "
        "use fewer loader workers and less prefetching; for /dev/shm, a larger mount.",
        [
            Query(f"host:memory_used:ratio{{{HOST}}}", f"{_NODE} memory"),
            Query(f"host:shared_memory_used:ratio{{{HOST}}}", f"{_NODE} shared memory"),
            threshold("host_memory_used", "memory threshold"),
            threshold("shared_memory_used", "shared memory threshold"),
        ],
        unit="percentunit",
        maximum=1,
        width=8,
        overrides=[*limit_line("memory threshold"), *limit_line("shared memory threshold", colour=ORANGE)],
        links=_CURVE,
    )


def _waiting() -> Panel:
    return time_series(
        "Pressure (PSI): CPU, memory, I/O",
        "Share of the last five minutes in which some task waited; dashed: the thresholds of the rules. Empty on "
        "kernels without pressure stall information.",
        [
            Query(f"host:cpu_pressure:ratio5m{{{HOST}}}", f"{_NODE} CPU"),
            Query(f"host:memory_waiting:ratio5m{{{HOST}}}", f"{_NODE} memory"),
            Query(f"host:io_pressure:ratio5m{{{HOST}}}", f"{_NODE} disks"),
            threshold("cpu_pressure", "CPU threshold"),
            threshold("memory_pressure", "memory threshold"),
            threshold("disk_pressure", "I/O threshold"),
        ],
        unit="percentunit",
        width=8,
        overrides=limit_line("CPU threshold", "memory threshold", "I/O threshold"),
        links=_CURVE,
    )


# CPUs.


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
        stacked=True,
        overrides=fixed_colours(
            {"user": "blue", "system": "orange", "iowait": "red", "other": "purple", "idle": "#303030"}
        ),
    )


def _busiest() -> Panel:
    return time_series(
        "Busiest CPU and mean",
        "If one CPU is at its limit (dashed) while the mean is low, a single thread limits the input: move its work "
        "into loader workers.",
        [
            Query(f"clamp_max({_rate('stallscope_host_busiest_cpu_seconds_total')}, 1)", f"{_NODE} busiest"),
            Query(f"host:cpu_busy:ratio5m{{{HOST}}}", f"{_NODE} mean"),
            threshold("single_thread_core", "one CPU saturated"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("one CPU saturated"),
        links=_CURVE,
    )


def _throttled() -> Panel:
    return time_series(
        "CPU throttling of ranks (CFS periods)",
        "Share of CFS periods in which a rank's cgroup used up its CPU quota; dashed: the threshold. Raise or remove "
        "the limit, or run no more loader workers than it allows.",
        [
            Query(
                f"""
                  {_rate("stallscope_training_cpu_throttled_periods_total")}
                /
                  ({_rate("stallscope_training_cpu_periods_total")} > 0)
                """,
                "{{run}} {{rank}}",
            ),
            threshold("quota_throttled", "throttled"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("throttled"),
        links=_RANK_CURVE,
    )


def _rank_cpus() -> Panel:
    return time_series(
        "CPUs used by ranks",
        "CPUs used by each rank with its loader workers; dashed: its quota or affinity. At the line, the rank cannot "
        "load faster.",
        [
            Query(_rate("stallscope_training_process_cpu_seconds_total"), "{{run}} {{rank}}"),
            Query(f"stallscope_training_cpu_limit_cores{{{HOST}}}", "{{run}} {{rank}} limit"),
        ],
        unit="short",
        overrides=limits_of_each(),
        links=_RANK_CURVE,
    )


def _throttled_time() -> Panel:
    return time_series(
        "CPU throttling of ranks (time)",
        "Seconds per second for which the quota throttled a rank's threads, summed over CPUs, so it may exceed 1. "
        "Empty: no quota, or no run.",
        [Query(_rate("stallscope_training_cpu_throttled_seconds_total"), "{{run}} {{rank}}")],
        unit="short",
        links=_RANK_CURVE,
    )


def _pressure() -> Panel:
    return time_series(
        "Pressure: some tasks waited",
        "Share of time in which at least one task waited for the resource (PSI: some). High for cpu: use fewer "
        "workers. High for io while ranks wait for data: move data closer, or read larger pieces.",
        [Query(_rate("stallscope_host_pressure_waiting_seconds_total"), f"{_NODE} {{{{resource}}}}")],
        unit="percentunit",
        links=_CURVE,
    )


def _stalled() -> Panel:
    return time_series(
        "Pressure: all tasks waited",
        "Share of time in which all tasks waited for the resource at the same time (PSI: full), so the host computed "
        "nothing. Fix any more than a trace, memory first.",
        [Query(_rate("stallscope_host_pressure_stalled_seconds_total"), f"{_NODE} {{{{resource}}}}")],
        unit="percentunit",
        links=_CURVE,
    )


# Memory.


def _memory() -> Panel:
    return time_series(
        "Memory",
        "Available memory, the page cache within it, and (dashed) total memory. If the page cache holds the whole data "
        "set, only the first epoch is slow.",
        [
            Query(f"stallscope_host_memory_available_bytes{{{HOST}}}", f"{_NODE} available"),
            Query(f"stallscope_host_page_cache_bytes{{{HOST}}}", f"{_NODE} page cache"),
            Query(f"stallscope_host_memory_total_bytes{{{HOST}}}", f"{_NODE} limit"),
        ],
        unit="bytes",
        overrides=limits_of_each(),
        links=_CURVE,
    )


def _rank_memory() -> Panel:
    return time_series(
        "Memory of ranks",
        "Resident memory of each rank with its loader workers. Steady growth without an end: samples are kept, or "
        "workers copy the memory that they access.",
        [Query(f"stallscope_training_process_memory_bytes{{{HOST}}}", "{{run}} {{rank}}")],
        unit="bytes",
        links=_RANK_CURVE,
    )


def _shared_memory() -> Panel:
    return time_series(
        "Shared memory",
        "Used part of /dev/shm, through which loader workers pass batches, and (dashed) its size. Full: workers die "
        "with a bus error, so mount a larger one.",
        [
            Query(f"stallscope_host_shared_memory_used_bytes{{{HOST}}}", _NODE),
            Query(f"stallscope_host_shared_memory_total_bytes{{{HOST}}}", f"{_NODE} limit"),
        ],
        unit="bytes",
        overrides=limits_of_each(),
        links=_CURVE,
    )


def _swap() -> Panel:
    return time_series(
        "Swapping",
        "Bytes per second read from and written to swap; dashed: the threshold, together with many major page faults. "
        "Reads slow training: use less memory.",
        [
            Query(_rate("stallscope_host_swap_in_bytes_total"), f"{_NODE} in"),
            Query(_rate("stallscope_host_swap_out_bytes_total"), f"{_NODE} out"),
            threshold("swap_in_bytes", "swap-in threshold"),
        ],
        unit="Bps",
        overrides=limit_line("swap-in threshold"),
        links=_CURVE,
    )


def _faults() -> Panel:
    return time_series(
        "Major page faults per second",
        "Memory accesses that had to wait for a read; dashed: the threshold, together with swapping. Mapped files that "
        "do not fit into the page cache cause them too.",
        [
            Query(_rate("stallscope_host_major_page_faults_total"), _NODE),
            threshold("major_faults", "many"),
        ],
        unit="cps",
        overrides=limit_line("many"),
        links=_CURVE,
    )


def _oom() -> Panel:
    return time_series(
        "OOM kills",
        "Processes killed within ten minutes, by cgroup if the exporter can see it. If a loader worker is killed, the "
        "run ends: use fewer workers, less prefetching, or more memory. Empty: no kills.",
        [
            Query(f"host:oom_kills:increase10m{{{HOST}}}", _NODE),
            Query(f"topk(5, host_cgroup:oom_kills:increase10m{{{HOST}}})", f"{_NODE} {{{{cgroup}}}}"),
        ],
        unit="none",
        decimals=0,
        bars=True,
        links=_CURVE,
    )


# Disks and files.


def _disk_bytes() -> Panel:
    return time_series(
        "Disks: bytes per second",
        "Read and written, by device. If nothing is read while the input is slow, data come from the page cache or "
        "over the network: check these.",
        [
            Query(_rate("stallscope_host_disk_read_bytes_total"), f"{_DEVICE} read"),
            Query(_rate("stallscope_host_disk_written_bytes_total"), f"{_DEVICE} written"),
        ],
        unit="Bps",
        links=_CURVE,
    )


def _disk_busy() -> Panel:
    return time_series(
        "Disk utilisation (time)",
        "Share of time in which the device had outstanding requests. On solid-state disks 100 % alone is not "
        "saturation: check I/O pressure.",
        [Query(f"clamp_max({_rate('stallscope_host_disk_busy_seconds_total')}, 1)", _DEVICE)],
        unit="percentunit",
        maximum=1,
        links=_CURVE,
    )


def _nfs_bytes() -> Panel:
    return time_series(
        "NFS: bytes read per second",
        "By mount. If it is steady and far below the network's limit while the input waits, latency is the limit, not "
        "bandwidth. Empty: no NFS.",
        [Query(_rate("stallscope_host_nfs_read_bytes_total"), f"{_NODE} {{{{mount}}}}")],
        unit="Bps",
        links=_CURVE,
    )


def _nfs_operations() -> Panel:
    return time_series(
        "NFS: operations per second",
        "By mount. Many operations for few bytes: pack small files into shards.",
        [Query(_rate("stallscope_host_nfs_operations_total"), f"{_NODE} {{{{mount}}}}")],
        unit="ops",
        links=_CURVE,
    )


def _nfs_wait() -> Panel:
    return time_series(
        "NFS: operation latency",
        "Mean queue and round-trip time of an operation; dashed: the threshold for many operations in flight. Slow: "
        "use larger objects, more parallel requests (nconnect), or stage data locally.",
        [
            Query(
                f"""
                  {_rate("stallscope_host_nfs_operation_wait_seconds_total")}
                /
                  ({_rate("stallscope_host_nfs_operations_total")} > 0)
                """,
                f"{_NODE} {{{{mount}}}}",
            ),
            threshold("nfs_wait_seconds", "slow"),
        ],
        unit="s",
        overrides=limit_line("slow"),
        links=_CURVE,
    )


def _nfs_in_flight() -> Panel:
    return time_series(
        "NFS: operations in flight",
        "Mean number of operations in flight; dashed: the number that fills the client's slots. At the line: mount "
        "with nconnect, or read larger pieces.",
        [
            Query(_rate("stallscope_host_nfs_operation_wait_seconds_total"), f"{_NODE} {{{{mount}}}}"),
            threshold("nfs_in_flight", "many"),
        ],
        unit="short",
        overrides=limit_line("many"),
        links=_CURVE,
    )


# Network.


def _network() -> Panel:
    return time_series(
        "Network: bytes per second",
        "Received and sent, by interface; dashed: the link speed, if the interface reports it. At the line: cache data "
        "locally, compress them, or shard them by node.",
        [
            Query(_rate("stallscope_host_network_receive_bytes_total"), f"{_DEVICE} received"),
            Query(_rate("stallscope_host_network_transmit_bytes_total"), f"{_DEVICE} sent"),
            Query(f"stallscope_host_network_link_bytes_per_second{{{HOST}}}", f"{_DEVICE} limit"),
        ],
        unit="Bps",
        overrides=limits_of_each(),
        links=_CURVE,
    )


def _link_share() -> Panel:
    return time_series(
        "Network: share of link speed used for data",
        "Received data relative to the link speed, on the busiest interface that receives much more than it sends (so "
        "that gradients do not count); dashed: the threshold of the rules.",
        [
            Query(f"host:network_data:ratio5m{{{HOST}}}", _NODE),
            threshold("network_high", "the limit"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("the limit"),
        links=_CURVE,
    )


def _drops() -> Panel:
    return time_series(
        "Network: drops and errors per second",
        "Dropped or faulty packets, in both directions. If errors persist, change cable or transceiver. Drops alone: "
        "the host does not process packets fast enough.",
        [
            Query(_rate("stallscope_host_network_drops_total"), f"{_DEVICE} dropped"),
            Query(_rate("stallscope_host_network_errors_total"), f"{_DEVICE} errors"),
            threshold("network_errors_per_second", "many"),
        ],
        unit="cps",
        overrides=limit_line("many", colour=YELLOW),
        links=_CURVE,
    )


def _error_share() -> Panel:
    return time_series(
        "Network: packet loss, over an hour",
        "Share of dropped or faulty packets, if it exceeds the threshold (dashed). Empty: no interface loses too many.",
        [
            Query(f"host:network_errors:ratio1h{{{HOST}}}", _DEVICE),
            threshold("network_error_ratio", "too many"),
        ],
        unit="percentunit",
        overrides=limit_line("too many"),
        links=_CURVE,
    )


def _rdma() -> Panel:
    return time_series(
        "InfiniBand and RoCE: bytes per second",
        "Received and sent, by port; mostly gradients between nodes. If one port is idle among busy ones, check its "
        "cable and the interfaces that the communication library uses.",
        [
            Query(_rate("stallscope_host_rdma_receive_bytes_total"), f"{_DEVICE} {{{{port}}}} received"),
            Query(_rate("stallscope_host_rdma_transmit_bytes_total"), f"{_DEVICE} {{{{port}}}} sent"),
        ],
        unit="Bps",
        links=_CURVE,
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
        width=12,
        overrides=[by_name("Node", links=[_TO_HOST]), by_name("Memory", unit="bytes")],
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
            Row("", (_runs(), _gpus(), _busy(), _waiting(), _memory_share(), _alerts())),
            Row("CPUs", (_modes(), _busiest(), _throttled(), _rank_cpus())),
            Row("Network", (_network(), _link_share(), _drops(), _error_share(), _rdma(), _what_it_is())),
            Row(
                "Memory",
                (_memory(), _shared_memory(), _swap(), _faults(), _oom(), _rank_memory()),
                collapsed=True,
            ),
            Row(
                "Disks and NFS",
                (_disk_bytes(), _disk_busy(), _nfs_bytes(), _nfs_operations(), _nfs_wait(), _nfs_in_flight()),
                collapsed=True,
            ),
            Row("Pressure and throttling details", (_pressure(), _stalled(), _throttled_time()), collapsed=True),
        ),
        annotations=(
            events(
                "Alerts",
                f'ALERTS{{{HOST}, alertstate="firing", cause!=""}}',
                title="{{alertname}}",
                text="{{severity}}: {{instance}}",
                colour=ORANGE,
                labels="severity,instance,gpu,device",
            ),
            events(
                "Xids",
                f"1000 * stallscope_gpu_xid_last_timestamp_seconds{{{HOST}}}",
                title="Xid {{xid}}",
                text="GPU {{gpu}} of {{instance}}",
                colour=RED,
                labels="instance,gpu,xid",
                at_value=True,
            ),
        ),
    )
