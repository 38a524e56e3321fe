"""One node or a few: whether processors, memory, disks or network hold its GPUs back. For whoever owns the machine."""

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
_TO_HOST = to_dashboard("stallscope-host", "This node alone", {"instance": "${__data.fields.Node}"})
_CURVE = (
    to_dashboard("stallscope-host", "This node alone", {"instance": "${__field.labels.instance}"}),
    to_dashboard("stallscope-gpu", "Its GPUs", {"instance": "${__field.labels.instance}"}),
)
_RANK_CURVE = (
    to_dashboard("stallscope-run", "This rank", {"run": "${__field.labels.run}", "rank": "${__field.labels.rank}"}),
)
_OTHERWISE = [{"type": "regex", "options": {"pattern": ".+", "result": {"text": "see its runbook", "index": 0}}}]
"""Alerts of Stallscope itself have no cause of lost time."""


def _rate(counter: str, labels: str = "") -> str:
    """Growth of a counter a second."""
    return f"rate({counter}{{{HOST}{labels}}}[$__rate_interval])"


# First screen: what stands on this node, and what it waits for.


def _runs() -> Panel:
    here = f"count by (cluster, instance, namespace, run) (rank:live:info{{{HOST}}})"
    judged = f"(0 * {here} + on (cluster, namespace, run) group_left (cause) run:verdict:ratio5m{{{CLUSTER}}})"
    return table(
        "Runs on this node",
        "Training runs with a rank here, what costs each run (on all of its nodes) most of its time, and what to "
        "change first. Click a run for its phases.",
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
            "Value #B": "Ranks here",
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
            by_name("Ranks here", custom__width=100),
            by_name("Time lost", unit="percentunit", decimals=0, custom__width=100),
            *columns(),
        ],
        no_value="No run reports from here: add the shim to the training code to see it.",
    )


def _gpus() -> Panel:
    return table(
        "GPUs of this node",
        "What costs each GPU most of its time, the share of the last five minutes that it costs, what to change "
        "first, and the run there. Click a GPU for everything about it.",
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
        no_value="No verdict: no GPU answers here, or Prometheus has no rules of Stallscope.",
    )


def _alerts() -> Panel:
    return table(
        "Firing alerts of this node and its GPUs",
        "What fires now, and what to change first. Click an alert for its runbook, which says how to go about it.",
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
        no_value="No alert of this node fires.",
    )


def _busy() -> Panel:
    return time_series(
        "Processors busy, over five minutes",
        "Share of all processors' time at work, as the rules judge it; dashed, where they call processors saturated. "
        "Over it: decode and augment less for each sample, or have more processors for each GPU.",
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
        "Shares that can't be had without swapping, and of /dev/shm; dashed, where alerts begin. Full: fewer loader "
        "workers, less prefetching; for /dev/shm a larger mount.",
        [
            Query(f"host:memory_used:ratio{{{HOST}}}", f"{_NODE} memory"),
            Query(f"host:shared_memory_used:ratio{{{HOST}}}", f"{_NODE} shared memory"),
            threshold("host_memory_used", "memory full"),
            threshold("shared_memory_used", "shared memory full"),
        ],
        unit="percentunit",
        maximum=1,
        width=8,
        overrides=[*limit_line("memory full"), *limit_line("shared memory full", colour=ORANGE)],
        links=_CURVE,
    )


def _waiting() -> Panel:
    return time_series(
        "Waiting for processors, memory and disks",
        "Share of the last five minutes in which some task waited, as the rules judge it; dashed, where each begins "
        "to count. Kernels without pressure information show nothing.",
        [
            Query(f"host:cpu_pressure:ratio5m{{{HOST}}}", f"{_NODE} processors"),
            Query(f"host:memory_waiting:ratio5m{{{HOST}}}", f"{_NODE} memory"),
            Query(f"host:io_pressure:ratio5m{{{HOST}}}", f"{_NODE} disks"),
            threshold("cpu_pressure", "much for processors"),
            threshold("memory_pressure", "much for memory"),
            threshold("disk_pressure", "much for disks"),
        ],
        unit="percentunit",
        width=8,
        overrides=limit_line("much for processors", "much for memory", "much for disks"),
        links=_CURVE,
    )


# Processors.


def _modes() -> Panel:
    return time_series(
        "Processors by mode",
        "Mean of the nodes chosen. Much user time: decoding and augmentation. Much system time: copies, page faults, "
        "many small files. Much I/O wait: disks.",
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
        stacked="normal",
        overrides=fixed_colours(
            {"user": "blue", "system": "orange", "iowait": "red", "other": "purple", "idle": "#303030"}
        ),
    )


def _busiest() -> Panel:
    return time_series(
        "The busiest processor against the mean",
        "One processor at its end (dashed) while the mean is low: a single thread holds the input up; move its work "
        "into loader workers.",
        [
            Query(f"clamp_max({_rate('stallscope_host_busiest_cpu_seconds_total')}, 1)", f"{_NODE} busiest"),
            Query(f"host:cpu_busy:ratio5m{{{HOST}}}", f"{_NODE} mean"),
            threshold("single_thread_core", "one thread at its end"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("one thread at its end"),
        links=_CURVE,
    )


def _throttled() -> Panel:
    return time_series(
        "Periods throttled, of the ranks here",
        "Share of scheduling periods in which a rank's cgroup used its quota up; dashed, where it counts. Raise or "
        "drop the limit, or have no more loader workers than it allows.",
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


def _rank_processors() -> Panel:
    return time_series(
        "Processors used by the ranks here",
        "Processors at work for each rank, loader workers included, and dashed what its quota or affinity allows. At "
        "the line: the rank can't load faster on what it has.",
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
        "Time throttled, of the ranks here",
        "Seconds a second for which a rank's threads were held back by its quota, summed over processors, so that it "
        "may exceed 1. Nothing here: no quota, or no run.",
        [Query(_rate("stallscope_training_cpu_throttled_seconds_total"), "{{run}} {{rank}}")],
        unit="short",
        links=_RANK_CURVE,
    )


def _pressure() -> Panel:
    return time_series(
        "Some task waited",
        "Share of time in which at least one task waited for the resource (pressure information: some). "
        "Much for cpu: fewer workers; for io, while ranks wait for data: data nearer by, or larger pieces.",
        [Query(_rate("stallscope_host_pressure_waiting_seconds_total"), f"{_NODE} {{{{resource}}}}")],
        unit="percentunit",
        links=_CURVE,
    )


def _stalled() -> Panel:
    return time_series(
        "Every task waited",
        "Share of time in which all tasks waited for the resource at once (pressure information: full): nothing was "
        "computed on the host then. Anything here but a trace is worth mending, memory first.",
        [Query(_rate("stallscope_host_pressure_stalled_seconds_total"), f"{_NODE} {{{{resource}}}}")],
        unit="percentunit",
        links=_CURVE,
    )


# Memory.


def _memory() -> Panel:
    return time_series(
        "Memory",
        "What is available without swapping, the page cache within it, and (dashed) all that is installed. A page "
        "cache as large as the data set makes every epoch but the first fast.",
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
        "Memory of the ranks here",
        "Resident memory of each rank with its loader workers. Steady growth without an end: samples are kept, or "
        "workers copy what they touch.",
        [Query(f"stallscope_training_process_memory_bytes{{{HOST}}}", "{{run}} {{rank}}")],
        unit="bytes",
        links=_RANK_CURVE,
    )


def _shared_memory() -> Panel:
    return time_series(
        "Shared memory",
        "Used part of /dev/shm, through which loader workers hand batches over, and (dashed) its size. Full: workers "
        "die with a bus error; mount a larger one.",
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
        "Bytes a second read back from swap and written to it; dashed, the reading that counts together with many "
        "major faults. Reads hurt: use less memory.",
        [
            Query(_rate("stallscope_host_swap_in_bytes_total"), f"{_NODE} in"),
            Query(_rate("stallscope_host_swap_out_bytes_total"), f"{_NODE} out"),
            threshold("swap_in_bytes", "much read back"),
        ],
        unit="Bps",
        overrides=limit_line("much read back"),
        links=_CURVE,
    )


def _faults() -> Panel:
    return time_series(
        "Major page faults a second",
        "Accesses to memory that had to wait for a read; dashed, how many count together with swapping. Mapped files "
        "that don't fit into the page cache do this too.",
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
        "Processes killed for want of memory",
        "Within ten minutes, and by cgroup where the exporter can see it. A loader worker among them ends the run: "
        "fewer workers, less prefetching, or more memory. Nothing here: none was killed.",
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
        "Disks: bytes a second",
        "Read and written, by device. Nothing read while the input is slow: data come from the page cache or over the "
        "network, so look there.",
        [
            Query(_rate("stallscope_host_disk_read_bytes_total"), f"{_DEVICE} read"),
            Query(_rate("stallscope_host_disk_written_bytes_total"), f"{_DEVICE} written"),
        ],
        unit="Bps",
        links=_CURVE,
    )


def _disk_busy() -> Panel:
    return time_series(
        "Disks: time with work",
        "Share of time in which the device had something to do. On solid-state disks 100 % alone isn't saturation: "
        "trust the waiting for disks.",
        [Query(f"clamp_max({_rate('stallscope_host_disk_busy_seconds_total')}, 1)", _DEVICE)],
        unit="percentunit",
        maximum=1,
        links=_CURVE,
    )


def _nfs_bytes() -> Panel:
    return time_series(
        "NFS: bytes read a second",
        "By mount. Steady and well under the network's limit while the input waits: latency is the limit, not "
        "bandwidth. Nothing here: no NFS.",
        [Query(_rate("stallscope_host_nfs_read_bytes_total"), f"{_NODE} {{{{mount}}}}")],
        unit="Bps",
        links=_CURVE,
    )


def _nfs_operations() -> Panel:
    return time_series(
        "NFS: operations a second",
        "By mount. Many for few bytes: small files; pack samples into shards.",
        [Query(_rate("stallscope_host_nfs_operations_total"), f"{_NODE} {{{{mount}}}}")],
        unit="ops",
        links=_CURVE,
    )


def _nfs_wait() -> Panel:
    return time_series(
        "NFS: wait for an operation",
        "Queue and round trip of the mean operation; dashed, what counts as slow where many are in flight. Slow: "
        "larger objects, more parallel requests (nconnect), or stage data locally.",
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
        "Mean number of operations that wait for the server; dashed, as many as fill the client's slots. "
        "At the line: mount with nconnect, or read larger pieces.",
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
        "Network: bytes a second",
        "Received and sent, by interface; dashed, the link's speed where the interface tells it. At the line: cache "
        "data locally, compress them, or shard them by node.",
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
        "Network: share of the link that data take",
        "Receiving of data over the speed of the link, on the fullest interface that receives much more than it sends "
        "(so that gradients don't count); dashed, where the network is the limit.",
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
        "Network: drops and errors a second",
        "Packets dropped or broken, both ways. Errors that keep coming: change cable or transceiver. Drops alone: the "
        "host doesn't take packets fast enough.",
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
        "Network: packets lost, over an hour",
        "Share of packets dropped or broken, where the rules find it too high (dashed). Nothing here: no interface "
        "loses too many.",
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
        "InfiniBand and RoCE: bytes a second",
        "Received and sent, by port: gradients between nodes, mostly. One port idle among busy ones: check its cable "
        "and the communication library's choice of interfaces.",
        [
            Query(_rate("stallscope_host_rdma_receive_bytes_total"), f"{_DEVICE} {{{{port}}}} received"),
            Query(_rate("stallscope_host_rdma_transmit_bytes_total"), f"{_DEVICE} {{{{port}}}} sent"),
        ],
        unit="Bps",
        links=_CURVE,
    )


def _what_it_is() -> Panel:
    return table(
        "What each node is",
        "Processor, kernel, and how many processors Linux sees. Nodes of one run that differ here may differ in speed.",
        [
            Query(f"max by (cluster, instance, cpu_model, kernel) (stallscope_host_info{{{HOST}}})", table=True),
            Query(f"max by (cluster, instance) (stallscope_host_cpus{{{HOST}}})", table=True),
            Query(f"max by (cluster, instance) (stallscope_host_memory_total_bytes{{{HOST}}})", table=True),
            Query(f"count by (cluster, instance) (gpu:up:max{{{HOST}}} == 1)", table=True),
        ],
        columns={
            "instance": "Node",
            "cpu_model": "Processor",
            "Value #B": "Processors",
            "Value #C": "Memory",
            "Value #D": "GPUs that answer",
            "kernel": "Kernel",
        },
        unit="none",
        width=12,
        overrides=[by_name("Node", links=[_TO_HOST]), by_name("Memory", unit="bytes")],
        no_value="No exporter answers here.",
    )


def dashboard() -> Dashboard:
    """Return the dashboard of nodes."""
    return Dashboard(
        uid="stallscope-host",
        title="Stallscope / Host",
        description="Whether processors, memory, disks or network of a node hold its GPUs back.",
        variables=(datasource(), choices.cluster(), choices.instance(everything=False)),
        rows=(
            Row("", (_runs(), _gpus(), _busy(), _waiting(), _memory_share(), _alerts())),
            Row("Processors", (_modes(), _busiest(), _throttled(), _rank_processors())),
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
            Row("Pressure and throttling in detail", (_pressure(), _stalled(), _throttled_time()), collapsed=True),
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
