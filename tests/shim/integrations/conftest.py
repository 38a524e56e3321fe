"""Fixtures of the tests of integrations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let errors of the observing fail the test, and stop observing PyTorch after it."""
    from stallscope.training.integrations import pytorch

    monkeypatch.setenv("STALLSCOPE_STRICT", "1")
    yield
    pytorch.unwatch()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first test of a file, for which all of its trainings run, the time of a slow machine."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(1000))
