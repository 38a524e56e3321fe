"""Numbers and texts from outside as people read them, on a page or in a terminal."""

from __future__ import annotations

NAME_LENGTH = 80
"""Characters that are shown of a name."""
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_CENTURY = 3.2e9
_MOST_DIGITS = 1e15


def readable(text: str, longest: int = NAME_LENGTH) -> str:
    """A text from outside: cut, and with what can't be seen, or would steer a terminal, spelt out."""
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    if not text.isprintable():  # line breaks, escape sequences, marks that turn the direction, halves of characters
        text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return text


def without_password(address: str) -> str:
    """Return the address of a server as it may be shown: without user and password, however malformed it is.

    An `@` in the path is taken for the end of a password: rather too little is shown than too much.
    """
    scheme, separator, rest = address.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else address.rpartition("@")[2]


def capitalised(text: str) -> str:
    """Return a text as it stands at the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def percent(ratio: float) -> str:
    """A share; what is there never reads as nothing."""
    if 0 < ratio < 0.005:
        return "under 1 %"
    return f"{100 * ratio:.0f} %"


def count(number: float) -> str:
    """A number of things, with few digits where it can't be meant."""
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
    if not seconds < _CENTURY:  # what somebody reported, or a quotient of it
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


def ago(seconds: float) -> str:
    """How long since."""
    if not seconds < _CENTURY:
        return f"{duration(seconds)} ago"
    whole = max(0, round(seconds))
    return f"{duration(whole) if whole >= 10 else f'{whole} s'} ago"
