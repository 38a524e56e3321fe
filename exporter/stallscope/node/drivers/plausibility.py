"""Checks the plausibility of a driver's values: implausible ones are left out, and counted by reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from stallscope.node.drivers.device import DriverError, Rejection

_Number = TypeVar("_Number", int, float)
_Entry = TypeVar("_Entry", bound=Sequence[float])

# All bits set, or all but the sign, in 32 and 64 bits, and DCGM's blanks above the latter. A counter that happens to
# that stays at one of them loses one reading and no count.
_SENTINELS = frozenset({0xFFFF_FFFF, 0x7FFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF, -1})
_BLANKS_FROM, _BLANKS_TO = 0x7FFF_FFFF_FFFF_FFF0, 1 << 63  # the latter is what doubles make of them
_MINUTE_US = 60_000_000
_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US


class Plausibility:
    """Of one GPU. Belongs to one thread; anyone may read the counts."""

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        """Start with nothing rejected; the clocks return seconds."""
        self.total = 0
        """How much was rejected so far."""
        self._counts: dict[Rejection, int] = {}
        self._monotonic = monotonic
        self._wall = wall
        self._anchor: tuple[float, float] | None = None
        """Newest timestamp of the driver's that was believed, and when that was, monotonic; both in microseconds."""
        self._ahead: tuple[float, float] | None = None
        """Newest timestamp of an answer that was from the future as a whole, and its time, in the same units."""

    @property
    def counts(self) -> dict[Rejection, int]:
        """How much was rejected, by reason."""
        return dict(self._counts)

    def reject(self, reason: Rejection) -> None:
        """Count something that was not taken."""
        self._counts[reason] = self._counts.get(reason, 0) + 1
        self.total += 1

    def number(self, value: _Number | None, most: float, least: float = 0) -> _Number | None:
        """Return the value, or None and count it if it is implausible."""
        if value is None:
            return None
        if value in _SENTINELS or _BLANKS_FROM <= value <= _BLANKS_TO:
            self.reject("sentinel")
        elif least <= value <= most:
            return value
        else:
            self.reject("out_of_range" if math.isfinite(value) else "not_a_number")
        return None

    def needed(self, what: str, value: _Number, most: float, least: float = 0) -> _Number:
        """The value itself.

        Raises:
            DriverError: the value is implausible; the next one may be valid.
        """
        sound = self.number(value, most, least)
        if sound is None:
            raise DriverError("implausible", f"{what} came as {value}")
        return sound

    def text(self, value: str | bytes | None) -> str:
        """Return a text fit for a label: invalid UTF-8 is replaced, control characters are removed; may be empty."""
        if value is None:
            return ""
        decoded = value.decode(errors="replace") if isinstance(value, bytes) else value
        clean = "".join(character for character in decoded if character.isprintable())
        if clean != decoded or "\ufffd" in clean:
            self.reject("malformed_text")
        return clean.strip()

    def timely(self, entries: Sequence[_Entry], place: int = 0) -> list[_Entry]:
        """Return the entries whose timestamp, in microseconds at that place, is plausible; oldest first.

        The driver's clock need not be wall clock, so a timestamp is judged by the driver's own: it is from the future
        if it is more than an hour beyond the newest valid one plus the time since (in the first response
        of a session: beyond the middle one), unless the wall clock shows that same hour, as after a step or a suspend.
        A first response with one or two entries has no median: the wall clock is used, since clocks start in 1970 or
        later, at boot for instance. Where a whole answer is from the future, and the next one goes on from it as time
        did, the driver's clock was set forward.
        """
        found: list[_Entry] = []
        for entry in entries:
            if entry[place] <= 0:
                self.reject("zero_timestamp")
            else:
                found.append(entry)
        if not found:
            return found
        found.sort(key=lambda entry: entry[place])
        now, wall = self._monotonic() * 1e6, self._wall() * 1e6
        if self._anchor is not None:
            newest, then = self._anchor
            latest = newest + now - then + _HOUR_US
        else:
            latest = found[(len(found) - 1) // 2][place] + _HOUR_US
        ahead, self._ahead = self._ahead, None
        if ahead is not None and 0 < found[-1][place] - ahead[0] <= now - ahead[1] + _MINUTE_US:
            latest = found[-1][place]
        latest = min(latest, wall + _DAY_US)
        if found[-1][place] > latest:
            kept = [entry for entry in found if entry[place] <= latest or abs(entry[place] - wall) <= _HOUR_US]
            for _ in range(len(found) - len(kept)):
                self.reject("future_timestamp")
            if not kept:
                self._ahead = (found[-1][place], now)
            found = kept
        if found and (self._anchor is None or found[-1][place] > self._anchor[0]):
            self._anchor = (found[-1][place], now)
        return found
