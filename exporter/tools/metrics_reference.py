"""Write METRICS.md, the reference page of every metric, from the catalogue; and FRAMES.md, that of data frames.

Run by `make generate`; a test fails when a committed page is not what this prints.
"""

from __future__ import annotations

from pathlib import Path

from stallscope.analysis.columns import COLUMNS, IDENTITY, Column, Kind
from stallscope.catalogue.metrics import (
    EXPORTER_FAMILIES,
    GPU_FAMILIES,
    HOST_FAMILIES,
    PROCESS_FAMILIES,
    TRAINING_FAMILIES,
    Family,
)

PAGE = Path(__file__).parents[1] / "METRICS.md"
FRAMES_PAGE = PAGE.with_name("FRAMES.md")

_SECTIONS = (
    (
        "GPU",
        (
            "Labels `gpu` (NVML index) and `uuid`; a MIG instance has `mig` too. *Optional* signals are announced for "
            "each GPU in `stallscope_gpu_signal_supported`, once they are read, and are absent where the GPU or its "
            "driver lacks them."
        ),
        GPU_FAMILIES,
    ),
    ("Host", "No labels but those listed.", HOST_FAMILIES),
    (
        "Training",
        (
            "Labels `run` (the user's name for the job, the same on all its ranks) and `rank` (the global rank). Told "
            "by the shim; cumulative for one process' life."
        ),
        TRAINING_FAMILIES,
    ),
    ("The exporter itself", "", EXPORTER_FAMILIES),
    ("The exporter's process", "From the client library.", PROCESS_FAMILIES),
)

_FRAMES = {
    "steps": "A row is a rank.",
    "phases": "A row is a phase of a rank.",
    "gpu": "A row is a GPU, while a rank claims it.",
    "host": "A row is a machine, while a rank is on it; the rank is the first of those.",
    "values": "A row is what the training told under one name besides.",
}
_TOLD = {
    Kind.GAUGE: "as scraped; mean",
    Kind.RATE: "growth for each second",
    Kind.COUNT: "growth",
    Kind.MEAN: "growth over that of its count",
    Kind.LAST: "as scraped; the last",
    Kind.PEAK: "as scraped; the greatest",
    Kind.LABEL: "whichever is 1; the last",
}


def _row(family: Family) -> str:
    closed = dict(family.values)
    labels = ", ".join(
        f"`{label}`" + (": " + ", ".join(closed[label]) if label in closed else "") for label in family.all_labels
    )
    optional = "yes" if family.optional else ""
    kind = family.type.value
    if family.buckets:
        kind += "; `le` " + ", ".join(f"{bound:g}" for bound in family.buckets)
    return f"| `{family.name}` | {kind} | {family.unit} | {labels} | {optional} | {family.help} | `{family.provider}` |"


def page() -> str:
    """Return the whole page as Markdown."""
    lines = [
        "# Metrics",
        "",
        (
            "Generated from `stallscope/catalogue/metrics.py` by `make generate`; do not edit. Names, labels and "
            "units are frozen: they are added to, never renamed. The last column is the module under "
            "`exporter/stallscope/` that "
            "fills the family."
        ),
        "",
        "A value that is unsupported, stale or unknown is absent, never zero.",
    ]
    for title, note, families in _SECTIONS:
        lines += ["", f"## {title}", ""]
        if note:
            lines += [note, ""]
        lines += ["| name | type | unit | labels | optional | meaning and source | filled by |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [_row(family) for family in families]
    return "\n".join(lines) + "\n"


def _column(column: Column) -> str:
    which = f'{{{column.label}="{column.value}"}}' if column.value else ""
    told = _TOLD[column.kind]
    if column.combined == "max":
        told += ", of several the greatest"
    return f"| `{column.name}` | {column.unit.replace('_', ' ')} | `{column.series}{which}` | {told} |"


def frames_page() -> str:
    """Return the page of data frames as Markdown."""
    lines = [
        "# Columns of data frames",
        "",
        (
            "Generated from `stallscope/analysis/columns.py` by `make generate`; do not edit. What "
            "`stallscope.analysis.frames` gives and `stallscope frames` writes; what each series means is in "
            "[METRICS.md](METRICS.md)."
        ),
        "",
        (
            "Every data frame has the same columns for every run: what a run did not tell is NaN, never 0. The index, "
            "`time`, is the moment of the scrape in UTC. Figures are those of the `interval_seconds` before it, since "
            "the subject's last row, and `step` is how many steps the rank had done. *growth* is what a counter grew "
            "by in the interval; one that fell began anew. Where a row is longer than a scrape (`--step`), what stands "
            "after the semicolon is taken over it, and growth is that of PromQL's `rate`. Several series of one "
            "subject, as of its disks, are summed unless it says otherwise. In CSV a word that a spreadsheet would "
            "execute as a formula (from `=`, `+`, `-`, `@`, a tab or a line break) gets an apostrophe in front."
        ),
    ]
    for name, columns in COLUMNS.items():
        whose = ", ".join(f"`{label}`" for label in (*IDENTITY[name], "step", "interval_seconds"))
        lines += ["", f"## {name}", "", f"{_FRAMES[name]} It begins with {whose}.", ""]
        lines += ["| column | unit | series | told |", "|---|---|---|---|"]
        lines += [_column(column) for column in columns if column.name != "step"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    FRAMES_PAGE.write_text(frames_page(), encoding="utf-8")
