"""GPUs over minutes and hours, in scripted time, on the simulated driver."""

from __future__ import annotations

import pytest

from stallscope.collectors.base import Environment
from stallscope.collectors.nvidia import NvidiaCollector
from stallscope.sampling.clock import ScriptedClock
from stallscope.sampling.sampler import Sampler
from stallscope.simulation.driver import SimulatedDriver
from stallscope.simulation.node import Node
from stallscope.simulation.scenarios import SCENARIOS
from tests.nvml_library.reading_process import Page


class ScriptedNode:
    """A simulated node under the real source and sampler, whose clock the test advances."""

    def __init__(self, scenario: str, interval: float = 1.0, gpus: int = 8) -> None:
        self.clock = ScriptedClock()
        # As the sampler does: a source that must be read more often than the interval says so.
        self._step = min(interval, NvidiaCollector.longest_interval or interval)
        node = Node(SCENARIOS[scenario], self.clock, seed=1, gpus=gpus)
        self.onset = SCENARIOS[scenario].onset
        self._sampler = Sampler(clock=self.clock, interval=interval)
        environment = Environment(clock=self.clock, interval=interval, driver=lambda: SimulatedDriver(node))
        self._sampler.add(NvidiaCollector(environment))

    def run(self, seconds: float) -> Page:
        """Let time pass, and return the page at its end."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.clock.advance(self._step)
            self._sampler.run_round()
        return Page(self._sampler.page(openmetrics=False, gzip=False).decode())


def _series(page: Page, name: str) -> dict[str, float]:
    """Values by GPU of a family with one series each."""
    lines = [line for line in page.text.splitlines() if line.startswith(f"stallscope_gpu_{name}{{")]
    return {line.split('gpu="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def test_a_gpu_that_fell_off_the_bus_is_down_for_that_reason_also_when_no_longer_listed() -> None:
    node = ScriptedNode("gpu_lost")
    assert set(_series(node.run(node.onset - 1), "up").values()) == {1.0}
    page = node.run(120)
    down = [gpu for gpu, up in _series(page, "up").items() if up == 0]
    assert len(down) == 1
    lost = [line for line in page.text.splitlines() if line.startswith("stallscope_gpu_lost_info{")]
    assert len(lost) == 1
    assert f'gpu="{down[0]}"' in lost[0]
    assert 'reason="gpu_lost"' in lost[0]
    assert down[0] not in _series(page, "busy_seconds_total")


@pytest.mark.parametrize("interval", [0.1, 1.0, 10.0, 60.0])
def test_busy_time_is_a_true_mean_at_every_interval(interval: float) -> None:
    node = ScriptedNode("healthy", interval, gpus=2)
    before = _series(node.run(2 * interval), "busy_seconds_total")
    began = node.clock.monotonic()
    after = _series(node.run(max(60.0, 10 * interval)), "busy_seconds_total")
    elapsed = node.clock.monotonic() - began
    for gpu, seconds in after.items():
        assert (seconds - before[gpu]) / elapsed == pytest.approx(0.98, abs=0.04)


def test_a_stalled_job_leaves_idle_time_and_a_single_dip() -> None:
    node = ScriptedNode("stalled", gpus=2)
    node.run(node.onset)
    before = _series(node.run(5), "idle_seconds_total")
    page = node.run(60)
    for gpu, seconds in _series(page, "idle_seconds_total").items():
        assert seconds - before[gpu] == pytest.approx(60, abs=1)
    assert set(_series(page, "dips_total").values()) == {1.0}
