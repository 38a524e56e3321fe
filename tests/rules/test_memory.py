"""GPU memory by the framework's own account: alerts of runs, each beside what looks like it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.rules.rulebook import (
    RULE_FILES,
    SHARED,
    TARGET,
    Labels,
    Rulebook,
    Story,
    exporter,
    gpu,
    gpu_signal,
    node,
    rank,
    series,
    steady,
    until,
)

GIB = 2**30
FILES = tuple(path for path in RULE_FILES if path.stem in (*SHARED, "input", "goodput", "memory", "training_memory"))
"""Rules that judge memory; no verdict depends on them."""
TOTAL = 80 * GIB


def allocator(run: str, number: int = 0, **shares: float | str) -> Story:
    """Return a rank's allocator metrics as shares of the GPU's memory; a string gives the values directly."""
    return [
        series(
            f"stallscope_training_{name if name.endswith('total') else f'allocator_{name}_bytes'}",
            value if isinstance(value, str) else steady(value * TOTAL),
            run=run,
            rank=str(number),
            **TARGET,
        )
        for name, value in shares.items()
    ]


def trained(run: str, *ranks: Story, busy: float = 0.8) -> Story:
    """A run whose ranks have a GPU each, on a node of its own."""
    story: Story = []
    for number, reported in enumerate(ranks):
        story += rank(number, run=run, gpus=((str(number), f"GPU-{number}"),)) + reported
        story += gpu(number, busy=busy)
    memory = [gpu_signal("memory_total_bytes", steady(TOTAL), number) for number in range(len(ranks))]
    taken = [gpu_signal("memory_used_bytes", steady(0.99 * TOTAL), number) for number in range(len(ranks))]
    return node(run, story, *memory, *taken)


def check_alerts(rulebook: Rulebook, runs: Mapping[str, tuple[Story, Iterable[Labels]]], at: str = "50m") -> None:
    """Expect exactly these alerts on memory of each run."""
    rulebook.check(
        exporter() + [each for story, _alerts in runs.values() for each in story],
        {
            'count by (alertname, severity, run, rank) (ALERTS{alertstate="firing", alertname=~"TrainingGpuMem.+"})': [
                ({"run": run, **labels}, 1) for run, (_story, alerts) in runs.items() for labels in alerts
            ],
            'count(run_cause:time_lost:ratio5m{cause=~"gpu_mem.+"})': [],
        },
        at=at,
        rule_files=FILES,
    )


def alert(name: str, severity: str) -> Labels:
    return {"alertname": f"TrainingGpuMem{name}", "severity": severity}


def test_headroom_and_shortage_follow_the_allocators_peak(rulebook: Rulebook) -> None:
    """The driver reports nearly all memory as used, as with frameworks that preallocate it."""
    retries = until(40, 0, 3)
    check_alerts(
        rulebook,
        {
            "room": (trained("room", allocator("room", peak=0.56)), [alert("Headroom", "info")]),
            "no room": (trained("no room", allocator("no room", peak=0.875)), []),
            "busy": (trained("busy", allocator("busy", peak=0.56), busy=1.0), []),
            "one of two": (
                trained("one of two", allocator("one of two", peak=0.62), allocator("one of two", 1, peak=0.72)),
                [],
            ),
            "no metrics": (trained("no metrics", []), []),
            "near": (trained("near", allocator("near", peak=0.92)), [alert("NearOom", "info")]),
            "full": (trained("full", allocator("full", peak=0.975)), [alert("NearOom", "warning")]),
            "failed": (
                trained("failed", allocator("failed", peak=0.8, allocator_retries_total=retries)),
                [alert("NearOom", "warning")],
            ),
        },
    )


def shared(run: str, peak: float, host: float) -> Story:
    """A run on a GPU that shares its memory with the host, whose other programs use a part of it."""
    story = rank(run=run) + allocator(run, peak=peak, reserved=peak) + gpu(busy=0.8)
    return node(
        run,
        story,
        gpu_signal("memory_total_bytes", steady(TOTAL)),
        gpu_signal("memory_used_bytes", steady((peak + host) * TOTAL)),
        gpu_signal("info", steady(1), memory="unified"),
    )


def test_memory_that_programs_of_the_host_use_is_not_there_for_tensors(rulebook: Rulebook) -> None:
    check_alerts(
        rulebook,
        {
            "host small": (shared("host small", 0.8, 0.05), []),
            "host large": (shared("host large", 0.8, 0.19), [alert("NearOom", "warning")]),
            "host holds": (shared("host holds", 0.8, 0.1), []),
        },
    )


def lengthened(story: Story) -> Story:
    """Return a story with 300 scrapes of its steady values in place of 120."""
    return [(name, values.replace("x120", "x300")) for name, values in story]


def test_a_leak_rises_without_a_pause_and_will_fill_the_memory(rulebook: Rulebook) -> None:
    def used(run: str, values: str) -> Story:
        return trained(run, allocator(run, used=values, peak=0.8))

    step = TOTAL * 0.08 / 120  # of an hour's scrapes
    half = 0.5 * TOTAL
    runs: dict[str, tuple[Story, Iterable[Labels]]] = {
        "leak": (used("leak", f"{half:g}+{step:g}x300"), [alert("Leak", "warning")]),
        "slow": (used("slow", f"{half:g}+{step / 2:g}x300"), []),
        "steady": (used("steady", f"{half:g}+0x300"), []),
        "steps": (used("steps", f"{half:g}+0x130 {1.15 * half:g}+0x170"), []),
        "peaks": (used("peaks", f"{half:g}+0x5 " + f"{1.5 * half:g}+0x5 {half:g}+0x5 " * 25), []),
        "young": (
            [
                (name, "3000+0x300" if "first_step" in name else values)
                for name, values in used("young", f"{half:g}+{step:g}x300")
            ],
            [],
        ),
    }
    check_alerts(
        rulebook,
        {run: (lengthened(story), alerts) for run, (story, alerts) in runs.items()},
        at="95m",
    )


def test_a_leak_is_read_from_training_alone(rulebook: Rulebook) -> None:
    """An evaluation of 20 minutes an hour uses more than training; drops and a cache that is emptied are not growth."""
    scrapes = range(300)

    def evaluates(number: int) -> bool:
        return 60 <= number % 120 < 100

    def story(run: str, used: list[float], *, evaluating: bool = False) -> Story:
        values = " ".join(f"{share * TOTAL:g}" for share in used)
        activity = {"training": steady(1), "evaluation": steady(0)}
        if evaluating:
            activity = {
                "training": " ".join(str(int(not evaluates(number))) for number in scrapes),
                "evaluation": " ".join(str(int(evaluates(number))) for number in scrapes),
            }
        reported = rank(0, run=run, gpus=(("0", "GPU-0"),), activity=activity) + allocator(run, used=values, peak=0.8)
        return node(run, reported + gpu(0, busy=0.8), gpu_signal("memory_total_bytes", steady(TOTAL), 0))

    leaking = [0.4 + 0.12 * number / 120 for number in scrapes]
    over = [share + 0.2 * evaluates(number) for number, share in zip(scrapes, leaking, strict=True)]
    drops = [share - 0.3 * (number % 40 < 5) for number, share in zip(scrapes, leaking, strict=True)]
    # Evaluations use more each time, and training does not.
    peaks = [0.4 + 0.1 * evaluates(number) * (number // 60) for number in scrapes]
    cache = [0.4 + 0.3 * ((number + 90) % 150) / 150 for number in scrapes]
    jumps = [0.4 + 0.1 * (number >= 100) + 0.1 * (number >= 150) for number in scrapes]
    runs: dict[str, tuple[Story, Iterable[Labels]]] = {
        "over": (story("over", over, evaluating=True), [alert("Leak", "warning")]),
        "drops": (story("drops", drops), [alert("Leak", "warning")]),
        "peaks": (story("peaks", peaks, evaluating=True), []),
        "cache": (story("cache", cache), []),
        "jumps": (story("jumps", jumps), []),
    }
    check_alerts(
        rulebook,
        {run: (lengthened(each), alerts) for run, (each, alerts) in runs.items()},
        at="95m",
    )


def test_a_new_session_forgets_what_the_last_one_used(rulebook: Rulebook) -> None:
    used = " ".join(f"{(0.7 if number < 40 else 0.3) * TOTAL:g}" for number in range(300))
    story = [
        (name, "0x39 1200+0x260" if "first_step" in name else values)
        for name, values in lengthened(trained("again", allocator("again", used=used, peak=0.8)))
    ]
    maximum = 'rank:allocator_used:max{run="again"} / 2^30'
    rulebook.check(story, {f"count({maximum})": []}, at="38m", rule_files=FILES)
    rulebook.check(story, {f"round(max({maximum}))": [({}, 24)]}, at="60m", rule_files=FILES)


def test_fragmentation_and_unequal_ranks_raise_alerts(rulebook: Rulebook) -> None:
    def fragments(run: str, reserved: float, used: float) -> Story:
        return trained(run, allocator(run, reserved=reserved, used=used, peak=0.8))

    def unequal(run: str, *peaks: float) -> Story:
        return trained(run, *(allocator(run, number, peak=peak) for number, peak in enumerate(peaks)))

    between = " ".join(f"{0.9 * TOTAL:g} {0.3 * TOTAL:g}" for _ in range(60))
    check_alerts(
        rulebook,
        {
            "fragments": (fragments("fragments", 0.8, 0.32), [alert("Fragmented", "info")]),
            "whole": (fragments("whole", 0.64, 0.4), []),
            "small": (fragments("small", 0.24, 0.05), []),
            "between steps": (
                trained("between steps", allocator("between steps", reserved=0.9, used=between, peak=0.8)),
                [],
            ),
            "two": (unequal("two", 0.9, 0.72), [{**alert("Imbalance", "info"), "rank": "0"}, alert("NearOom", "info")]),
            "two alike": (unequal("two alike", 0.87, 0.75), []),
            "four": (unequal("four", 0.72, 0.72, 0.72, 0.89), [{**alert("Imbalance", "info"), "rank": "3"}]),
            "little": (unequal("little", 0.28, 0.1), [alert("Headroom", "info")]),
            "alone": (unequal("alone", 0.8), []),
        },
    )
