"""Formatting of a report's values for people, the same in every format."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from stallscope.common.bundle import RUNBOOKS
from stallscope.common.formatting import count, duration, readable
from stallscope.model.catalogue.causes import CAUSES, PHASE_COLOURS, REMAINDERS
from stallscope.model.catalogue.metrics import OUTSIDE_PHASES
from stallscope.tools.report.document import Document, Kind, Value
from stallscope.tools.report.options import NO_CURRENCY

UNKNOWN = "unknown"
"""Text for a missing value, which must not look like zero."""
LONGEST_TEXT = 2000
"""Maximum length of a displayed text: enough for any sentence, but limits names from outside."""
_LATEST = 253_402_300_799.0
"""The last second of the year 9999."""
_SCALES: Mapping[Kind, tuple[tuple[float, str], ...]] = {
    "bytes": ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "bytes_per_second": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")),
    "joules": ((3.6e9, "MWh"), (3.6e6, "kWh"), (3.6e3, "Wh"), (1.0, "J")),
    "watts": ((1e6, "MW"), (1e4, "kW"), (1.0, "W")),
    "celsius": ((1.0, "°C"),),
    "hertz": ((1e9, "GHz"), (1e6, "MHz"), (1.0, "Hz")),
}
"""Divisors and units by kind: the first divisor that does not exceed the value is used, else the last."""

_UNITS: Mapping[Kind, str] = {"times": "times", "gpu_hours": "h", "per_second": "/s"}
_DURATIONS = ((3600.0, "h", 2.0), (60.0, "min", 5.0), (1.0, "s", 1.0), (1e-3, "ms", 0.0))
"""Units of durations on an axis: seconds, name, and the minimum length of the axis in that unit."""

_LONGEST_CURRENCY = 12


class UnknownZone(ValueError):
    """The time zone is unknown; the message is one line."""


class Words:
    """Formats the values of one document, with its time zone and currency."""

    def __init__(self, document: Document) -> None:
        """Read time zone and currency from the document.

        Raises:
            UnknownZone: this machine does not know the time zone.
        """
        self.zone_name = document.zone
        self.zone = zone(document.zone)
        self.currency = readable(document.currency, _LONGEST_CURRENCY) or NO_CURRENCY

    def of(self, value: Value, kind: Kind) -> str:
        """Return a value as text; `UNKNOWN` for None."""
        if value is None:
            return UNKNOWN
        if isinstance(value, str):
            return title_of(value) if kind == "cause" else readable(value, LONGEST_TEXT)
        if kind == "time":
            return self.moment(value)
        if kind == "money":
            return money(value, self.currency)
        return _number(float(value), kind)

    def moment(self, seconds: float) -> str:
        """Return a Unix time in the document's time zone, to the second."""
        if not 0 <= seconds <= _LATEST:
            return f"{seconds:.0f}"
        return datetime.fromtimestamp(round(seconds), self.zone).strftime("%Y-%m-%d %H:%M:%S")

    def machine_readable(self, seconds: float) -> str:
        """Return a Unix time in ISO 8601 with its offset from UTC."""
        return datetime.fromtimestamp(round(min(max(seconds, 0.0), _LATEST)), self.zone).isoformat()


def zone(name: str) -> tzinfo:
    """Return a time zone by its IANA name.

    Raises:
        UnknownZone: this machine does not know the time zone.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UnknownZone(f"time zone {name!r} is not known here; use a name such as UTC or Europe/Berlin") from None


def title_of(name: str) -> str:
    """Return the title of a cause, a remainder, a phase or anything else."""
    if name in CAUSES:
        return CAUSES[name].title
    if name in REMAINDERS:
        return REMAINDERS[name][0]
    if name in PHASE_COLOURS or name in OUTSIDE_PHASES:
        return name.replace("_", " ").capitalize()
    return readable(name)


def limits(least: str, most: str) -> str:
    """Return the limits of some values in words; a single value where they are written alike."""
    return least if least == most else f"from {least} to {most}"


def money(amount: float, currency: str) -> str:
    """Return an amount of money, never without a currency or the sign of an unknown one."""
    return f"{amount:,.2f} {currency or NO_CURRENCY}"


def runbook_of(name: str) -> str:
    """Return the address of a cause's runbook; empty without one."""
    alert = CAUSES[name].alert if name in CAUSES else None
    return f"{RUNBOOKS}/{alert}.md" if alert else ""


def plain(value: float) -> str:
    """Format a number with three digits, or with all digits before the decimal point."""
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def unit_of(kind: Kind, greatest: float, currency: str = "") -> tuple[float, str]:
    """Return the divisor and unit of an axis up to a value."""
    if kind == "seconds":
        return next((each for each in _DURATIONS if greatest >= each[0] * each[2]), _DURATIONS[-1])[:2]
    if kind in _SCALES:
        return next((each for each in _SCALES[kind] if greatest >= each[0]), _SCALES[kind][-1])
    return (0.01, "%") if kind == "share" else (1.0, _UNITS.get(kind, currency if kind == "money" else ""))


def _number(value: float, kind: Kind) -> str:
    if kind == "share":
        return percent(value)
    if kind == "seconds":
        return duration(value) if value >= 0 else f"-{duration(-value)}"
    if kind == "count":
        return count(value)
    scale, unit = unit_of(kind, abs(value))
    return f"{plain(value / scale)} {unit}".rstrip()


def percent(ratio: float) -> str:
    """Format a ratio so that a small share is not shown as 0 %, nor an incomplete one as 100 %."""
    if 0 < ratio < 0.0005:
        return "under 0.1 %"
    if 0.9995 <= ratio < 1:
        return "over 99.9 %"
    digits = 1 if 0 < abs(ratio) < 0.0995 or 0.9905 < ratio < 1 else 0
    return f"{100 * ratio:.{digits}f} %"
