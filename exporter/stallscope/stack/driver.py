"""Whether a real NVIDIA driver answers, asked in a process of its own, as a driver may hang."""

from __future__ import annotations

import subprocess
import sys

_TIMEOUT_SECONDS = 20.0

_QUESTION = """
from stallscope.nvidia.nvml import NvmlDriver
driver = NvmlDriver()
driver.open()
models = [device.identity().model for device in driver.devices()]
if models:
    print(", ".join(sorted(set(models))), f"({len(models)}), driver", driver.system().driver_version)
"""


def driver_answer() -> str | None:
    """What the driver shows, in words; None where there is no driver, it has no GPU, or it does not answer in time."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _QUESTION], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() or None
