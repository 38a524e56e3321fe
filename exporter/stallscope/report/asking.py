"""How a report's sections ask: always for the subject's time, and so that the server does the work.

A figure is aggregated by the server, a curve has a few hundred points, however long the time and however many the GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import NamedTuple, Protocol

from stallscope.clients.prometheus import RangeSeries, Series
from stallscope.report.document import Numbers
from stallscope.report.options import Options
from stallscope.report.subject import Subject
from stallscope.report.words import zone

RULES_SECONDS = 30.0
"""Finest resolution of sums over time: what looks back five minutes hardly changes meanwhile."""
SCRAPES_SECONDS = 120.0
"""Least time in which there are enough scrapes to tell what a counter grew by."""
_MOST_MOMENTS = 10_080
"""That a sum over time is made of: a week by the minute."""
_FEW_MOMENTS = 1440
"""The same where many series are summed: a day by the minute. What is recorded reaches back five minutes anyway."""
_FEWEST_MOMENTS = 288
"""The same for all that a server knows: a day by five minutes."""
_CURVE_POINTS = 300


class Server(Protocol):
    """What answers; `stallscope.clients.prometheus.Prometheus` is one."""

    name: str

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """The series of an expression at a moment."""

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[RangeSeries]:
        """The same over time."""

    def take_warnings(self) -> list[str]:
        """What the server said beside its answers since it was asked this last."""


class Curve(NamedTuple):
    """A series at the report's moments."""

    labels: Mapping[str, str]
    values: Numbers
    """One for each of the moments; None where there is none."""


class Curves(NamedTuple):
    """Series over the subject's time, at the same moments."""

    times: tuple[float, ...]
    """Each is the end of the step that the value tells of."""
    step: float
    curves: tuple[Curve, ...]


class Asker:
    """One report's questions."""

    def __init__(self, server: Server, subject: Subject, options: Options) -> None:
        """Take the server; nothing is asked yet."""
        self.subject = subject
        self.options = options
        self.server = server
        self._answers: dict[str, list[Series]] = {}
        self._zone = zone(options.zone)

    @property
    def resolution(self) -> float:
        """Seconds between the moments of a sum over time."""
        return multiple_of(RULES_SECONDS, self.subject.seconds / _MOST_MOMENTS)

    @property
    def coarse(self) -> float:
        """The same where many series are summed at each moment."""
        moments = _FEW_MOMENTS if self.subject.instances else _FEWEST_MOMENTS
        return multiple_of(RULES_SECONDS, self.subject.seconds / moments)

    @property
    def rate_window(self) -> str:
        """As far as rates must reach back, so that coarse moments leave nothing out: five minutes at least."""
        return f"{max(300.0, self.coarse):.0f}s"

    @property
    def step(self) -> float:
        """Seconds between the points of a curve."""
        return self.step_of(_CURVE_POINTS)

    def step_of(self, points: int) -> float:
        """Seconds between the points of a curve that has so many at most."""
        return multiple_of(RULES_SECONDS, self.subject.seconds / points)

    def step_of_counters(self, points: int = _CURVE_POINTS) -> float:
        """The same for a curve of what counters grew by from one point to the next."""
        return multiple_of(SCRAPES_SECONDS, self.subject.seconds / points)

    @property
    def window(self) -> str:
        """The subject's time as PromQL's range."""
        return f"{self.subject.seconds:.0f}s"

    def over_time(
        self, function: str, expression: str, window: float | None = None, resolution: float | None = None
    ) -> str:
        """PromQL of an `_over_time` function of any expression over the subject's time, or another window.

        Args:
            function: as `avg_over_time`; a quantile's argument may follow it: `quantile_over_time(0.5, `.
            expression: of what.
            window: seconds, where it is not the subject's time.
            resolution: seconds between two moments, where it is not the finest.
        """
        seconds = self.subject.seconds if window is None else window
        opened = function if "(" in function else f"{function}("
        # A second less, so that not both ends of the window count.
        return f"{opened}({expression})[{max(1.0, seconds - 1):.0f}s:{resolution or self.resolution:.0f}s])"

    def integral(self, expression: str, window: float | None = None, resolution: float | None = None) -> str:
        """PromQL of an expression times seconds, summed over the subject's time, or another window."""
        summed = self.over_time("sum_over_time", expression, window, resolution)
        return f"{summed} * {resolution or self.resolution:.0f}"

    def seconds_there(self, expression: str) -> str:
        """PromQL of the seconds for which an expression had a value."""
        return f"{self.over_time('count_over_time', expression)} * {self.resolution:.0f}"

    def ask(self, expression: str) -> list[Series]:
        """The finite values of an expression at the end of the subject's time, asked for once."""
        if expression not in self._answers:
            found = self.server.query(expression, at=self.subject.end)
            self._answers[expression] = [each for each in found if isfinite(each.value)]
        return self._answers[expression]

    def figure(self, expression: str) -> float | None:
        """The one value of an expression; None where it has none."""
        found = self.ask(expression)
        return found[0].value if found else None

    def by(self, label: str, expression: str) -> dict[str, float]:
        """The values of an expression by one of its labels."""
        return {each.labels.get(label, ""): each.value for each in self.ask(expression)}

    def curves(self, expression: str, step: float | None = None) -> Curves:
        """The series of an expression over the subject's time."""
        step = step or self.step
        # Whole steps, as the server aligns the moments of sums over time: whoever asks again finds the same points.
        first = step * -(-self.subject.start // step)
        last = step * (self.subject.end // step)
        times = [first + step * number for number in range(1 + int((last - first) / step))] if last >= first else []
        if not times:
            return Curves((), step, ())
        found = self.server.query_range(expression, first, last, step)
        return Curves(
            tuple(times), step, tuple(Curve(each.labels, _at(each, first, step, len(times))) for each in found)
        )

    def moment(self, seconds: float) -> str:
        """A Unix time as texts have it, to the minute."""
        return datetime.fromtimestamp(seconds, self._zone).strftime("%Y-%m-%d %H:%M")


def settled(record: str) -> str:
    """PromQL of a rate of five minutes once there are five minutes to take it from: before, it is too low."""
    return f"{record} and {record} offset 5m"


def multiple_of(unit: float, least: float) -> float:
    """The smallest multiple of a unit that is not less, one at least."""
    return unit * max(1, -(-least // unit))


def highest(curve: Curve, times: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """The greatest value of a curve, and the first moment of it; none where it is never over zero."""
    told = [(value, moment) for value, moment in zip(curve.values, times, strict=True) if value]
    return max(told, key=lambda each: (each[0], -each[1]), default=(None, None))


def _at(series: RangeSeries, first: float, step: float, number: int) -> Numbers:
    values: list[float | None] = [None] * number
    for moment, value in zip(series.times, series.values, strict=True):
        place = round((moment - first) / step)
        if 0 <= place < number and isfinite(value):
            values[place] = value
    return tuple(values)
