"""Commands whose output goes nowhere, on real descriptors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMMANDS = (["--version"], ["--help"], ["trace", "--help"])


def run(command: list[str], redirection: str) -> subprocess.CompletedProcess[str]:
    """Run it under a shell, with output held back until the end as where it is no terminal."""
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -m stallscope "$@" {redirection}', sys.executable, *command],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_output_that_was_closed_is_not_missed(command: list[str]) -> None:
    finished = run(command, ">&-")
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_one_line_of_error(command: list[str]) -> None:
    finished = run(command, ">/dev/full")
    assert finished.returncode == 1
    assert finished.stderr == "stallscope: cannot write the output: No space left on device\n"


def test_who_reads_no_further_ends_the_command_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        finished = subprocess.run(
            [sys.executable, "-m", "stallscope", "--version"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert (finished.returncode, finished.stderr) == (141, "")
