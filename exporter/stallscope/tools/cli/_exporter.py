"""The value of `--exporter.url`, shared by the commands."""

from __future__ import annotations

import argparse

from stallscope.model.clients.address import LOCAL_EXPORTER, LOCAL_STACK

DEFAULT_EXPORTER = f"{LOCAL_STACK}, or {LOCAL_EXPORTER}"
"""The default in the words of a flag's help."""


def exporter_url(text: str) -> str:
    """Return the text if it is an exporter's URL; an argparse type."""
    from stallscope.model.clients.exporter import ExporterClient  # imports ssl, which the help does not need

    try:
        ExporterClient(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
