"""Machines for the faults: one that several share, and new ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.machine import INTERVAL, Machine, running


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One exporter for all faults of a file: each must leave it as it was."""
    with running(tmp_path_factory.mktemp("machine")) as shared:
        yield shared


@pytest.fixture
def new_machine(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Makes a machine for faults that leave a mark; its exporter is started by the test."""
    with contextlib.ExitStack() as stack:

        def make(*, gpus: int = 4, interval: float = INTERVAL) -> Machine:
            made = Machine(tmp_path, gpus=gpus, interval=interval)
            stack.callback(made.close)
            return made

        yield make
