"""Write METRICS.md, the reference page of every metric, from the catalogue.

Run by `make generate`; a test fails when the committed page is not what this prints.
"""

from __future__ import annotations

from pathlib import Path

from stallscope.catalogue import (
    EXPORTER_FAMILIES,
    GPU_FAMILIES,
    HOST_FAMILIES,
    PROCESS_FAMILIES,
    TRAINING_FAMILIES,
    Family,
)

PAGE = Path(__file__).parent / "METRICS.md"

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


_PACKAGE = Path(__file__).parent / "stallscope"


def _filled_by(family: Family) -> str:
    """The family's provider, unless that does not read it yet: then it does not name it."""
    if family not in GPU_FAMILIES:
        return f"`{family.provider}`"
    module = _PACKAGE.joinpath(*family.provider.split(".")).with_suffix(".py")
    named = module.is_file() and f'"{family.name}"' in module.read_text(encoding="utf-8")
    return f"`{family.provider}`" if named else "not yet"


def _row(family: Family) -> str:
    closed = dict(family.values)
    labels = ", ".join(
        f"`{label}`" + (": " + ", ".join(closed[label]) if label in closed else "") for label in family.all_labels
    )
    optional = "yes" if family.optional else ""
    kind = family.type.value
    if family.buckets:
        kind += "; `le` " + ", ".join(f"{bound:g}" for bound in family.buckets)
    return (
        f"| `{family.name}` | {kind} | {family.unit} | {labels} | {optional} | {family.help} | {_filled_by(family)} |"
    )


def page() -> str:
    """Return the whole page as Markdown."""
    lines = [
        "# Metrics",
        "",
        (
            "Generated from `stallscope/catalogue.py` by `make generate`; do not edit. Names, labels and units are "
            "frozen: they are added to, never renamed. The last column is the module under `exporter/stallscope/` that "
            "fills the family; where it says *not yet*, the name is reserved and has no series so far."
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


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
