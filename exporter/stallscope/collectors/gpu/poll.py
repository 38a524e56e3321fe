"""A poll: something that a GPU is queried for at its own interval. One object for each GPU, which keeps the totals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import ClassVar, TypeVar

from stallscope.catalogue.metrics import Family, family
from stallscope.collectors.gpu.traffic import Traffic
from stallscope.drivers.device import Activity, Device, DriverError, Readings
from stallscope.drivers.retry import Retry
from stallscope.drivers.signals import EVERY_READING, QUERIES
from stallscope.sampling.integrals import COUNTER_SLACK, DriverCounter, Timeline
from stallscope.sampling.reading import Distribution, Sample

Answer = Mapping[Family, "float | Distribution | Mapping[str, float]"]
"""Values by family, for a family with a label of its own by label. A family in it is supported, even without values."""

_Answer = TypeVar("_Answer")
_Value = TypeVar("_Value")


class Session:
    """State of one GPU that lasts until the driver is opened again."""

    def __init__(
        self,
        device: Device,
        retry: Retry,
        longest: float,
        calls_before: int = 0,
        rejected_before: Mapping[str, int] | None = None,
    ) -> None:
        """Begin.

        Args:
            device: answers for the GPU.
            retry: refused polls, and parts of them, by name; outlives the session.
            longest: seconds after which a reading is stale.
            calls_before: driver calls made for the GPU in earlier sessions.
            rejected_before: implausible values of earlier sessions, by reason.
        """
        self.device = device
        self.retry = retry
        self.longest = longest
        self.calls_before = calls_before
        self.rejected_before: Mapping[str, int] = rejected_before or {}
        self.number = 0
        """Of the session with the driver; another one may mean that the driver was loaded again."""
        self.now = 0.0
        """When the newest reading began, monotonic."""
        self.has: dict[str, frozenset[Family]] = {}
        """For each poll that was answered or refused, the families in its answers."""
        self.missing_since: dict[tuple[str, Family], float] = {}
        """When a family was first absent from an answer that had it, by poll, monotonic."""
        self.refusal = ""
        """The newest error of a poll that had been answered."""
        self.answers: dict[str, list[Sample]] = {}
        self.polled_at: dict[str, float] = {}
        self.support: list[Sample] | None = None
        """The series of `signal_supported`, until something changes."""
        self.served: dict[str, str] = {}
        """How a signal is served, where that is decided here."""
        self.readings: dict[str, Readings] = {}
        """Queries of the driver that were answered in this reading."""
        self.activity: Activity | None = None
        """Of this reading; None where there is nothing new."""

    def forget(self) -> None:
        """Find out again what the GPU supports."""
        self.retry.forget()
        self.has.clear()
        self.missing_since.clear()
        self.polled_at.clear()
        self.support = None

    def begin(self, now: float, number: int) -> None:
        """Begin a reading in the session with the driver that has this number."""
        self.now, self.number = now, number
        self.readings.clear()
        self.activity = None

    def read(self, query: str) -> Readings:
        """Query the driver, and keep the answer for other polls of the same reading."""
        readings = self.readings[query] = self.device.read(query)
        return readings

    def optional(self, name: str, call: Callable[..., _Answer], *arguments: object) -> _Answer | None:
        """Return the answer, or None while the GPU refuses it."""
        return self.retry.optional(name, self.now, call, *arguments)

    @property
    def counters_failed(self) -> bool:
        """True if the driver's counters are merely unknown at this reading."""
        return "counters" not in self.readings and "counters" not in self.retry

    def require_counters(self) -> None:
        """Raise DriverError where the counters are merely unknown at this reading."""
        if self.counters_failed:
            raise DriverError("driver_error", "the GPU's counters could not be read")

    def uncounted(self, counter: DriverCounter) -> bool:
        """Return whether the driver does not count this now, beyond a few readings that may merely have failed."""
        if self.counters_failed:
            return False
        return counter.counted_at is None or self.now - counter.counted_at > self.longest


class Poll(ABC):
    """Something polled at its own interval."""

    name: str
    families: tuple[Family, ...] = ()
    every: float = EVERY_READING
    in_parts: ClassVar[bool] = False
    """True where its parts are retried one by one: it then makes no driver call that is not due."""
    follows: ClassVar[bool] = False
    """True where it makes no driver call of its own, so that its answer proves nothing about the driver."""

    timelines: Collection[Timeline] = ()
    """Buffers of the driver's samples that it follows, which reject samples."""
    counters: Collection[DriverCounter | Traffic] = ()
    """Counters of the driver that it follows, which reject readings."""

    @abstractmethod
    def read(self, session: Session) -> Answer | None:
        """Return the values; None where it is not known yet whether the GPU has the signal.

        Raises:
            Unsupported: the GPU does not have it.
            DriverError: it could not be read now.
        """

    def reopened(self) -> None:
        """Note that the driver was opened again, and perhaps loaded again with another clock."""
        for timeline in self.timelines:
            timeline.reopened()

    def count_rejected(self, found: Counter[str]) -> None:
        """Add what was rejected here, by reason. Any thread may call it."""
        for timeline in self.timelines:
            found["future_timestamp"] += timeline.future
            found["backwards"] += timeline.backwards
        for counter in list(self.counters):
            found["backwards"] += counter.backwards
            found["out_of_range"] += counter.out_of_range


class TablePoll(Poll):
    """A query of `drivers/signals.py`: its numbers as they are, and its counters as totals that never go back."""

    def __init__(self, query: str) -> None:
        """Poll this query."""
        signals = [signal for signal in QUERIES[query].values() if not signal.combined]
        self.name = query
        self.every = signals[0].every
        self._families = {signal.name: family(f"stallscope_gpu_{signal.name}") for signal in signals}
        self.families = tuple(self._families.values())
        self._most_per_second = {signal.name: signal.most_per_second for signal in signals if signal.most_per_second}
        self._counters: dict[tuple[str, str], DriverCounter] = {}
        """By signal and label."""
        self.counters = self._counters.values()

    def read(self, session: Session) -> Answer:
        """Query the driver."""
        found: dict[Family, float | Distribution | Mapping[str, float]] = {}
        for name, value in session.read(self.name).items():
            each = self._families.get(name)
            if each is None:
                continue
            if name not in self._most_per_second:
                found[each] = value
            elif isinstance(value, Mapping):
                found[each] = {label: self._total(count, name, label, session) for label, count in value.items()}
            else:
                found[each] = self._total(value, name, "", session)
        return found

    def _total(self, count: float, name: str, label: str, session: Session) -> float:
        counter = self._counters.get((name, label))
        if counter is None:
            most = self._most_per_second[name]
            counter = self._counters[name, label] = DriverCounter(most_per_second=most, slack=COUNTER_SLACK)
        return counter.take(count, session=session.number, now=session.now)


def known(values: Mapping[Family, _Value | None]) -> dict[Family, _Value]:
    """Return the families that have a value."""
    return {each: value for each, value in values.items() if value is not None and value != {}}
