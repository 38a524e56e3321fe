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
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        # The last GPU's process comes last in the peer's round.
        return lines if any("process_gpu_memory" in line and 'index="7"' in line for line in lines) else None

    try:
        lines = until(page, "the peer did not expose all", seconds=120, errors=(OSError, http.client.HTTPException))
    finally:
        process.kill()
        process.wait()
    gpu_lines = [line for line in lines if 'uuid="GPU-57a1d000' in line]
    # 22 for the GPU, 36 for its NVLinks, 10 for its process. Fans, which this model lacks, are the peer's only NaN.
    assert len(gpu_lines) >= 8 * (22 + 36 + 10)
    assert {line.split("{")[0] for line in gpu_lines if line.endswith("NaN")} <= {"gpu_fan_speed_Percentage"}
