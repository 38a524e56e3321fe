"""Short reports for the formats: with every kind of block, without data, and with hostile names."""

from __future__ import annotations

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
END = START + 24 * 3600
HOSTILE = (
    "<script>document.title='taken'</script>",
    '"><img src=/taken onerror="document.title=1">',
    "</style></title></svg></template><b id=taken>bold</b>",
    "\u202eright to left \u05d0\u05d1\u05d2\n\r\t\u0000",
    "$\\frac{1}{0}$ | `code` | *bold* [link](http://taken.example/) ![](x)",
    "🐌" * 60,
    "k" * 400,
)
_TIMES = (START, START + 3600, START + 7200)
_CAUSES = Table(
    (
        Column("Cause", "cause"),
        Column("Share", "share", "of its GPU time"),
        Column("Lost", "gpu_hours"),
        Column("Energy", "joules"),
        Column("Cost", "money"),
        Column("Worst at", "time"),
    ),
    (
        ("input_disk_bound", 0.214, 40.7, 9.1 * 3.6e6, 103.2, START + 20_000),
        ("checkpoint_stall", 0.06, 11.4, None, 28.9, START + 31_000),
    ),
    title="Causes",
    note="What several causes claim of the same time, they share.",
    total=("", 0.274, 52.1, None, 132.1, None),
)
_FIGURES = (
    Figure(
        "GPU time by cause over time",
        Areas(_TIMES, (Series("input_disk_bound", (0.1, None, 0.35)), Series("healthy", (0.9, None, 0.65)))),
        "40.7 hours were lost to the disk.",
    ),
    Figure("GPU-hours by cause", Bars(("input_disk_bound",), (Series("lost", (40.7,)),), "gpu_hours"), "40.7 hours."),
    Figure(
        "Verdict",
        States(
            ("The run",),
            ((Span(START, START + 11_520, "input_disk_bound"), Span(START + 28_440, END, "healthy")),),
            START,
            END,
            (Mark(START + 28_800, "restarted", "restart_loop"),),
        ),
        "Waiting for the disk for 3 h 12 min.",
    ),
    Figure(
        "Times of steps",
        Histogram((0.1, 0.3, 1.0, 9.54), (3.0, 7.0, 1.0), marks=(Mark(0.388, "median"),), logarithmic=True),
        "Half of the steps take less than 388 ms.",
    ),
    Figure(
        "Time of a step, over time",
        Lines(_TIMES, (Series("p99", (1.1, None, 1.9), "99th percentile", "dashed"),), "seconds"),
        "Between 1.1 and 1.9 s.",
    ),
    Figure("Activity", HeatMap(("GPU 0", "GPU 1"), _TIMES, ((0.3, None, 0.98), (0.5, 0.6, 0.7))), "30 % to 98 %."),
)


def ordinary() -> Document:
    """Return a short report with every kind of block and plot, gaps and an unknown value."""
    return Document(
        title="Run resnet50-imagenet",
        subtitle="8 GPUs on 2 nodes, read from http://prometheus:9090",
        made_at=END + 60,
        start=START,
        end=END,
        highlights=(
            Fact("GPU time", 190.4, "gpu_hours"),
            Fact("Lost", 0.37, "share", "of the time that can be judged"),
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
                        (Fact("Energy", 9.1 * 3.6e6, "joules"), Fact("Cost", 103.2, "money")),
                        "21.4 % of 190.4 GPU-hours were lost to it: 0.214 x 190.4 h = 40.7 h.",
                        "Read from local NVMe or memory, in larger sequential shards.",
                        "Verdict for 9 h 12 min in 3 stretches; worst at 2023-11-15 04:10, with 43 %.",
                    ),
                    Recommendation(
                        2,
                        "checkpoint_stall",
                        (Fact("Share of its time", 0.06, "share"),),
                        "288 checkpoints of 18 s: 288 x 18 s x 8 GPUs = 11.5 h.",
                        "Save asynchronously, to a local disk first, or less often.",
                    ),
                ),
            ),
            Section("time", "Where GPU time went", (_CAUSES, *_FIGURES)),
            Section(
                "missing",
                "What was missing",
                (
                    Notice("warning", "Prometheus has nothing from 2023-11-15 02:00 to 02:40: the server was down."),
                    Facts((Fact("99th percentile", 1.92, "seconds", "4.9 times the median"),), title="Steps"),
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
