"""Scraped samples of small runs, written by hand, so that tests know each value."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

from stallscope.lab.replay.series import Series
from stallscope.model.clients.prometheus import Prometheus
from tests.filled_prometheus import write
from tests.prometheus_server import prometheus

SCRAPES = 61
INTERVAL = 30
STEPS = 60.0
"""Steps of a rank per scrape interval."""
BUSY = 0.75
DATA_WAIT = 0.2
"""Share of the time; `forward` takes the remainder."""

Values = list[float | None]


@dataclass(frozen=True)
class Held:
    """A Prometheus with scraped data."""

    url: str
    server: Prometheus
    """A client for it."""
    start: float
    """Unix time of the first scrape."""

    @property
    def end(self) -> float:
        """Unix time of the last scrape."""
        return self.start + (SCRAPES - 1) * INTERVAL


@contextlib.contextmanager
def scraped(everything: Sequence[Series]) -> Iterator[Held]:
    """Run a Prometheus that scraped these series in the last half hour."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    with prometheus() as running, contextlib.closing(Prometheus(running.address, timeout=60)) as server:
        start = float(round(time.time()) - INTERVAL * SCRAPES)
        write([running.port], everything, start, SCRAPES)
        yield Held(running.address, server, start)


def counter(per_scrape: float) -> Values:
    """Return the values of a counter that grows evenly and started before the first scrape."""
    return [1000.0 + per_scrape * number for number in range(SCRAPES)]


def gauge(value: float) -> Values:
    """Return constant values."""
    return [float(value)] * SCRAPES


def there(values: Values, *scrapes: range) -> Values:
    """Return the values in these scrapes only."""
    return [value if any(number in each for each in scrapes) else None for number, value in enumerate(values)]


def of_rank(
    run: str,
    rank: int = 0,
    *,
    instance: str = "",
    cluster: str = "",
    namespace: str = "",
    world_size: int = 1,
    state: str = "running",
    uuid: str | None = None,
    only: range = range(SCRAPES),
    steps: Values | None = None,
) -> Iterator[Series]:
    """Return the series of a rank.

    Args:
        run: name of the run.
        rank: number of the rank.
        instance: its exporter; by default `RUN:19400`.
        cluster: label of all series.
        namespace: namespace that the rank reports.
        world_size: world size that the rank reports.
        state: state of the rank.
        uuid: UUID of the GPU that it claims, whose index is the rank's number; by default none.
        only: scrapes that contain the rank.
        steps: number of steps at each scrape.
    """
    labels = {"cluster": cluster, "job": "stallscope", "instance": instance or f"{run}:19400", "run": run}
    labels["rank"] = str(rank)
    info = {"namespace": namespace, "world_size": str(world_size), "framework": "pytorch"}
    done = counter(STEPS) if steps is None else steps
    seconds = counter(INTERVAL)
    phases: Mapping[str, float] = {"data_wait": DATA_WAIT, "forward": 1 - DATA_WAIT}

    def series(name: str, values: Values, **more: str) -> Series:
        return Series(f"stallscope_training_{name}", {**labels, **more}, there(values, only))

    yield series("rank_info", gauge(1), **info)
    if uuid is not None:
        yield series("rank_gpu_info", gauge(1), gpu=str(rank), uuid=uuid)
    for each in ("starting", "running", "finished"):
        yield series("state", gauge(float(each == state)), state=each)
    yield series("step", done)
    yield series("step_seconds_count", done)
    yield series("step_seconds_sum", seconds)
    for phase, share in phases.items():
        yield series("phase_seconds_total", counter(share * INTERVAL), phase=phase)


def of_gpu(instance: str, index: int, uuid: str, *, only: range = range(SCRAPES)) -> Iterator[Series]:
    """Return the series of a GPU that was busy for three quarters of the time."""
    labels = {"job": "stallscope", "instance": instance, "gpu": str(index), "uuid": uuid}
    for name, values in {
        "up": gauge(1),
        "busy_seconds_total": counter(BUSY * INTERVAL),
        "energy_joules_total": counter(300.0 * INTERVAL),
        "temperature_celsius": gauge(65),
    }.items():
        more = {"sensor": "memory"} if name == "temperature_celsius" else {}
        yield Series(f"stallscope_gpu_{name}", {**labels, **more}, there(values, only))


def of_host(instance: str) -> Iterator[Series]:
    """Return the series of a host with two disks, of which the second is busier."""
    labels = {"job": "stallscope", "instance": instance}
    yield Series("stallscope_host_cpus", labels, gauge(32))
    for device, share in (("nvme0n1", 0.1), ("nvme1n1", 0.4)):
        disk = {**labels, "device": device}
        yield Series("stallscope_host_disk_busy_seconds_total", disk, counter(share * INTERVAL))
        yield Series("stallscope_host_disk_read_bytes_total", disk, counter(1e6 * INTERVAL))
