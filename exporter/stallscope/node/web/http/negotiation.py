"""Which form of the page a client wants: the format by `Accept`, compression by `Accept-Encoding`.

The client library's own chooser takes the first format that it knows and ignores the weights, so that a client which
prefers the text is ignored. Here the weights count. A client that accepts nothing available gets the plain text, as
every exporter does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

_KNOWN_HEADERS = 32
"""Scrapers repeat themselves: this many different headers are remembered with their answer."""


@lru_cache(_KNOWN_HEADERS)
def accepts_openmetrics(accept: str) -> bool:
    """Return True if the client prefers OpenMetrics 1.0 to the plain text, or accepts both equally."""
    openmetrics = 0.0
    text: float | None = None
    anything = 0.0
    for kind, parameters, weight in _entries(accept):
        version = parameters.get("version", "")
        if kind == "application/openmetrics-text" and version in ("", "1.0.0"):
            openmetrics = max(openmetrics, weight)
        elif kind == "text/plain" and version in ("", "0.0.4"):
            text = max(text or 0.0, weight)
        elif kind in ("*/*", "text/*"):
            anything = max(anything, weight)
    return openmetrics > 0 and openmetrics >= (anything if text is None else text)


@lru_cache(_KNOWN_HEADERS)
def accepts_gzip(accept_encoding: str) -> bool:
    """Return True if the client accepts gzip."""
    weights = {kind: weight for kind, _parameters, weight in _entries(accept_encoding)}
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _entries(header: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for entry in header.split(","):
        kind, *rest = (part.strip().lower() for part in entry.split(";"))
        parameters = {}
        for part in rest:
            name, _equals, value = part.partition("=")
            parameters[name.strip()] = value.strip().strip('"')
        yield kind, parameters, _weight(parameters.get("q", "1"))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0
