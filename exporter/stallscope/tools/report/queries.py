"""Queries of the report's sections for the subject's time. The server does the work.

The server aggregates single values, and a time series has a few hundred points, whatever the time and number of GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from math import isfinite
from typing import NamedTuple, Protocol

from stallscope.model.analysis import over_time
from stallscope.model.analysis.over_time import RULES_SECONDS, multiple_of
from stallscope.model.analysis.run_figures import RunFigures, read_figures
from stallscope.model.analysis.run_totals import RunTotals, read_totals
from stallscope.model.clients.prometheus import RangeSeries, Series
from stallscope.tools.report.document import Numbers
from stallscope.tools.report.options import Options
from stallscope.tools.report.subject import GPU_LABELS, Subject
from stallscope.tools.report.words import zone

SCRAPES_SECONDS = 120.0
"""Shortest interval that contains enough scrapes for the increase of a counter."""
TRAINING_TIME = "mean of the training time, from its sixth minute on"
"""Note on the means of `Queries.figures`."""
_MAX_POINTS_MANY_SERIES = 1440
"""Points if many series are summed: a day by the minute. Recorded values cover five minutes anyway."""
_MAX_POINTS_ALL_SERIES = 288
"""Points if all series of the server are summed: a day by five minutes."""
_RANGE_POINTS = 300


class Server(over_time.Server, Protocol):
    """A server to report on; `stallscope.model.clients.prometheus.Prometheus` is one."""

    name: str

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[RangeSeries]:
        """Evaluate an expression over a range."""

    def take_warnings(self) -> list[str]:
        """Return the server's warnings since the last call."""


class TimeSeries(NamedTuple):
    """A series at the times of a range query."""

    labels: Mapping[str, str]
    values: Numbers
    """One for each time; None if missing."""


class RangeResult(NamedTuple):
    """The result of a range query over the subject's time."""

    times: tuple[float, ...]
    """Ends of the intervals that the values cover."""
    step: float
    series: tuple[TimeSeries, ...]


class Queries:
    """The queries of one report."""

    def __init__(self, server: Server, subject: Subject, options: Options) -> None:
        """Store the server; nothing is queried yet."""
        self.subject = subject
        self.options = options
        self.server = server
        self._results: dict[str, list[Series]] = {}
        self._zone = zone(options.zone)

    @property
    def resolution(self) -> float:
        """Seconds between the points of a sum over time."""
        return over_time.resolution(self.subject.seconds)

    @property
    def coarse(self) -> float:
        """Seconds between the points of a sum over time of many series."""
        points = _MAX_POINTS_MANY_SERIES if self.subject.instances else _MAX_POINTS_ALL_SERIES
        return multiple_of(RULES_SECONDS, self.subject.seconds / points)

    @property
    def rate_window(self) -> str:
        """Window of rates: at least five minutes, and long enough that coarse points leave no gaps."""
        return f"{max(300.0, self.coarse):.0f}s"

    @property
    def step(self) -> float:
        """Seconds between the points of a range query."""
        return self.step_for(_RANGE_POINTS)

    def step_for(self, points: int) -> float:
        """Return the seconds between the points of a range query with at most `points` points."""
        return multiple_of(RULES_SECONDS, self.subject.seconds / points)

    def counter_step(self, points: int = _RANGE_POINTS) -> float:
        """Return the step for a range query of a counter's increase from point to point."""
        return multiple_of(SCRAPES_SECONDS, self.subject.seconds / points)

    @property
    def window(self) -> str:
        """The subject's time as a PromQL duration."""
        return f"{self.subject.seconds:.0f}s"

    def over_time(
        self, function: str, expression: str, window: float | None = None, resolution: float | None = None
    ) -> str:
        """Return PromQL for an `_over_time` function of any expression, by default over the subject's time.

        Args:
            function: such as `avg_over_time`, or with the argument of a quantile: `quantile_over_time(0.5, `.
            expression: PromQL.
            window: seconds; by default the subject's time.
            resolution: seconds between two points; by default the finest.
        """
        # One second shorter, because servers may count both ends of the window.
        seconds = self.subject.summed_seconds if window is None else window - 1
        return over_time.over_time(function, expression, seconds, resolution or self.resolution)

    def integral(self, expression: str, window: float | None = None, resolution: float | None = None) -> str:
        """Return PromQL for the time integral of an expression, by default over the subject's time."""
        summed = self.over_time("sum_over_time", expression, window, resolution)
        return f"{summed} * {resolution or self.resolution:.0f}"

    def seconds_present(self, expression: str) -> str:
        """Return PromQL for the seconds during which an expression had a value."""
        return f"{self.over_time('count_over_time', expression)} * {self.resolution:.0f}"

    def instant(self, expression: str) -> list[Series]:
        """Return the finite values of an expression at the end of the subject's time; results are cached."""
        if expression not in self._results:
            found = self.server.query(expression, at=self.subject.end)
            self._results[expression] = [each for each in found if isfinite(each.value)]
        return self._results[expression]

    def value(self, expression: str) -> float | None:
        """Return the only value of an expression; None without one."""
        found = self.instant(expression)
        return found[0].value if found else None

    def value_at_last_scrape(self, expression: str) -> float | None:
        """Return the only value of an expression at a run's last scrape, which follows its last report."""
        run, end = self.subject.run, self.subject.end
        at = end if run is None or run.goes_on else max(end, run.end)
        return next((each.value for each in self.server.query(expression, at=at) if isfinite(each.value)), None)

    def by(self, label: str, expression: str) -> dict[str, float]:
        """Return the values of an expression by one of its labels."""
        return {each.labels.get(label, ""): each.value for each in self.instant(expression)}

    def over_range(self, expression: str, step: float | None = None) -> RangeResult:
        """Evaluate an expression over the subject's time."""
        step = step or self.step
        # Aligned to multiples of the step, as subqueries are, so that repeated queries return the same points.
        first = step * -(-self.subject.start // step)
        last = step * (self.subject.end // step)
        times = [first + step * number for number in range(1 + int((last - first) / step))] if last >= first else []
        if not times:
            return RangeResult((), step, ())
        found = self.server.query_range(expression, first, last, step)
        series = tuple(TimeSeries(each.labels, _at(each, first, step, len(times))) for each in found)
        return RangeResult(tuple(times), step, series)

    @cached_property
    def figures(self) -> RunFigures:
        """The run's means, as `stallscope compare` shows them.

        Raises:
            PrometheusError: the server gave no valid response.
        """
        if self.subject.run is None:
            raise ValueError(f"{self.subject.title} is not a run")
        return read_figures(self.server, self.subject.run)

    def until_last_step(self, result: RangeResult) -> RangeResult:
        """Remove the values of intervals after the run's last step: five-minute means go on for five minutes."""
        last = self.totals.last_step
        if last is None:
            return result
        kept = [moment - result.step < last for moment in result.times]
        series = tuple(
            each._replace(values=tuple(value if keep else None for value, keep in zip(each.values, kept, strict=True)))
            for each in result.series
        )
        return result._replace(series=series)

    @cached_property
    def totals(self) -> RunTotals:
        """The run's totals, by its own counters.

        Raises:
            PrometheusError: the server gave no valid response.
        """
        if self.subject.run is None:
            raise ValueError(f"{self.subject.title} is not a run")
        return read_totals(self.server, self.subject.run)

    @cached_property
    def standstill(self) -> float | None:
        """Time of the last step of a run that is at a standstill at the end of the report; None without one.

        Raises:
            PrometheusError: the server gave no valid response.
        """
        if self.subject.run is None or not self.subject.live:
            return None
        window = max(60.0, 2 * self.resolution)
        stalled = f"count(last_over_time(rank:stalled:info{{{self.subject.run_matchers}}}[{window:.0f}s]))"
        return self.totals.last_step if self.value(stalled) else None

    def mean_of_gpus(self, expression: str, among: str) -> dict[str, float]:
        """Return the mean of a five-minute mean by UUID, over the times at which the GPU belongs to the subject.

        Of a run without the first five minutes, whose means cover the time before.

        Args:
            expression: PromQL by GPU.
            among: matchers of the GPUs.
        """
        own = f"max by ({GPU_LABELS}) ({expression}){self.subject.and_own_gpus(among)}"
        if self.subject.scope == "run":
            own += self.subject.and_own_gpus(among, "5m")
        return self.by("uuid", f"max by (uuid) ({self.over_time('avg_over_time', own, resolution=self.coarse)})")

    def moment(self, seconds: float) -> str:
        """Format a Unix time to the minute."""
        return datetime.fromtimestamp(seconds, self._zone).strftime("%Y-%m-%d %H:%M")


def highest(series: TimeSeries, times: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Return the greatest value of a series and its first time; None if no value is above zero."""
    known = [(value, moment) for value, moment in zip(series.values, times, strict=True) if value]
    return max(known, key=lambda each: (each[0], -each[1]), default=(None, None))


def _at(series: RangeSeries, first: float, step: float, number: int) -> Numbers:
    values: list[float | None] = [None] * number
    for moment, value in zip(series.times, series.values, strict=True):
        place = round((moment - first) / step)
        if 0 <= place < number and isfinite(value):
            values[place] = value
    return tuple(values)
