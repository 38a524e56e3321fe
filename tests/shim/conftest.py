"""A desk at which reports arrive, as the exporter would read them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.report import Report, parse
from stallscope.training.shim import lifetime, tolerance


class Desk:
    """Takes reports through the exporter's own parser, so that each one is known to be acceptable."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.refusing: str | None = None

    def __call__(self, payload: bytes) -> str | None:
        report = parse(payload)
        if self.refusing is None:
            self.reports.append(report)
        return self.refusing

    @property
    def newest(self) -> Report:
        return self.reports[-1]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def clock() -> ScriptedClock:
    return ScriptedClock()


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher, no settings, no exporter of this machine, no run and no complaint left by another test."""
    launchers = ("SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "KUBERNETES_", "POD_")
    for variable in list(os.environ):
        if variable.startswith(("STALLSCOPE_", "CUDA_", "NVIDIA_", *launchers)) or variable in (
            "RANK",
            "LOCAL_RANK",
            "WORLD_SIZE",
            "MASTER_ADDR",
            "JOB_COMPLETION_INDEX",
        ):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("STALLSCOPE_ADDRESS", "unix:///nowhere/at/all.sock")
    monkeypatch.setattr(tolerance, "_logged", set())
    yield
    lifetime.finish_all()
