"""Format numbers and untrusted text for a page or a terminal."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence

NAME_LENGTH = 80
"""Characters that are shown of a name."""
_LISTED = 8
"""Names that are shown of a list."""
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_CENTURY = 3.2e9
_MOST_DIGITS = 1e15


def readable(text: str, longest: int = NAME_LENGTH) -> str:
    """Return untrusted text, shortened, with invisible and terminal control characters escaped."""
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    if not text.isprintable():  # line breaks, escape sequences, marks that turn the direction, halves of characters
        text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return text


def listed(names: Sequence[str], longest: int = NAME_LENGTH) -> str:
    """Return the first names of a list, and the number of the others; names have up to `longest` characters."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(readable(name, longest) or '""' for name in names[:_LISTED]) + more


def gpu_name(index: str, mig: str = "", name: Callable[[str], str] = readable) -> str:
    """Return the name of a GPU or MIG instance.

    Args:
        index: index of the GPU.
        mig: index of the MIG instance; empty for a whole GPU.
        name: makes a text from outside fit for the output.
    """
    return f"GPU {name(index)}" + (f" MIG {name(mig)}" if mig else "")


def without_password(address: str) -> str:
    """Return the address of a server as it may be shown: without user and password, however malformed it is.

    An `@` in the path is taken for the end of a password: rather too little is shown than too much.
    """
    scheme, separator, rest = address.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else address.rpartition("@")[2]


def capitalised(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def percent(ratio: float) -> str:
    """Return a share in percent; a share above zero never reads as 0 %."""
    if 0 < ratio < 0.005:
        return "under 1 %"
    return f"{100 * ratio:.0f} %"


def whole_percents(shares: Mapping[str, float]) -> dict[str, int]:
    """Round shares to whole per cents whose sum is the rounded sum of all: those with the largest remainders go up."""
    whole = {name: int(100 * share) for name, share in shares.items()}
    missing = round(100 * sum(shares.values())) - sum(whole.values())
    for name in sorted(shares, key=lambda name: whole[name] - 100 * shares[name])[:missing]:
        whole[name] += 1
    return whole


def progress(ratio: float) -> str:
    """Return the share of work done in percent: 100 % only when all is done."""
    return percent(int(100 * ratio) / 100) if ratio >= 0.01 else percent(ratio)


def several(number: int, what: str, plural: str = "") -> str:
    """A number of things with their noun."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def rate(number: float) -> str:
    """Work per second."""
    return count(number) if number >= 100 else f"{number:.3g}"


def count(number: float) -> str:
    """Format a count, with few digits if it is implausible."""
    return f"{number:,.0f}" if abs(number) < _MOST_DIGITS else f"{number:.3g}"


def size(number: float) -> str:
    """Bytes with a binary unit."""
    power = 0
    while number >= 1024 and power < len(_SIZES) - 1:
        number, power = number / 1024, power + 1
    return f"{number:.1f} {_SIZES[power]}" if power else f"{number:.0f} B"


def size_of(used: float, total: float) -> str:
    """Bytes out of bytes, in the larger one's unit."""
    power, unit = 0, total
    while unit >= 1024 and power < len(_SIZES) - 1:
        unit, power = unit / 1024, power + 1
    return f"{used / 1024**power:.1f} of {unit:.1f} {_SIZES[power]}"


def duration(seconds: float) -> str:
    """A time as two units at most."""
    if not seconds < _CENTURY:  # a reported value, or a quotient of one
        return "over a century"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms" if seconds > 0 else "0 s"
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    for name, below, length in (("d", "h", 86_400), ("h", "min", 3600), ("min", "s", 60)):
        if whole >= length:
            rest = whole % length // {"h": 3600, "min": 60, "s": 1}[below]
            return f"{whole // length} {name} {rest} {below}" if rest else f"{whole // length} {name}"
    return f"{whole} s"


def whole_time(seconds: float) -> str:
    """A time in whole seconds at the finest."""
    return duration(round(seconds)) if seconds >= 9.5 else f"{seconds:.0f} s"


def time_left(seconds: float) -> str:
    """An estimate of the remaining time, not finer than it can be known."""
    return duration(round(max(60.0, seconds), -1))


def utc(seconds: float) -> str:
    """Return a Unix time in UTC, to the minute."""
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def ago(seconds: float) -> str:
    """Return an elapsed time, such as `12 s ago`."""
    if not seconds < _CENTURY:
        return f"{duration(seconds)} ago"
    whole = max(0, round(seconds))
    return f"{duration(whole) if whole >= 10 else f'{whole} s'} ago"


def time_since(now: float | None, when: float | None) -> str | None:
    """Return the time since `when`; None if either time is unknown."""
    return None if now is None or when is None else ago(now - when)
