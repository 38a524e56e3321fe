"""Argparse type for a duration within limits: `type=duration("1s", "60s")`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from stallscope.node.configuration import parse_duration


def duration(least: str = "0s", most: str = "") -> Callable[[str], float]:
    """Return a function that parses a duration and returns seconds.

    Args:
        least: minimum duration.
        most: maximum duration; empty for no limit.
    """
    shortest, longest = parse_duration(least), parse_duration(most) if most else math.inf
    allowed = f"from {least} to {most}" if most else f"{least} or more"

    def read(text: str) -> float:
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected {error}, got {text!r}") from None
        if not shortest <= seconds <= longest:
            raise argparse.ArgumentTypeError(f"expected a duration {allowed}, got {text!r}")
        return seconds

    return read
