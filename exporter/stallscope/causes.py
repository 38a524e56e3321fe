"""Every cause of lost GPU time as data: whose it is, how grave, in a few words, and what to change first.

Rules and alerts judge, in PromQL; this table only says in words what they found. Dashboards, reports and pages take
their texts from here, and tests hold rules, alerts and runbooks equal to it. Names are those of the verdict contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Subject = Literal["training", "gpu", "host"]
"""Whom the cause's alert names: a run, a GPU or a host."""
Tier = Literal["hardware", "progress", "performance", "device", "use"]
"""Order of precedence as a verdict: an earlier tier hides a later one."""
Severity = Literal["critical", "warning", "info"]

TIERS: tuple[Tier, ...] = ("hardware", "progress", "performance", "device", "use")


@dataclass(frozen=True)
class Cause:
    """One cause."""

    name: str
    """As in the label `cause`."""
    subject: Subject
    tier: Tier | None
    """None where it never is a verdict, but only an alert."""
    severity: Severity | None
    """The gravest that its alert has; None where there is no alert."""
    title: str
    """A few words, for a panel or a table."""
    remedy: str
    """What to change first: one sentence."""

    @property
    def alert(self) -> str | None:
        """Name of its alert; None where it has none."""
        if self.severity is None:
            return None
        return self.subject.title() + "".join(word.capitalize() for word in self.name.split("_"))


CAUSES: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        # Waiting for data.
        Cause(
            "input_bound",
            "training",
            "performance",
            "warning",
            "Waiting for data",
            "Raise loader workers and prefetching, and cache the data near the GPUs.",
        ),
        Cause(
            "input_cpu_saturated",
            "training",
            "performance",
            "warning",
            "Waiting for data: processors full",
            "Decode and augment less per sample, or give the job more processors per GPU.",
        ),
        Cause(
            "input_cgroup_throttled",
            "training",
            "performance",
            "warning",
            "Waiting for data: processor quota",
            "Raise the container's processor limit, or run no more workers than it allows.",
        ),
        Cause(
            "input_few_workers",
            "training",
            "performance",
            "warning",
            "Waiting for data: too few workers",
            "Raise num_workers and prefetch_factor, and keep workers alive between epochs.",
        ),
        Cause(
            "input_single_thread",
            "training",
            "performance",
            "warning",
            "Waiting for data: one thread at its limit",
            "Move decoding and collation into workers, or shard the data set.",
        ),
        Cause(
            "input_too_many_workers",
            "training",
            "performance",
            "warning",
            "Waiting for data: too many workers",
            "Run no more workers than processors, with one thread each.",
        ),
        Cause(
            "input_disk_bound",
            "training",
            "performance",
            "warning",
            "Waiting for data: disk",
            "Read from local NVMe or memory, in larger sequential shards.",
        ),
        Cause(
            "input_network_bound",
            "training",
            "performance",
            "warning",
            "Waiting for data: network full",
            "Cache the data on the node, or compress and shrink it before it travels.",
        ),
        Cause(
            "input_remote_latency",
            "training",
            "performance",
            "warning",
            "Waiting for data: slow storage",
            "Ask for more at once (connections, larger objects), or stage the data on the node.",
        ),
        # What the GPU does with its time.
        Cause(
            "h2d_bound",
            "training",
            "performance",
            "warning",
            "Copying to the GPU",
            "Pin memory, copy without blocking, and prefetch the next batch.",
        ),
        Cause(
            "small_batch",
            "training",
            "device",
            "warning",
            "Too little work per step",
            "Raise the batch size; else use CUDA Graphs or compile.",
        ),
        Cause(
            "launch_bound",
            "training",
            "device",
            "warning",
            "Launching kernels",
            "Compile the model or use CUDA Graphs and fused optimizers.",
        ),
        Cause(
            "sync_stall",
            "training",
            "performance",
            "warning",
            "Time outside the measured phases",
            "Avoid .item(), .cpu() and print in each step; log less often.",
        ),
        Cause(
            "mem_bw_bound",
            "training",
            "device",
            "info",
            "Memory bandwidth",
            "Fuse elementwise operations (compile) and use 16-bit activations.",
        ),
        Cause(
            "tensor_cores_unused",
            "training",
            "device",
            "info",
            "Tensor cores unused",
            "Switch on mixed precision (bf16) or TF32.",
        ),
        Cause(
            "low_mfu",
            "training",
            "device",
            "info",
            "Little useful arithmetic",
            "Check precision, kernels and parallel layout.",
        ),
        Cause(
            "compute_bound",
            "training",
            "device",
            None,
            "GPU-bound, well used",
            "Nothing to mend; a faster GPU or more of them.",
        ),
        # GPU memory.
        Cause(
            "gpu_mem_headroom",
            "training",
            None,
            "info",
            "GPU memory to spare",
            "A larger batch fits.",
        ),
        Cause(
            "gpu_mem_near_oom",
            "training",
            None,
            "warning",
            "GPU memory nearly full",
            "Checkpoint activations, use 16 bits or a smaller micro-batch.",
        ),
        Cause(
            "gpu_mem_leak",
            "training",
            None,
            "warning",
            "GPU memory leaks",
            "Detach losses before summing them, and drop retained graphs.",
        ),
        Cause(
            "gpu_mem_fragmented",
            "training",
            None,
            "info",
            "GPU memory fragmented",
            "Use expandable segments, and avoid changing shapes.",
        ),
        Cause(
            "gpu_mem_imbalance",
            "training",
            None,
            "info",
            "Ranks differ in GPU memory",
            "Balance shards and stages; use DDP instead of DataParallel.",
        ),
        # Time without steps, or with slower ones.
        Cause(
            "checkpoint_stall",
            "training",
            "performance",
            "warning",
            "Blocking checkpoints",
            "Save asynchronously, to a local disk first, or less often.",
        ),
        Cause(
            "evaluation_overhead",
            "training",
            "performance",
            "warning",
            "Evaluation",
            "Evaluate less often, on a subset, or in a job of its own.",
        ),
        Cause(
            "callback_stall",
            "training",
            "performance",
            "warning",
            "Logging and callbacks",
            "Move the callback into a thread, or call it less often.",
        ),
        Cause(
            "step_outliers",
            "training",
            "performance",
            "warning",
            "A few very slow steps",
            "Compare them with garbage collection, recompilation and the host's load.",
        ),
        Cause(
            "step_time_drift",
            "training",
            "performance",
            "warning",
            "Steps have become slower",
            "Look for what changed: clocks, temperature, network, input.",
        ),
        Cause(
            "long_init",
            "training",
            "progress",
            "warning",
            "Long start",
            "Stream or pre-stage data, cache compilation, load weights in parallel.",
        ),
        Cause(
            "stalled",
            "training",
            "progress",
            "critical",
            "No progress",
            "Dump the stacks of every rank, then restart from the last checkpoint.",
        ),
        Cause(
            "hang_spin",
            "training",
            "progress",
            "critical",
            "Hung in a collective",
            "Find the rank that isn't in the collective; dump the flight recorder, then restart.",
        ),
        Cause(
            "hang_io",
            "training",
            "progress",
            "critical",
            "Hung in input or output",
            "Check the mounts and disks that the ranks wait for.",
        ),
        Cause(
            "restart_loop",
            "training",
            "progress",
            "warning",
            "Restarts again and again",
            "Read why the last attempt ended before the next one.",
        ),
        Cause(
            "goodput_low",
            "training",
            None,
            "warning",
            "Little productive time",
            "Attend to the largest loss first: the verdicts name it.",
        ),
        Cause(
            "loss_nonfinite",
            "training",
            "progress",
            "critical",
            "Loss is not a number",
            "Stop, go back to the last good checkpoint, lower the learning rate or clip gradients.",
        ),
        # Across ranks.
        Cause(
            "straggler_rank",
            "training",
            "performance",
            "warning",
            "One rank delays the others",
            "Look at that rank's work and host; rebalance it.",
        ),
        Cause(
            "straggler_input",
            "training",
            "performance",
            "warning",
            "One rank waits for data",
            "Balance the shards, and check that rank's disk and processors.",
        ),
        Cause(
            "straggler_hw",
            "training",
            "hardware",
            "warning",
            "One rank's hardware is slow",
            "Drain or replace that rank's GPU or node.",
        ),
        Cause(
            "gpu_load_imbalance",
            "training",
            None,
            "warning",
            "GPUs of the run differ in load",
            "Use DDP instead of DataParallel; balance shards or stages.",
        ),
        Cause(
            "comm_bound",
            "training",
            "performance",
            "warning",
            "Communication",
            "Larger buckets or accumulation, overlap, 16-bit gradients; check that NVLink or RDMA is used.",
        ),
        Cause(
            "scaling_inefficient",
            "training",
            None,
            "warning",
            "Scales badly",
            "Attend to the largest loss: communication, a straggler or the input.",
        ),
        # Health of GPUs.
        Cause(
            "thermal_throttle",
            "gpu",
            "hardware",
            "warning",
            "Slowed by heat",
            "Check airflow, fans and inlet temperature.",
        ),
        Cause(
            "power_brake",
            "gpu",
            "hardware",
            "critical",
            "Power brake",
            "Check power supply, cabling and the rack's cap.",
        ),
        Cause(
            "power_capped",
            "gpu",
            None,
            "info",
            "Power limit below default",
            "Raise the limit if cooling allows.",
        ),
        Cause(
            "clocks_limited",
            "gpu",
            None,
            "info",
            "Clocks set below their maximum",
            "Reset the clocks unless that is meant.",
        ),
        Cause(
            "xid_hw",
            "gpu",
            "hardware",
            "critical",
            "Hardware error (Xid)",
            "Do what the error's class asks: reset the GPU, reboot or drain the node.",
        ),
        Cause(
            "xid_app",
            "gpu",
            None,
            "info",
            "Application error (Xid)",
            "Run compute-sanitizer; the GPU is fine unless it repeats across jobs.",
        ),
        Cause(
            "lost",
            "gpu",
            "hardware",
            "critical",
            "GPU lost",
            "Drain the node and reboot; reseat or replace the GPU if it happens again.",
        ),
        Cause(
            "ecc_uncorrected",
            "gpu",
            "hardware",
            "critical",
            "Uncorrectable memory error",
            "Drain and reset the GPU; replace it if it happens again.",
        ),
        Cause(
            "row_remap_pending",
            "gpu",
            "hardware",
            "warning",
            "Memory row remap pending",
            "Reset the GPU when the job ends.",
        ),
        Cause(
            "row_remap_failed",
            "gpu",
            "hardware",
            "critical",
            "Memory row remap failed",
            "Drain the node and replace the GPU.",
        ),
        Cause(
            "pcie_degraded",
            "gpu",
            "hardware",
            "warning",
            "PCIe link slower than it could be",
            "Reseat the GPU; check riser and firmware settings.",
        ),
        Cause(
            "pcie_replays",
            "gpu",
            "hardware",
            "warning",
            "PCIe link errors",
            "Reseat the GPU or replace the riser.",
        ),
        Cause(
            "nvlink_errors",
            "gpu",
            "hardware",
            "warning",
            "NVLink errors",
            "Reset the GPU; have the link checked if they come back.",
        ),
        Cause(
            "nvlink_down",
            "gpu",
            "hardware",
            "warning",
            "NVLink down",
            "Drain the node: collectives are slow without it.",
        ),
        # Use of GPUs.
        Cause(
            "underused",
            "gpu",
            "use",
            "warning",
            "Underused",
            "Add stallscope.track to the training loop to learn why.",
        ),
        Cause(
            "periodic_host_work",
            "gpu",
            "use",
            "warning",
            "Regular dips",
            "Look for logging, checkpoints or evaluation at that interval.",
        ),
        Cause(
            "idle_allocated",
            "gpu",
            "use",
            "warning",
            "Held but idle",
            "Release the GPU, or start the GPU stage earlier.",
        ),
        Cause(
            "mem_zombie",
            "gpu",
            "use",
            "warning",
            "Memory held by no process",
            "Find who holds the device files; else drain and reset the GPU.",
        ),
        Cause(
            "shared_unexpectedly",
            "gpu",
            "use",
            "warning",
            "Two jobs on one GPU",
            "Check CUDA_VISIBLE_DEVICES of both jobs.",
        ),
        Cause(
            "packing_candidate",
            "gpu",
            None,
            "info",
            "Room for another job",
            "Run another experiment beside it (MPS or MIG).",
        ),
        # Hosts.
        Cause(
            "mem_pressure",
            "host",
            None,
            "warning",
            "Memory short",
            "Fewer workers, less prefetching, memory-mapped data.",
        ),
        Cause(
            "oom_kill",
            "host",
            None,
            "critical",
            "Process killed for memory",
            "Raise the memory limit, or run fewer workers.",
        ),
        Cause(
            "shm_full",
            "host",
            None,
            "warning",
            "Shared memory full",
            "Raise --shm-size, or share tensors by file system.",
        ),
        Cause(
            "swapping",
            "host",
            None,
            "warning",
            "Swapping",
            "Hold less in memory: fewer workers, smaller caches.",
        ),
        Cause(
            "cpu_saturated",
            "host",
            None,
            "info",
            "Processors full",
            "Nothing yet: training is not slowed by it.",
        ),
        Cause(
            "network_errors",
            "host",
            None,
            "warning",
            "Network errors",
            "Check cable, optics and switch port.",
        ),
    )
}

REMAINDERS: dict[str, tuple[str, str]] = {
    "healthy": ("Healthy", "Nothing to do."),
    "insufficient_data": ("Not enough evidence", "rank:missing:info names what is missing."),
}
"""Title and remedy of the two verdicts that name no cause."""
