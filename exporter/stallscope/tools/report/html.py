"""A report as one self-contained HTML page without scripts, for phone, desktop and print."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import count
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from stallscope.common.formatting import readable
from stallscope.common.version import __version__
from stallscope.tools.report.axes import NARROW
from stallscope.tools.report.colours import colour_of
from stallscope.tools.report.document import Document, Figure, Recommendation
from stallscope.tools.report.plots import Drawing, draw
from stallscope.tools.report.words import LONGEST_TEXT, Words, runbook_of, title_of

_TEMPLATE = "page.html.jinja"
_TEXTS = ("text", "cause", "time")
"""Kinds of values that are left-aligned."""


def write(document: Document, *, refresh_seconds: float | None = None) -> str:
    """Return the page.

    Args:
        document: the document to render.
        refresh_seconds: reload interval; None for no reload.
    """
    words = Words(document)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_readable,
    )
    numbers = count(1)

    def drawn(figure: Figure) -> tuple[Drawing, Drawing]:
        """Return a drawing for wide windows and paper, and one for phones."""
        key = f"figure-{next(numbers)}"
        return draw(figure.plot, key, words), draw(figure.plot, f"{key}-narrow", words, NARROW)

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
        first=_recommendation_above(document),
        refresh_seconds=refresh_seconds,
        texts=_TEXTS,
        version=__version__,
        zone=words.zone_name,
    )


def _readable(value: object) -> object:
    """Escape invisible characters in texts from outside; leave markup unchanged."""
    return readable(value, LONGEST_TEXT) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _recommendation_above(document: Document) -> Recommendation | None:
    """Return the first recommendation to show above all sections; None if the first section contains it."""
    first = document.first_recommendation
    return None if document.sections and first in document.sections[0].blocks else first


@dataclass(frozen=True)
class Shown:
    """A document that a notebook shows as a page in a frame."""

    document: Document

    def __repr__(self) -> str:
        """Return a short text for terminals."""
        return f"<{self.document.title!r}: {', '.join(section.title for section in self.document.sections)}>"

    def _repr_html_(self) -> str:
        """Return the HTML for Jupyter."""
        page = escape(write(self.document))
        return f'<iframe sandbox srcdoc="{page}" style="width:100%;height:48rem;border:0"></iframe>'
