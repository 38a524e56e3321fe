"""Machines for the faults: one that several share, and new ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.faults.machine import INTERVAL, Machine, running

_FAILED = pytest.StashKey[bool]()


class _Shared:
    """The machine that tests share, started when the first test requests it."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._stack = contextlib.ExitStack()
        self._machine: Machine | None = None

    def machine(self) -> Machine:
        if self._machine is None:
            self._machine = self._stack.enter_context(running(self._factory.mktemp("machine")))
        return self._machine

    def give_up(self) -> None:
        self._machine = None
        self._stack.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_FAILED] = report.failed
    return report


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Shared]:
    shared = _Shared(tmp_path_factory)
    yield shared
    shared.give_up()


@pytest.fixture
def machine(_shared: _Shared, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """One exporter for all faults of a file: each must leave it as it was. A test that failed may not have."""
    yield _shared.machine()
    if request.node.stash.get(_FAILED, False):
        _shared.give_up()


@pytest.fixture
def new_machine(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Makes a machine for faults that leave a mark; its exporter is started by the test."""
    with contextlib.ExitStack() as stack:

        def make(*, gpus: int = 4, interval: float = INTERVAL) -> Machine:
            made = Machine(tmp_path, gpus=gpus, interval=interval)
            stack.callback(made.close)
            return made

        yield make
