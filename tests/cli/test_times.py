"""`--since` and `--end`, as all commands have them."""

from __future__ import annotations

import argparse
import datetime as dt

import pytest

from stallscope.tools.cli import _times

NOW = 1_800_000_000.0


def span(*line: str) -> tuple[float, float]:
    parser = argparse.ArgumentParser(exit_on_error=False)
    _times.add_flags(parser)
    return _times.span(parser.parse_args(line), NOW)


def local(text: str) -> float:
    return dt.datetime.fromisoformat(text).astimezone().timestamp()


def test_the_default_is_the_last_day() -> None:
    assert span() == (NOW - 86_400, NOW)


def test_a_duration_is_before_the_end_and_the_end_before_now() -> None:
    assert span("--since", "1h30m", "--end", "2d") == (NOW - 2 * 86_400 - 5400, NOW - 2 * 86_400)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-20", local("2026-11-20")),
        ("2026-11-20T09:30", local("2026-11-20T09:30")),
        ("2026-11-20 09:30:15", local("2026-11-20T09:30:15")),
        ("2026-11-20T09:30Z", 1_795_167_000.0),
        ("2026-11-20T11:30+02:00", 1_795_167_000.0),
        ("1795167000", 1_795_167_000.0),
    ],
)
def test_a_moment_is_of_this_machines_zone_unless_it_names_one(text: str, moment: float) -> None:
    assert span("--since", text)[0] == moment


def test_an_end_that_is_yet_to_come_is_now() -> None:
    assert span("--since", "2h", "--end", str(NOW + 3600)) == (NOW - 7200, NOW)


@pytest.mark.parametrize("text", ["", "24", "yesterday", "2026-13-01", "1h-", "-1h", "0001-01-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentError, match="expected a duration such as 90m"):
        span(f"--since={text}")


def test_an_end_before_the_beginning_is_refused() -> None:
    with pytest.raises(_times.EmptySpanError, match="--since must be before --end"):
        span("--since", "1900000000")
