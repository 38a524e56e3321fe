"""Real PyTorch training on CPU under the real shim, with injected faults.

`python -m tests.end_to_end.training_process` loads PyTorch once and then forks a process for each line of its input:
the fields of `Training` as JSON. It answers with the process' number.

A model computes on the CPU and then waits as long as its GPU would take, as a host does that waits for a result;
the simulated GPUs of an exporter in the scenario `coupled` follow what the shim reports of it.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

import stallscope
from stallscope.training.integrations import pytorch
from stallscope.training.shim import process
from tests.end_to_end.direct_reads import read
from tests.end_to_end.trainers import Training

BATCH, FEATURES = 16, 64


def main() -> None:
    """Fork a trainer for each line, until there are no more."""
    importlib.import_module("torch._dynamo")  # each trainer's optimizer would, for two CPU seconds
    # The shim looks at its children and its cgroup every few seconds; here, where time is fast, with each report.
    process._LOOK_EVERY = 0.0
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for them
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            train(Training(**json.loads(line)))
        print(pid, flush=True)
    os.killpg(0, signal.SIGKILL)  # the parent has ended, and its children must not outlive it


def train(training: Training) -> None:
    """Train until a signal ends the process."""
    torch.set_num_threads(1)
    torch.manual_seed(training.rank)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, FEATURES), Gpu(training), torch.nn.Linear(FEATURES, 1)
    )
    loader = DataLoader(
        Samples(training),
        batch_size=None,
        num_workers=training.workers,
        multiprocessing_context="fork" if training.workers else None,
    )
    if training.world_size > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{training.master_port}",
            rank=training.rank,
            world_size=training.world_size,
        )
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if training.cpus:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: training.cpus])
    if training.cgroup:
        (Path(training.cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    run = stallscope.Run(
        training.run,
        rank=training.rank,
        local_rank=training.rank,
        world_size=training.world_size,
        gpus=[] if training.gpu is None else [{"gpu": str(training.gpu), "uuid": ""}],
    )
    pytorch.watch(model, optimizer, loader, run=run)
    for step, batch in enumerate(loader, 1):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.report(loss=loss.item())
        if training.blocks_every and step % training.blocks_every == 0:
            if training.names_phase:
                with run.phase("checkpoint"):
                    torch.save(model.state_dict(), io.BytesIO())
                    time.sleep(training.blocks)
            else:
                time.sleep(training.blocks)  # without a save, which would make it a checkpoint


class Samples(IterableDataset[torch.Tensor]):
    """Batches without end, each through a transform of the configured duration."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def __iter__(self) -> Iterator[torch.Tensor]:
        number = 0
        while True:
            number += 1
            batch = torch.randn(BATCH, FEATURES)
            if not self._training.trigger or Path(self._training.trigger).exists():
                self._transform(batch, number)
            yield batch

    def _transform(self, batch: torch.Tensor, number: int) -> None:
        training = self._training
        if training.waits:
            time.sleep(training.waits)
        if training.burns:
            burn(training.burns)
        if training.reads:
            read(training.file, training.reads)
        if training.poisoned_after and number > training.poisoned_after:
            batch[0, 0] = float("nan")


def burn(seconds: float) -> None:
    """Use that much CPU time of this thread, as for decoding."""
    image = torch.randn(64, 64)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        image = torch.tanh(image @ image)


class Gpu(torch.nn.Module):
    """A layer that waits as long as a GPU would take for the model, forward and backward."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._forward, self._backward = training.forward, training.backward

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(self._forward)
        waiting: torch.Tensor = _Wait.apply(values, self._backward)
        return waiting


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        return values.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(context.seconds)
        return gradients[0], None


if __name__ == "__main__":
    main()
