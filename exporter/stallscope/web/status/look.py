"""What the status page shows, at one moment. Everything here is replaced, not edited, so that nobody waits for it."""

from __future__ import annotations

from typing import NamedTuple

from stallscope.intake.runs import Held
from stallscope.sampling.reading import Sample
from stallscope.sampling.sampler import SourceStatus


class Look(NamedTuple):
    """A look at the exporter's memory."""

    at: float
    """Unix time of the newest page of metrics."""
    ready: bool
    """Whether a first round of readings is on it."""
    samples: tuple[Sample, ...]
    """What the sources told."""
    statuses: tuple[SourceStatus, ...]
    held: tuple[Held, ...]
    """Every rank."""
    reads_gpus: bool = True
    """Whether a source of GPUs is switched on."""
    simulated: str = ""
    """The scenario, where GPUs are simulated."""
