"""The stand-in serves the peer that `make bench` measures against as fully as a real driver would."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.free_ports import free_port
from tests.nvml_library.stand_in import NvmlStandIn
from tests.waiting import until


def test_the_peer_exposes_all_its_series_of_eight_gpus(nvml_stand_in: NvmlStandIn) -> None:
    for gpu in nvml_stand_in.gpu:
        gpu.utilization, gpu.memory_used = 97, 19_818 << 20
        gpu.run((os.getpid(), 19_818 << 20, False))
    port = free_port()
    program = Path(sys.executable).with_name("nvitop-exporter")
    process = subprocess.Popen(
        [str(program), "--bind-address", "127.0.0.1", "--port", str(port)],
        env=os.environ | nvml_stand_in.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def page() -> list[str] | None:
        assert process.poll() is None, "the peer ended"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            lines = [line for line in answer.read().decode().splitlines() if 'uuid="GPU-57a1d000' in line]
        # 22 for each GPU, 36 for its NVLinks, 10 for its process. A page may show a part of the peer's first round.
        return lines if len(lines) >= 8 * (22 + 36 + 10) else None

    try:
        gpu_lines = until(page, "the peer did not expose all", seconds=120, errors=(OSError, http.client.HTTPException))
    finally:
        process.kill()
        process.wait()
    # Fans, which this model lacks, are the peer's only NaN.
    assert {line.split("{")[0] for line in gpu_lines if line.endswith("NaN")} <= {"gpu_fan_speed_Percentage"}
