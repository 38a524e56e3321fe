"""Every cause of lost GPU time as data, one row each: names, words, alert, and which other alerts its alert mutes.

Rules in `prometheus/rules/` detect a cause, in PromQL. Everything regular about it follows from its row: dashboards,
reports and pages take their texts from here, and `make generate` writes the alerts, Alertmanager's inhibition rules and
the tables of the documentation. `prometheus/README.md` adds a cause step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Subject = Literal["training", "gpu", "host"]
"""Subject of the cause's alert: a training run, a GPU or a host."""
Tier = Literal["hardware", "progress", "performance", "device", "use", "harmless"]
"""Order of precedence as a verdict: an earlier tier hides a later one."""
Severity = Literal["critical", "warning", "info"]
Domain = Literal["input", "device", "memory", "time", "ranks", "hardware", "use", "host"]
"""Kind of cause, and the name of its file in `prometheus/rules/`."""

_SUBJECTS: dict[Domain, Subject] = {"hardware": "gpu", "use": "gpu", "host": "host"}


@dataclass(frozen=True)
class Loss:
    """Fire on GPU time that a run loses: after five minutes at `high`, after `window` more at `warning`.

    Both are names of thresholds. The alert clears under the clearing ratio (`clear_ratio`) of `warning`.
    """

    warning: str
    high: str
    window: str = "5m"
    hour: bool = False
    """True if it may be rare: then the last hour counts as well, until the run is relieved of it."""


@dataclass(frozen=True)
class Straggler:
    """Fire on one rank that delays the others, with levels as for `Loss`."""


@dataclass(frozen=True)
class DeviceClass:
    """Fire if half of a run's ranks (`device_ranks`) have the cause, whatever it costs.

    The value is 0 where the GPU does not report the activity of its SMs.
    """


@dataclass(frozen=True)
class Found:
    """Fire if the rules find the cause in a run at all."""


@dataclass(frozen=True)
class Over:
    """Fire if a series of the subject reaches a threshold; clear under the clearing ratio of it."""

    series: str
    threshold: str
    loses: bool = False
    """True if the value is a share of GPU time."""


@dataclass(frozen=True)
class Evidence:
    """Fire if the rules find the cause on a GPU; the value is that of the series `value`, where there is one."""

    value: str = ""
    loses: bool = False
    """True if the value is a share of GPU time."""


@dataclass(frozen=True)
class Value:
    """Fire on a value of a GPU, with the labels of its pairs in `of`, and with those of the value in `labels`."""

    promql: str
    of: str = "gpu_rank:unhealthy:info"
    labels: str = ""
    loses: bool = False
    """True if the value is a share of GPU time."""


@dataclass(frozen=True)
class Expression:
    """Fire on a PromQL expression that has no regular shape.

    `{run}`, `{gpu}` and `{pair}` stand for the labels of a run, of a GPU, and of a GPU with the rank on it; `{firing}`
    for this alert in `ALERTS`; `threshold(name)` for a threshold.
    """

    promql: str
    loses: bool = False
    """True if the value is a share of GPU time."""


Shape = Loss | Straggler | DeviceClass | Found | Over | Evidence | Value | Expression


@dataclass(frozen=True)
class Alert:
    """The alert on a cause. `alerts/alert_rules.py` writes the rule."""

    severity: Severity
    """Highest severity: info for a run of job class `experiment`, at most warning for an unused GPU."""
    shape: Shape
    summary: str
    description: str
    """The evidence with figures, then the first action. `{name}` stands for a phrase in `alerts/alert_rules.py`."""
    wait: str = "5m"
    """As `for` in the rule."""
    keep: str = "10m"
    """As `keep_firing_for` in the rule."""
    info_where: str = ""
    """A condition as a Go template, under which the severity is info."""


@dataclass(frozen=True)
class Cause:
    """One cause."""

    name: str
    """As in the label `cause`."""
    code: int
    """Its number in graphs that can only draw numbers (`stallscope:cause:code`); never used again."""
    domain: Domain
    tier: Tier | None
    """None if it is never a verdict, only an alert."""
    title: str
    """A few words, for a panel or a table."""
    remedy: str
    """The first thing to change: one sentence."""
    rule: Alert | None = None
    """None if there is nothing to do about it."""
    mutes: tuple[str, ...] = ()
    """Causes that its alert mutes on the same run, GPU or host; also PERFORMANCE, EVERYTHING or an alert's name."""
    phase: str = ""
    """The phase whose time it is, and whose lines of code explain it; `*` for the phases of the program's own."""
    is_slowness: bool = False
    """True for slow progress outside the tiers `performance` and `device`, which always are."""

    @property
    def subject(self) -> Subject:
        """Subject of its alert."""
        return _SUBJECTS.get(self.domain, "training")

    @property
    def severity(self) -> Severity | None:
        """The highest that its alert has; None if it has no alert."""
        return self.rule.severity if self.rule else None

    @property
    def alert(self) -> str | None:
        """Name of its alert; None if it has none."""
        if self.rule is None:
            return None
        return self.subject.title() + "".join(word.capitalize() for word in self.name.split("_"))


PERFORMANCE = "performance"
"""In `mutes`: every cause of slow progress."""
EVERYTHING = "everything"
"""In `mutes`: every other alert on the same GPU."""
# No progress outweighs slow progress.
_STANDSTILL = (PERFORMANCE, "long_init", "TrainingTelemetryMissing")
# A run on broken hardware is slow or stopped for that reason. Its own faults (loss, memory) are not muted.
_BROKEN_GPU = (PERFORMANCE, "stalled", "hang_spin", "hang_io", "restart_loop", "long_init", "TrainingTelemetryMissing")
# GPUs idle before the first step.
_BETWEEN_ATTEMPTS = ("goodput_low", "underused", "idle_allocated", "packing_candidate")
_WAITS_FOR_DATA = ("scaling_inefficient", "underused", "packing_candidate")
# The other ranks wait in their collectives, and their GPUs do less.
_WAITS_FOR_A_RANK = ("comm_bound", "scaling_inefficient", "gpu_load_imbalance")
_PAUSES = ("step_outliers", "periodic_host_work")
# The other ranks wait for the rank on this GPU, whose alert names the reason.
_SLOW_GPU = ("straggler_hw", "straggler_rank")

CAUSES: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        # Waiting for data.
        Cause(
            "input_bound",
            101,
            "input",
            "performance",
            "Waiting for data",
            "Prepare batches ahead of the step, in loader workers or a thread, and cache the data near the GPUs.",
            Alert(
                "warning",
                Loss("input_warning", "input_high"),
                "Training run waits for its input data.",
                """{loses} waiting for the next batch: {faster}.{line} {reason_or}Its host shows no reason. Prepare
                batches ahead of the step: with more loader workers that stay alive between epochs, or in a thread if
                the loop makes its batches itself. Check where the data are stored (cache them on a local
                disk).{end}""",
            ),
            mutes=_WAITS_FOR_DATA,
            phase="data_wait",
        ),
        Cause(
            "input_cpu_saturated",
            102,
            "input",
            "performance",
            "Waiting for data: CPUs saturated",
            "Decode and augment less per sample, give the job more CPUs per GPU, or run other programs elsewhere.",
            Alert(
                "warning",
                Loss("input_warning", "input_high"),
                "Training run waits for data: its CPUs are saturated.",
                """{loses} waiting for batches that the CPUs cannot prepare in time: {faster}.{line} More workers will
                not help. Decode and augment less per sample (cache decoded data, resize offline, decode faster or on
                the GPU), or give the job more CPUs per GPU. If other programs use the CPUs, run them elsewhere.""",
            ),
            mutes=("input_bound", *_WAITS_FOR_DATA),
            phase="data_wait",
        ),
        Cause(
            "input_cgroup_throttled",
            103,
            "input",
            "performance",
            "Waiting for data: CPU quota",
            "Raise the container's CPU limit, or run no more workers than it allows.",
            # Throttling comes in bursts: wait longer than for the other sub-causes.
            Alert(
                "warning",
                Loss("input_warning", "input_high"),
                "Training run waits for data: its CPU quota throttles it.",
                """{loses} waiting for data, while its container's CPU limit throttles the loader and the node has idle
                CPUs: {faster}.{line} Raise or remove the limit, or run no more workers than it allows. More workers
                will not help.""",
                wait="10m",
            ),
            mutes=("input_bound", *_WAITS_FOR_DATA),
            phase="data_wait",
        ),
        Cause(
            "input_few_workers",
            104,
            "input",
            "performance",
            "Waiting for data: too few workers",
            "Raise num_workers and prefetch_factor, and keep workers alive between epochs.",
            Alert(
                "warning",
                Loss("input_warning", "input_high"),
                "Training run waits for data: too few loader workers.",
                """{loses} waiting for data: {faster}.{line} CPUs, disks and network have room: raise
                num_workers{workers} towards the CPUs per GPU, prefetch_factor from 2 to 4, and set
                persistent_workers.""",
            ),
            mutes=("input_bound", *_WAITS_FOR_DATA),
            phase="data_wait",
        ),
        Cause(
            "input_single_thread",
            105,
            "input",
            "performance",
            "Waiting for data: one thread at its limit",
            "Move decoding and collation into workers, or shard the data set.",
            Alert(
                "warning",
                Loss("input_warning", "input_high"),
                "Training run waits for data: one thread does all the work.",
                """{loses} waiting for data, while one thread is at its limit and CPUs are idle: {faster}.{line} Move
                decoding and collation out of the training process into workers, shard an iterable data set over them,
                and avoid Python loops over samples.""",
            ),
            mutes=("input_bound", *_WAITS_FOR_DATA),
            phase="data_wait",
        ),
        Cause(
            "input_too_many_workers",
            106,
            "input",
            "performance",
            "Waiting for data: too many workers",
            "Run no more workers than CPUs, with one thread each.",
            Alert(
                "warning",
                Loss("input_warning", "input_high"),
                "Training run waits for data: too many loader workers.",
                """{loses} waiting for data, because more than two workers per CPU{workers} delay each other:
                {faster}.{line} Reduce num_workers to one per CPU that the rank may use, and set threads inside them to
                one (OMP_NUM_THREADS, OpenCV).""",
            ),
            mutes=("input_bound", *_WAITS_FOR_DATA),
            phase="data_wait",
        ),
        Cause(
            "input_disk_bound",
            107,
            "input",
            "performance",
            "Waiting for data: disk",
            "Read from local NVMe or memory, in larger sequential shards.",
            Alert(
                "warning",
                Loss("input_warning", "input_high"),
                "Training run waits for data: its disks are saturated.",
                """{loses} waiting for data that the disks deliver too slowly: {faster}.{line} Read from local NVMe,
                cache in memory what fits, and store samples in large sequential shards with more read-ahead. More
                workers will not help.""",
            ),
            mutes=("input_bound", *_WAITS_FOR_DATA),
            phase="data_wait",
        ),
        Cause(
            "input_network_bound",
            108,
            "input",
            "performance",
            "Waiting for data: network full",
            "Cache the data on the node, or compress and shrink it before it travels.",
            Alert(
                "warning",
                Loss("input_warning", "input_high"),
                "Training run waits for data: its network link is saturated.",
                """{loses} waiting for data that the network cannot deliver faster: {faster}.{line} {{ with printf
                "run:input_ceiling:rate5m{run=%q,namespace=%q,cluster=%q}" $labels.run $labels.namespace
                $labels.cluster | query }}The link carries at most {{ . | first | value | printf "%.0f" }} samples a
                second{{ with printf "run:input_sample:bytes5m{run=%q,namespace=%q,cluster=%q}" $labels.run
                $labels.namespace $labels.cluster | query }} of {{ . | first | value | humanize1024 }}B each{{ end
                }}. {{ end }}Cache the data on the node, compress or shrink it before the transfer, give each node its
                own shard, or use a faster link.""",
            ),
            mutes=("input_bound", *_WAITS_FOR_DATA),
            phase="data_wait",
        ),
        Cause(
            "input_remote_latency",
            109,
            "input",
            "performance",
            "Waiting for data: slow storage",
            "Request more in parallel (connections, larger objects), or stage the data on the node.",
            Alert(
                "warning",
                Loss("input_warning", "input_high"),
                "Training run waits for data: its network storage is slow.",
                """{loses} waiting for a network file system with 64 or more operations in flight: {faster}.{line}
                Request more in parallel (more connections such as nconnect, larger objects or shards), or stage the
                data on the node before training.""",
            ),
            mutes=("input_bound", *_WAITS_FOR_DATA),
            phase="data_wait",
        ),
        # What the GPU does with its time.
        Cause(
            "h2d_bound",
            201,
            "device",
            "performance",
            "Copying to the GPU",
            "Pin memory, copy without blocking, and prefetch the next batch.",
            Alert(
                "warning",
                Loss("h2d_warning", "h2d_high"),
                "Training run waits for copies to its GPUs.",
                """{loses} in copies from host to GPU that do not overlap with computation: {faster}. Pin the memory of
                batches
                (pin_memory), copy with non_blocking=True and prefetch the next batch on a side stream; send bytes
                (uint8) and normalise on the GPU.""",
            ),
        ),
        Cause(
            "small_batch",
            202,
            "device",
            "device",
            "Too little work per step",
            "Raise the batch size; else use CUDA Graphs or compile.",
            Alert(
                "warning",
                DeviceClass(),
                "Training steps have too little work for the GPU.",
                """GPUs of run {run} look busy but do little: each step is too small{idle_sms}. Raise the batch size{{
                with printf "max(stallscope_training_allocator_peak_bytes{run=%q,cluster=%q}) / on ()
                max(stallscope_gpu_memory_total_bytes and on (cluster, job, instance, gpu, uuid)
                rank_gpu:claim:info{run=%q,cluster=%q})" $labels.run $labels.cluster $labels.run $labels.cluster |
                query }} ({{ . | first | value | humanizePercentage }} of GPU memory is used){{ end }} and scale the
                learning rate with it; else use CUDA Graphs or torch.compile and fewer tiny operations, or pack
                several experiments on the GPU.""",
                wait="2m",
            ),
            mutes=("gpu_mem_headroom",),
        ),
        Cause(
            "launch_bound",
            203,
            "device",
            "device",
            "Launching kernels",
            "Compile the model or use CUDA Graphs and fused optimizers.",
            Alert(
                "warning",
                DeviceClass(),
                "Training run cannot launch kernels fast enough.",
                """GPUs of run {run} idle between tiny kernels while its main thread is at its limit{idle_sms}. Compile
                the model (torch.compile) or use CUDA Graphs and fused optimizers; a larger batch helps where memory
                allows; avoid Python work for each operation.""",
                wait="2m",
            ),
        ),
        Cause(
            "sync_stall",
            204,
            "device",
            "performance",
            "Time outside the measured phases",
            "Do slow calls in the loop less often or in a thread: uploads, logs, metrics, .item(), print.",
            Alert(
                "warning",
                Loss("sync_warning", "sync_high"),
                "Training run loses time outside its measured phases.",
                """{loses} outside every measured phase, with its GPUs idle: {faster}.{line} Do slow calls in the loop
                less often or in a thread: uploads, logs, metrics, .item(), print. "stallscope stacks RUN --lines" shows
                them. Disable anomaly detection, and control garbage collection. To see the work by name, wrap it in
                run.phase().""",
            ),
            phase="other",
        ),
        Cause(
            "mem_bw_bound",
            205,
            "device",
            "device",
            "Memory bandwidth",
            "Fuse elementwise operations (compile) and use 16-bit activations.",
            Alert(
                "info",
                DeviceClass(),
                "GPU memory bandwidth limits the training run.",
                """GPUs of run {run} transfer data to and from their memory most of the time{idle_sms}. Fuse
                elementwise operations (torch.compile),
                keep activations in 16 bits, use channels-last layouts, flash attention and larger matrix products.""",
                wait="2m",
            ),
        ),
        Cause(
            "tensor_cores_unused",
            206,
            "device",
            "device",
            "Tensor cores unused",
            "Switch on mixed precision (bf16) or TF32.",
            Alert(
                "info",
                DeviceClass(),
                "Tensor cores are not used.",
                """The SMs of the GPUs of run {run} are active, but not their tensor cores{idle_sms}. Enable mixed
                precision
                (bf16) or TF32, and make matrix dimensions multiples of 8.""",
                wait="7m",
            ),
        ),
        Cause(
            "low_mfu",
            207,
            "device",
            "device",
            "Little useful arithmetic",
            "Check precision, kernels and parallel layout.",
            Alert(
                "info",
                DeviceClass(),
                "Training run has a low model FLOPs utilisation (MFU).",
                """Run {run} does {{ with printf "run:mfu:ratio5m{run=%q,namespace=%q,cluster=%q}" $labels.run
                $labels.namespace $labels.cluster | query }}{{ . | first | value | humanizePercentage }}{{ else
                }}little{{ end }} of the arithmetic that its GPUs could{idle_sms}. Check precision, kernels,
                parallel layout and the overlap of communication; large well-tuned runs reach about 40 %.""",
                wait="2m",
            ),
        ),
        Cause(
            "compute_bound",
            208,
            "device",
            "harmless",
            "GPU-bound, well used",
            "Nothing to fix; use a faster GPU or more GPUs.",
        ),
        # GPU memory.
        Cause(
            "gpu_mem_headroom",
            301,
            "memory",
            None,
            "GPU memory to spare",
            "A larger batch fits.",
            # The rule reads the allocator's peak: memory that the driver counts as used may be reserved and free.
            Alert(
                "info",
                Expression("run:memory_headroom:ratio"),
                "GPU memory of a run has room for a larger batch.",
                """Run {run} uses at most {share} of its GPUs' memory, and the GPUs are not always busy: a larger batch
                fits and has less overhead per sample. Raise the batch size step by step (and the learning rate with
                it), or use a smaller GPU.""",
                wait="10m",
            ),
        ),
        Cause(
            "gpu_mem_near_oom",
            302,
            "memory",
            None,
            "GPU memory nearly full",
            "Checkpoint activations, use 16 bits or a smaller micro-batch.",
            # The label `band` is `notice` from memory_near on, and `warning` from memory_critical on or once an
            # allocation fails.
            Alert(
                "warning",
                Expression(
                    """
                      label_replace(
                        run:allocator_peak:max >= threshold(memory_critical)
                        or
                        run:allocation_failed:ratio,
                        "band", "warning", "", ""
                      )
                    or on ({run})
                      label_replace(
                        run:allocator_peak:max >= threshold(memory_near),
                        "band", "notice", "", ""
                      )
                    """,
                ),
                "GPU memory of a run is nearly full.",
                """Tensors of run {run} have used {share} of a GPU's memory{{ if eq $labels.band "warning" }}, or
                allocations failed already{{ end }}: the next longer batch may end the run. Use activation
                checkpointing, 16-bit precision, or a smaller micro-batch with accumulation; against fragmentation,
                expandable segments.""",
                info_where='eq $labels.band "notice"',
            ),
        ),
        Cause(
            "gpu_mem_leak",
            303,
            "memory",
            None,
            "GPU memory leaks",
            "Detach losses before summing them, and drop retained graphs.",
            # The rule compares readings of training with each other, so that evaluations do not count. The value is
            # the growth.
            Alert(
                "warning",
                Expression("max by ({run}) (rank:memory_leak:bytes50m)"),
                "GPU memory of a run keeps growing.",
                """The tensor memory of run {run} on a GPU has grown steadily by {bytes} in 50 minutes,
                and will fill the GPU within a day. Detach losses before summing them (loss.item()), drop retained
                graphs, and clear lists of outputs; until then save a checkpoint before memory is full.""",
                keep="20m",
            ),
        ),
        Cause(
            "gpu_mem_fragmented",
            304,
            "memory",
            None,
            "GPU memory fragmented",
            "Use expandable segments, and avoid changing shapes.",
            Alert(
                "info",
                Expression("max by ({run}) (rank:memory_fragmented:ratio5m)"),
                "GPU memory of a run is fragmented.",
                """The allocator of run {run} has reserved {{ $value | printf "%.1f" }} times the memory that its
                tensors
                use, in blocks that are too small for large tensors. Use expandable segments (PYTORCH_CUDA_ALLOC_CONF),
                avoid changing shapes, and empty the cache after an evaluation.""",
                wait="10m",
            ),
        ),
        Cause(
            "gpu_mem_imbalance",
            305,
            "memory",
            None,
            "Ranks differ in GPU memory",
            "Balance shards and stages; use DDP instead of DataParallel.",
            # A rank is compared with the mean of the other ranks, so that two ranks can be compared.
            Alert(
                "info",
                Expression("run_rank:memory_imbalance:ratio"),
                "One rank of a run needs far more GPU memory.",
                """Rank {rank} of run {run} needs {share} more GPU memory than the mean of the others, and limits the
                batch size of all ranks. Balance shards and stages, gather and log on the CPU, and use DDP instead of
                DataParallel.""",
                wait="10m",
            ),
        ),
        # Time without steps, or with slower ones.
        Cause(
            "checkpoint_stall",
            401,
            "time",
            "performance",
            "Blocking checkpoints",
            "Save asynchronously, to a local disk first, or less often.",
            # Measured over an hour: checkpoints are rare, and one alone takes minutes.
            Alert(
                "warning",
                Over('run_cause:time_lost:ratio1h{cause="checkpoint_stall"}', "output_warning", loses=True),
                "Training is blocked while it saves checkpoints.",
                """Blocking saves took {share} of run {run}'s last hour.{line} Save asynchronously
                (torch.distributed.checkpoint.async_save or the like), to a local disk first and upload from there,
                with every rank writing its own part; or save less often, about every sqrt(2 x save time x time between
                failures).""",
            ),
            mutes=_PAUSES,
            phase="checkpoint",
        ),
        Cause(
            "evaluation_overhead",
            402,
            "time",
            "performance",
            "Evaluation",
            "Evaluate less often, on a subset, or in a job of its own.",
            Alert(
                "warning",
                Over('run_cause:time_lost:ratio1h{cause="evaluation_overhead"}', "evaluation_warning", loses=True),
                "Evaluation takes much of the training time.",
                """Evaluation took {share} of run {run}'s last hour.{line} It is useful work. If this is too much,
                evaluate less often or on a subset, with a larger batch and without gradients, or in a separate job
                that reads the checkpoints.""",
            ),
            mutes=_PAUSES,
            phase="evaluation",
        ),
        Cause(
            "callback_stall",
            403,
            "time",
            "performance",
            "Logging and callbacks",
            "Move the callback into a thread, or call it less often.",
            # Fires soon where the cost is high. Callbacks at long intervals are visible only over an hour.
            Alert(
                "warning",
                Loss("output_warning", "output_high", window="3m", hour=True),
                "Logging or callbacks block training.",
                """GPUs of run {run} idle for {share} of the time while the loop logs, runs callbacks or is in a phase
                with a custom name.{line} Move that work to a thread, do it less often, and reduce on the GPU before
                copying (one number, not a tensor); stallscope_training_phase_max_seconds names the longest.""",
            ),
            mutes=_PAUSES,
            phase="*",
        ),
        Cause(
            "step_outliers",
            404,
            "time",
            "performance",
            "A few very slow steps",
            "Compare them with garbage collection, recompilation and the host's load.",
            # Slow steps are few: even ten minutes of them vary by a quarter.
            Alert(
                "warning",
                Expression(
                    """
                      (
                          avg_over_time(run_cause:time_lost:ratio5m{cause="step_outliers"}[20m])
                          >=
                          threshold(outlier_share)
                        or
                          avg_over_time(run_cause:time_lost:ratio5m{cause="step_outliers"}[20m])
                          >=
                          threshold(outlier_share) * threshold(clear_ratio)
                        and on ({run})
                          {firing}
                      )
                    and
                      run_cause:time_lost:ratio5m{cause="step_outliers"}
                    """,
                    loses=True,
                ),
                "A few very slow steps cost much time.",
                """Slow steps cost {share} of run {run}'s time, and no phase explains them.
                Compare their times with garbage collection (gc.freeze, collect every N steps), recompilations
                (pad or bucket shapes), write-back of the page cache and other jobs on the node.""",
                wait="15m",
            ),
        ),
        Cause(
            "step_time_drift",
            405,
            "time",
            "performance",
            "Steps have become slower",
            "Look for what changed: clocks, temperature, network, input.",
            Alert(
                "warning",
                Found(),
                "Training steps have become slower.",
                """For the same work, steps of run {run} take longer than an hour before, which loses {share} of its
                time. Look for what changed then: clocks and temperature, other jobs on the node, the network,
                longer sequences, memory or objects that grow with every step. A restart shows whether the
                process or the machine is the cause.""",
                wait="10m",
            ),
        ),
        Cause(
            "long_init",
            406,
            "time",
            "progress",
            "Long start",
            "Stream or pre-stage data, cache compilation, load weights in parallel.",
            Alert(
                "warning",
                Found(),
                "Training run takes very long to start.",
                """{share} of the ranks of run {run} have not completed a first step, {{ printf
                "stallscope:threshold{name='init_seconds'}" | query | first | value | humanizeDuration }} after
                their start. Stream or pre-stage data instead of downloading it first, cache compiled graphs and
                kernels, load weights in parallel; and check whether a rank waits for a missing one.""",
                wait="1m",
                keep="0m",
            ),
            mutes=_BETWEEN_ATTEMPTS,
        ),
        Cause(
            "stalled",
            407,
            "time",
            "progress",
            "No progress",
            "Dump the stacks of every rank, then restart from the last checkpoint.",
            # At most one of stalled, hang_spin and hang_io holds at a time. The value is the share of ranks without
            # progress. The alert keeps firing as long as the alerts that it mutes: otherwise a run that is killed
            # would be reported as idle.
            Alert(
                "critical",
                Found(),
                "Training is stalled, but its processes are alive.",
                """{share} of the ranks of run {run} have not completed a step for over a minute, and for far longer
                than their steps usually take.{gone}{culprit}{place} Before the job is killed, save the stacks of all
                ranks ({stacks}, py-spy dump, or the collective library's flight recorder){unless_known}, find the rank
                whose stack differs from the others{end}, then restart from the last checkpoint.""",
                wait="1m",
                keep="5m",
            ),
            mutes=_STANDSTILL,
        ),
        Cause(
            "hang_spin",
            408,
            "time",
            "progress",
            "Hung in a collective",
            "Find out why a rank is not in the collective of the others; dump the flight recorder, then restart.",
            Alert(
                "critical",
                Found(),
                "Training hangs in a collective operation.",
                """{share} of the ranks of run {run} complete no step while GPUs spin: they are fully busy at low,
                constant power, as in a collective operation that never completes.{gone}{culprit}{place}{unless_known}
                Find the rank whose GPU does not spin: it is not in the collective.{end} Save the stacks ({stacks},
                py-spy dump) and the flight recorder (TORCH_NCCL_TRACE_BUFFER_SIZE) before the library's timeout kills
                the job, then restart from the last checkpoint, without that node if it happens again.""",
                wait="1m",
                keep="5m",
            ),
            mutes=("stalled", *_STANDSTILL),
        ),
        Cause(
            "hang_io",
            409,
            "time",
            "progress",
            "Hung in I/O",
            "Check the mounts and disks that the ranks wait for.",
            Alert(
                "critical",
                Found(),
                "Training hangs in I/O.",
                """{share} of the ranks of run {run} complete no step, their GPUs idle, and on one of their nodes all
                tasks wait for storage.{culprit}{place} Check that node's mounts and disks (dmesg, mountstats, tasks in
                state D) and the storage service behind them. Repair or remount it, then restart from the last
                checkpoint if the run does not continue by itself.""",
                wait="1m",
                keep="5m",
            ),
            mutes=("stalled", *_STANDSTILL),
        ),
        Cause(
            "restart_loop",
            410,
            "time",
            "progress",
            "Restart loop",
            "Read why the last attempt ended before the next one.",
            Alert(
                "warning",
                Expression("run:restarts:increase1h >= threshold(restart_count)"),
                "Training restarts repeatedly.",
                """Run {run} has restarted {rounded} times within an hour. Find out how the last attempts ended (the
                log's last lines, the kernel log, alerts of its nodes) and fix the reason, or exclude the node on which
                it starts; save checkpoints more often than it fails.""",
                wait="0m",
            ),
            mutes=("long_init", "scaling_inefficient", "step_outliers", "step_time_drift", *_BETWEEN_ATTEMPTS),
        ),
        Cause(
            "goodput_low",
            411,
            "time",
            None,
            "Little productive time",
            "Fix the largest loss first: the verdicts name it.",
            # Silent for an hour after an alert on a single loss: this alert is for the sum of small or intermittent
            # losses.
            Alert(
                "warning",
                Expression(
                    """
                      (
                          run:badput:ratio1h > 1 - threshold(goodput_warning)
                        or
                          run:badput:ratio1h > (1 - threshold(goodput_warning)) * threshold(clear_ratio)
                        and on ({run})
                          {firing}
                      )
                    and on ({run})
                        time()
                      -
                        (
                            run:start:timestamp_seconds < min_over_time(run:clock:seconds[2h])
                          or
                            min_over_time(run:clock:seconds[2h])
                        )
                      >=
                        threshold(goodput_age_seconds)
                    unless on ({run})
                      max_over_time(
                        ALERTS{
                          alertname=~"Training(Input|H2d|Sync|Checkpoint|Callback|Step|Straggler|Comm).*",
                          alertstate="firing"
                        }[1h]
                      )
                    """,
                    loses=True,
                ),
                "Little of the training time is productive.",
                """{share} of run {run}'s last hour was neither productive steps nor evaluation, but starts, restores,
                waiting, saving, or steps lost by a return to a checkpoint. Start with the largest loss: the run's
                dashboard shows it by cause. Save more often if steps are lost, and shorten starts if it restarts.""",
                wait="10m",
            ),
            is_slowness=True,
        ),
        Cause(
            "loss_nonfinite",
            412,
            "time",
            "progress",
            "Loss is not a number",
            "Stop, go back to the last good checkpoint, lower the learning rate or clip gradients.",
            Alert(
                "critical",
                Found(),
                "Training loss is NaN or infinite.",
                """{share} of the ranks of run {run} report only losses that are NaN or infinite: every further step is
                wasted.{first_nonfinite} Stop the run, go back to the last good checkpoint, and lower the learning rate,
                clip gradients or use bf16 instead of fp16; check the first bad batch.""",
                wait="0m",
                keep="0m",
            ),
            mutes=(PERFORMANCE,),
        ),
        Cause(
            "rollout_wait",
            413,
            "time",
            "performance",
            "Waiting in rollouts",
            "Generate on the training GPUs, overlap rollouts with training, or rebalance GPUs between the phases.",
            # Measured over an hour: a rollout may take longer than the windows of verdicts.
            Alert(
                "warning",
                Over('run_cause:time_lost:ratio1h{cause="rollout_wait"}', "rollout_warning", loses=True),
                "GPUs of a run idle while others generate.",
                """GPUs of run {run} idled for {share} of the last hour in the phases rollout, reward and weight_sync:
                they wait for the GPUs or CPUs that generate, score or pass on weights. Generate on the training GPUs
                (colocate), train on the previous rollouts meanwhile (overlap), or move GPUs to the phase that takes
                longest (rebalance); compute rewards in parallel processes.""",
            ),
            mutes=_PAUSES,
        ),
        # Across ranks.
        Cause(
            "straggler_rank",
            501,
            "ranks",
            "performance",
            "One rank delays the others",
            "Check that rank's work and host; rebalance it.",
            Alert(
                "warning",
                Straggler(),
                "One rank delays all others.",
                """The other ranks of run {run} wait {share} of each step for {straggler}; neither its input nor its
                GPU shows a reason. Compare its work (longer sequences, more experts or layers, logging on rank 0) and
                its host (other jobs, CPU binding) with the others'; rebalance the work, or move the rank to
                another node.""",
            ),
            mutes=_WAITS_FOR_A_RANK,
        ),
        Cause(
            "straggler_input",
            502,
            "ranks",
            "performance",
            "One rank waits for data",
            "Balance the shards, and check that rank's disk and CPUs.",
            Alert(
                "warning",
                Straggler(),
                "One rank waits for data, and all others for it.",
                """The other ranks of run {run} wait {share} of each step for {straggler}{starved_or}, which waits for
                its data. Balance the shards (equal bytes, not equal files), and check that rank's disk, mount and
                CPUs; give its loader more workers and prefetching.{end}{line}""",
            ),
            mutes=(*_SLOW_GPU, "input_bound", *_WAITS_FOR_A_RANK),
            phase="data_wait",
        ),
        Cause(
            "straggler_hw",
            503,
            "ranks",
            "hardware",
            "One rank's hardware is slow",
            "Drain or replace that rank's GPU or node.",
            Alert(
                "warning",
                Straggler(),
                "The hardware of one rank delays all others.",
                """The other ranks of run {run} wait {share} of each step for {straggler}{slowed_or}, whose GPU is
                slow{clocks}.{end} See that GPU's alerts; drain or replace it if it lasts, and go on without its node
                meanwhile.""",
            ),
            mutes=("straggler_rank", *_WAITS_FOR_A_RANK),
            is_slowness=True,
        ),
        Cause(
            "gpu_load_imbalance",
            504,
            "ranks",
            None,
            "GPUs of the run differ in load",
            "Use DDP instead of DataParallel; balance shards or stages.",
            Alert(
                "warning",
                Over("run:load_spread:ratio5m", "load_spread"),
                "GPUs of one training run differ in load.",
                """The activity of the GPUs of run {run} differs by {share} of the time. Use DistributedDataParallel
                instead of DataParallel, and balance shards, experts or pipeline stages; find the GPU that differs, and
                check whether its rank does other work.""",
                wait="10m",
            ),
            is_slowness=True,
        ),
        Cause(
            "uneven_work",
            507,
            "ranks",
            "performance",
            "Uneven work by step",
            "Sort, bucket or pack samples by tokens, so that ranks get equal work; balance experts.",
            Alert(
                "warning",
                Loss("uneven_warning", "uneven_high"),
                "Ranks have uneven work in each step.",
                """The ranks of run {run} wait {share} of the time for the rank with the most work, which is another one
                in each step. Group samples by length and give all ranks one group at a time (group_by_length), or pack
                them by tokens; balance experts (auxiliary loss, capacity).""",
            ),
            mutes=_WAITS_FOR_A_RANK,
        ),
        Cause(
            "stage_imbalance",
            508,
            "ranks",
            "performance",
            "A pipeline stage has more work",
            "Move layers from the slow pipeline stage to other stages, or split the output layer.",
            Alert(
                "warning",
                Loss("straggler_warning", "straggler_high", window="3m"),
                "One pipeline stage delays all others.",
                """Run {run} loses {share} of its time because its pipeline stages have unequal work.{stages} Move
                layers from the slow stage to other stages, or split the output layer or the embedding. If the run is no
                pipeline, find what its slow ranks have in common: more work, or the same part of a host.""",
            ),
            mutes=("straggler_rank", *_WAITS_FOR_A_RANK),
        ),
        Cause(
            "comm_bound",
            505,
            "ranks",
            "performance",
            "Communication",
            "Larger buckets or accumulation, overlap, 16-bit gradients; check that NVLink or RDMA is used.",
            Alert(
                "warning",
                Loss("comm_warning", "comm_high", window="3m"),
                "Communication slows training.",
                """Run {run} spends {share} of its time in communication that does not overlap with
                computation.{slow_link} Use larger buckets or gradient accumulation, overlap it with the backward
                pass, and send gradients in 16 bits; check that the collective library uses NVLink and RDMA
                (NCCL_DEBUG=INFO), not sockets.""",
            ),
            mutes=("scaling_inefficient",),
        ),
        Cause(
            "scaling_inefficient",
            506,
            "ranks",
            None,
            "Poor scaling",
            "Fix the largest loss first: communication, a straggler or the input.",
            # Silent while the input is too slow: more GPUs make that worse.
            Alert(
                "warning",
                Expression(
                    """
                      (
                          run:scaling_efficiency:ratio5m < threshold(scaling_warning)
                        or
                          run:scaling_efficiency:ratio5m
                          <
                          1 - (1 - threshold(scaling_warning)) * threshold(clear_ratio)
                        and on ({run})
                          {firing}
                      )
                    unless on ({run})
                        sum by ({run}) (run_cause:time_lost:ratio5m{cause=~"input_.*"})
                      >=
                        threshold(input_warning)
                    """,
                ),
                "Training scales poorly over its GPUs.",
                """Each GPU of run {run} does {share} of the work of a single GPU (single_gpu_samples_per_second, as the
                run reports it). Fix its largest loss first: communication (larger buckets, 16 bits, NVLink or RDMA), a
                straggler, or a batch per GPU that is too small.""",
                wait="10m",
            ),
            is_slowness=True,
        ),
        # Health of GPUs.
        Cause(
            "thermal_throttle",
            601,
            "hardware",
            "hardware",
            "Slowed by heat",
            "Check airflow, fans and inlet temperature.",
            Alert(
                "warning",
                Over("gpu:thermal_throttled:ratio10m", "thermal_share"),
                "GPU runs slower because of heat.",
                """Heat reduced the clocks of {gpu} for {share} of the last ten minutes.{since} Check airflow, fans and
                inlet temperature, and move hot neighbours; clean the heat sink or renew its paste if this GPU alone
                is hot.""",
                wait="1m",
            ),
            mutes=_SLOW_GPU,
        ),
        Cause(
            "power_brake",
            602,
            "hardware",
            "hardware",
            "Power brake",
            "Check power supply, cabling and the rack's cap.",
            # Measured over ten minutes: the driver may set the bit for a moment.
            Alert(
                "critical",
                Value("gpu:power_braked:ratio10m >= threshold(power_brake_share)"),
                "GPU is throttled by its power brake.",
                """The power brake reduced the clocks of {gpu} for {share} of the last ten minutes, to half or
                less.{since}{unused} Check the power supply, its cables and the rack's power cap, and spread the load
                until they are repaired.""",
                wait="1m",
            ),
            mutes=_BROKEN_GPU,
        ),
        Cause(
            "power_capped",
            603,
            "hardware",
            None,
            "Power limit below default",
            "Raise the limit if cooling allows.",
            # A GPU at its default limit under full load is normal, and so is a lower limit that does not lower the
            # clock. Power far below the limit is held down by something else, such as the server.
            Alert(
                "info",
                Value("gpu:power_capped:ratio5m"),
                "GPU runs slower under a lowered power limit.",
                """Power held the clocks of {gpu} down for {share} of its time: its limit is lower than the default, or
                its server limits it below that.{used_by} Raise the limit (nvidia-smi -pl, or the server's power
                profile) if power and cooling allow. Otherwise keep it: the lower limit does more work per joule.""",
                wait="10m",
            ),
        ),
        Cause(
            "clocks_limited",
            604,
            "hardware",
            None,
            "Clocks set below their maximum",
            "Reset the clocks unless this is intended.",
            Alert(
                "info",
                Value("gpu:clocks_limited:ratio"),
                "Clocks of a GPU are set below their maximum.",
                """The SM clock of {gpu} is set to {share} of its maximum.{used_by} Reset it (nvidia-smi -rgc, and -rac
                for application clocks) unless this is intended, as for a benchmark.""",
                wait="15m",
                keep="0m",
            ),
        ),
        Cause(
            "xid_hw",
            605,
            "hardware",
            "hardware",
            "Hardware error (Xid)",
            "Follow the action of the error's class: reset the GPU, reboot or drain the node.",
            # Fires for an hour after the latest error. The value is the age of the error in seconds. It waits as long
            # as the alert on a lost GPU, which mutes this one where the GPU is lost with the error.
            Alert(
                "critical",
                Value("time() - gpu:xid_hw:timestamp_seconds", of="gpu_rank:xid_hw:info", labels="xid, action"),
                "GPU reported a hardware error (Xid).",
                """{gpu} reported Xid {{ $labels.xid }} {{ $value | humanizeDuration }} ago: the hardware or its
                firmware is at fault.{since}{unused} To do: {{ $labels.action }}. The kernel log (NVRM: Xid) has the
                details; let no new job start there until then.""",
                wait="30s",
                keep="0m",
            ),
            mutes=_BROKEN_GPU,
        ),
        Cause(
            "xid_app",
            606,
            "hardware",
            None,
            "Application error (Xid)",
            "Run compute-sanitizer; the GPU is fine unless it repeats across jobs.",
            # Every Xid that the table neither classes as a hardware error nor ignores, unknown codes included.
            Alert(
                "info",
                Expression(
                    """
                      time()
                    -
                      gpu_rank:pair:info
                      * on ({gpu}) group_left (xid, class, action)
                        gpu:xid_app:timestamp_seconds
                    """,
                ),
                "GPU reported an Xid error, probably caused by an application.",
                """{gpu} reported Xid {{ $labels.xid }} (class: {{ $labels.class }}) {{ $value | humanizeDuration }}
                ago.{used_by} To do: {{ $labels.action }}. The GPU is fine, unless the same comes back under
                different jobs.""",
                wait="0m",
                keep="0m",
            ),
        ),
        Cause(
            "lost",
            607,
            "hardware",
            "hardware",
            "GPU lost",
            "Drain the node and reboot; reseat or replace the GPU if it happens again.",
            # A driver that is being reloaded is back within seconds; a GPU that fell off the bus is not.
            Alert(
                "critical",
                Evidence(loses=True),
                "GPU is lost: it cannot be read any more.",
                """{gpu} can no longer be read: all of its time ({share}) is lost{{ if $labels.run }}, and run
                {run}, which had rank {rank} on it, cannot continue{{ end }}.{unused}{began} Drain the node, read the
                kernel log for Xid 79, and reboot; if the GPU is lost again, reseat or replace it.""",
                wait="30s",
                keep="2m",
            ),
            mutes=(EVERYTHING, *_BROKEN_GPU),
        ),
        Cause(
            "ecc_uncorrected",
            608,
            "hardware",
            "hardware",
            "Uncorrectable memory error",
            "Drain and reset the GPU; replace it if it happens again.",
            # Fires until the GPU is reset: the driver counts since it was loaded.
            Alert(
                "critical",
                Evidence("gpu:ecc_uncorrected:count"),
                "GPU memory had an error that ECC could not correct.",
                """{gpu} has had {value} uncorrectable memory errors since its driver was loaded: results based on this
                memory are wrong, or the process was killed.{since}{unused} Drain the node and reset the GPU; replace
                the GPU if it happens again.""",
                wait="0m",
                keep="0m",
            ),
            mutes=_BROKEN_GPU,
        ),
        Cause(
            "row_remap_pending",
            609,
            "hardware",
            "hardware",
            "Memory row remap pending",
            "Reset the GPU when the job ends.",
            Alert(
                "warning",
                Evidence(),
                "GPU needs a reset to remap faulty memory.",
                """{gpu} has found faulty memory, and will use the spare row only after a reset (row_remap_pending is
                {value}).{since} Let the job end, then reset the GPU before the next one starts.""",
                wait="1m",
                keep="0m",
            ),
            mutes=_SLOW_GPU,
        ),
        Cause(
            "row_remap_failed",
            610,
            "hardware",
            "hardware",
            "Memory row remap failed",
            "Drain the node and replace the GPU.",
            Alert(
                "critical",
                Evidence(),
                "GPU memory is faulty, and no spare row is left.",
                """{gpu} found faulty memory that it could not remap (row_remap_failed is {value}): errors will come
                back.{since}{unused} Drain the node and replace the GPU.""",
                wait="1m",
                keep="0m",
            ),
            mutes=("row_remap_pending", *_BROKEN_GPU),
        ),
        Cause(
            "pcie_degraded",
            611,
            "hardware",
            "hardware",
            "PCIe link slower than it could be",
            "Reseat the GPU; check riser and firmware settings.",
            # The value is the width or generation of the link, divided by its maximum.
            Alert(
                "warning",
                Evidence("last_over_time(gpu:pcie_degraded:ratio[1m])"),
                "PCIe link of a GPU is slower than it could be.",
                """The PCIe link of {gpu} runs at {share} of its lanes or of its generation, and copies from the host
                are slower accordingly.{since} Reseat the GPU, check riser and cable, and the slot's settings in
                the firmware.""",
                keep="15m",  # longer than the delay of its rank, which it mutes
            ),
            mutes=_SLOW_GPU,
        ),
        Cause(
            "pcie_replays",
            612,
            "hardware",
            "hardware",
            "PCIe link errors",
            "Reseat the GPU or replace the riser.",
            Alert(
                "warning",
                Evidence("last_over_time(gpu:pcie_replays:per_minute5m[1m])"),
                "PCIe link of a GPU has too many errors.",
                """The PCIe link of {gpu} replays {rounded} packets a minute, more than its bit error rate
                allows.{since} Reseat the GPU, or replace the riser or cable; drain the node if the GPU is lost
                after it.""",
                wait="1m",
            ),
            mutes=_SLOW_GPU,
        ),
        Cause(
            "nvlink_errors",
            613,
            "hardware",
            "hardware",
            "NVLink errors",
            "Reset the GPU; have the link checked if they come back.",
            Alert(
                "warning",
                Evidence("last_over_time(gpu:nvlink_errors:increase5m[1m])"),
                "NVLink of a GPU has errors.",
                """The NVLinks of {gpu} had about {rounded} errors in five minutes, and collectives wait for replayed
                packets.{since} Reset the GPU when the job ends; if the errors come back, have the link, its bridge
                or the switch checked.""",
                wait="0m",
            ),
            mutes=_SLOW_GPU,
        ),
        Cause(
            "nvlink_down",
            614,
            "hardware",
            "hardware",
            "NVLink down",
            "Drain the node: collectives are slow without it.",
            Alert(
                "warning",
                Evidence("last_over_time(gpu:nvlinks_down:count[1m])"),
                "NVLinks of a GPU are down.",
                """{value} NVLinks of {gpu} are down, and collectives are slower for all GPUs of their job.{since}
                Drain the node, reset its GPUs and check bridges or switches; until then keep jobs over several GPUs
                away from it.""",
                wait="1m",
                keep="15m",  # longer than the delay of its rank, which it mutes
            ),
            mutes=("nvlink_errors", *_SLOW_GPU),
        ),
        # Use of GPUs.
        Cause(
            "underused",
            701,
            "use",
            "use",
            "Underused",
            "Add stallscope.track to the training loop to learn why.",
            # Only for a GPU that is held and works, and where no training report shows why it works so little.
            Alert(
                "warning",
                Value(
                    'max by ({gpu}) (pair_cause:time_lost:ratio5m{cause="underused"})',
                    "gpu_holder:pair:info",
                    loses=True,
                ),
                "GPU is underused, and no training report explains why.",
                """{gpu} is held but not busy for {share} of its time, and 95 % of its utilisation samples are at or
                under 70 %.{held_by} Add `stallscope.track` around the training loop's data loader to learn why;
                until then compare with the host's CPUs, disks and network, and try more loader workers or a
                larger batch.""",
                wait="15m",
            ),
            is_slowness=True,
        ),
        Cause(
            "periodic_host_work",
            702,
            "use",
            "use",
            "Regular dips",
            "Look for logging, checkpoints or evaluation at that interval.",
            # The value is the time of the dips that no phase of the run explains.
            Alert(
                "warning",
                Expression(
                    """
                      gpu_holder:pair:info
                    * on ({gpu}, run, rank) group_left ()
                      max by ({gpu}, run, rank) (
                        pair_cause:time_lost:ratio5m{cause="periodic_host_work"} >= threshold(dip_share)
                      )
                    """,
                    loses=True,
                ),
                "GPU is idle at regular intervals.",
                """{gpu} is idle for {share} of its time, in regular dips{{ with printf
                "gpu:dip_period:seconds30m{instance=%q,gpu=%q,uuid=%q}" $labels.instance $labels.gpu $labels.uuid |
                query }} every {{ . | first | value | humanizeDuration }}{{ end }}{{ with printf
                "gpu:dip_period:steps30m{instance=%q,gpu=%q,uuid=%q}" $labels.instance $labels.gpu $labels.uuid |
                query }} ({{ . | first | value | printf "%.0f" }} steps){{ end }}.{used_by} Look for a checkpoint,
                an evaluation, logging or another callback at that interval, and move it off the loop or do it less
                often; name it as a phase to see what it costs.""",
            ),
            mutes=("underused", "packing_candidate"),
            is_slowness=True,
        ),
        Cause(
            "idle_allocated",
            703,
            "use",
            "use",
            "Held but idle",
            "Release the GPU, or start the GPU stage earlier.",
            # The recorded series already waits for an hour, or for eight minutes without a process.
            Alert(
                "warning",
                Value(
                    'max by ({gpu}) (pair_cause:time_lost:ratio5m{cause="idle_allocated"})',
                    "gpu_holder:pair:info",
                    loses=True,
                ),
                "GPU is held, and nothing runs on it.",
                """{gpu} has had no work for {{ with printf "gpu:idle_allocated:seconds{instance=%q,gpu=%q,uuid=%q}"
                $labels.instance $labels.gpu $labels.uuid | query }}{{ . | first | value | humanizeDuration }}{{
                else }}long{{ end }}, although it is held: {share} of its time is lost.{held_by}
                Release it, or start the stage that needs it earlier; if the job has several GPUs, check that it
                uses them all.""",
                wait="1m",
                keep="5m",
            ),
            mutes=("underused", "packing_candidate"),
            is_slowness=True,
        ),
        Cause(
            "mem_zombie",
            704,
            "use",
            "use",
            "Memory held by no process",
            "Find who holds the device files; else drain and reset the GPU.",
            Alert(
                "warning",
                Evidence("last_over_time(gpu:zombie_memory:bytes5m[1m])"),
                "GPU memory is in use without a process.",
                """{bytes} of the memory of {gpu} are in use, although no process holds the GPU: probably a dead
                process left it allocated. Find the process that has the device open (fuser -v /dev/nvidia*) and kill
                it; otherwise drain the node and reset the GPU.""",
                wait="1m",
                keep="0m",
            ),
        ),
        Cause(
            "shared_unexpectedly",
            705,
            "use",
            "use",
            "Two jobs on one GPU",
            "Check CUDA_VISIBLE_DEVICES of both jobs.",
            Alert(
                "warning",
                Value("gpu:sharers:count", "gpu_holder:pair:info"),
                "Jobs share a GPU while another one is free.",
                """{value} jobs or owners compute on {gpu}, which is allocated exclusively, and another GPU of the node
                is free: each slows the others.{held_by} Check CUDA_VISIBLE_DEVICES of all of them, or request one GPU
                each from the scheduler.""",
                wait="2m",
                keep="5m",
            ),
        ),
        Cause(
            "packing_candidate",
            706,
            "use",
            None,
            "Room for another job",
            "Run another experiment beside it (MPS or MIG).",
            # Not for a GPU of a larger run: one slow rank slows all others. The value is the number of further jobs
            # that fit.
            Alert(
                "info",
                Value("gpu:jobs_that_fit:count", "gpu_rank:pair:info"),
                "GPU has room for another job.",
                """The memory of {gpu} has room for {value} more jobs like the one on it ({{ with printf
                "max(stallscope_gpu_memory_total_bytes{instance=%q,gpu=%q,uuid=%q}) -
                max(stallscope_gpu_memory_used_bytes{instance=%q,gpu=%q,uuid=%q})" $labels.instance $labels.gpu
                $labels.uuid $labels.instance $labels.gpu $labels.uuid | query }}{{ . | first | value | humanize1024
                }}B{{ end }} free, busy for {{ with printf
                "max(rate(stallscope_gpu_busy_seconds_total{instance=%q,gpu=%q,uuid=%q}[5m]))" $labels.instance
                $labels.gpu $labels.uuid | query }}{{ . | first | value | humanizePercentage }}{{ end }} of the
                time), and its host has CPUs to spare.{used_by} Run another experiment beside it, by MPS or as
                MIG instances.""",
                wait="30m",
                keep="0m",
            ),
            is_slowness=True,
        ),
        Cause(
            "spin_suspected",
            707,
            "use",
            "use",
            "Suspected spin in a collective",
            "Compare the stacks of all ranks of the job, and restart it; the shim makes it certain.",
            # The recorded series already waits for ten minutes. The value is the power as a share of its limit.
            Alert(
                "info",
                Value("gpu:spin_power:ratio10m", "gpu_holder:pair:info"),
                "GPU is busy but does no work: suspected spin in a collective.",
                """{gpu} has been fully busy for ten minutes at a steady {share} of its power limit, with its memory at
                rest: that is how a GPU looks that waits in a collective (NCCL, RCCL) for a rank that does not
                come.{held_by} See where its process is (`stallscope stacks --pid PID`), compare it with the other
                ranks of the job, and restart the job if it makes no step. Add `stallscope.track` to the training loop
                to be certain.""",
                wait="1m",
                keep="0m",
            ),
        ),
        # Hosts.
        Cause(
            "mem_pressure",
            801,
            "host",
            None,
            "Memory short",
            "Fewer workers, less prefetching, memory-mapped data.",
            # The value is the share of memory in use where it is known, else the share of time that tasks wait for
            # memory.
            Alert(
                "warning",
                Expression(
                    """
                      host:memory_used:ratio >= threshold(host_memory_used)
                    or
                      host:memory_used:ratio
                    and
                      host:memory_waiting:ratio5m >= threshold(memory_pressure)
                    or
                      host:memory_waiting:ratio5m >= threshold(memory_pressure)
                    """,
                ),
                "Host is short of memory.",
                """{instance} has used up its memory ({share} in use), or its tasks wait for it. The kernel drops page
                cache first, then kills processes. Run fewer loader workers with less prefetching, map data sets into
                memory instead of
                loading them, and keep no Python lists of samples in the data set.""",
                wait="15m",
            ),
        ),
        Cause(
            "oom_kill",
            802,
            "host",
            None,
            "OOM kill",
            "Raise the memory limit, or run fewer workers.",
            # Fires at once; the kernel log names the process. One alert for each run that is affected, else one for the
            # host, which notifies no one.
            Alert(
                "critical",
                Expression(
                    """
                      host:oom_kills:increase10m
                    * on (cluster, job, instance) group_right ()
                      group by (cluster, job, instance, namespace, run, job_class) (rank:oom_kill:info)
                    or
                      host:oom_kills:increase10m
                    unless on (cluster, job, instance)
                      rank:oom_kill:info
                    """,
                ),
                "Host killed a process because memory ran out (OOM).",
                """The kernel of {instance} killed about {rounded} processes in ten minutes because memory ran
                out{cgroups}. {{ if $labels.run }}Run {run} is affected: a process in its cgroup was killed, such as a
                loader worker, which leaves the run hanging, or a rank ended at that time{oom_ranks}. Raise the memory
                limit of the job, or run fewer workers with less prefetching.{{ else }}No rank is affected. Raise the
                memory limit of the killed process, or move it away, if training shares the host.{{ end }}""",
                wait="0m",
                keep="5m",
                info_where='or (not $labels.run) (eq $labels.job_class "experiment")',
            ),
            mutes=("mem_pressure", "swapping"),
        ),
        Cause(
            "shm_full",
            803,
            "host",
            None,
            "Shared memory full",
            "Raise --shm-size, or share tensors by file system.",
            Alert(
                "warning",
                Expression("host:shared_memory_used:ratio >= threshold(shared_memory_used)"),
                "Shared memory of a host is nearly full.",
                """/dev/shm of {instance} is {share} full. Loader workers pass batches through it, and die with a bus
                error or hang when it is full. Enlarge it (--shm-size, or an emptyDir of medium Memory), or share
                tensors through the file system; remove files of dead processes.""",  # noqa: S108
            ),
        ),
        Cause(
            "swapping",
            804,
            "host",
            None,
            "Swapping",
            "Hold less in memory: fewer workers, smaller caches.",
            Alert(
                "warning",
                Expression("host:swapping:bytes5m"),
                "Host is swapping.",
                """{instance} swaps in {bytes} a second, and processes wait for it: memory is overcommitted. Use less
                memory (fewer workers, smaller caches), or run fewer jobs on the node.""",
                wait="15m",
            ),
            mutes=("mem_pressure",),
        ),
        Cause(
            "cpu_saturated",
            805,
            "host",
            None,
            "CPUs saturated",
            "Nothing yet: training is not slowed by it.",
            # Silent where a run waits for data: that alert says more.
            Alert(
                "info",
                Expression(
                    """
                      host:cpu_busy:ratio5m >= threshold(cpu_saturated)
                    unless on (cluster, job, instance)
                      pair_cause:time_lost:ratio5m{domain="input"} >= threshold(input_notice)
                    """,
                ),
                "CPUs of a host are saturated; training is not slowed.",
                """The CPUs of {instance} are {share} busy, and no run there waits for data. There is nothing to do yet.
                Check this before you add loader workers or jobs, and give each job its own CPUs.""",
                wait="15m",
            ),
        ),
        Cause(
            "network_errors",
            806,
            "host",
            None,
            "Network errors",
            "Check cable, optics and switch port.",
            Alert(
                "warning",
                Expression("host:network_errors:ratio1h"),
                "Network link of a host has errors.",
                """{share} of the packets on {{ $labels.device }} of {instance} had errors or were dropped in the last
                hour, and were sent again. Check cable, optics and switch port; until then run no multi-node jobs
                there.""",
                keep="5m",
            ),
        ),
    )
}

REMAINDERS: dict[str, tuple[str, str]] = {
    "healthy": ("Healthy", "Nothing to do."),
    "insufficient_data": ("Not enough evidence", "rank:missing:info names what is missing."),
}
"""Title and remedy of the two verdicts that name no cause."""

MISSING: dict[str, str] = {
    "reports": "No report for five minutes: check that the process lives, and where STALLSCOPE_ADDRESS leads.",
    "steps": "Fewer than 6 steps yet.",
    "warmup": (
        "A run has no verdict in its first minutes: most causes are judged once steps get no shorter, the others five "
        "minutes later."
    ),
    "late_step": "A step takes longer than usual: it is a standstill once it has taken a minute, and five usual steps.",
    "standstill": "The rank was at a standstill: it is judged again five minutes later.",
    "data_wait": 'Phase data_wait is not reported: wrap the loader, or use phase("data_wait").',
    "gpu_idle": "Its GPU was observed for under two minutes of five: if this lasts, see the exporter's health.",
}
"""Sentence for each reason in `rank:missing:info`: what is awaited and for how long. The likeliest comes first."""

CODES: dict[str, int] = {
    **{name: code for code, name in enumerate(REMAINDERS)},
    **{c.name: c.code for c in CAUSES.values()},
}
"""Number of every verdict, as `stallscope:cause:code` has it."""

SLOW_ALERTS = {cause.alert for cause in CAUSES.values() if cause.is_slowness or cause.tier in ("performance", "device")}
"""Names of the alerts that PERFORMANCE stands for; None for a cause without an alert."""


def muted_alerts(cause: Cause) -> set[str]:
    """Return the names of the alerts that the alert on this cause mutes on the same subject."""
    names: set[str | None] = set()
    for target in cause.mutes:
        if target == PERFORMANCE:
            names |= SLOW_ALERTS
        elif target == EVERYTHING:
            names |= {each.alert for each in CAUSES.values() if each.subject == cause.subject}
        else:
            names.add(CAUSES[target].alert if target in CAUSES else target)
    return {name for name in names if name} - {cause.alert or ""}


SHADES: dict[Domain, tuple[str, ...]] = {
    "hardware": ("#F85F4F", "#E72620", "#9A565B"),
    "time": ("#D47F15", "#B27130", "#AF896B"),
    "input": ("#2A69BE", "#7B90C9", "#3C90F1"),
    "ranks": ("#866800", "#776842", "#9E914D"),
    "device": ("#8851F6", "#904EA2", "#D539D5"),
    "memory": ("#904EA2", "#D539D5", "#8851F6"),
    "use": ("#1598AE", "#00A3A0", "#037386"),
    "host": ("#7B90C9", "#3C90F1", "#2A69BE"),
}
"""Three shades of one hue for each kind of cause. Their contrast with a white and with a black page is at least 3:1.
They can be distinguished with red-green blindness, except those of memory and host, which never share a chart with the
kinds that they borrow from."""
REMAINDER_COLOURS: dict[str, str] = {"healthy": "#37872D", "insufficient_data": "#808080"}
PHASE_COLOURS: dict[str, str] = {
    "data_wait": "#2A69BE",
    "host_copy": "#7B90C9",
    "rollout": "#8851F6",
    "reward": "#D539D5",
    "forward": "#37872D",
    "backward": "#4F9E57",
    "communication": "#866800",
    "optimizer": "#1F7A6B",
    "weight_sync": "#904EA2",
    "checkpoint": "#D47F15",
    "evaluation": "#B27130",
    "logging": "#AF896B",
    "other": "#808080",
}
"""One colour for each phase of a step: the colour of its causes; green for phases with work."""


def colour_of(cause: str) -> str:
    """Return the colour of a verdict: a shade of its kind of cause, or green if nothing is lost."""
    if cause in REMAINDER_COLOURS:
        return REMAINDER_COLOURS[cause]
    if CAUSES[cause].tier == "harmless":
        return REMAINDER_COLOURS["healthy"]
    domain = CAUSES[cause].domain
    place = [each.name for each in CAUSES.values() if each.domain == domain].index(cause)
    # The first cause of a kind is the general one, and often occurs together with another of its kind.
    return SHADES[domain][0 if place == 0 else 1 + (place - 1) % 2]
