"""The output formats; each is imported only when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

from stallscope.tools.report.document import Document

SUFFIXES: Mapping[str, str] = {"html": ".html", "markdown": ".md", "json": ".json", "csv": ".csv"}
"""The formats with their file extensions; CSV has only the owners of a report by owner."""


def format_of(path: Path) -> str | None:
    """Return the format for a file name; None if the extension is unknown."""
    return {suffix: name for name, suffix in SUFFIXES.items()}.get(path.suffix.lower())


def load(name: str) -> None:
    """Import a format, so that a missing library is reported before any query.

    Raises:
        ModuleNotFoundError: a required library is not installed.
    """
    importlib.import_module(f"stallscope.tools.report.{name}")


def written(document: Document, name: str, *, refresh_seconds: float | None = None) -> bytes:
    """Render a document.

    Args:
        document: the document to render.
        name: name of the format.
        refresh_seconds: reload interval of the HTML page; None for no reload.
    """
    if name == "html":
        from stallscope.tools.report import html

        text = html.write(document, refresh_seconds=refresh_seconds)
    elif name == "markdown":
        from stallscope.tools.report import markdown

        text = markdown.write(document)
    elif name == "csv":
        from stallscope.tools.report import csv

        text = csv.write(document)
    else:
        from stallscope.tools.report import json

        text = json.write(document)
    return text.encode()
