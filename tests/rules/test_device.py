"""GPU time and waits for reasons other than data: each class next to the cases that resemble it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.rules.rulebook import (
    Labels,
    Rulebook,
    Story,
    exporter,
    gpu,
    growing,
    host,
    rank,
    series,
    steady,
)

VERDICT = "round(100 * run:verdict:ratio5m)"
LIMIT = 500.0
"""Watts."""
MEMORY = 80e9


def node(
    name: str,
    *,
    phases: Mapping[str, float] | None = None,
    copied: float | None = None,
    step: float = 0.4,
    batch: float | None = None,
    main_thread: float = 0.4,
    peak: float | None = 0.5,
    ranks: int = 1,
    others: int = 0,
    flops: float | None = None,
    job_class: str = "production",
    activity: Mapping[str, str] | None = None,
    busy: float = 1.0,
    low_samples: float = 0.0,
    sm: float | None = None,
    tensor: float = 0.3,
    double: float = 0.0,
    dram: float = 0.3,
    memory_busy: float | None = None,
    power: float | None = None,
    used: float = 0.5,
    received: float = 0.0,
    cpus: float = 0.1,
) -> Story:
    """A run of the node's name on a node of its own, a GPU a rank; shares of time.

    Args:
        name: of run and node.
        phases: of the loop; the rest is `forward`.
        copied: time in copies by the device's clock.
        step: seconds.
        batch: samples.
        main_thread: CPUs that it uses.
        peak: of GPU memory, by the framework's allocator.
        ranks: how many, all alike.
        others: how many more there are, with GPUs that are well used.
        flops: of what the GPU could do.
        job_class: of the run.
        activity: as for a rank.
        busy: GPU with a kernel resident.
        low_samples: share of its utilisation samples at or under 0.7.
        sm: SMs active; None for a GPU that does not report it.
        tensor: tensor cores active.
        double: double-precision units active.
        dram: memory bandwidth in use.
        memory_busy: memory controller busy.
        power: of the limit.
        used: of GPU memory, by the driver.
        received: bytes a second over PCIe.
        cpus: of the host, in use.
    """
    instance = f"{name}:19400"
    target = {"job": "stallscope", "instance": instance}
    shares = {"data_wait": 0.0, **(phases or {})}
    shares.setdefault("forward", 1 - sum(shares.values()))
    story = exporter(instance=instance) + host(cpus, instance=instance)
    story += [
        series("stallscope_host_pressure_waiting_seconds_total", growing(0), resource="io", **target),
        series("stallscope_host_network_receive_bytes_total", growing(1e6), device="eth0", **target),
    ]
    for number in range(ranks + others):
        well = number >= ranks
        who = {**target, "run": name, "rank": str(number)}
        card = {**target, "gpu": str(number), "uuid": f"GPU-{number}"}
        story += [
            each
            for each in rank(
                number,
                run=name,
                gpus=((str(number), f"GPU-{number}"),),
                job_class=job_class,
                activity=activity,
                instance=instance,
            )
            if "phase_seconds" not in each[0] and "step_seconds_count" not in each[0]
        ]
        story += gpu(number, idle=1 - busy, low_samples=low_samples, instance=instance)
        story += [
            series("stallscope_training_phase_seconds_total", growing(share), phase=phase, **who)
            for phase, share in shares.items()
        ]
        rank_counters = {
            "step_seconds_count": 1 / step,
            "step_seconds_sum": 1.0,
            "main_thread_cpu_seconds_total": main_thread,
            "flops_total": None if flops is None else flops * 1e15,
        }
        rank_gauges = {"batch_size": batch, "allocator_peak_bytes": None if peak is None else peak * MEMORY}
        gpu_counters = {
            "energy_joules_total": None if power is None else (0.9 if well else power) * LIMIT,
            "memory_busy_seconds_total": memory_busy,
            "pcie_receive_bytes_total": received,
        }
        gpu_gauges = {
            "power_limit_watts": LIMIT,
            "memory_total_bytes": MEMORY,
            "memory_used_bytes": used * MEMORY,
            "pcie_link_width": 16.0,
            "pcie_link_generation": 4.0,
        }
        if sm is not None:
            gpu_counters |= {"sm_active_seconds_total": 0.9 if well else sm, "dram_active_seconds_total": dram}
            story += [
                series("stallscope_gpu_pipe_active_seconds_total", growing(share), pipe=pipe, **card)
                for pipe, share in (("tensor", tensor), ("fp64", double))
            ]
        for prefix, labels, counters, gauges in (
            ("training", who, rank_counters, rank_gauges),
            ("gpu", card, gpu_counters, gpu_gauges),
        ):
            story += [
                series(f"stallscope_{prefix}_{family}", growing(value), **labels)
                for family, value in counters.items()
                if value is not None
            ]
            story += [
                series(f"stallscope_{prefix}_{family}", steady(value), **labels)
                for family, value in gauges.items()
                if value is not None
            ]
        story += [
            series("stallscope_training_precision_info", steady(1), precision="bf16", **who),
            series("stallscope_gpu_peak_flops", steady(1e15), precision="bf16", **card),
            series("stallscope_gpu_peak_flops", steady(0.5e15), precision="tf32", **card),
        ]
        if copied is not None:
            family = "stallscope_training_phase_gpu_seconds_total"
            story.append(series(family, growing(copied), phase="host_copy", **who))
    return story


def check(rulebook: Rulebook, runs: Mapping[str, tuple[Story, str, int]]) -> None:
    """Expect that cause of each run, and that share lost in whole per cent."""
    rulebook.check(
        [each for story, _cause, _share in runs.values() for each in story],
        {VERDICT: [({"run": name, "cause": cause}, share) for name, (_story, cause, share) in runs.items()]},
    )


def test_a_copy_counts_as_far_as_the_gpu_idles_for_it(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "device": (node("device", copied=0.2, busy=0.8), "h2d_bound", 20),
            # The host only sees it begin; the device's clock counts.
            "both": (node("both", phases={"host_copy": 0.01}, copied=0.2, busy=0.75), "h2d_bound", 20),
            "host": (node("host", phases={"host_copy": 0.15}, busy=0.8), "h2d_bound", 15),
            "overlapped": (node("overlapped", copied=0.4, busy=0.99), "healthy", 0),
            "little": (node("little", copied=0.03, busy=0.9), "healthy", 0),
            # The wait for data comes first, and the copy takes what it leaves.
            "besides": (
                node("besides", phases={"data_wait": 0.2, "host_copy": 0.2}, busy=0.7),
                "input_bound",
                20,
            ),
        },
    )


def test_idle_time_is_shared_out_among_wait_copy_and_the_rest(rulebook: Rulebook) -> None:
    story = node("a", phases={"data_wait": 0.2, "host_copy": 0.2, "other": 0.3}, busy=0.5)
    rulebook.check(
        story,
        {
            "round(100 * run_cause:time_lost:ratio5m)": [
                ({"run": "a", "cause": "input_bound"}, 20),
                ({"run": "a", "cause": "h2d_bound"}, 20),
                ({"run": "a", "cause": "sync_stall"}, 10),
            ],
            "round(100 * run:time_lost:ratio5m)": [({"run": "a"}, 50)],
        },
    )


def test_without_a_copy_phase_a_busy_link_beside_idle_sms_is_the_evidence(rulebook: Rulebook) -> None:
    # PCIe 4 x 16 carries 31.5 GB a second.
    check(
        rulebook,
        {
            "link": (node("link", received=6.3e9, busy=0.6, sm=0.25), "h2d_bound", 20),
            "busy": (node("busy", received=6.3e9, busy=0.6, sm=0.35), "healthy", 0),
            "reported": (node("reported", phases={"host_copy": 0.0}, received=6.3e9, busy=0.6, sm=0.25), "healthy", 0),
        },
    )


def test_time_outside_the_phases_counts_where_the_gpu_has_run_dry(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "dry": (node("dry", phases={"other": 0.2}, busy=0.78), "sync_stall", 20),
            # The host reads the loss, and waits for the GPU there.
            "waits": (node("waits", phases={"other": 0.7}, busy=0.99), "healthy", 0),
            # Nothing is measured: `other` is the step.
            "unmeasured": (node("unmeasured", phases={"other": 1.0, "forward": 0.0}, busy=0.7), "sync_stall", 30),
            "little": (node("little", phases={"other": 0.04}, busy=0.9), "healthy", 0),
        },
    )
    story = [each for each in node("a", phases={"other": 1.0}, busy=0.7) if 'phase="forward"' not in each[0]]
    rulebook.check_percent(story, "run:verdict:ratio5m", [({"run": "a", "cause": "healthy"}, 0)])


def test_a_busy_gpu_whose_sms_idle_has_too_little_work(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "small": (node("small", busy=0.95, sm=0.3, power=0.4, step=0.02), "small_batch", 65),
            "at-125": (node("at-125", busy=0.95, sm=0.4, power=0.4), "small_batch", 55),
            "at-80": (node("at-80", busy=0.95, sm=0.625, power=0.4), "healthy", 0),
            "powerful": (node("powerful", busy=0.95, sm=0.45, power=0.8), "healthy", 0),
            # Much of what the GPU did was generating.
            "generates": (
                node("generates", phases={"rollout": 0.4}, busy=0.95, sm=0.3, power=0.4, step=0.02),
                "healthy",
                0,
            ),
            # No larger batch would fit.
            "full": (node("full", busy=0.95, sm=0.3, power=0.4, peak=0.9), "healthy", 0),
            # Memory that may only be set aside leaves it unknown whether a larger batch would fit.
            "taken": (node("taken", busy=0.95, sm=0.3, power=0.4, used=0.98, peak=None), "healthy", 0),
            "free": (node("free", busy=0.95, sm=0.3, power=0.4, used=0.3, peak=None), "small_batch", 65),
            # Work of few SMs shows in the power alone.
            "power-unknown": (node("power-unknown", busy=0.95, sm=0.3), "healthy", 0),
            # A GPU that waits for others in a collective looks the same.
            "spins": (node("spins", ranks=2, busy=1.0, sm=0.3, power=0.3), "healthy", 0),
            "short": (node("short", ranks=2, busy=1.0, sm=0.3, power=0.3, step=0.02), "small_batch", 70),
            "measured": (
                node("measured", ranks=2, busy=1.0, sm=0.3, power=0.3, phases={"communication": 0.02}),
                "small_batch",
                70,
            ),
        },
    )


def test_a_wait_of_note_leaves_no_class_of_the_gpu_side(rulebook: Rulebook) -> None:
    small: dict[str, Any] = {"sm": 0.2, "power": 0.3, "step": 0.02}
    runs = {
        "data": node("data", phases={"data_wait": 0.15}, busy=0.85, **small),
        "copy": node("copy", copied=0.15, busy=0.85, **small),
        "talk": node("talk", phases={"communication": 0.4}, **small),
        "evaluation": node(
            "evaluation",
            activity={"training": steady(0), "evaluation": steady(1)},
            **small,
        ),
    }
    rulebook.check(
        [each for story in runs.values() for each in story],
        {'pair_cause:time_lost:ratio5m{domain="device"}': []},
    )


def test_without_performance_counters_short_steps_at_low_power_are_a_small_batch(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            # W&B study: 250 images a second in batches of 4.
            "ac-01": (node("ac-01", busy=0.9, memory_busy=0.85, batch=4, step=0.016, used=1.0), "small_batch", 0),
            # And 3500 in batches of 512.
            "ac-02": (
                node("ac-02", busy=1.0, memory_busy=0.62, batch=512, step=0.146, used=1.0, power=0.9),
                "compute_bound",
                0,
            ),
            "low-power": (node("low-power", busy=0.9, step=0.03, power=0.45), "small_batch", 0),
            "power": (node("power", busy=0.9, step=0.03, power=0.75), "healthy", 0),
            "long": (node("long", busy=0.9, step=0.0625, power=0.45), "healthy", 0),
            "large": (node("large", busy=0.9, step=0.03, memory_busy=0.85, batch=128, power=0.75), "healthy", 0),
            "host-busy": (node("host-busy", busy=0.9, step=0.03, power=0.45, cpus=0.8), "healthy", 0),
        },
    )


def test_gpu_memory_and_host_all_low_are_a_small_batch(rulebook: Rulebook) -> None:
    # SageMaker's footprint: batch 64; at 1024 it clears.
    check(
        rulebook,
        {
            "ac-10": (node("ac-10", busy=0.5, low_samples=1.0, batch=64, used=0.3), "small_batch", 0),
            "cleared": (node("cleared", busy=0.93, low_samples=0.02, batch=1024, used=0.9, peak=0.85), "healthy", 0),
            "dips": (node("dips", busy=0.65, low_samples=0.4, used=0.3), "healthy", 0),
            "memory": (node("memory", busy=0.5, low_samples=1.0, used=0.8), "healthy", 0),
            **{
                name: (
                    [each for each in node(name, busy=0.5, low_samples=1.0, used=0.3) if unknown not in each[0]],
                    "healthy",
                    0,
                )
                for name, unknown in {"disk": 'resource="io"', "link": "network_receive"}.items()
            },
            "host-full": (node("host-full", busy=0.5, low_samples=1.0, used=0.3, cpus=0.75), "healthy", 0),
        },
    )


def test_a_main_thread_at_its_limit_beside_idle_sms_is_launch_bound(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "eager": (node("eager", busy=0.7, sm=0.25, main_thread=0.99, peak=0.9), "launch_bound", 45),
            "at-125": (node("at-125", busy=0.9, sm=0.32, main_thread=0.99, peak=0.9), "launch_bound", 58),
            "at-80": (node("at-80", busy=0.9, sm=0.5, main_thread=0.99, peak=0.9), "healthy", 0),
            "rested": (node("rested", busy=0.7, sm=0.25, main_thread=0.6, peak=0.9), "healthy", 0),
            # It spins while the GPU computes.
            "spins": (node("spins", busy=1.0, sm=0.9, power=0.9, main_thread=1.0), "compute_bound", 0),
        },
    )


def test_a_main_thread_at_its_limit_beside_an_idle_gpu_is_launch_bound_whatever_its_sms_do(rulebook: Rulebook) -> None:
    launching: dict[str, Any] = {"busy": 0.65, "main_thread": 0.99, "peak": 0.9}
    check(
        rulebook,
        {
            "fills": (node("fills", sm=0.6, **launching), "launch_bound", 35),
            "unknown": (node("unknown", **launching), "launch_bound", 35),
            "rested": (node("rested", sm=0.6, busy=0.65, main_thread=0.6, peak=0.9), "healthy", 0),
            "busy": (node("busy", sm=0.6, busy=0.85, main_thread=0.99, peak=0.9), "healthy", 0),
            # Another cause explains why the GPU idles.
            "waits": (node("waits", sm=0.6, phases={"data_wait": 0.3}, **launching), "input_single_thread", 30),
            "logs": (node("logs", sm=0.6, phases={"logging": 0.3}, **launching), "callback_stall", 30),
        },
    )
    blocked = node("saves", sm=0.6, phases={"checkpoint": 0.04, "logging": 0.04}, **launching)
    rulebook.check(blocked, {'pair_cause:time_lost:ratio5m{domain="device"}': []})


def test_kernels_are_judged_by_bandwidth_tensor_cores_and_arithmetic(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "stream": (node("stream", sm=0.85, dram=0.875, tensor=0.1, power=0.75), "mem_bw_bound", 15),
            "less": (node("less", sm=0.85, dram=0.56, tensor=0.1, power=0.75), "healthy", 0),
            "products": (node("products", sm=0.85, dram=0.8, tensor=0.6, power=0.75), "compute_bound", 0),
            "single": (node("single", sm=0.9, tensor=0.0), "tensor_cores_unused", 10),
            "double": (node("double", sm=0.9, tensor=0.0, double=0.6), "healthy", 0),
            "tf32": (node("tf32", sm=0.9, tensor=0.0625), "healthy", 0),
            "mfu": (node("mfu", sm=0.9, flops=0.16), "low_mfu", 10),
            "good": (node("good", sm=0.9, flops=0.25, power=0.9), "compute_bound", 0),
            "idle": (node("idle", busy=0.7, sm=0.6, flops=0.16), "healthy", 0),
        },
    )


def test_the_mfu_is_of_the_precision_that_the_run_computes_in(rulebook: Rulebook) -> None:
    silent = [each for each in node("silent") if "flops" not in each[0]]
    rulebook.check(
        node("two", ranks=2, flops=0.4) + silent,
        {"round(100 * run:mfu:ratio5m)": [({"run": "two"}, 40)]},
    )


def test_a_well_used_gpu_is_compute_bound_and_loses_nothing(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "power": (node("power", sm=0.9, power=0.85), "compute_bound", 0),
            "tensor": (node("tensor", sm=0.9, tensor=0.6), "compute_bound", 0),
            "neither": (node("neither", sm=0.9, power=0.6), "healthy", 0),
            "old": (node("old", busy=0.99, power=0.9), "compute_bound", 0),
            "old-at-low-power": (node("old-at-low-power", busy=0.99, power=0.4), "healthy", 0),
        },
    )


def test_a_gpu_that_is_compute_bound_has_a_verdict_and_no_series_of_lost_time(rulebook: Rulebook) -> None:
    rulebook.check(
        node("good", sm=0.9, power=0.85),
        {
            "count by (cause) (rank:verdict:ratio5m)": [({"cause": "compute_bound"}, 1)],
            "count by (cause) (gpu:verdict:ratio5m)": [({"cause": "compute_bound"}, 1)],
            'count({__name__=~"(gpu|rank)_cause:.+"})': [],
        },
    )


def test_alerts_on_the_gpu_side(rulebook: Rulebook) -> None:
    small: dict[str, Any] = {"busy": 0.95, "sm": 0.3, "power": 0.4, "step": 0.02}
    stories: dict[str, tuple[Story, Labels]] = {
        "copy": (node("copy", copied=0.25, busy=0.7), {"alertname": "TrainingH2dBound", "severity": "warning"}),
        "host": (
            node("host", phases={"other": 0.125}, busy=0.8),
            {"alertname": "TrainingSyncStall", "severity": "warning"},
        ),
        "small": (node("small", **small), {"alertname": "TrainingSmallBatch", "severity": "warning"}),
        "study": (
            node("study", job_class="experiment", **small),
            {"alertname": "TrainingSmallBatch", "severity": "info"},
        ),
        "eager": (
            node("eager", busy=0.7, sm=0.25, main_thread=0.99, peak=0.9),
            {"alertname": "TrainingLaunchBound", "severity": "warning"},
        ),
        "stream": (
            node("stream", sm=0.85, dram=0.9, tensor=0.1),
            {"alertname": "TrainingMemBwBound", "severity": "info"},
        ),
        "single": (node("single", sm=0.9, tensor=0.0), {"alertname": "TrainingTensorCoresUnused", "severity": "info"}),
        "mfu": (node("mfu", sm=0.9, flops=0.1), {"alertname": "TrainingLowMfu", "severity": "info"}),
    }
    quiet = {
        "good": node("good", sm=0.9, power=0.9),
        "copy-at-80": node("copy-at-80", copied=0.08, busy=0.9),
        "host-at-80": node("host-at-80", phases={"other": 0.08}, busy=0.9),
        # One GPU in three is not the run's trouble.
        "one-of-three": node("one-of-three", others=2, **small),
    }
    firing = 'ALERTS{alertstate="firing",alertname!~"StallscopeWatchdog|TrainingGpuMem.+"}'
    rulebook.check(
        [each for story, _alert in stories.values() for each in story]
        + [each for story in quiet.values() for each in story],
        {
            f"count by (alertname, severity, run) ({firing})": [
                ({**alert, "run": name}, 1) for name, (_story, alert) in stories.items()
            ]
            # The rules report the difference from the other ranks instead.
            + [({"alertname": "TrainingStragglerRank", "severity": "warning", "run": "one-of-three"}, 1)]
        },
        at="40m",
    )


def test_the_text_of_a_small_batch_says_how_much_memory_is_left_to_use(rulebook: Rulebook) -> None:
    rulebook.check_text(
        node("a", busy=0.9, sm=0.4, power=0.4, step=0.02),
        "TrainingSmallBatch",
        {"run": "a", "severity": "warning", "cause": "small_batch", "job_class": "production"},
        {
            "summary": "Training steps have too little work for the GPU.",
            "description": (
                "GPUs of run a look busy but do little: each step is too small (50 % of GPU time is SMs without work). "
                "Raise the batch size (50 % of GPU memory is used) and scale the learning rate with it; else use CUDA "
                "Graphs or torch.compile and fewer tiny operations, or pack several experiments on the GPU."
            ),
            "runbook_url": ("https://github.com/stallscope/stallscope/blob/main/alerts/runbooks/TrainingSmallBatch.md"),
            "dashboard_url": "/d/stallscope-run?var-run=a",
            "lost": "12.0 GPU-hours a day",
        },
        at="40m",
    )
