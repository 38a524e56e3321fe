"""Reports with every kind of block: of an ordinary run, of a run without data, and with hostile names."""

from __future__ import annotations

import math
from itertools import pairwise

from stallscope.tools.report.document import (
    Areas,
    Bars,
    Column,
    Document,
    Fact,
    Facts,
    Figure,
    HeatMap,
    Histogram,
    Lines,
    Mark,
    Notice,
    Paragraph,
    Recommendation,
    Section,
    Series,
    Span,
    States,
    Table,
)

START = 1_700_000_000.0
HOURS = 24
END = START + HOURS * 3600
STEP = 240.0
HOSTILE = (
    "<script>document.title='taken'</script>",
    '"><img src=/taken onerror="document.title=1">',
    "</style></title></svg></template><b id=taken>bold</b>",
    "\u202eright to left \u05d0\u05d1\u05d2\n\r\t\u0000",
    "$\\frac{1}{0}$ | `code` | *bold* [link](http://taken.example/) ![](x)",
    "🐌" * 60,
    "k" * 400,
)


def ordinary(gpus: int = 8, points: int = 360) -> Document:
    """Return the report of a day with a gap in its data."""
    times = tuple(START + number * (END - START) / points for number in range(points))
    return Document(
        title="Run resnet50-imagenet",
        subtitle="8 GPUs on 2 nodes, read from http://prometheus:9090",
        made_at=END + 60,
        start=START,
        end=END,
        highlights=(
            Fact("GPU time", 190.4, "gpu_hours"),
            Fact("Lost", 0.37, "share", "of the time that can be judged"),
            Fact("Energy", 61.2 * 3.6e6, "joules"),
            Fact("Cost", 482.5, "money"),
            Fact("Steps", 218_400, "count"),
            Fact("Loss at the end", None, "number"),
        ),
        currency="EUR",
        zone="Europe/Berlin",
        sections=(
            Section(
                "recommendations",
                "What to change",
                (
                    Recommendation(
                        1,
                        "input_disk_bound",
                        (
                            Fact("Share of its time", 0.214, "share"),
                            Fact("GPU time", 40.7, "gpu_hours"),
                            Fact("Energy", 9.1 * 3.6e6, "joules"),
                            Fact("Cost", 103.2, "money"),
                        ),
                        "21.4 % of 190.4 GPU-hours were lost to it: 0.214 x 190.4 h = 40.7 h.",
                        "Read from local NVMe or memory, in larger sequential shards.",
                        "Verdict for 9 h 12 min in 3 stretches; worst at 2023-11-15 04:10, with 43 %.",
                    ),
                    Recommendation(
                        2,
                        "checkpoint_stall",
                        (Fact("Share of its time", 0.06, "share"), Fact("GPU time", 11.4, "gpu_hours")),
                        "288 checkpoints of 18 s: 288 x 18 s x 8 GPUs = 11.5 h.",
                        "Save asynchronously, to a local disk first, or less often.",
                    ),
                    Notice("info", "Gains do not add up: fixing the first cause changes the second."),
                ),
            ),
            Section("time", "Where GPU time went", _time(times)),
            Section("steps", "Steps", _steps(times)),
            Section("gpus", "GPUs", _gpus(times, gpus)),
            Section(
                "missing",
                "What was missing",
                (
                    Notice("warning", "Prometheus has nothing from 2023-11-15 02:00 to 02:40: the server was down."),
                    Notice("critical", "Clocks of node-2 and of the server differ by 43 s."),
                    Notice("good", "All rules of this release are loaded."),
                    Paragraph("Percentiles need native histograms; those of classic ones fall within a bucket."),
                ),
            ),
        ),
    )


def nothing() -> Document:
    """Return a report of a time without data."""
    return Document(
        title="Run unknown",
        subtitle="no data",
        made_at=END,
        start=START,
        end=START,
        live=True,
        sections=(
            Section(
                "time",
                "Where GPU time went",
                (
                    Figure("By cause", Areas((), ()), "No data."),
                    Figure("Verdicts", States(("GPU 0",), ((),), START, START), "No data."),
                    Figure("Steps", Histogram((0.0, 1.0), (0.0,)), "No steps."),
                    Figure("Activity", HeatMap(("GPU 0",), (START,), ((None,),)), "No data."),
                    Figure("Loss", Lines((START,), (Series("loss", (None,)),), "number"), "No loss."),
                    Figure("Hours", Bars((), ()), "No data."),
                    Table((Column("Cause", "cause"), Column("Lost", "gpu_hours")), (), title="Causes"),
                    Facts(()),
                ),
            ),
        ),
    )


def hostile() -> Document:
    """Return a report with hostile texts only."""
    return Document(
        title=HOSTILE[0],
        subtitle=HOSTILE[1],
        made_at=END,
        start=START,
        end=END,
        currency=HOSTILE[2],
        highlights=tuple(Fact(text, text, note=text) for text in HOSTILE),
        sections=tuple(
            Section(
                f"s{number}",
                text,
                (
                    Paragraph(text),
                    Notice("warning", text),
                    Facts((Fact(text, text, note=text),), title=text),
                    Table(
                        (Column("Run", note=text), Column("Cause", "cause"), Column("Cost", "money")),
                        ((text, text, 1.0),),
                        title=text,
                        note=text,
                    ),
                    Recommendation(number + 1, text, (Fact(text, text),), text, text, text),
                    Figure(text, Bars((text,), (Series(text, (0.5,), text),)), text),
                    Figure(
                        text,
                        States((text,), ((Span(START, END, text),),), START, END, (Mark(START + 3600, text, text),)),
                        text,
                    ),
                    Figure(text, Lines((0.0, 1.0), (Series(text, (0.0, 1.0), text),), "money", "count", text), text),
                    Figure(text, HeatMap((text,), (START, START + 60), ((0.2, 0.9),)), text),
                ),
            )
            for number, text in enumerate(HOSTILE)
        ),
    )


def _wave(number: int, low: float, high: float, period: float = 60.0) -> float:
    return low + (high - low) * (0.5 + 0.5 * math.sin(number / period * 2 * math.pi))


def _time(times: tuple[float, ...]) -> tuple[Figure | Table, ...]:
    gap = range(len(times) // 3, len(times) // 3 + max(2, len(times) // 30))
    shares = {
        "input_disk_bound": (0.1, 0.35, 90.0),
        "input_few_workers": (0.0, 0.1, 40.0),
        "checkpoint_stall": (0.03, 0.09, 20.0),
        "comm_bound": (0.04, 0.06, 200.0),
        "thermal_throttle": (-0.1, 0.1, 300.0),
    }
    lost = [
        Series(
            name,
            tuple(
                None if place in gap else max(0.0, _wave(place * 360 // len(times), *wave))
                for place in range(len(times))
            ),
        )
        for name, wave in shares.items()
    ]
    rest = Series(
        "healthy",
        tuple(
            None if place in gap else 1 - sum(each.values[place] or 0.0 for each in lost) for place in range(len(times))
        ),
    )
    verdicts = ("input_disk_bound", "healthy", "input_disk_bound", "checkpoint_stall", "thermal_throttle", "healthy")
    edges = [START + part * 3600 for part in (0, 3.2, 7.9, 8.6, 15.0, 19.5, 24.0)]
    spans = tuple(
        Span(start, end, state)
        for (start, end), state in zip(pairwise(edges), verdicts, strict=True)
        if start != edges[2]
    )
    return (
        Figure(
            "GPU time by cause over time",
            Areas(times, (*lost, rest), greatest=1.0),
            "37 % of the time was lost, most of it to the disk, and most of that between 04:00 and 09:00.",
        ),
        Figure(
            "GPU-hours by cause",
            Bars(tuple(shares), (Series("lost", (40.7, 8.1, 11.4, 9.2, 1.3)),), "gpu_hours"),
            "40.7 hours were lost to the disk, 11.4 to checkpoints, 9.2 to communication.",
        ),
        Figure(
            "Verdict",
            States(
                ("The run",),
                (spans,),
                START,
                END,
                (
                    Mark(START + 8 * 3600, "restarted", "restart_loop"),
                    Mark(START + 8.2 * 3600, "again"),
                    Mark(END - 900, "Prometheus restarted"),
                ),
            ),
            "Waiting for the disk for 9 h 12 min, healthy for 8 h 24 min.",
        ),
        Table(
            (
                Column("Cause", "cause"),
                Column("Share", "share", "of its GPU time"),
                Column("Lost", "gpu_hours"),
                Column("Energy", "joules"),
                Column("Cost", "money"),
                Column("Verdict for", "seconds"),
                Column("Triggers", "count"),
                Column("Worst at", "time"),
            ),
            (
                ("input_disk_bound", 0.214, 40.7, 9.1 * 3.6e6, 103.2, 33_120.0, 3, START + 20_000),
                ("checkpoint_stall", 0.06, 11.4, None, 28.9, 2_520.0, 1, START + 31_000),
                ("comm_bound", 0.0004, 0.08, 12_000.0, 0.2, 0.0, 0, None),
            ),
            title="Causes",
            note="What several causes claim of the same time, they share.",
            total=("", 0.2744, 52.18, None, 132.3, None, 4, None),
        ),
    )


def _steps(times: tuple[float, ...]) -> tuple[Figure | Facts | Table, ...]:
    edges = tuple(0.1 * 1.2**number for number in range(26))
    counts = tuple(float(round(90_000 * math.exp(-((number - 8) ** 2) / 6) + number)) for number in range(25))
    return (
        Facts(
            (
                Fact("Steps", 218_400, "count"),
                Fact("Median", 0.388, "seconds"),
                Fact("99th percentile", 1.92, "seconds", "4.9 times the median"),
                Fact("Slowest", 41.8, "seconds", "step 88,412 of rank 3"),
                Fact("Samples", 5_312.0, "per_second"),
                Fact("Model FLOPs utilisation", None, "share", "the training reports no FLOPs"),
            ),
            title="Time of a step",
        ),
        Figure(
            "Times of steps",
            Histogram(
                edges,
                counts,
                marks=(Mark(0.388, "median"), Mark(0.41, "mean"), Mark(1.92, "99th percentile")),
                logarithmic=True,
            ),
            "Half of the steps take less than 388 ms, one in a hundred more than 1.92 s.",
        ),
        Figure(
            "Time of a step, over time",
            Lines(
                times,
                (
                    Series("median", tuple(_wave(place, 0.36, 0.42) for place in range(len(times)))),
                    Series(
                        "p99", tuple(_wave(place, 1.1, 1.9, 33.0) for place in range(len(times))), "99th percentile"
                    ),
                    Series(
                        "slow steps",
                        tuple(2.1 if place % 41 == 0 else None for place in range(len(times))),
                        style="points",
                    ),
                ),
                "seconds",
            ),
            "The median stays between 360 and 420 ms, the 99th percentile between 1.1 and 1.9 s.",
        ),
        Figure(
            "Phases of a step by rank",
            Bars(
                tuple(f"rank {rank}" for rank in range(4)),
                (
                    Series("data_wait", (0.21, 0.22, 0.2, 0.48)),
                    Series("forward", (0.2, 0.2, 0.2, 0.1)),
                    Series("backward", (0.4, 0.38, 0.4, 0.2)),
                    Series("optimizer", (0.1, 0.1, 0.1, 0.1)),
                    Series("checkpoint", (0.05, None, None, None)),
                    Series("augment", (0.02, 0.02, 0.02, 0.02)),
                ),
            ),
            "Rank 3 waits for data for 48 % of its time, the others for 21 %.",
        ),
        Figure(
            "Throughput by number of GPUs",
            Lines(
                (1.0, 2.0, 4.0, 8.0),
                (
                    Series("measured", (410.0, 790.0, 1500.0, 2700.0), style="points"),
                    Series("linear", (410.0, 820.0, 1640.0, 3280.0), style="dashed"),
                ),
                "per_second",
                "count",
                "GPUs",
                least=0.0,
            ),
            "8 GPUs do 82 % of what eight times one would.",
        ),
    )


def _gpus(times: tuple[float, ...], number: int) -> tuple[Figure | Table, ...]:
    activity = {
        (pace, silent): tuple(
            None if silent and place // 20 == 7 else _wave(place * pace, 0.3, 0.98, 70.0) for place in range(len(times))
        )
        for pace in (1, 2, 3)
        for silent in (False, True)
    }
    return (
        Figure(
            "Activity of each GPU",
            HeatMap(
                tuple(f"node-{gpu // 4 + 1} GPU {gpu % 4}" for gpu in range(number)),
                times,
                tuple(activity[1 + gpu % 3, gpu < number // 2] for gpu in range(number)),
            ),
            "GPUs are active for 30 % to 98 % of the time.",
        ),
        Figure(
            "Verdict of each GPU",
            States(
                tuple(f"a-node-with-a-very-long-name-{gpu // 4 + 1}/{gpu % 4}" for gpu in range(number)),
                tuple(
                    tuple(
                        Span(START + place * 3600, START + (place + 1) * 3600, state)
                        for place in range(HOURS)
                        for state in [("healthy", "underused", "periodic_host_work")[(gpu + place // 5) % 3]]
                    )
                    for gpu in range(number)
                ),
                START,
                END,
            ),
            "Each is healthy for a third of the time.",
        ),
        Table(
            (
                Column("GPU"),
                Column("Model"),
                Column("Activity, median", "share"),
                Column("95th percentile", "share"),
                Column("Memory, highest", "bytes"),
                Column("Power, mean", "watts"),
                Column("Temperature, highest", "celsius"),
                Column("UUID"),
            ),
            tuple(
                (
                    f"node-{gpu // 4 + 1} GPU {gpu % 4}",
                    "NVIDIA H100 80GB HBM3",
                    0.71,
                    0.98,
                    61 * 2**30,
                    512.0,
                    71.0,
                    f"GPU-5d1f6a3e-0000-4444-8888-{gpu:012}",
                )
                for gpu in range(number)
            ),
            title="GPUs",
        ),
    )
