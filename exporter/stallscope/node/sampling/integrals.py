"""Integrals over time of a driver's samples and counters: seconds, joules, and dips of the utilisation.

A `Timeline` turns readings (buffered samples with the driver's timestamps, or polls by our own clock) into intervals
with one value each; an integral sums the intervals. An interval is credited to the reading that ends it. Time without
a reading is an outage, which is not credited. An integral therefore ends at the newest sample, not at the time of the
poll. The difference of two values covers the time between them with an error of at most one driver sample.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stallscope.model.catalogue.metrics import BELOW_LEVELS, UTILIZATION_BUCKETS

DIP_LEVEL = 0.1
"""Utilisation below which a GPU is in a dip."""
BUSY_LEVEL = 0.5
"""Utilisation above which a GPU counts as busy before a dip."""
BUSY_SECONDS = 1.0
"""Minimum busy seconds before a dip."""

_SILENCE = 1.5
"""Seconds without a new sample after which the driver's buffer counts as silent; its slowest period is 1 s."""
_SLOWEST = 1.0
"""Slowest sampling period of the driver in seconds."""
_FULL_READ_SECONDS = 5.0
"""Seconds between two reads of the whole buffer while it is silent."""
_SPACINGS = 16
"""Number of recent sample intervals; their third quartile is the usual interval."""
_REMEMBERED = 15.0
"""Shortest time in seconds that the driver's buffer covers, at its fastest rate."""
_LAG = 2.0
"""Maximum age of the newest sample in seconds; earlier time that was not credited is an outage."""
_DRIFT = 1.001
"""Largest ratio of the driver's clock rate to ours."""
_SHORT = 0.005
"""Seconds that rounded timestamps of samples may lack in one second."""
_EDGE_SECONDS = 0.25
"""Maximum length in seconds of a sample that counts as a mixture of busy and idle time at the edge of a dip."""


class Interval(NamedTuple):
    """A constant value for some time."""

    value: float
    seconds: float
    """0 if the reading counts but its time is unknown, or was credited to other readings."""
    unbroken: bool = True
    """True if it follows the previous interval without a gap."""
    missed_seconds: float = 0.0
    """Missed seconds that it also represents, if polls are further apart than the driver's buffer covers."""


class Timeline:
    """Turn readings into intervals. Samples and polls may alternate: no time is credited twice.

    Polls further apart than the driver's buffer covers miss samples by design; the samples that remain then represent
    the whole interval, as a poll represents the time since the previous poll.

    Whatever timestamps a driver reports, the credited time never exceeds the time elapsed by our own clock, apart from
    the few seconds that the first samples reach back.
    """

    def __init__(self, longest: float) -> None:
        """Create an empty timeline.

        Args:
            longest: seconds; a longer interval is an outage. Pass three times the poll interval.
        """
        self.future = 0
        """Number of samples that were rejected because they end in the future."""
        self.backwards = 0
        """Number of times that the driver's clock went back, for example after a reload of the driver."""
        self._longest = max(longest, 2 * _SILENCE)  # a silence must be detected before a poll can bridge it
        self._newest_us = 0
        self._polled = 0.0  # seconds since the newest sample that were credited to polls
        self._known_until: float | None = None  # by our own clock
        self._uncredited = self._longest  # seconds that may still be credited
        self._counted_at: float | None = None
        self._spacings: deque[float] = deque(maxlen=_SPACINGS)
        self._full_read_at = 0.0
        self._ahead_us = 0  # timestamp of the latest rejected sample
        self._only_ahead = False
        self._broken = True

    @property
    def newest_us(self) -> int:
        """The driver's timestamp of the newest accepted sample; 0 before the first."""
        return self._newest_us

    def request_from(self, now: float) -> int:
        """Return the timestamp after which to request samples from the driver.

        Usually the timestamp of the newest sample. While the buffer is silent, 0 every few seconds, because a clock
        that went back is only visible in the whole buffer.
        """
        if self.silent(now) and now - self._full_read_at >= _FULL_READ_SECONDS:
            self._full_read_at = now
            return 0
        return self._newest_us

    def reopened(self) -> None:
        """Request the whole buffer next: the driver was reopened, and perhaps reloaded with another clock."""
        self._full_read_at = -_FULL_READ_SECONDS
        self._known_until = None

    def silent(self, now: float) -> bool:
        """Return True if samples have been missing for long enough that a poll must replace them."""
        return self._known_until is None or now - self._known_until >= _SILENCE or self._polled > 0

    def samples(self, samples: Iterable[tuple[int, float]], now: float) -> list[Interval]:
        """Return the intervals of new driver samples, given oldest first as (microseconds, value).

        The first sample only sets the start: the time before it is not credited. A sample that is much later than usual
        is credited with the usual interval, since the driver's buffer is limited.
        """
        held = [sample for sample in samples if sample[0] > 0]
        if not held:
            return []
        self._count(now)
        latest_us = max(sample[0] for sample in held)
        if not self._newest_us:
            held = [sample for sample in held if latest_us - sample[0] <= self._longest * 1e6]
        if latest_us < self._newest_us and self.silent(now):
            # A buffer always keeps its newest sample, so the driver's clock must have been reset.
            self.backwards += 1
            self._restart_at(latest_us)
            return []
        ahead_us, only_ahead = self._ahead_us, self._only_ahead
        self._only_ahead = False
        intervals = self._accepted(held, now)
        if latest_us > self._newest_us and not intervals:
            if only_ahead and latest_us > ahead_us:
                # Two polls returned only samples from the future, and they advance: the driver's clock was set forward.
                self._restart_at(ahead_us)
                return self._accepted(held, now)
            self._only_ahead = True
        return intervals

    def poll(self, value: float, now: float) -> Interval:
        """Return the interval of a snapshot, by our own clock (monotonic seconds)."""
        self._count(now)
        seconds = max(0.0, now - self._known_until) if self._known_until is not None else 0.0
        # This poll covers the time, outage or not, so later samples must not credit it again.
        self._polled += seconds
        self._known_until = now
        unbroken = 0 < seconds <= self._longest
        return Interval(value, self._credit(seconds) if unbroken else 0.0, unbroken)

    def _accepted(self, samples: Iterable[tuple[int, float]], now: float) -> list[Interval]:
        usual = sorted(self._spacings)[len(self._spacings) * 3 // 4] if self._spacings else None
        intervals: list[Interval] = []
        first = not self._newest_us
        missed = 0.0
        for timestamp_us, value in samples:
            if timestamp_us <= self._newest_us:
                continue
            if not self._newest_us:
                intervals.append(Interval(value, 0.0, unbroken=False))
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
                intervals.append(Interval(value, self._credit(seconds), unbroken))
            self._newest_us = timestamp_us
            self._known_until = now
            self._broken = False
        covered = sum(span.seconds for span in intervals)
        if missed and covered:
            missed = self._credit(missed) / covered
            intervals = [span._replace(missed_seconds=span.seconds * missed) for span in intervals]
        if intervals:
            self._uncredited = _LAG if first else min(self._uncredited, _LAG)
        return intervals

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

    def add(self, span: Interval) -> None:
        """Add an interval; ignore a value that is negative or not finite."""
        if not 0 <= span.value < math.inf:
            return
        seconds = span.seconds + span.missed_seconds
        self.total += span.value * seconds
        self._mean_value += span.value * seconds
        self._mean_seconds += seconds

    def take_mean(self) -> float | None:
        """Return the mean since the last call; None if no time was credited since."""
        if not self._mean_seconds:
            return None
        mean = self._mean_value / self._mean_seconds
        self._mean_value = self._mean_seconds = 0.0
        return mean


class UtilizationIntegral(TimeIntegral):
    """Busy seconds (`total`), idle and low seconds, dips, and the distribution of utilisation readings.

    A dip is a fall below 0.1 after at least one second above 0.5. The driver's samples are means, so a sample at an
    edge of a dip can have a value between these levels. On the way down it does not cancel the dip, and its busy part
    counts towards the second. So no dip that fills one sample is missed, but a dip may be counted one sample early.
    """

    def __init__(self) -> None:
        super().__init__()
        self.elapsed = 0.0
        """Total credited seconds."""
        self.idle = 0.0
        """Seconds at exactly 0."""
        self.below = dict.fromkeys(BELOW_LEVELS, 0.0)
        """Seconds below each level."""
        self.dips = 0
        self.dip_intervals = 0
        """Number of known intervals between successive dips."""
        self.dip_interval_sum = 0.0
        self.dip_interval_sum_of_squares = 0.0
        self.observations = [0] * (len(UTILIZATION_BUCKETS) + 1)
        """Number of readings by bucket; the last bucket is above the highest bound."""
        self.observation_sum = 0.0
        self._busy_for = 0.0
        self._dip_due = False
        self._last_dip: float | None = None
        self._watched = 0.0

    def add(self, span: Interval) -> None:
        """Add an interval; ignore a value outside 0-1, and count its time as unknown."""
        value, seconds, unbroken, missed_seconds = span
        usable = 0 <= value <= 1
        if not (usable and unbroken):
            # The time before this reading is unknown: a dip may have begun and ended in it.
            self._busy_for, self._dip_due, self._last_dip = 0.0, False, None
        if not usable:
            return
        super().add(span)
        self.observations[bisect_left(UTILIZATION_BUCKETS, value)] += 1
        self.observation_sum += value
        if not seconds:
            return
        self.elapsed += seconds + missed_seconds
        if value == 0:
            self.idle += seconds + missed_seconds
        for level in BELOW_LEVELS:
            if value < level:
                self.below[level] += seconds + missed_seconds
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
"""Largest plausible value of a counter: more than 64 bits in any unit."""


class _Base(NamedTuple):
    """Reading of a driver's counter from which the next increase is computed."""

    value: float
    at: float | None
    """Monotonic seconds, if known."""


COUNTER_SLACK = 2.0
"""Maximum seconds from the start of a poll to a driver call in it."""


class DriverCounter:
    """A monotonic counter made from a driver's counter.

    Drivers' counters wrap, restart when the driver is reloaded, and sometimes report one implausible value. An
    implausible reading adds nothing, is counted, and is discarded if the next reading continues from the previous one.

    With a highest rate, the total never grows faster than it between two readings, whatever the driver reports. A
    growth above it, because one driver call came late and the next one did not, is added at the next readings.
    """

    def __init__(self, *, widths: Sequence[int] = (), most_per_second: float | None = None, slack: float = 0.0) -> None:
        """Begin without a reading.

        Args:
            widths: bits after which the counter may wrap, such as (32, 64); empty if it never wraps.
            most_per_second: highest plausible rate; checked for readings with a time.
            slack: seconds by which two readings may be further apart than their times.
        """
        self.total: float = 0.0
        """The value to export: starts at the driver's value, or at 0 if `add` was called first. It never decreases."""
        self.backwards = 0
        """Number of readings below the previous one that no wrap and no restart of the driver explains."""
        self.out_of_range = 0
        """Number of readings that are not a valid count, or too far above the previous reading."""
        self._limits: tuple[float, ...] = tuple(2.0**width for width in sorted(widths))
        self._most_per_second = most_per_second
        self._slack = slack
        self._added: float | None = None  # by `add`, minus the part that the driver has counted too
        self._base: _Base | None = None
        self._doubted: _Base | None = None  # the base before an implausible reading
        self._allowed = 0.0  # what may be added without exceeding the highest rate
        self._allowed_at: float | None = None
        self._deferred = 0.0  # growth that exceeded it
        self._session = 0

    @property
    def counted_at(self) -> float | None:
        """Time of the newest reading in monotonic seconds; None before the first."""
        return None if self._base is None else self._base.at

    def add(self, amount: float) -> float:
        """Add an amount from another source, while the driver does not count, and return the total.

        Later readings of the driver add only the part that exceeds these amounts.
        """
        self._added = (self._added or 0.0) + amount
        self._allowed -= amount
        self.total += amount
        return self.total

    def take(self, raw: float, *, session: int = 0, now: float | None = None) -> float:
        """Add a reading and return the total.

        Args:
            raw: value of the driver's counter.
            session: a new number means that the driver was opened again, and perhaps reloaded.
            now: monotonic seconds.
        """
        if not 0 <= raw < _MOST:
            self.out_of_range += 1
            return self.total
        self._allow_until(now)
        raw = float(raw)  # a mixture of integers and fractions would be rounded in both directions
        reading, base = _Base(raw, now), self._base
        reopened, self._session = session != self._session, session
        if base is None:
            self._base = reading
            if self._added is None:
                self.total = raw
            self._added = 0.0  # the driver may have counted for long before its counter was first read
            self._allowed = 0.0
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
            self.total += self._within_rate(max(0.0, growth - added), base, now)
            self._added = max(0.0, added - growth)
        return self.total

    def _allow_until(self, now: float | None) -> None:
        if now is not None and self._most_per_second is not None:
            if self._allowed_at is not None:
                self._allowed += self._most_per_second * max(0.0, now - self._allowed_at)
            self._allowed_at = now

    def _within_rate(self, growth: float, base: _Base, now: float | None) -> float:
        """Return what may be added now, and defer the rest. What is allowed and not used does not stay allowed."""
        most = self._most_per_second
        if most is None or now is None or base.at is None:
            return growth
        self._allowed = min(self._allowed, most * (now - base.at))
        growth += self._deferred
        granted = min(growth, max(0.0, self._allowed))
        self._deferred = min(growth - granted, most * self._slack)
        self._allowed = min(0.0, self._allowed - granted)
        return granted

    def _wrapped(self, base: _Base, raw: float) -> float | None:
        """Return the increase if the counter has wrapped: from the upper half of its range to the lowest quarter."""
        for limit in self._limits:
            if limit / 2 <= base.value < limit and raw < limit / 4:
                return limit - base.value + raw
        return None

    def _possible(self, growth: float, base: _Base, now: float | None) -> bool:
        if self._most_per_second is None or now is None or base.at is None:
            return True
        return growth <= self._most_per_second * (now - base.at + self._slack)
