"""A report as one page that needs nothing else: no network, no script; on a phone, on a desk, on paper."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import count
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from stallscope.common.formatting import readable
from stallscope.common.version import __version__
from stallscope.report.document import Document, Figure, Recommendation
from stallscope.report.plots import Drawing, draw
from stallscope.report.words import LONGEST_TEXT, Words, colour_of, runbook_of, title_of

_TEMPLATE = "page.html.jinja"
_TEXTS = ("text", "cause", "time")
"""Kinds of values that are set flush left."""


def write(document: Document, *, refresh_seconds: float | None = None) -> str:
    """The whole page.

    Args:
        document: what it says.
        refresh_seconds: how often a browser is to load the page again; None for never.
    """
    words = Words(document)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )
    numbers = count(1)

    def drawn(figure: Figure) -> Drawing:
        return draw(figure.plot, f"figure-{next(numbers)}", words)

    environment.filters |= {
        "colour": colour_of,
        "drawn": drawn,
        "iso": words.machine_readable,
        "kind": lambda block: type(block).__name__,
        "moment": words.moment,
        "runbook": runbook_of,
        "title": title_of,
        "words": words.of,
    }
    return environment.get_template(_TEMPLATE).render(
        document=document,
        first=_shown_above(document),
        refresh_seconds=refresh_seconds,
        texts=_TEXTS,
        version=__version__,
        zone=words.zone_name,
    )


def _shown(value: object) -> object:
    """Texts from outside with what can't be seen spelt out; what is markup stays as it is."""
    return readable(value, LONGEST_TEXT) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _shown_above(document: Document) -> Recommendation | None:
    """The first recommendation, where no reader of the first section sees it."""
    first = document.first_recommendation
    return None if document.sections and first in document.sections[0].blocks else first


@dataclass(frozen=True)
class Shown:
    """A document that a notebook shows as the page that it is, in a frame of its own."""

    document: Document

    def __repr__(self) -> str:
        """What a terminal shows instead."""
        return f"<{self.document.title!r}: {', '.join(section.title for section in self.document.sections)}>"

    def _repr_html_(self) -> str:
        """What Jupyter asks for."""
        page = escape(write(self.document))
        return f'<iframe sandbox srcdoc="{page}" style="width:100%;height:48rem;border:0"></iframe>'
