"""Programs with a planted slow line: the line is the first that their last report has for its phase."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Real bursts in forked workers, in a pool, in a phase that opens now and then, and in a function that draws batches.
# `python -m tests.shim.hot_lines` measures all programs, with whole bursts.
QUICK = ("transform_in_workers", "process_pool", "checkpoint", "nanogpt")


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: make frameworks")
@pytest.mark.nightly
@pytest.mark.slow(60)
def test_the_planted_line_is_the_first() -> None:
    short = ("--window", "1", "--burst", "2", "--patience", "120", "--jobs", str(len(QUICK)), "--lines")
    command = [sys.executable, "-m", "tests.shim.hot_lines", *short, *QUICK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
