"""The time range of a command: the flags `--since` and `--end`, shared by the commands."""

from __future__ import annotations

import argparse
import datetime as dt
import re
from typing import NamedTuple

from stallscope.node.configuration import parse_duration

DEFAULT_SINCE = "24h"
_EXPECTED = "expected a duration such as 90m, 24h or 7d, or a time such as 2026-11-21T09:30 or 2026-11-21T09:30Z"


class When(NamedTuple):
    """A time from the command line: relative to another one, or absolute."""

    before: float = 0.0
    """Seconds before the other time; ignored for an absolute time."""
    unix: float | None = None
    """Absolute Unix time; None for a relative time."""

    def from_(self, moment: float) -> float:
        """Return the Unix time, given the other time."""
        return moment - self.before if self.unix is None else self.unix


class EmptySpanError(ValueError):
    """The time range ends before it begins; the message is one line."""


def add_flags(parser: argparse.ArgumentParser, *, since: str = DEFAULT_SINCE) -> None:
    """Add `--since` and `--end` to a command.

    Args:
        parser: the command's parser.
        since: default of `--since`.
    """
    group = parser.add_argument_group("time")
    group.add_argument(
        "--since",
        type=when,
        default=since,
        metavar="TIME",
        help="start: a duration before the end (90m, 24h, 7d), or a time (2026-11-21T09:30, in this machine's time "
        f"zone unless it names one) (default: {since})",
    )
    group.add_argument(
        "--end", type=when, default="now", metavar="TIME", help="end: a duration before now, or a time (default: now)"
    )


def span(parsed: argparse.Namespace, now: float) -> tuple[float, float]:
    """Return start and end in Unix time; an end in the future becomes now.

    Args:
        parsed: the command line, with both flags.
        now: time of the server's clock (`Prometheus.now`), since it timestamps the samples.

    Raises:
        EmptySpanError: the range ends before it begins.
    """
    end = min(parsed.end.from_(now), now)
    start = parsed.since.from_(end)
    if not start < end:
        shown = " and ".join(dt.datetime.fromtimestamp(each, dt.timezone.utc).isoformat() for each in (start, end))
        raise EmptySpanError(f"--since must be before --end: they are {shown}")
    return start, end


def when(text: str) -> When:
    """Parse `now`, a duration, a date with or without a time, or Unix time; an argparse type.

    Raises:
        argparse.ArgumentTypeError: the text has another form.
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
        # Python 3.10 does not parse Z. A time without a zone is in this machine's zone.
        return When(unix=dt.datetime.fromisoformat(re.sub("[Zz]$", "+00:00", text)).astimezone().timestamp())
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{_EXPECTED}, got {text!r}") from None
