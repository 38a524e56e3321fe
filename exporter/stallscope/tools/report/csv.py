"""The owners of a report as CSV, for chargeback: one row per owner, numbers unformatted."""

from __future__ import annotations

import csv
import io

from stallscope.tools.report.document import Document, Table

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters with which a spreadsheet would take a text for a formula."""


def write(document: Document) -> str:
    """Return the rows of the owners, with the period and the currency in every row; unknown values are empty."""
    table = next((block for block in document.blocks if isinstance(block, Table) and block.key == "owners"), None)
    columns = table.columns if table is not None else ()
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["start_timestamp_seconds", "end_timestamp_seconds", *(each.key for each in columns), "currency"])
    for row in table.rows if table is not None else ():
        lines.writerow([f"{document.start:.0f}", f"{document.end:.0f}", *map(_cell, row), _cell(document.currency)])
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e5 else f"{value:.0f}"
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
