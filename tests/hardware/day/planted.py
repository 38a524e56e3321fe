"""The planted programs: which cause is right for each, and how one is run under `stallscope run`."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hardware.day import ROOT
from tests.hardware.day.child import Child
from tests.hardware.day.node import IDLE, Load, Node
from tests.hardware.day.recording import Exporter

_FOLDER = ROOT / "tests" / "hardware" / "day" / "programs"
_START_SECONDS = 60.0
_POLL_SECONDS = 0.2
_FEW_CORES = 4
_ALLOWED = ("gpu_mem_headroom", "packing_candidate", "cpu_saturated")
"""Causes that are neither planted nor wrong: small models leave memory free, and transforms load the CPUs."""
HANGS_AFTER = 0.25
"""Share of its time after which a program that hangs does so."""


@dataclass(frozen=True)
class Program:
    """One planted program."""

    name: str
    planted: tuple[str, ...]
    """Causes of alerts/CAUSES.md that are right; empty for a healthy program."""
    load: Load
    """Load that the stand-in driver plays."""
    script: str = ""
    """Name of the script if it is another one."""
    ranks: int = 1
    """Programs that run at the same time, each a run of its own."""
    hangs: bool = False
    """True if the program does not end by itself."""
    is_rehearsed: bool = True
    """True if the variant for a CPU plants the same cause."""
    weight: float = 1.0
    """Its part of the time, next to the others' 1: memory needs no verdict over a window."""
    needs_free_gpu: bool = False
    """True if the cause is one only where another GPU is free."""
    few_cores: tuple[str, ...] = ()
    """Further right causes on a machine with few cores."""

    @property
    def file(self) -> Path:
        """The script."""
        return _FOLDER / f"{self.script or self.name}.py"

    def right(self, gpus: int) -> list[str]:
        """Return the causes that are right on a machine with this number of GPUs."""
        if self.needs_free_gpu and gpus == 1:
            return []
        return [*self.planted, *(self.few_cores if (os.cpu_count() or 1) <= _FEW_CORES else ())]


_FED = Load(busy=0.98, sm=0.86, tensor=0.5, dram=0.45, watts=620, memory=30)
HELD_IDLE = Program("held_idle", ("idle_allocated",), Load(memory=2.5))
PROGRAMS = (
    Program("well_fed", (), _FED),
    Program(
        "slow_transform",
        ("input_few_workers", "input_bound"),
        Load(busy=0.25, sm=0.2, tensor=0.12, dram=0.1, watts=200, memory=30),
        few_cores=("input_cpu_saturated",),
    ),
    Program(
        "single_process_loader",
        ("input_few_workers", "input_bound"),
        Load(busy=0.2, sm=0.17, tensor=0.1, dram=0.08, watts=180, memory=30),
        few_cores=("input_cpu_saturated",),
    ),
    Program(
        "pageable_copies",
        ("h2d_bound",),
        Load(busy=0.5, sm=0.4, tensor=0.1, dram=0.2, watts=250, memory=10, received=6e9),
        is_rehearsed=False,
    ),
    Program("item_each_step", ("sync_stall",), Load(busy=0.4, sm=0.3, tensor=0.1, dram=0.2, watts=250, memory=12)),
    Program("tiny_kernels", ("launch_bound",), Load(busy=0.6, sm=0.02, watts=150, memory=1)),
    Program("small_batch", ("small_batch",), Load(busy=0.92, sm=0.2, tensor=0.01, dram=0.02, watts=200, memory=1)),
    Program("fp32", ("tensor_cores_unused",), Load(busy=0.99, sm=0.95, fp32=0.7, dram=0.3, watts=640, memory=24)),
    Program("elementwise", ("mem_bw_bound",), Load(busy=0.99, sm=0.9, fp32=0.1, dram=0.88, watts=450, memory=8)),
    Program("checkpoints", ("checkpoint_stall",), Load(busy=0.7, sm=0.6, tensor=0.35, dram=0.3, watts=450, memory=12)),
    Program("hang", ("hang_spin", "stalled"), Load(busy=1.0, sm=0.01, watts=180, memory=12), hangs=True),
    Program(
        "two_processes",
        ("shared_unexpectedly",),
        Load(busy=1.0, sm=0.9, tensor=0.5, dram=0.5, watts=650, memory=60),
        script="well_fed",
        ranks=2,
        needs_free_gpu=True,
    ),
    Program("memory_leak", ("gpu_mem_leak",), _FED, is_rehearsed=False, weight=0.6),
    Program("out_of_memory", ("gpu_mem_near_oom",), _FED, is_rehearsed=False, weight=0.6),
)
"""In the order of their value, should the day be cut short."""


@dataclass
class Running:
    """A program that was started."""

    program: Program
    children: list[Child]
    truths: list[Path]
    runs: list[str]
    started: float = field(default_factory=time.time)

    def line(self, node: Node) -> dict[str, Any]:
        """Return its line for `programs.jsonl`, once it has ended."""
        cuda = not node.is_stand_in
        found = [_truth(file) for file in self.truths]
        reports = self.program is not HELD_IDLE
        return {
            "name": self.program.name,
            "run": self.runs[0] if reports else None,
            "runs": self.runs if reports else [],
            "planted": self.program.right(len(node.driver["gpus"])),
            "allowed": list(_ALLOWED),
            "started": self.started,
            "ended": time.time(),
            "exit": self.children[0].status,
            "truth": found[0],
            "other_truths": found[1:],
            "variant": "cuda" if cuda else "cpu",
            "rehearsed": cuda or self.program.is_rehearsed,
            "skipped": None,
        }


def start(program: Program, seconds: float, exporter: Exporter, node: Node, folder: Path) -> Running:
    """Start a program for this time."""
    running = Running(program, [], [], [])
    for rank in range(program.ranks):
        name = program.name.replace("_", "-") + (f"-{rank + 1}" if program.ranks > 1 else "")
        truth = folder / f"{name}.truth.json"
        arguments = [str(program.file), f"{seconds:.1f}", str(truth)]
        if program is not HELD_IDLE:
            arguments = ["-m", "stallscope", "run", "--summary=off", f"--name={name}", *arguments]
        variables = {**node.cuda, "STALLSCOPE_ADDRESS": exporter.address, "OMP_NUM_THREADS": "1"}
        running.children.append(Child(name, arguments, folder / f"{name}.log", variables))
        running.truths.append(truth)
        running.runs.append(name)
    node.play(program.load, [child.pid for child in running.children])
    return running


def finish(running: Running, seconds: float, node: Node) -> None:
    """Wait until a program has ended; one that hangs is killed after its time.

    Raises:
        StepError: it failed.
    """
    program = running.program
    alone = f"run it alone: python -m tests.hardware.day.programs.{program.file.stem} {seconds:.0f} truth.json"
    deadline = time.monotonic() + seconds + _START_SECONDS
    try:
        for child, truth in zip(running.children, running.truths, strict=True):
            while program.hangs and not truth.exists() and time.monotonic() < deadline:
                if child.wait(_POLL_SECONDS):
                    raise child.failure(alone)
            if program.hangs and truth.exists():
                child.wait(seconds * (1 - HANGS_AFTER))
            elif not child.wait(deadline - time.monotonic()):
                raise child.failure(alone)
    finally:
        for child in running.children:
            child.end(signal.SIGKILL)
        node.play(IDLE)
    for child in running.children:
        if child.status and not program.hangs:
            raise child.failure(alone)


def skipped(program: Program, reason: str, node: Node) -> dict[str, Any]:
    """Return the line of a program that can't run here."""
    return {
        "name": program.name,
        "run": None,
        "runs": [],
        "planted": program.right(len(node.driver["gpus"])),
        "started": time.time(),
        "ended": time.time(),
        "exit": None,
        "truth": {},
        "skipped": reason,
    }


def _truth(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):  # the program failed before it wrote its truth
        return {}
    return found
