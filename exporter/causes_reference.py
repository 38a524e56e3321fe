"""Write alerts/CAUSES.md, the page of every cause, from the table of causes.

Run by `make generate`; a test fails when the committed page is not what this prints.
"""

from __future__ import annotations

from pathlib import Path

from stallscope.causes import CAUSES, REMAINDERS, Cause

PAGE = Path(__file__).parents[1] / "alerts" / "CAUSES.md"

_SECTIONS = (
    ("Training runs", "training"),
    ("GPUs", "gpu"),
    ("Hosts", "host"),
)


def _row(cause: Cause) -> str:
    alert = f"[{cause.alert}](runbooks/{cause.alert}.md), {cause.severity}" if cause.alert else ""
    return f"| `{cause.name}` | {cause.title} | {cause.tier or 'never'} | {alert} | {cause.remedy} |"


def page() -> str:
    """Return the whole page as Markdown."""
    lines = [
        "# Causes",
        "",
        (
            "Generated from `stallscope/causes.py` by `make generate`; do not edit. The third column is the cause's "
            "precedence as a verdict: hardware comes first, then progress, then the performance cause that costs most, "
            "then the classes of the device side, then how a GPU is used. A cause that never is a verdict is told by "
            "its alert. The severity is the gravest that the alert has; on a run of job class `experiment` it is info."
        ),
    ]
    for title, subject in _SECTIONS:
        lines += ["", f"## {title}", "", "| cause | in a few words | verdict | alert | what to change first |"]
        lines += ["|---|---|---|---|---|"]
        lines += [_row(cause) for cause in CAUSES.values() if cause.subject == subject]
    lines += ["", "## None", "", "| verdict | in a few words | |", "|---|---|---|"]
    lines += [f"| `{name}` | {title} | {remedy} |" for name, (title, remedy) in REMAINDERS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
