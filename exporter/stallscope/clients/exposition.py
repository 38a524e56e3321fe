"""A page of metrics, read as quickly as two seconds' interest in it deserves.

Written here and not left to the client library's parser, which makes an object of every sample, those that nobody asked
for too, and takes fifty times as long (tests/benchmarks/top.py). Tests hold the two to the same findings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from stallscope.catalogue.metrics import Family

Labels = Mapping[str, str]
Series = dict[str, float]
"""Values by the text of their labels, as it stands between the braces."""

_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_NO_LABELS: Labels = MappingProxyType({})
_MOST = 1e100
"""Beyond it, as with what is no number, sums and products would be infinite."""
_KNOWN_LABELS = 32_768
"""A node has the same ones every time: a thousand ranks some twenty thousand."""


class Page:
    """The series of one page, by name; those that can't be meant are left out, since nothing can be shown of them."""

    def __init__(self, text: str, wanted: frozenset[str]) -> None:
        """Read what is wanted; lines that can't be read are passed over.

        Args:
            text: the page, in the plain text format.
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
            if -_MOST < value < _MOST:
                found[labels] = value

    def __bool__(self) -> bool:
        """Whether there is anything on it."""
        return any(self._series.values())

    def tells_the_same(self, other: Page) -> bool:
        """Whether nothing has changed since that page: then it is the same one, read again."""
        return self._series == other._series

    def series(self, family: Family, suffix: str = "") -> Series:
        """Values of a family by the text of their labels."""
        return self._series[family.name + suffix]

    def samples(self, family: Family, suffix: str = "") -> Iterator[tuple[Labels, float]]:
        """Labels and value of each of a family's series."""
        for text, value in self._series[family.name + suffix].items():
            yield labels_of(text), value

    def by(self, family: Family, *names: str, suffix: str = "") -> Iterator[tuple[tuple[str, ...], float]]:
        """Values of some labels, and value, of each of a family's series; a label that is absent is empty."""
        for labels, value in self.samples(family, suffix):
            yield tuple([labels.get(name, "") for name in names]), value


@lru_cache(_KNOWN_LABELS)
def labels_of(text: str) -> Labels:
    """The labels of the text between the braces."""
    if not text:
        return _NO_LABELS
    return {name: _plain(value) if "\\" in value else value for name, value in _PAIR.findall(text)}


def _plain(value: str) -> str:
    return _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], value)
