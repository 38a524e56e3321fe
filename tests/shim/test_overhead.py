"""The shim reports its overhead, from the measured cost of a step and a phase."""

from __future__ import annotations

import json

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.shim.overhead import costs
from tests.shim.conftest import Desk


def last_overhead(sent: list[bytes]) -> float:
    overhead: float = json.loads(sent[-1])["counters"]["shim_overhead_seconds"]
    return overhead


def test_a_step_and_a_phase_have_a_cost_and_it_is_measured_once() -> None:
    step, phase = costs()
    assert step > 0
    assert phase > 0
    assert costs() == (step, phase)


def test_overhead_grows_by_what_steps_and_phases_cost() -> None:
    sent: list[bytes] = []
    run = stallscope.Run("overhead", sender=sent.append)
    first = last_overhead(sent)
    for _ in range(1000):
        with run.phase("forward"):
            pass
        run.step()
    run.finish()
    step, phase = costs()
    assert last_overhead(sent) > first + 990 * (step + phase)


def test_a_head_start_is_the_programs_time_and_no_overhead(clock: ScriptedClock, desk: Desk) -> None:
    clock.advance(10)
    SimulatedRun("overhead", head_start=4.0, clock=clock, sender=desk).finish()
    report = desk.newest
    assert report.phases["initialization"].seconds == 4
    assert report.counters["shim_overhead_seconds"] == 0
