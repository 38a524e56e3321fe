"""Fixtures of the tests of integrations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let errors of the observing fail the test, and stop observing PyTorch after it."""
    from stallscope.integrations import pytorch

    monkeypatch.setenv("STALLSCOPE_STRICT", "1")
    yield
    pytorch.unwatch()
