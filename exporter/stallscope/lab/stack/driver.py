"""Detection of a real NVIDIA driver, in a separate process since a driver may hang."""

from __future__ import annotations

import subprocess
import sys

from stallscope.common.program_files import OWN_FOLDERS

_TIMEOUT_SECONDS = 20.0

_PROGRAM = """
from stallscope.node.drivers.device import DriverError
from stallscope.node.drivers.nvidia.nvml import NvmlDriver
driver = NvmlDriver()
driver.open()
models = []
for device in driver.devices():
    try:
        models.append(device.identity().model)
    except DriverError:
        models.append("one that does not respond")
if models:
    print(", ".join(sorted(set(models))), f"({len(models)}), driver", driver.system().driver_version)
"""


def driver_answer(timeout: float = _TIMEOUT_SECONDS) -> str | None:
    """Return a description of the GPUs and driver; None without a driver or GPU, or if the driver does not respond.

    Args:
        timeout: seconds to wait.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-X", "utf8", "-c", OWN_FOLDERS + _PROGRAM],
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() or None
