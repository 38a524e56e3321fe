"""Write METRICS.md, the reference page of every metric, from the catalogue; and FRAMES.md, that of data frames.

Run by `make generate`; a test fails when a committed page is not what this prints.
"""

from __future__ import annotations

from pathlib import Path

from stallscope.model.analysis.columns import COLUMNS, IDENTITY, Column, Kind
from stallscope.model.catalogue.metrics import (
    EXPORTER_FAMILIES,
    GPU_FAMILIES,
    HOST_FAMILIES,
    NCCL_FAMILIES,
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
    ("Host", "Only the labels listed.", HOST_FAMILIES),
    (
        "Collectives",
        (
            "NCCL Inspector's files (see [`--nccl.inspector-folder`](CONFIGURE.md#collectives-of-nccl-inspector)). "
            "`communicator` is its number, and `comm_rank` a rank in it."
        ),
        NCCL_FAMILIES,
    ),
    (
        "Training",
        (
            "Labels `run` (the user's name for the job, the same on all its ranks) and `rank` (the global rank). "
            "Reported by the shim; cumulative over the life of one process."
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
    "host": "A row is a host, while a rank runs on it; `rank` is the first of these ranks.",
    "values": "A row is a further value that the training reports, by name.",
}
_CALCULATIONS = {
    Kind.GAUGE: "as scraped; mean",
    Kind.RATE: "increase per second",
    Kind.COUNT: "increase",
    Kind.MEAN: "increase of the sum / increase of the count",
    Kind.LAST: "as scraped; last value",
    Kind.PEAK: "as scraped; maximum",
    Kind.LABEL: "the label whose series is 1; last value",
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
            "Generated from `stallscope/model/catalogue/metrics.py` by `make generate`; do not edit. Names, labels and "
            "units are frozen: they are added to, never renamed. The last column is the module under "
            "`exporter/stallscope/node/` that fills the family."
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
    calculation = _CALCULATIONS[column.kind]
    if column.combined == "max":
        calculation += ", maximum of several series"
    return f"| `{column.name}` | {column.unit.replace('_', ' ')} | `{column.series}{which}` | {calculation} |"


def frames_page() -> str:
    """Return the page of data frames as Markdown."""
    lines = [
        "# Columns of data frames",
        "",
        (
            "Generated from `stallscope/model/analysis/columns.py` by `make generate`; do not edit. These are the "
            "columns that `stallscope.analysis.frames` returns and `stallscope frames` writes. "
            "[METRICS.md](METRICS.md) "
            "describes the series."
        ),
        "",
        (
            "The columns are the same for every run; a missing value is NaN, never 0. The index, `time`, is the time "
            "of the scrape in UTC. Values cover the `interval_seconds` before it, since the subject's previous row. "
            "`step` is the number of steps that the rank had done. *Increase* is the increase of a counter over the "
            "interval; a counter that decreases was reset. With rows longer than a scrape (`--step`), the calculation "
            "after the semicolon applies to the row, and an increase is computed by PromQL's `rate`. Several series of "
            "one subject, such as its disks, are summed unless stated otherwise. In CSV, an apostrophe precedes a text "
            "that a spreadsheet would execute as a formula (starting with `=`, `+`, `-`, `@`, a tab or a line break)."
        ),
    ]
    for name, columns in COLUMNS.items():
        identity = ", ".join(f"`{label}`" for label in (*IDENTITY[name], "step", "interval_seconds"))
        lines += ["", f"## {name}", "", f"{_FRAMES[name]} The first columns are {identity}.", ""]
        lines += ["| column | unit | series | calculation |", "|---|---|---|---|"]
        lines += [_column(column) for column in columns if column.name != "step"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    FRAMES_PAGE.write_text(frames_page(), encoding="utf-8")
