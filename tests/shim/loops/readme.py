"""The table of results in the shim's README."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.shim.loops.results import Result

README = Path(__file__).parents[3] / "exporter/stallscope/training/shim/README.md"
BEGIN = "<!-- loops: written by `python -m tests.shim.loops --write` -->"
END = "<!-- /loops -->"
_LONG = 0.1
"""Seconds of a phase below which a share of it says nothing."""


def write(results: Iterable[Result]) -> None:
    """Replace the table between the markers."""
    text = README.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}")


def table(results: Iterable[Result]) -> str:
    """Return the table, one program a row."""
    rows = [
        "| program | steps, true / reported | largest error of a phase | files identical | exit code identical |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        steps = ", ".join("{} / {}".format(*rank.steps) for rank in result.ranks) or "none"
        name, seconds, true = result.largest_error
        error = f"{name} {seconds * 1000:.0f} ms" + (f" ({seconds / true:.1%})" if true > _LONG else "")
        files = "no" if result.files else "yes" if result.number_of_files else "none saved"
        codes = "yes" if result.exit_codes[0] == result.exit_codes[1] else "no"
        program = f"[{result.style}](../../../../tests/shim/loops/programs/{result.program}.py)"
        rows.append(f"| {program} | {steps} | {error} | {files} | {codes} |")
    return "\n".join(rows)
