"""From when to when a command looks: `--since` and `--end`, alike in every command."""

from __future__ import annotations

import argparse
import datetime as dt
import re
from typing import NamedTuple

from stallscope.configuration import parse_duration

DEFAULT_SINCE = "24h"
_EXPECTED = "expected a duration such as 90m, 24h or 7d, or a moment such as 2026-11-21T09:30 or 2026-11-21T09:30Z"


class When(NamedTuple):
    """A moment, as it was told."""

    before: float = 0.0
    """Seconds before another moment, ..."""
    unix: float | None = None
    """... or Unix time."""

    def from_(self, moment: float) -> float:
        """Unix time, where the other moment is that."""
        return moment - self.before if self.unix is None else self.unix


class EmptySpanError(ValueError):
    """The time that was told ends before it begins; the message is one line."""


def add_flags(parser: argparse.ArgumentParser, *, since: str = DEFAULT_SINCE) -> None:
    """Give a command `--since` and `--end`.

    Args:
        parser: of the command.
        since: what `--since` is unless told.
    """
    group = parser.add_argument_group("time")
    group.add_argument(
        "--since",
        type=when,
        default=since,
        metavar="TIME",
        help="where to begin: so long before the end (90m, 24h, 7d), or a moment (2026-11-21T09:30, of this machine's "
        f"time zone unless it names one) (default: {since})",
    )
    group.add_argument(
        "--end", type=when, default="now", metavar="TIME", help="where to end: so long ago, or a moment (default: now)"
    )


def span(parsed: argparse.Namespace, now: float) -> tuple[float, float]:
    """Beginning and end in Unix time; an end that is yet to come, as that of this day, is now.

    Args:
        parsed: with both flags.
        now: by the server's clock, as `Prometheus.now` tells it: it is the one that dates what is asked for.

    Raises:
        EmptySpanError: it ends before it begins.
    """
    end = min(parsed.end.from_(now), now)
    start = parsed.since.from_(end)
    if not start < end:
        shown = " and ".join(dt.datetime.fromtimestamp(each, dt.timezone.utc).isoformat() for each in (start, end))
        raise EmptySpanError(f"--since must lie before --end: they are {shown}")
    return start, end


def when(text: str) -> When:
    """Read a moment, for argparse: `now`, a duration, a date with or without a time, or Unix time.

    Raises:
        argparse.ArgumentTypeError: it is none of these.
    """
    if text == "now":
        return When()
    if re.fullmatch(r"[0-9]{9,11}(\.[0-9]+)?", text):
        return When(unix=float(text))
    try:
        return When(before=parse_duration(text))
    except ValueError:
        pass
    try:
        # Python 3.10 does not know Z; and without a zone it is this machine's.
        return When(unix=dt.datetime.fromisoformat(re.sub("[Zz]$", "+00:00", text)).astimezone().timestamp())
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; {_EXPECTED}") from None
