"""Samples of catalogue families, as sources return them, and the check that they pass before use."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from stallscope.model.catalogue.metrics import Family, MetricType


@dataclass(frozen=True, slots=True)
class Distribution:
    """The value of a histogram or summary sample."""

    counts: tuple[int, ...]
    """Observations by bucket, not cumulative, the last one above the highest bound; empty for a summary."""
    total: float
    """Sum of the observations."""
    count: int
    """Number of observations."""


class Sample(NamedTuple):
    """One series' value (a whole histogram counts as one). Label values are in the order of the family's labels."""

    family: Family
    labels: tuple[str, ...]
    value: float | Distribution


_SOUND: set[int] = set()
"""Hashes of labels already checked. They need less memory than labels, and a node's labels rarely change."""
_SOUND_AT_MOST = 8_192


class NonsenseReading(Exception):
    """A source returned invalid samples, which must not be exposed."""


def checked(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Return the samples unchanged if all of them are valid.

    Raises:
        NonsenseReading: a value is not a finite number, a counter is negative, or labels do not match the family or are
            not strings.
    """
    result = tuple(samples)
    for sample in result:
        family, labels, value = sample
        if (key := hash((family, labels))) not in _SOUND:
            _check_labels(family, labels)
            if len(_SOUND) >= _SOUND_AT_MOST:
                _SOUND.clear()
            _SOUND.add(key)
        kind = type(value)
        # Subclasses are excluded, since they may render differently: True is not a number on a page.
        if kind is float or kind is int:
            if not math.isfinite(value):  # type: ignore[arg-type]
                raise NonsenseReading(f"{family.name}{labels}: expected a finite number, got {value!r}")
            if value < 0 and family.type is MetricType.COUNTER:  # type: ignore[operator]
                raise NonsenseReading(f"{family.name}{labels}: expected a counter of at least 0, got {value}")
        elif isinstance(value, Distribution):
            _check_distribution(family, value)
        else:
            raise NonsenseReading(f"{family.name}{labels}: expected a finite number, got {value!r}")
    return result


def _check_labels(family: Family, labels: tuple[str, ...]) -> None:
    if not len(family.labels) <= len(labels) <= len(family.labels) + len(family.optional_labels):
        raise NonsenseReading(f"{family.name}: expected values of the labels {family.all_labels}, got {labels}")
    if not all(type(label) is str for label in labels):
        raise NonsenseReading(f"{family.name}: expected strings as label values, got {labels}")


def _check_distribution(family: Family, value: Distribution) -> None:
    expected = len(family.buckets) + 1 if family.type is MetricType.HISTOGRAM else 0
    if len(value.counts) != expected:
        raise NonsenseReading(f"{family.name}: expected {expected} buckets, got {len(value.counts)}")
    if not math.isfinite(value.total) or value.count < 0 or any(count < 0 for count in value.counts):
        raise NonsenseReading(f"{family.name}: invalid distribution {value!r}")
