"""The whole report path under fuzzed reports, always the same; `python -m tests.intake.fuzz 1000000` for others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_fuzzed_reports_crash_nothing_and_take_no_more_memory_than_stated() -> None:
    command = [sys.executable, "-m", "tests.intake.fuzz", "5000", "1", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 crashes" in done.stdout
