"""A server that answers the queries of `stallscope frames` from a formula: a run of any length, not stored.

`python -m tests.benchmarks.formula_prometheus 512x720` serves a run of 512 GPUs over 720 hours, scraped every half a
minute until now. Its first line is its address. It knows selectors, and the few functions of them that reading a run
back takes; anything else it refuses. A client cannot distinguish it from Prometheus, but it does not measure
Prometheus: a real one has to find and decode what this one makes up.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from http.server import BaseHTTPRequestHandler
from math import floor
from typing import NamedTuple
from urllib.parse import parse_qs

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.cluster import HOUR, Cluster
from tests.benchmarks.reading_back import INTERVAL, READ, Size
from tests.handled import handled, reply

_QUESTION = re.compile(
    r"(?:(?P<function>[a-z_]+)\()?(?P<name>[a-z_]+)\{(?P<matchers>.*)\}"
    r"\[(?P<window>\d+)(?P<unit>ms|s|m)\]\)?(?P<one> == 1)?"
)
_MATCHER = re.compile(r'(\w+)(=~|=)("(?:[^"\\]|\\.)*")')
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_WAVE_SECONDS = 600.0
_WAVE = 0.05
_SECOND_OF_NODE = 0.371
"""Delay of a node's scrapes after those of the node before: no two are scraped at once."""
_AS_SCRAPED = ("", "last_over_time")

Floats = NDArray[np.float64]


class _Shape(NamedTuple):
    """How a series behaves; many behave alike."""

    start: float
    rate: float
    swing: float
    node: int


class _Series(NamedTuple):
    shape: _Shape
    named: bytes
    """Its labels, as JSON has them."""
    nameless: bytes
    """Return the labels without the name."""


class _RefusedError(Exception):
    """It does not know how to answer; the message is the question."""


class Formula:
    """All series of a run, from a formula."""

    def __init__(self, size: Size, end: float) -> None:
        """Take how large the run is.

        Args:
            size: GPUs, and hours.
            end: Unix time of the last scrapes.
        """
        self._begin = end - size.hours * HOUR
        self._end = end
        cluster = Cluster(size.gpus, READ, end, ranks_a_run=size.gpus)
        self._labels: dict[str, list[tuple[Mapping[str, str], _Series]]] = {}
        for column in cluster.columns:
            shapes = zip(column.start.tolist(), column.rate.tolist(), column.swing.tolist(), column.nodes, strict=True)
            for labels, shape in zip(column.labels, shapes, strict=True):
                reported = {name: value for name, value in labels.items() if value}
                named = json.dumps({"__name__": column.name, **reported}).encode()
                one = _Series(_Shape(*shape), named, json.dumps(reported).encode())
                self._labels.setdefault(column.name, []).append((reported, one))
        self._chosen = lru_cache(maxsize=None)(self._choose)

    def answer(self, path: str, form: Mapping[str, str]) -> bytes:
        """Return the response to a query.

        Raises:
            _RefusedError: the query is not known here.
        """
        question = form["query"]
        if question == "vector(time())":
            return _whole("vector", [b'{"metric": {}, "value": [%.3f, "%.3f"]}' % (self._end, self._end)])
        known = _QUESTION.fullmatch(question)
        if known is None:
            raise _RefusedError(question)
        window = int(known["window"]) * _SECONDS[known["unit"]]
        found = self._chosen(known["name"], known["matchers"])
        function = known["function"] or ""
        if known["one"]:
            return _whole("vector", [_one(each, form["time"]) for each in found if each.shape.start == 1])
        if path.endswith("query_range"):
            moments = np.arange(float(form["start"]), float(form["end"]), float(form["step"]))
            there = moments[(moments > self._begin) & (moments < self._end + window)]
            return _whole("matrix", self._curves(found, function, lambda _node: there, window))
        end = float(form["time"])
        return _whole("matrix", self._curves(found, "", lambda node: self._scrapes(node, end - window, end), window))

    def _choose(self, name: str, matchers: str) -> Sequence[_Series]:
        """The series of a selector; equality and alternatives alone are known."""
        wanted: list[tuple[str, frozenset[str]]] = []
        for label, operator, quoted in _MATCHER.findall(matchers):
            text = json.loads(quoted)
            texts = [re.sub(r"\\(.)", r"\1", each) for each in text.split("|")] if operator == "=~" else [text]
            wanted.append((label, frozenset(texts)))
        return [
            one
            for labels, one in self._labels.get(name, ())
            if all(labels.get(label, "") in texts for label, texts in wanted)
        ]

    def _scrapes(self, node: int, start: float, end: float) -> Floats:
        """When a node was scraped after a moment, until another."""
        offset = node * _SECOND_OF_NODE % INTERVAL
        # A scrape on the border of two queries, which are in milliseconds, belongs only to the first.
        first, last = (
            floor((moment - offset) / INTERVAL + 1e-6) for moment in (max(start, self._begin), min(end, self._end))
        )
        return np.round(np.arange(first + 1, last + 1) * INTERVAL + offset, 3)

    def _curves(
        self, found: Sequence[_Series], function: str, times: Callable[[int], Floats], window: float
    ) -> list[bytes]:
        texts: dict[_Shape, bytes] = {}
        curves = []
        for each in found:
            text = texts.get(each.shape)
            if text is None:
                moments = times(each.shape.node)
                text = texts[each.shape] = _samples(moments, self._values(each.shape, function, moments, window))
            if text:
                labels = each.named if function in _AS_SCRAPED else each.nameless
                curves.append(b'{"metric": %b, "values": [%b]}' % (labels, text))
        return curves

    def _values(self, shape: _Shape, function: str, moments: Floats, window: float) -> Floats:
        if function == "count_over_time":
            return np.full(len(moments), window // INTERVAL)
        wave = np.sin(moments / _WAVE_SECONDS + shape.node)
        if function == "rate":
            return shape.rate * (1 + _WAVE * wave)
        since = moments - self._begin
        # What grows does so in waves, and never falls.
        grown = shape.rate * (since - _WAVE * _WAVE_SECONDS * np.cos(moments / _WAVE_SECONDS + shape.node))
        value: Floats = shape.start + grown + shape.swing * wave
        return value


def _samples(moments: Floats, values: Floats) -> bytes:
    pairs = zip(moments.tolist(), values.tolist(), strict=True)
    return ",".join([f'[{moment:.3f},"{value!r}"]' for moment, value in pairs]).encode()


def _one(series: _Series, moment: str) -> bytes:
    return b'{"metric": %b, "value": [%b, "1"]}' % (series.nameless, moment.encode())


def _whole(kind: str, result: Sequence[bytes]) -> bytes:
    return b'{"status": "success", "data": {"resultType": "%b", "result": [%b]}}' % (kind.encode(), b",".join(result))


def _handler(formula: Formula) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            try:
                reply(self, formula.answer(self.path, form))
            except _RefusedError as question:
                said = {"status": "error", "errorType": "bad_data", "error": f"it has no answer to {question}"}
                reply(self, json.dumps(said).encode(), status=400)

    return Handler


def main(size: Size) -> None:
    """Answer until standard input ends."""
    with handled(_handler(Formula(size, floor(time.time())))) as address:
        print(f"http://{address}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Size.parse(sys.argv[1]))
