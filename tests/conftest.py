"""Fixtures for tests in any folder."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.nvml_library.stand_in import NvmlStandIn

if TYPE_CHECKING:
    from tests.filled_prometheus import FilledPrometheus

# A shell in the background has the one ignored for all that it runs, nohup the other, and the tests send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Prometheus and its like, written in Go, then take less CPU time and more memory.
os.environ.setdefault("GOGC", "400")
# Each process collects all tests: a million objects, none of which becomes garbage.
gc.disable()
FRAMEWORKS = frozenset({"jax", "keras", "lightning", "pytorch_lightning", "tensorflow", "torch", "transformers"})


class NoFrameworks(MetaPathFinder, Loader):
    """Refuse to import a framework of training into pytest's process, and find it as usual.

    Its native libraries stay for all later tests of the process, and crash next to those of gRPC, Arrow or another
    framework. Tests run frameworks as programs (`tests/shim/integrations/trainings.py`).
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in FRAMEWORKS:
            return None
        found = PathFinder.find_spec(name, path, target)
        return None if found is None else ModuleSpec(name, self, origin=found.origin)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        raise RuntimeError(f"{spec.name}: imported in pytest's process; import it in a program that the test runs")

    def exec_module(self, module: ModuleType) -> None:
        raise AssertionError


if "TEST_FRAMEWORKS" not in os.environ:  # which a test sets for the pytest that it runs itself
    sys.meta_path.insert(0, NoFrameworks())
# Nothing asserts a speed, and other tests run beside. `--hypothesis-profile explore` tries other examples at each run.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same examples", settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile("same examples")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that none of them is left over when all others are done."""
    for item in items:
        if isinstance(item, pytest.Function) and "filled" in item.fixturenames:
            item.add_marker(pytest.mark.slow)
            # The first test of a process waits until the installation is filled: half a minute of two CPUs.
            item.add_marker(pytest.mark.timeout(1200))
    seconds: dict[Path, float] = {}
    for item in items:
        for mark in item.iter_markers("slow"):
            seconds[item.path] = max(seconds.get(item.path, 0), *(mark.args or (10,)))
    items.sort(key=lambda item: -seconds.get(item.path, 0))


def pytest_collection_finish() -> None:
    """Collect the garbage of the tests themselves from here on, without a look at the tests that were found."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def no_local_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide a `stallscope up` that a developer runs, whose addresses commands would use by default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))  # for the summaries of earlier runs
        yield


@pytest.fixture
def nvml_stand_in(tmp_path: Path) -> NvmlStandIn:
    """A node of eight healthy, idle H100s behind a stand-in for the driver's library."""
    return NvmlStandIn(tmp_path)


@pytest.fixture
def nothing_collected() -> Iterator[None]:
    """For tests that recurse as deep as Python lets them: what others' garbage does when it goes would fail there."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledPrometheus]:
    """A Prometheus with everything that exporters, rules and alerts said of an installation in trouble."""
    from tests.filled_prometheus import filled_prometheus  # takes a second, and few tests need it

    # Processes that test side by side have a folder each in one that is new for every run.
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with filled_prometheus(kept=shared / "recorded") as found:
        yield found
