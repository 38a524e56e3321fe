"""Integrals over time of what a driver only samples or counts: seconds, joules, and how often a GPU starves.

A `Timeline` turns readings (buffered samples with the driver's timestamps, or polls by our own clock) into stretches of
time with one value each; an integral adds stretches up. An interval is credited to the reading that ends it. What no
reading speaks for is an outage: nothing is known of it, and none of it is credited. So an integral ends at the newest
sample, not at the moment of reading: two readings of it apart by some seconds cover as many seconds give or take one
sample of the driver, and are right to its rounding over the samples that they cover.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stallscope.catalogue.metrics import BELOW_LEVELS, UTILIZATION_BUCKETS

DIP_LEVEL = 0.1
"""Utilisation under which a fall counts as a dip."""
BUSY_LEVEL = 0.5
"""Utilisation above which a GPU must have been before."""
BUSY_SECONDS = 1.0
"""For how long."""

_SILENCE = 1.5
"""Seconds without a new sample from which the driver's buffer counts as silent: its slowest period is 1 s."""
_SLOWEST = 1.0
"""The driver's slowest period."""
_LOOK_SECONDS = 5.0
"""Between two looks at the whole of a silent buffer."""
_SPACINGS = 16
"""Newest intervals between samples from which the usual one follows: three of four are no longer."""
_REMEMBERED = 15.0
"""Seconds that the driver's buffer reaches back, at least, at its fastest pace."""
_LAG = 2.0
"""The newest sample is never older than so many seconds; what lies further back and was not credited is an outage."""
_DRIFT = 1.001
"""The driver's clock may run faster than ours by so much."""
_SHORT = 0.005
"""Seconds by which rounded samples may understate a second."""
_EDGE_SECONDS = 0.25
"""Longest sample at the edge of a dip that is taken for a mixture of both sides of it."""


class Stretch(NamedTuple):
    """A value that held for a while."""

    value: float
    seconds: float
    """0 where the reading counts but its time is unknown, or is on the account of other readings already."""
    unbroken: bool = True
    """Whether it follows the stretch before it; otherwise nobody knows what came between."""
    besides: float = 0.0
    """Seconds that were missed and that it stands for, where readings are further apart than the driver remembers."""


class Timeline:
    """Says for how long each reading held. Samples and polls may alternate: no time is credited twice.

    Readings further apart than the driver's buffer reaches back miss time by design; what is left of each such interval
    then stands for the whole of it, as a poll does for the time since the poll before.

    Whatever timestamps a driver tells, no more is credited than time has passed by our own clock, apart from the few
    seconds that the first samples look back.
    """

    def __init__(self, longest: float) -> None:
        """Begin with nothing known.

        Args:
            longest: seconds; a longer interval is an outage. Three times the usual one between readings.
        """
        self.future = 0
        """Samples that were not taken because they end later than now."""
        self.backwards = 0
        """Times that the driver's clock went back, as when it is loaded anew with another epoch."""
        self._longest = max(longest, 2 * _SILENCE)  # a silence must have shown before a poll can bridge it
        self._newest_us = 0
        self._polled = 0.0  # seconds since the newest sample that polls have spoken for
        self._known_until: float | None = None  # by our own clock
        self._uncredited = self._longest  # seconds that may still be credited
        self._counted_at: float | None = None
        self._spacings: deque[float] = deque(maxlen=_SPACINGS)
        self._looked_at = 0.0
        self._ahead_us = 0  # the latest of the samples that were not taken
        self._only_ahead = False
        self._broken = True

    @property
    def newest_us(self) -> int:
        """The driver's timestamp of the newest sample taken in; 0 before the first."""
        return self._newest_us

    def ask_from(self, now: float) -> int:
        """The timestamp after which to ask the driver for samples.

        That of the newest one; now and then 0 while no new ones come, because a clock that went back shows only in the
        whole buffer.
        """
        if self.silent(now) and now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            return 0
        return self._newest_us

    def reopened(self) -> None:
        """Look at the whole buffer next: the driver was opened anew, and perhaps loaded anew with another clock."""
        self._looked_at = -_LOOK_SECONDS
        self._known_until = None

    def silent(self, now: float) -> bool:
        """Whether samples have failed to come for so long that a poll must stand in for them."""
        return self._known_until is None or now - self._known_until >= _SILENCE or self._polled > 0

    def samples(self, samples: Iterable[tuple[int, float]], now: float) -> list[Stretch]:
        """Take in driver samples, oldest first, as (microseconds, value); known ones are passed over.

        The first sample ever only sets the beginning: what lies before it belongs to nobody's account. A sample that
        comes much later than usual speaks for the usual time before it, since the driver keeps only so many.
        """
        held = [sample for sample in samples if sample[0] > 0]
        if not held:
            return []
        self._count(now)
        latest_us = max(sample[0] for sample in held)
        if not self._newest_us:
            held = [sample for sample in held if latest_us - sample[0] <= self._longest * 1e6]
        if latest_us < self._newest_us and self.silent(now):
            # A buffer that keeps anything keeps its newest: the driver's clock is another one now.
            self.backwards += 1
            self._restart_at(latest_us)
            return []
        ahead_us, only_ahead = self._ahead_us, self._only_ahead
        self._only_ahead = False
        stretches = self._taken(held, now)
        if latest_us > self._newest_us and not stretches:
            if only_ahead and latest_us > ahead_us:
                # Twice nothing but the future, and it moves on: it is the present.
                self._restart_at(ahead_us)
                return self._taken(held, now)
            self._only_ahead = True
        return stretches

    def poll(self, value: float, now: float) -> Stretch:
        """Take in a snapshot, by our own clock (monotonic seconds)."""
        self._count(now)
        seconds = max(0.0, now - self._known_until) if self._known_until is not None else 0.0
        # What the driver's clock may no longer credit, outage or not, since this poll has spoken for it.
        self._polled += seconds
        self._known_until = now
        unbroken = 0 < seconds <= self._longest
        return Stretch(value, self._credit(seconds) if unbroken else 0.0, unbroken)

    def _taken(self, samples: Iterable[tuple[int, float]], now: float) -> list[Stretch]:
        usual = sorted(self._spacings)[len(self._spacings) * 3 // 4] if self._spacings else None
        stretches: list[Stretch] = []
        first = not self._newest_us
        missed = 0.0
        for timestamp_us, value in samples:
            if timestamp_us <= self._newest_us:
                continue
            if not self._newest_us:
                stretches.append(Stretch(value, 0.0, unbroken=False))
            else:
                interval = (timestamp_us - self._newest_us) / 1e6
                seconds = interval - self._polled
                if seconds > self._uncredited + _LAG:
                    if timestamp_us > self._ahead_us:
                        self._ahead_us = timestamp_us
                        self.future += 1
                    continue
                self._spacings.append(interval)
                unbroken = not self._broken
                if seconds > 2 * (usual or _SLOWEST):
                    if seconds <= self._longest and self._longest > 3 * _REMEMBERED:
                        missed += seconds - (usual or 0.0)
                    seconds, unbroken = usual or 0.0, False
                self._polled = max(0.0, -seconds)
                stretches.append(Stretch(value, self._credit(seconds), unbroken))
            self._newest_us = timestamp_us
            self._known_until = now
            self._broken = False
        covered = sum(stretch.seconds for stretch in stretches)
        if missed and covered:
            missed = self._credit(missed) / covered
            stretches = [stretch._replace(besides=stretch.seconds * missed) for stretch in stretches]
        if stretches:
            self._uncredited = _LAG if first else min(self._uncredited, _LAG)
        return stretches

    def _restart_at(self, timestamp_us: int) -> None:
        self._newest_us = timestamp_us
        self._polled = 0.0
        self._ahead_us = 0
        self._broken = True

    def _count(self, now: float) -> None:
        if self._counted_at is not None:
            self._uncredited += max(0.0, now - self._counted_at) * _DRIFT
        self._counted_at = now

    def _credit(self, seconds: float) -> float:
        credited = min(max(0.0, seconds), self._uncredited)
        self._uncredited -= credited
        return credited


class TimeIntegral:
    """A value times time: power to energy, a condition to seconds."""

    def __init__(self) -> None:
        self.total = 0.0
        self._mean_value = 0.0
        self._mean_seconds = 0.0

    def add(self, stretch: Stretch) -> None:
        """Take in a stretch; a value that is none is left out."""
        if not 0 <= stretch.value < math.inf:
            return
        seconds = stretch.seconds + stretch.besides
        self.total += stretch.value * seconds
        self._mean_value += stretch.value * seconds
        self._mean_seconds += seconds

    def take_mean(self) -> float | None:
        """The mean since it was last taken, or None if no time was credited since."""
        if not self._mean_seconds:
            return None
        mean = self._mean_value / self._mean_seconds
        self._mean_value = self._mean_seconds = 0.0
        return mean


class UtilizationIntegral(TimeIntegral):
    """What a stream of utilisation tells: busy seconds (`total`), idle and low seconds, dips, and the distribution.

    A dip is a fall under 0.1 after at least one second above 0.5. The driver's samples smear both edges: a sample
    between the levels leaves the dip due on the way down, and adds to the second what it holds of the busy side. So no
    dip that fills one sample is missed, at the price of one that comes a sample's length too early now and then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.elapsed = 0.0
        """Seconds credited in all."""
        self.idle = 0.0
        """Seconds at exactly 0."""
        self.below = dict.fromkeys(BELOW_LEVELS, 0.0)
        """Seconds under each level."""
        self.dips = 0
        self.dip_intervals = 0
        """Pairs of successive dips with known time between."""
        self.dip_interval_sum = 0.0
        self.dip_interval_sum_of_squares = 0.0
        self.observations = [0] * (len(UTILIZATION_BUCKETS) + 1)
        """Readings by bucket, the last above the highest bound."""
        self.observation_sum = 0.0
        self._busy_for = 0.0
        self._dip_due = False
        self._last_dip: float | None = None
        self._watched = 0.0

    def add(self, stretch: Stretch) -> None:
        """Take in a stretch; a value that is no ratio is left out, and its time is unknown."""
        value, seconds, unbroken, besides = stretch
        usable = 0 <= value <= 1
        if not (usable and unbroken):
            # Nobody knows what came before this reading: a dip may have begun and ended.
            self._busy_for, self._dip_due, self._last_dip = 0.0, False, None
        if not usable:
            return
        super().add(stretch)
        self.observations[bisect_left(UTILIZATION_BUCKETS, value)] += 1
        self.observation_sum += value
        if not seconds:
            return
        self.elapsed += seconds + besides
        if value == 0:
            self.idle += seconds + besides
        for level in BELOW_LEVELS:
            if value < level:
                self.below[level] += seconds + besides
        self._watch_for_dips(value, seconds)
        self._watched += seconds

    def _watch_for_dips(self, value: float, seconds: float) -> None:
        busy = value > BUSY_LEVEL
        share = seconds if busy else value / BUSY_LEVEL * min(seconds, _EDGE_SECONDS)
        self._busy_for += share
        self._dip_due = self._dip_due or self._busy_for >= BUSY_SECONDS - _SHORT
        if busy:
            return
        self._busy_for = share
        if value >= DIP_LEVEL or not self._dip_due:
            return
        self._dip_due = False
        self.dips += 1
        if self._last_dip is not None:
            interval = self._watched - self._last_dip
            self.dip_intervals += 1
            self.dip_interval_sum += interval
            self.dip_interval_sum_of_squares += interval * interval
        self._last_dip = self._watched


_MOST = 2.0**80
"""More than 64 bits in any unit."""


class _Base(NamedTuple):
    """A reading of a driver's counter to measure the next one from."""

    value: float
    at: float | None
    """Monotonic seconds, where known."""


COUNTER_SLACK = 2.0
"""Seconds: a driver call within a reading may be so much later than the reading's beginning."""


class DriverCounter:
    """A counter that only grows, made of what a driver counts.

    Drivers' counters wrap, start again when the driver is loaded anew, and now and then tell nonsense for one reading.
    What can't be meant adds nothing, is counted, and is forgotten when the next reading goes on from the one before.
    """

    def __init__(self, *, widths: Sequence[int] = (), most_per_second: float | None = None, slack: float = 0.0) -> None:
        """Begin with nothing known.

        Args:
            widths: bits after which the counter may wrap, such as (32, 64); none where it does not.
            most_per_second: more than this can't be meant; checked where readings come with their time.
            slack: seconds by which two readings may be further apart than their times.
        """
        self.total: float = 0.0
        """The value to expose: starts at the driver's own value, or at 0 where `add` came first. It never falls."""
        self.backwards = 0
        """Readings lower than the one before, without a wrap or a restart of the driver to explain it."""
        self.out_of_range = 0
        """Readings that are no count at all, or too far above the one before."""
        self._limits: tuple[float, ...] = tuple(2.0**width for width in sorted(widths))
        self._most_per_second = most_per_second
        self._slack = slack
        self._added: float | None = None  # by `add`, less what the driver turned out to have counted as well
        self._base: _Base | None = None
        self._doubted: _Base | None = None  # the base before a reading that made no sense
        self._session = 0

    @property
    def counted_at(self) -> float | None:
        """Time of the newest reading, monotonic seconds; None before the first."""
        return None if self._base is None else self._base.at

    def add(self, amount: float) -> float:
        """Add an amount that was measured otherwise, while the driver does not count, and return the total.

        Readings that come later add only what exceeds the amounts that were added meanwhile.
        """
        self._added = (self._added or 0.0) + amount
        self.total += amount
        return self.total

    def take(self, raw: float, *, session: int = 0, now: float | None = None) -> float:
        """Take in a reading and return the total.

        Args:
            raw: what the driver counts now.
            session: another number than before says that the driver was opened anew, and perhaps loaded anew.
            now: monotonic seconds.
        """
        if not 0 <= raw < _MOST:
            self.out_of_range += 1
            return self.total
        raw = float(raw)  # whole numbers and fractions together would round up and down
        reading, base = _Base(raw, now), self._base
        reopened, self._session = session != self._session, session
        if base is None:
            self._base = reading
            if self._added is None:
                self.total = raw
            self._added = 0.0  # the driver may have counted for long before its counter was first read
            return self.total
        doubted = self._doubted
        if doubted is not None and raw >= doubted.value:
            self._doubted = None
            if not reopened and self._possible(raw - doubted.value, doubted, now):
                base = doubted
        growth = raw - base.value
        if growth < 0:
            wrapped = None if reopened else self._wrapped(base, raw)
            if reopened:
                growth = raw
            elif wrapped is not None and self._possible(wrapped, base, now):
                growth = wrapped
        self._base = reading
        if growth < 0:
            self.backwards += 1
            self._doubted = base
        elif not self._possible(growth, base, now):
            self.out_of_range += 1
            self._doubted = base
        else:
            added = self._added or 0.0
            self.total += max(0.0, growth - added)
            self._added = max(0.0, added - growth)
        return self.total

    def _wrapped(self, base: _Base, raw: float) -> float | None:
        """Growth if the counter went past its width: from the upper half of its range into the lowest quarter."""
        for limit in self._limits:
            if limit / 2 <= base.value < limit and raw < limit / 4:
                return limit - base.value + raw
        return None

    def _possible(self, growth: float, base: _Base, now: float | None) -> bool:
        if self._most_per_second is None or now is None or base.at is None:
            return True
        return growth <= self._most_per_second * (now - base.at + self._slack)
