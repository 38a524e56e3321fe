"""A driver's utilisation samples: the integrals and the histogram that an exporter keeps, and its own view of dips."""

from __future__ import annotations

import numpy as np

from stallscope.node.sampling.integrals import BUSY_LEVEL, Interval, UtilizationIntegral
from tests.scenarios.disturbance import Floats

_OF_DIPS = ("dips", "dip_intervals", "dip_interval_sum", "dip_interval_sum_of_squares")


class Utilization:
    """One GPU's samples, each the mean over a period, in whole per cent as drivers report them."""

    def __init__(self, busy: Floats, moments: Floats, *, percent: bool = True) -> None:
        """Take the integral of busy time at the samples' bounds; without `percent` samples are not rounded."""
        self.period = float(moments[1] - moments[0])
        self.ends = moments[1:]
        means = np.clip(np.diff(busy) / self.period, 0, 1)
        self.samples: Floats = np.round(means, 2 if percent else 9).astype(np.float64)
        self._watched_at, self._watched = self._watch()

    def integral(self, values: Floats, times: Floats) -> Floats:
        """Sum a value of each sample, over the samples that are complete."""
        total = np.concatenate([[0.0], np.cumsum(values)])
        found: Floats = total[np.searchsorted(self.ends, times, side="right")]
        return found

    def busy(self, times: Floats) -> Floats:
        return self.integral(self.samples * self.period, times)

    def under(self, level: float, times: Floats) -> Floats:
        return self.integral((self.samples < level).astype(np.float64) * self.period, times)

    def idle(self, times: Floats) -> Floats:
        return self.integral((self.samples == 0).astype(np.float64) * self.period, times)

    def within(self, bound: float, times: Floats) -> Floats:
        """Samples up to a bound."""
        return self.integral((self.samples <= bound).astype(np.float64), times)

    def total(self, times: Floats) -> Floats:
        return self.integral(self.samples, times)

    def count(self, times: Floats) -> Floats:
        return self.integral(np.ones_like(self.samples), times)

    def observed(self, times: Floats) -> Floats:
        return self.count(times) * self.period

    def watched(self, part: str, times: Floats) -> Floats:
        """Return what the exporter knows of dips: an attribute of its integral."""
        found: Floats = self._watched[part][np.searchsorted(self._watched_at, times, side="right")]
        return found

    def _watch(self) -> tuple[Floats, dict[str, Floats]]:
        """Let the exporter's own integral watch for dips, with idle and busy samples in a row as one."""
        alike = np.where(self.samples > BUSY_LEVEL, 1.0, self.samples)
        first = np.concatenate([[True], (alike[1:] != alike[:-1]) | ((alike[1:] > 0) & (alike[1:] < 1))])
        begins = np.flatnonzero(first)
        lengths = np.diff(np.concatenate([begins, [len(alike)]])) * self.period
        integral = UtilizationIntegral()
        known = []
        for value, seconds in zip([0.0, *alike[begins].tolist()], [0.0, *lengths.tolist()], strict=True):
            integral.add(Interval(value, seconds))
            known.append([float(getattr(integral, part)) for part in _OF_DIPS])
        return self.ends[begins], dict(zip(_OF_DIPS, np.array(known).T, strict=True))
