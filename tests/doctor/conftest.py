from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallscope.tools.doctor.checkup import Subject
from tests.doctor.web_servers import Served, serving
from tests.free_ports import free_port

MakeSubject = Callable[..., Subject]


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as each:
        yield each


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeze the clock, so that ages are exact to the second however long a test takes."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)


@pytest.fixture
def make_subject(tmp_path: Path) -> MakeSubject:
    """A subject in which nothing is there but what is named."""

    def make(**changes: Any) -> Subject:
        nowhere = f"http://127.0.0.1:{free_port()}"
        reported: dict[str, Any] = {"exporter_url": nowhere, "prometheus_url": nowhere, "prometheus_named": True}
        patient = {"exporter_timeout": 30.0, "prometheus_timeout": 30.0}
        return Subject(**{**reported, **patient, "environment": {}, "root": tmp_path, **changes})

    return make
