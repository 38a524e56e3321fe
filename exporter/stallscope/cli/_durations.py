"""Durations between two others, as argparse reads them: `type=duration("1s", "60s")`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from stallscope.configuration import parse_duration


def duration(least: str = "0s", most: str = "") -> Callable[[str], float]:
    """What reads a duration as seconds.

    Args:
        least: the shortest that is taken.
        most: the longest; empty for any.
    """
    shortest, longest = parse_duration(least), parse_duration(most) if most else math.inf
    allowed = f"from {least} to {most}" if most else f"{least} or more"

    def read(text: str) -> float:
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no duration; expected {error}") from None
        if not shortest <= seconds <= longest:
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")
        return seconds

    return read
