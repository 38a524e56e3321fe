"""Bytes over one direction of a link, from the driver's counter or from activity."""

from __future__ import annotations

from stallscope.node.sampling.integrals import COUNTER_SLACK, DriverCounter

_NARROW = 1 << 32


class Traffic:
    """One total, fed by the driver's byte counter, or else by activity (what moved since the reading before).

    How wide the PCIe byte counters are is documented nowhere; 32 bits would wrap many times a second on a busy link, so
    until a counter was seen beyond them activity is believed where there is any.
    """

    def __init__(self, *, most_per_second: float, may_be_narrow: bool = False) -> None:
        """Start without a total.

        Args:
            most_per_second: bytes; more is implausible.
            may_be_narrow: whether the counter may wrap after 32 bits.
        """
        self.total: float | None = None
        """Bytes; None before the first value."""
        self.by_activity = False
        """True while the total follows activity."""
        self.moved_at: float | None = None
        """When the counter or activity was last read, monotonic seconds."""
        self.counter = DriverCounter(
            widths=(32, 64) if may_be_narrow else (64,), most_per_second=most_per_second, slack=COUNTER_SLACK
        )
        self._most_per_second = most_per_second
        self._rejected = 0
        self._wide = not may_be_narrow
        self._counted = False

    @property
    def backwards(self) -> int:
        """Readings of the counter that were lower than the one before."""
        return self.counter.backwards

    @property
    def out_of_range(self) -> int:
        """Readings of the counter and of activity that moved implausibly much."""
        return self.counter.out_of_range + self._rejected

    def add(self, amount: float) -> float:
        """Add bytes that were measured otherwise while neither the counter nor activity is read; return the total."""
        self.counter.add(amount)
        self.total = (self.total or 0.0) + amount
        return self.total

    def take(
        self, counted: float | None, moved: float | None, now: float, session: int = 0, seconds: float = 0.0
    ) -> None:
        """Add the values of one reading.

        Args:
            counted: the driver's counter.
            moved: bytes since the reading before, by activity.
            now: monotonic seconds.
            session: a new number means that the driver was opened again, and perhaps loaded again.
            seconds: the time over which activity moved them.
        """
        if moved is not None and not 0 <= moved <= self._most_per_second * (seconds + COUNTER_SLACK):
            self._rejected += 1
            moved = None
        if counted is not None or moved is not None:
            self.moved_at = now
        growth = None
        if counted is not None:
            before = self.counter.total if self._counted else 0.0
            growth = self.counter.take(counted, now=now, session=session) - before
            self._wide = self._wide or counted >= _NARROW
            if not self._counted:
                # Where the driver began to count is where the total begins.
                self._counted = True
                self.total = growth if self.total is None else self.total
                return
        doubted = not (self._counted and self._wide)
        self.by_activity = doubted and (self.by_activity or moved is not None)
        chosen = moved if self.by_activity else growth
        if chosen is not None:
            self.total = (self.total or 0.0) + chosen
