"""Record every profile of the C stand-in anew, with its golden page: `python -m tests.captures.stand_ins`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.captures import golden
from tests.nvml_library.stand_in import NvmlStandIn, Wave
from tests.waiting import until

PROFILES = ("h100", "h200_mig", "l40s", "rtx_2080_super", "rtx_4080_super")
SECONDS = 12
"""Long enough for every signal to be asked but those of once a minute, which are asked at the first reading."""
_PROCESS = 4711
_XID = 63


def record(profile: str, folder: Path) -> None:
    """Record two GPUs of the profile under a square load, with a process on each and one Xid event on the way."""
    node = NvmlStandIn(folder, gpus=2, profile=profile)
    for index, gpu in enumerate(node.gpu):
        gpu.load(Wave.SQUARE, 4_000_000, percent=90 - 30 * index, busy_us=3_000_000)
        gpu.run((_PROCESS + index, (4 + index) << 30, False))
        if profile.endswith("_mig"):
            gpu.run_on(0)
    command = [sys.executable, "-m", "stallscope", "record", "--stand-in", "--keep-identifiers", "--force"]
    with subprocess.Popen(
        [*command, "--duration", f"{SECONDS}s"], env=os.environ | node.environment, cwd=golden.CAPTURES
    ) as child:
        until(lambda: node.calls("nvmlDeviceRegisterEvents") >= len(node.gpu))
        node.raise_xid(0, _XID)
    if child.returncode:
        raise SystemExit(f"recording {profile} failed")


def main() -> int:
    """Record all profiles, and write the golden pages of all captures."""
    for profile in PROFILES:
        with tempfile.TemporaryDirectory() as folder:
            record(profile, Path(folder))
    return golden.main()


if __name__ == "__main__":
    raise SystemExit(main())
