"""The formats in which a report is written; each is loaded only where it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

from stallscope.report.document import Document

SUFFIXES: Mapping[str, str] = {"html": ".html", "markdown": ".md", "json": ".json"}
"""The formats, each with the end of its files' names."""


def format_of(path: Path) -> str | None:
    """The format that a file's name stands for; None where it stands for none."""
    return {suffix: name for name, suffix in SUFFIXES.items()}.get(path.suffix.lower())


def load(name: str) -> None:
    """Load what a format takes, so that what is not installed is known before anything is asked.

    Raises:
        ModuleNotFoundError: a library is not installed.
    """
    importlib.import_module(f"stallscope.report.{name}")


def written(document: Document, name: str, *, refresh_seconds: float | None = None) -> bytes:
    """A document in one of the formats.

    Args:
        document: what it says.
        name: of the format.
        refresh_seconds: how often a browser is to load a page again; None for never.
    """
    if name == "html":
        from stallscope.report import html

        text = html.write(document, refresh_seconds=refresh_seconds)
    elif name == "markdown":
        from stallscope.report import markdown

        text = markdown.write(document)
    else:
        from stallscope.report import json

        text = json.write(document)
    return text.encode()
