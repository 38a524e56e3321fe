"""Collects what one node's exporter shows at each scrape."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stallscope.lab.replay.series import Series
from tests.scenarios.disturbance import Disturbance, Floats

PORT = 19400
Mask = NDArray[np.bool_]


class Sheet:
    """Every series of one node."""

    def __init__(
        self,
        node: int,
        disturbance: Disturbance,
        *,
        absent: tuple[str, ...],
        down: float | None,
        target: Mapping[str, str] | None = None,
    ) -> None:
        """Begin the page of the node's exporter, or of another target on the node."""
        self.node = node
        self.times = disturbance.times[node]
        """Seconds at which each scrape's page was made."""
        self.skew = disturbance.skew[node]
        self.level = disturbance.level[node]
        self.restart = disturbance.exporter_restarts[node]
        self.series: list[Series] = []
        self._absent = absent
        self._answered: Mask = disturbance.answered[node].copy()
        self._scraped: Mask = disturbance.scraped
        if down is not None:
            self._answered &= disturbance.grid < down * 60
        self._target = target or {"job": "stallscope", "instance": f"node{node}:{PORT}"}

    def add(self, name: str, values: Floats | float, present: Mask | bool = True, /, **labels: str) -> None:
        """Show a series where it is present; a label without a value is left out, as the exposition does."""
        if name.startswith(self._absent) and self._absent:
            return
        numbers = np.broadcast_to(np.asarray(values, dtype=np.float64), self.times.shape)
        shown = np.broadcast_to(np.asarray(present), self.times.shape) & self._answered
        if not (shown & self._scraped).any():
            return
        given = {**self._target, **{label: value for label, value in labels.items() if value}}
        rounded = (np.where(np.abs(numbers) < 1e9, np.round(numbers, 6), numbers) + 0.0).tolist()  # no minus zero
        stored = [value if there else None for value, there in zip(rounded, shown.tolist(), strict=True)]
        self.series.append(Series(name, given, self._without_gaps(stored)))

    def answers(self) -> None:
        """Show what the scraper itself says of its target."""
        self.series.append(Series("up", dict(self._target), self._without_gaps(self._answered.astype(float).tolist())))

    def _without_gaps(self, values: Sequence[float | None]) -> list[float | None]:
        return [value if done else math.nan for value, done in zip(values, self._scraped.tolist(), strict=True)]

    def counted(self, integral: Callable[[Floats], Floats], begin: float) -> Floats:
        """A counter of the exporter's own: begins with it, and again where noise restarts it."""
        values: Floats = integral(self.times) - integral(np.array([begin]))[0]
        if self.restart is not None:
            again = integral(np.array([self.restart]))[0] - integral(np.array([begin]))[0]
            values = np.where(self.times >= self.restart, values - again, values)
        return values

    def clock(self, times: Floats | float) -> Floats:
        """Return this node's clock at a moment."""
        return np.asarray(times, dtype=np.float64) + self.skew
