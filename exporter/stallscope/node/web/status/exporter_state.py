"""A snapshot of the exporter's memory. Everything in it is replaced, not edited, so that readers take no lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from stallscope.model.catalogue.metrics import Family
from stallscope.model.view.model import Labels
from stallscope.model.view.observer import COUNT, STEP_SECONDS, SUM, WANTED, RankKey
from stallscope.model.view.stack_groups import Grouping
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.node.sampling.sampler import CollectorStatus

_MOST = 1e100
"""Beyond it sums and products would be infinite."""


class ExporterState(NamedTuple):
    """Contents of the status page at one moment."""

    at: float
    """Unix time of the newest page of metrics."""
    ready: bool
    """True if the first readings are on it."""
    samples: tuple[Sample, ...]
    """Everything on that page."""
    statuses: tuple[CollectorStatus, ...]
    failures: Mapping[RankKey, str] = {}
    """Failure of a rank's process, if it reported one."""
    stacks: Mapping[str, Grouping] = {}
    """For each run with ranks at a standstill, these ranks by their places in the code."""
    closed_receivers: tuple[str, ...] = ()
    """For each receiver of training reports that is not open, the reason and what to do."""
    reads_gpus: bool = True
    """True if a GPU collector is enabled."""
    simulated: str = ""
    """The scenario, where GPUs are simulated."""


class SnapshotSamples:
    """The samples of the exporter's own memory in the form that the model is built from: `view.observer.Samples`."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        """Sort the samples by family."""
        self._series: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in WANTED}
        series = self._series
        for family, labels, value in samples:
            if isinstance(value, Distribution):
                if family is STEP_SECONDS and value.total < _MOST:
                    series[family.name + COUNT][labels] = value.count
                    series[family.name + SUM][labels] = value.total
            elif (found := series.get(family.name)) is not None and -_MOST < value < _MOST:
                found[labels] = value

    def series(self, family: Family, suffix: str = "") -> dict[tuple[str, ...], float]:
        """Values of a family by the values of their labels."""
        return self._series[family.name + suffix]

    def samples(self, family: Family, suffix: str = "") -> Iterator[tuple[Labels, float]]:
        """Labels and value of each of a family's series."""
        names = family.all_labels
        for labels, value in self._series[family.name + suffix].items():
            yield dict(zip(names, labels, strict=False)), value  # optional labels may be left out

    def by(self, family: Family, *names: str, suffix: str = "") -> Iterator[tuple[tuple[str, ...], float]]:
        """Values of some required labels, and value, of each of a family's series."""
        places = [family.labels.index(name) for name in names]
        pick = itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))
        return ((pick(labels), value) for labels, value in self._series[family.name + suffix].items())
