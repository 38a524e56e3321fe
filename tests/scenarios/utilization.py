"""A driver's utilisation samples: the integrals, the histogram and the dips that an exporter keeps."""

from __future__ import annotations

import numpy as np

from tests.scenarios.disturbance import Floats

BUSY = 0.5
DIP = 0.1
BUSY_SECONDS = 1.0


class Utilization:
    """One GPU's samples, each the mean over a period, in whole per cent as drivers report them."""

    def __init__(self, busy: Floats, moments: Floats) -> None:
        """Take the integral of busy time at the samples' bounds."""
        self.period = float(moments[1] - moments[0])
        self.ends = moments[1:]
        self.samples: Floats = np.round(np.clip(np.diff(busy) / self.period, 0, 1), 2).astype(np.float64)
        dips = self._dips()
        self._dip_ends = self.ends[dips]

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

    def dips(self, times: Floats) -> Floats:
        return np.searchsorted(self._dip_ends, times, side="right").astype(np.float64)

    def dip_intervals(self, power: int, times: Floats) -> Floats:
        """Sum of the times between dips, each to a power."""
        intervals = np.diff(self._dip_ends) ** power
        total = np.concatenate([[0.0], np.cumsum(intervals)])
        found: Floats = total[np.maximum(0, np.searchsorted(self._dip_ends, times, side="right") - 1)]
        return found

    def _dips(self) -> list[int]:
        """Falls under a tenth after a second above a half; a sample between the two breaks neither."""
        classes = np.where(self.samples > BUSY, 2, np.where(self.samples < DIP, 0, 1))
        begins = np.flatnonzero(np.concatenate([[True], classes[1:] != classes[:-1]]))
        ends = np.concatenate([begins[1:], [len(classes)]])
        found, busy_for, due = [], 0.0, False
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            kind = classes[begin]
            if kind == 2:
                busy_for += (end - begin) * self.period
                due = due or busy_for >= BUSY_SECONDS - 1e-9
                continue
            share = float(self.samples[begin]) / BUSY * self.period
            due = due or busy_for + share >= BUSY_SECONDS - 1e-9
            busy_for = share
            if kind == 0 and due:
                due = False
                found.append(begin)
        return found
