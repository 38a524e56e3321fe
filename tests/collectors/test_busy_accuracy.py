"""How near busy seconds come to the truth: against the exact integral of square, saw-tooth and random loads.

A counter ends at the driver's newest sample, not at the moment of a scrape. Over the time that the samples cover, busy
seconds are right to one percent of that time, whatever the spacing. `tests/sampling/test_integrals.py` tests dips, and
the wall time between two scrapes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from stallscope.lab.simulation.driver import SimulatedDevice, SimulatedDriver
from stallscope.lab.simulation.node import Node
from stallscope.lab.simulation.scenarios import SCENARIOS
from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.nvidia import NvidiaCollector
from stallscope.node.drivers.device import SampleKind, TimedSample, Utilization
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.sampler import Sampler
from tests.nvml_library.reading_process import Page, ReadingProcess
from tests.nvml_library.stand_in import Gpu, NvmlStandIn, Wave

PERIOD_US = 166_667
PERIOD = PERIOD_US / 1e6
RING = 100
_SERIES = re.compile(rb'^stallscope_gpu_(busy_seconds_total|utilization_samples_count|dips_total){gpu="(\d+)".*} (.+)$')


class Reading(NamedTuple):
    """One GPU as scraped."""

    at: float
    """Wall clock of the newest reading of the GPU."""
    busy: float
    samples: int
    dips: int


def load(wave: Wave, period: float, *, percent: int = 100, busy: float | None = None, seed: int = 0) -> Gpu:
    """A GPU's load as the stand-in library has it, times in seconds."""
    gpu = Gpu()
    busy_us = None if busy is None else round(busy * 1e6)
    gpu.load(wave, round(period * 1e6), percent=percent, busy_us=busy_us, seed=seed)
    return gpu


class LoadedDevice(SimulatedDevice):
    """A simulated GPU with the stand-in's loads and its way to sample them, in scripted time."""

    load: Gpu

    def utilization(self) -> Utilization:
        """The newest sample."""
        return Utilization(self._mean(self._newest()), 0.0)

    def utilization_samples(self, kind: SampleKind, newer_than_us: int) -> Sequence[TimedSample]:
        """Means over periods of the wall clock, as whole percent, of the last hundred periods."""
        newest = self._newest()
        return [
            TimedSample(sample * PERIOD_US, self._mean(sample) if kind == "gpu" else 0.0)
            for sample in range(max(newest - RING, newer_than_us // PERIOD_US) + 1, newest + 1)
        ]

    def _newest(self) -> int:
        return int(self._node.clock.time() * 1e6) // PERIOD_US

    def _mean(self, sample: int) -> float:
        return round(self.load.true_busy_seconds((sample - 1) * PERIOD_US, sample * PERIOD_US) / PERIOD, 2)


class LoadedDriver(SimulatedDriver):
    """Each GPU with a load of its own."""

    def __init__(self, node: Node, loads: Sequence[Gpu]) -> None:
        super().__init__(node)
        self._loads = loads

    def open(self) -> None:
        """Connect."""
        if not self.is_open:
            devices = []
            for index, each in enumerate(self._loads):
                device = LoadedDevice(self, self._node, index)
                device.load = each
                devices.append(device)
            self._devices = tuple(devices)
        self.is_open = True


def readings(
    loads: Sequence[Gpu], *, interval: float = 1.0, a_scrape: int = 1, minutes: float = 10.0
) -> list[list[Reading]]:
    """Return the values that the real source and sampler expose for each load over minutes of scripted time.

    Args:
        loads: One for each GPU.
        interval: Seconds between readings.
        a_scrape: How many readings there are for each that is scraped.
        minutes: Duration.
    """
    clock = ScriptedClock(1_700_000_000.123456)
    node = Node(SCENARIOS["stalled"], clock, seed=1, gpus=len(loads))
    sampler = Sampler(clock=clock, interval=interval)
    environment = Environment(clock=clock, interval=interval, driver=lambda: LoadedDriver(node, loads))
    sampler.add(NvidiaCollector(environment))
    # A machine never reads at the very moment that it meant to.
    jitter = random.Random(7)
    found: list[list[Reading]] = [[] for _ in loads]
    for reading in range(int(minutes * 60 / interval)):
        clock.advance(interval * jitter.uniform(0.8, 1.2))
        sampler.run_round()
        if reading % a_scrape:
            continue
        values: dict[tuple[bytes, int], float] = {}
        for line in sampler.page(openmetrics=False, gzip=False).splitlines():
            series = _SERIES.match(line)
            if series is not None:
                values[series[1], int(series[2])] = float(series[3])
        for gpu, each in enumerate(found):
            each.append(
                Reading(
                    clock.time(),
                    values[b"busy_seconds_total", gpu],
                    int(values[b"utilization_samples_count", gpu]),
                    int(values[b"dips_total", gpu]),
                )
            )
    return found


LOADS = {
    "square": load(Wave.SQUARE, 1.3, busy=0.8),
    "low square": load(Wave.SQUARE, 7.0, busy=2.0, percent=43),
    "saw-tooth": load(Wave.SAW_TOOTH, 2.1, percent=97),
    "slow saw-tooth": load(Wave.SAW_TOOTH, 47.0),
    "random": load(Wave.RANDOM, 0.4, seed=3),
    "slow random": load(Wave.RANDOM, 5.0, seed=4),
}


@pytest.fixture(scope="module")
def scripted() -> dict[str, list[Reading]]:
    return dict(zip(LOADS, readings(list(LOADS.values())), strict=True))


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("spacing", [1, 2, 5, 15, 30, 60, 120])
def test_over_the_time_that_samples_cover_busy_time_is_right_to_one_percent(
    scripted: dict[str, list[Reading]], name: str, spacing: int
) -> None:
    scrapes = scripted[name][1::spacing]
    assert len(scrapes) > 4
    for before, after in pairwise(scrapes):
        begin, end = (int(each.at * 1e6) // PERIOD_US for each in (before, after))
        assert after.samples - before.samples == end - begin
        true = LOADS[name].true_busy_seconds(begin * PERIOD_US, end * PERIOD_US)
        assert after.busy - before.busy == pytest.approx(true, abs=0.01 * (end - begin) * PERIOD)


@pytest.mark.parametrize("name", LOADS)
def test_errors_do_not_add_up(scripted: dict[str, list[Reading]], name: str) -> None:
    first, last = scripted[name][1], scripted[name][-1]
    true = LOADS[name].true_busy_seconds(int(first.at * 1e6), int(last.at * 1e6))
    assert last.busy - first.busy == pytest.approx(true, rel=0.01)


@pytest.mark.parametrize(("interval", "minutes"), [(0.2, 1.5), (5.0, 10.0), (10.0, 10.0)])
def test_every_sampling_interval_that_the_buffer_bridges_loses_nothing(interval: float, minutes: float) -> None:
    a_scrape = max(1, round(5.0 / interval))
    found = readings(list(LOADS.values()), interval=interval, a_scrape=a_scrape, minutes=minutes)
    for name, shown in zip(LOADS, found, strict=True):
        first, last = shown[1], shown[-1]
        begin, end = (int(each.at * 1e6) // PERIOD_US for each in (first, last))
        assert last.samples - first.samples == end - begin
        true = LOADS[name].true_busy_seconds(begin * PERIOD_US, end * PERIOD_US)
        assert last.busy - first.busy == pytest.approx(true, rel=0.01), name


def falls(gpu: Gpu, begin: float, end: float) -> int:
    """How often a square load has fallen between two moments."""
    busy = gpu.wave_busy_us
    return int((end * 1e6 - busy) // gpu.wave_period_us - (begin * 1e6 - busy) // gpu.wave_period_us)


def _shown(page: Page, gpu: int) -> Reading | None:
    at = page.get("last_reading_timestamp_seconds", gpu)
    busy, samples = page.get("busy_seconds_total", gpu), page.get("utilization_samples_count", gpu)
    dips = page.get("dips_total", gpu)
    if at is None or busy is None or samples is None or dips is None:
        return None
    return Reading(at, busy, int(samples), int(dips))


def _newer_than(due: float) -> Callable[[Page], bool]:
    return lambda page: all((shown := _shown(page, gpu)) is not None and shown.at >= due for gpu in range(3))


def test_the_real_source_on_the_real_binding_follows_the_stand_in_in_real_time(tmp_path: Path) -> None:
    node = NvmlStandIn(tmp_path, gpus=3)
    node.gpu[0].load(Wave.SQUARE, 1_700_000, busy_us=1_100_000)
    node.gpu[1].load(Wave.SAW_TOOTH, 2_100_000, percent=97)
    node.gpu[2].load(Wave.RANDOM, 400_000, seed=3)
    scrapes: list[list[Reading]] = []
    with ReadingProcess(node) as process:
        for _ in range(7):
            page = process.until(_newer_than(scrapes[-1][0].at + 1.0 if scrapes else 0.0))
            scrapes.append([shown for gpu in range(3) if (shown := _shown(page, gpu)) is not None])
    for gpu, true in enumerate(node.gpu):
        gpu_readings = [scrape[gpu] for scrape in scrapes]
        # The page shows when a reading ended. Its newest sample is the last one before that, or where the machine held
        # the reading up an older one; the position of one sample gives the positions of all others.
        begun = min(int(each.at * 1e6) // PERIOD_US - each.samples for each in gpu_readings)
        behind = [int(each.at * 1e6) // PERIOD_US - each.samples - begun for each in gpu_readings]
        # Samples that are lost would be missing ever after.
        assert min(behind[len(behind) // 2 :]) <= 2
        assert any(
            all(_is_true(true, begin, before, after) for before, after in combinations(gpu_readings, 2))
            for begin in (begun - 1, begun)
        )
    begun = min(int(scrape[0].at * 1e6) // PERIOD_US - scrape[0].samples for scrape in scrapes)
    # A dip is due after a second of work, which a GPU that was met in the middle of one has not shown before.
    first, last = scrapes[2][0], scrapes[-1][0]
    begin, end = ((begun + each.samples) * PERIOD for each in (first, last))
    fewest = falls(node.gpu[0], begin + 3 * PERIOD, end - 3 * PERIOD)
    most = falls(node.gpu[0], begin - 3 * PERIOD, end + PERIOD)
    assert fewest <= last.dips - first.dips <= most


def _is_true(true: Gpu, begin: int, before: Reading, after: Reading) -> bool:
    """Return True if the busy time is within one percent of the time that the samples after `begin` cover."""
    covered = (after.samples - before.samples) * PERIOD
    busy = true.true_busy_seconds((begin + before.samples) * PERIOD_US, (begin + after.samples) * PERIOD_US)
    return abs(after.busy - before.busy - busy) <= 0.01 * covered
