"""Eight training ranks, each a process with the real shim, for an exporter to serve beside the GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import stallscope
from tests.nvml_library.stand_in import NvmlStandIn

_STEP_SECONDS = 0.25
_PHASES = ("data_wait", "host_copy", "forward", "backward", "communication", "optimizer", "logging")


@contextmanager
def training(node: NvmlStandIn, socket: Path) -> Iterator[None]:
    """A rank on each GPU, which holds most of its memory and reports to that socket."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(index), node.uuid(index)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "STALLSCOPE_ADDRESS": f"unix://{socket}"},
        )
        for index in range(len(node.gpu))
    ]
    for gpu, rank in zip(node.gpu, ranks, strict=True):
        gpu.run((rank.pid, 19_818 << 20, False))
    try:
        yield
    finally:
        for rank in ranks:
            rank.terminate()
            rank.wait()


def _train(rank: int, uuid: str) -> None:
    gpus = [{"gpu": str(rank), "uuid": uuid}]
    with stallscope.Run(
        "benchmark",
        rank=rank,
        local_rank=rank,
        world_size=8,
        gpus=gpus,
        samples_per_step=256,
        tokens_per_step=2**19,
        flops_per_step=1e15,
        steps_planned=100_000,
        precision="bf16",
    ) as run:
        for step in range(100_000):
            for phase in _PHASES:
                with run.phase(phase):
                    if phase == "forward":
                        time.sleep(_STEP_SECONDS)
            run.report(loss=2.0, learning_rate=1e-4, gradient_norm=0.5, epoch=step // 1000)
            run.step()


if __name__ == "__main__":
    _train(int(sys.argv[1]), sys.argv[2])
