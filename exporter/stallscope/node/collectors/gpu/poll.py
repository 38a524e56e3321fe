"""Polls: each queries a GPU for some signals at its own interval. Each GPU has its own polls, which keep the totals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

from stallscope.model.catalogue.metrics import Family, family
from stallscope.node.collectors.gpu.traffic import Traffic
from stallscope.node.drivers.device import Activity, Device, DriverError, Readings, Unsupported
from stallscope.node.drivers.retry import Retry
from stallscope.node.drivers.signals import EVERY_READING, QUERIES
from stallscope.node.drivers.unified_memory import unified_memory
from stallscope.node.sampling.integrals import COUNTER_SLACK, DriverCounter, Timeline
from stallscope.node.sampling.reading import Distribution, Sample

Answer = Mapping[Family, "float | Distribution | Mapping[str, float]"]
"""Values by family, and by label if the family has a label. A family in it is supported, even without values."""

_Answer = TypeVar("_Answer")
_Value = TypeVar("_Value")


class Session:
    """State of one GPU between two openings of the driver."""

    def __init__(
        self,
        device: Device,
        retry: Retry,
        longest: float,
        calls_before: int = 0,
        rejected_before: Mapping[str, int] | None = None,
    ) -> None:
        """Start without answers.

        Args:
            device: the GPU, as the driver provides it.
            retry: refused polls, and parts of polls, by name; it is kept for the next session.
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
        """Number of the driver's session; after a change, the driver may have been reloaded."""
        self.now = 0.0
        """Start of the newest reading, in monotonic seconds."""
        self.has: dict[str, frozenset[Family]] = {}
        """Families in the answers of each poll that was answered or refused."""
        self.missing_since: dict[tuple[str, Family], float] = {}
        """Time since which a family is absent from the answers of a poll, in monotonic seconds."""
        self.refusal = ""
        """Newest error of a poll that was answered before."""
        self.answers: dict[str, list[Sample]] = {}
        self.polled_at: dict[str, float] = {}
        self.support: list[Sample] | None = None
        """Cached series of `signal_supported`; None after a change."""
        self.served: dict[str, str] = {}
        """Source of each signal whose source a poll chooses."""
        self.readings: dict[str, Readings] = {}
        """Answers of the driver in this reading, by query."""
        self.activity: Activity | None = None
        """Activity in this reading; None if there is no new one."""

    def forget(self) -> None:
        """Forget which signals the GPU supports, so that all are queried again."""
        self.retry.forget()
        self.has.clear()
        self.missing_since.clear()
        self.polled_at.clear()
        self.support = None

    def begin(self, now: float, number: int) -> None:
        """Begin a reading at the time `now`, in the driver's session `number`."""
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
        """True if the driver's counters are supported, but could not be read in this reading."""
        return "counters" not in self.readings and "counters" not in self.retry

    def require_counters(self) -> None:
        """Raise DriverError if the counters are supported, but could not be read in this reading."""
        if self.counters_failed:
            raise DriverError("driver_error", "the GPU's counters could not be read")

    def uncounted(self, counter: DriverCounter) -> bool:
        """Return whether the driver has no current value of this counter; a few failed readings are tolerated."""
        if self.counters_failed:
            return False
        return counter.counted_at is None or self.now - counter.counted_at > self.longest


class Poll(ABC):
    """Signals that are polled together, at their own interval."""

    name: str
    families: tuple[Family, ...] = ()
    every: float = EVERY_READING
    in_parts: ClassVar[bool] = False
    """True if its parts are retried one by one, so that it makes only driver calls that are due."""
    follows: ClassVar[bool] = False
    """True if it makes no driver call, so that its answer does not show whether the driver responds."""

    timelines: Collection[Timeline] = ()
    """Timelines of the driver's sample buffers, which count rejected samples."""
    counters: Collection[DriverCounter | Traffic] = ()
    """Counters of the driver, which count rejected readings."""

    @abstractmethod
    def read(self, session: Session) -> Answer | None:
        """Return the values; None while it is unknown whether the GPU supports the signals.

        Raises:
            Unsupported: the GPU does not support them.
            DriverError: the query failed this time.
        """

    def reopened(self) -> None:
        """Prepare for a driver that was opened again, and perhaps reloaded with another clock."""
        for timeline in self.timelines:
            timeline.reopened()

    def count_rejected(self, found: Counter[str]) -> None:
        """Add the number of rejected values by reason. Any thread may call it."""
        for timeline in self.timelines:
            found["future_timestamp"] += timeline.future
            found["backwards"] += timeline.backwards
        for counter in list(self.counters):
            found["backwards"] += counter.backwards
            found["out_of_range"] += counter.out_of_range


class TablePoll(Poll):
    """Polls a query of `drivers/signals.py`. Gauges stay unchanged, counters become totals that never decrease."""

    def __init__(self, query: str) -> None:
        """Prepare to poll a query."""
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
        return self._answer(session.read(self.name), session)

    def _answer(self, readings: Readings, session: Session) -> Answer:
        found: dict[Family, float | Distribution | Mapping[str, float]] = {}
        for name, value in readings.items():
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


class MemoryPoll(TablePoll):
    """Polls the memory; the host's for a GPU that has none of its own."""

    def __init__(self, root: Path) -> None:
        """Prepare.

        Args:
            root: folder that contains `proc`.
        """
        super().__init__("memory")
        self._root = root

    def read(self, session: Session) -> Answer:
        """Query the driver, or the kernel."""
        try:
            return super().read(session)
        except Unsupported:
            if (readings := unified_memory(session.device, self._root)) is None:
                raise
        session.served.update(dict.fromkeys(readings, "/proc/meminfo"))
        return self._answer(readings, session)


def known(values: Mapping[Family, _Value | None]) -> dict[Family, _Value]:
    """Return the families that have a value."""
    return {each: value for each, value in values.items() if value is not None and value != {}}
