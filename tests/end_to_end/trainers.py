"""Processes of `training_process.py`: what each is to do, and how they are started and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Training:
    """One process of a run, and what is wrong with it; times are of a step, in seconds."""

    run: str
    gpu: int | None = None
    """The simulated GPU that it claims; None for a trainer on CPU only."""
    rank: int = 0
    world_size: int = 1
    master_port: int = 0
    """Where the ranks of several meet."""
    workers: int = 0
    """Of the data loader."""
    forward: float = 0.1
    backward: float = 0.15
    """With these, what a slow machine adds to a step is little of it."""
    waits: float = 0.0
    """How long the transform waits, as for a slow service."""
    burns: float = 0.0
    """CPU time that the transform uses."""
    reads: float = 0.0
    """How long the transform reads from the disk, past the page cache."""
    file: str = ""
    """The file that is read."""
    blocks_every: int = 0
    """Steps between two times at which the loop waits for a checkpoint to be stored."""
    blocks: float = 0.0
    """How long it waits."""
    names_phase: bool = True
    """True if it is a checkpoint; else work that no phase names."""
    poisoned_after: int = 0
    """Batches after which the data hold a NaN."""
    cpus: int = 0
    """How many it may use; all where it is 0."""
    cgroup: str = ""
    """Folder of the cgroup that it joins."""
    trigger: str = ""
    """File without which the transform is in order; always out of order where none is named."""


class Trainers:
    """Starts training processes, and ends them all."""

    def __init__(self, address: str, log: Path) -> None:
        """Load PyTorch; reports go to that address, what is printed to the log."""
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.end_to_end.training_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env={**os.environ, "STALLSCOPE_ADDRESS": address, "OMP_NUM_THREADS": "1", "STALLSCOPE_DISABLE": "0"},
        )

    def start(self, training: Training) -> int:
        """Start a process; returns its number."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(training)) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End all of them, stopped ones too."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()
