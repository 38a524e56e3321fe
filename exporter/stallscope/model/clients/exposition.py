"""A fast parser for a page of metrics, of which only some families are kept.

The client library's parser makes an object of every sample and takes fifty times as long (tests/benchmarks/top.py).
Tests compare the results of the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from stallscope.model.catalogue.metrics import Family

Labels = Mapping[str, str]
Series = dict[str, float]
"""Values by label text, which is the text between the braces."""

_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_NO_LABELS: Labels = MappingProxyType({})
_MAX_VALUE = 1e100
"""Larger values, infinity and NaN would make sums and products infinite."""
_CACHED_LABELS = 32_768
"""A node repeats the same label sets: a page of a thousand ranks has about twenty thousand."""


class Page:
    """The series of one page by name, without implausible values."""

    def __init__(self, text: str, wanted: frozenset[str]) -> None:
        """Parse the wanted samples and skip invalid lines.

        Args:
            text: the page in the Prometheus text format.
            wanted: names of samples.
        """
        self._series: dict[str, Series] = {name: {} for name in wanted}
        series = self._series
        for line in text.split("\n"):
            if line[:1] == "#":
                continue
            name, brace, rest = line.partition("{")
            if brace:
                found = series.get(name)
                if found is None:
                    continue
                labels, _, number = rest.rpartition("} ")
            else:
                name, _, number = line.partition(" ")
                found = series.get(name)
                if found is None:
                    continue
                labels = ""
            try:
                value = float(number)
            except ValueError:
                continue
            if -_MAX_VALUE < value < _MAX_VALUE:
                found[labels] = value

    def __bool__(self) -> bool:
        """Return whether the page has any wanted sample."""
        return any(self._series.values())

    def has_same_samples(self, other: Page) -> bool:
        """Return whether all samples equal those of another page, which means that it is the same page read again."""
        return self._series == other._series

    def series(self, family: Family, suffix: str = "") -> Series:
        """Return the values of a family by label text."""
        return self._series[family.name + suffix]

    def samples(self, family: Family, suffix: str = "") -> Iterator[tuple[Labels, float]]:
        """Yield labels and value of each series of a family."""
        for text, value in self._series[family.name + suffix].items():
            yield labels_of(text), value

    def by(self, family: Family, *names: str, suffix: str = "") -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the values of some labels, and the value, of each series of a family; an absent label is empty."""
        for labels, value in self.samples(family, suffix):
            yield tuple([labels.get(name, "") for name in names]), value


@lru_cache(_CACHED_LABELS)
def labels_of(text: str) -> Labels:
    """Parse label text."""
    if not text:
        return _NO_LABELS
    return {name: _unescaped(value) if "\\" in value else value for name, value in _PAIR.findall(text)}


def _unescaped(value: str) -> str:
    return _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], value)
