"""The value of `--exporter.url`, shared by the commands."""

from __future__ import annotations

import argparse

DEFAULT_EXPORTER = "http://localhost:19400"


def exporter_url(text: str) -> str:
    """Return the text if it is an exporter's URL; an argparse type."""
    from stallscope.clients.exporter import ExporterClient  # imports ssl, which the help does not need

    try:
        ExporterClient(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
