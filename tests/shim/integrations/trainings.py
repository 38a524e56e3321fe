"""Real trainings with real frameworks, each framework in a process of its own, and the reports they sent.

A framework takes seconds to import, starts threads and changes what its process is; so all trainings of one run in one
child, and the tests look at what each of them reported. The child's clock moves only while a training sleeps
(`tests/shim/loops/helpers/clock.py`), so that phases take the same time on any machine.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from stallscope.training.protocol.report import Report, parse

ROOT = Path(__file__).parents[3]
HELPERS = ROOT / "tests/shim/loops/helpers"
"""Folder whose `sitecustomize` replaces the clocks of a Python."""


class Reports(list[Report]):
    """The reports of one training, in order, and its duration."""

    @property
    def newest(self) -> Report:
        return self[-1]

    @property
    def activities(self) -> set[str]:
        return {report.activity for report in self}

    @property
    def of_evaluations(self) -> set[float]:
        """Seconds of evaluation in the reports that were made during one."""
        return {report.phases["evaluation"].seconds for report in self if report.activity == "evaluation"}

    def seconds(self, phase: str) -> float:
        found = self.newest.phases.get(phase)
        return 0.0 if found is None else found.seconds

    def occurrences(self, phase: str) -> int:
        found = self.newest.phases.get(phase)
        return 0 if found is None else found.occurrences

    @property
    def steps(self) -> int:
        """Steps done in this session, one that ended initialization included."""
        assert self.newest.step_seconds is not None
        return self.newest.step_seconds.count

    def session(self, number: int) -> Reports:
        """The reports of one of several sessions, which followed each other."""
        sessions = list(dict.fromkeys(report.session for report in self))
        return Reports(report for report in self if report.session == sessions[number])


def assert_phases_are_the_time(reports: Reports) -> None:
    """All phases together are the session's time: nothing is reported twice or left out."""
    newest = reports.newest
    shown = sum(phase.seconds for phase in newest.phases.values())
    assert shown == pytest.approx(newest.sent - newest.start, abs=0.002)


def held(
    needed: tuple[str, ...],
    module: str,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    *,
    under: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
) -> Path:
    """Run all trainings of a module in one child, unless a package that they need is not installed.

    Args:
        needed: packages.
        module: the module's name in this folder.
        folder: where reports go.
        variables: the child's environment, beside this process'.
        under: a command of Python's that runs the module.
        only: names of trainings, where not all are wanted.

    Returns:
        A folder with one file of reports for each training.
    """
    _run(needed, ("-m", f"tests.shim.integrations.{module}", str(folder), *only), variables or {}, under)
    return folder


def reported(needed: tuple[str, ...], module: str, folder: Path, variables: Mapping[str, str] | None = None) -> Reports:
    """Run an unchanged program under `stallscope run`, and return its reports.

    Args:
        needed: packages.
        module: the program's name in this folder; it gets the folder as its argument.
        folder: where it writes.
        variables: the child's environment, beside this process'.
    """
    reports = Reports()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener, tempfile.TemporaryDirectory() as short:
        listener.bind(f"{short}/report.sock")

        def receive() -> None:
            while payload := listener.recv(65536):
                reports.append(parse(payload))

        receiver = threading.Thread(target=receive)
        receiver.start()
        try:
            _run(
                needed,
                ("-m", f"tests.shim.integrations.{module}", str(folder)),
                {**(variables or {}), "STALLSCOPE_ADDRESS": f"unix://{short}/report.sock"},
                ("-m", "stallscope", "run"),
            )
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"", f"{short}/report.sock")
            receiver.join()
    return reports


def _run(
    needed: tuple[str, ...], arguments: tuple[str, ...], variables: Mapping[str, str], under: tuple[str, ...]
) -> None:
    for package in needed:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make frameworks")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("STALLSCOPE_", "SLURM_", "CUDA_")) and name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    }
    environment.update(
        STALLSCOPE_STRICT="1",
        STALLSCOPE_SUMMARY="off",
        STALLSCOPE_ADDRESS="unix:///nowhere/at/all.sock",
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
        JAX_PLATFORMS="cpu",
        TF_CPP_MIN_LOG_LEVEL="3",
        PYTHONPATH=str(HELPERS),
        SIMULATED_TIME="1",
    )
    environment.update(variables)
    done = subprocess.run(
        [sys.executable, *under, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def read(folder: Path, training: str) -> Reports:
    """The reports of one training."""
    return Reports(parse(line) for line in (folder / training).read_bytes().splitlines())


class Desk:
    """Takes the reports of one training and keeps them in a file; used in the child."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.interval = 0.0

    def __call__(self, payload: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(payload + b"\n")


def main(module: str, trainings: tuple[Callable[[Desk], object], ...]) -> None:
    """Run each training with a desk of its own; used in the child."""
    folder, only = Path(sys.argv[1]), sys.argv[2:]
    for training in trainings:
        if only and training.__name__ not in only:
            continue
        began = time.monotonic()
        training(Desk(folder / training.__name__))
        print(f"{module} {training.__name__} {time.monotonic() - began:.1f} s", flush=True)


def framework(name: str) -> object:
    """Import a framework; typed so that tests are checked the same with and without it."""
    return importlib.import_module(name)
