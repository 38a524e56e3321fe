"""Whether a real NVIDIA driver answers, asked in a process of its own, as a driver may hang."""

from __future__ import annotations

import subprocess
import sys

_TIMEOUT_SECONDS = 20.0

_QUESTION = """
from stallscope.drivers.device import DriverError
from stallscope.drivers.nvidia.nvml import NvmlDriver
driver = NvmlDriver()
driver.open()
models = []
for device in driver.devices():
    try:
        models.append(device.identity().model)
    except DriverError:
        models.append("one that gives no answer")
if models:
    print(", ".join(sorted(set(models))), f"({len(models)}), driver", driver.system().driver_version)
"""


def driver_answer(timeout: float = _TIMEOUT_SECONDS) -> str | None:
    """What the driver shows, in words; None where there is no driver, it has no GPU, or it does not answer in time.

    Args:
        timeout: seconds to wait.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _QUESTION], capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() or None
