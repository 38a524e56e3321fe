"""Which exporter a command asks: what `--exporter.url` may say, alike in every command."""

from __future__ import annotations

import argparse

DEFAULT_EXPORTER = "http://localhost:19400"


def exporter_url(text: str) -> str:
    """The address of an exporter, as argparse reads it."""
    from stallscope.clients.exporter import ExporterClient  # needs ssl, which help does without

    try:
        ExporterClient(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
