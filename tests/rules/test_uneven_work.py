"""Uneven work by step: estimated from the variance of own work within each rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from stallscope.training.shim.own_work import OwnWork
from stallscope.training.shim.slow_steps import SlowSteps
from tests.rules.rulebook import TARGET, Rulebook, Story, gpu, growing, rank, series

SHARE = "run:uneven_work:ratio5m"
RUN_VERDICT = "run:verdict:ratio5m"
COST = "run_cause:time_lost:ratio5m"
Floats = NDArray[np.float64]
STEPS = 300


WORK = {"own": 0.7, "uneven": 0.050, "even": 0.014}
"""Own work that varies by 0.22 of a second, which the covariance shows as 0.19."""


def member(
    number: int,
    phases: Mapping[str, float],
    work: Mapping[str, float] = WORK,
    *,
    steps: float = 1.0,
    run: str = "train",
) -> Story:
    """A rank that makes a step a second, or `steps`."""
    labels = {**TARGET, "run": run, "rank": str(number)}
    names = {"own": "own_work_seconds", "uneven": "uneven_work_square_seconds", "even": "even_work_square_seconds"}
    return [
        *rank(number, run=run, phases=phases, steps=growing(steps), gpus=()),
        *(series(f"stallscope_training_{names[key]}_total", growing(rate), **labels) for key, rate in work.items()),
    ]


def together(
    phases: Mapping[str, float], work: Mapping[str, float] = WORK, *, ranks: int = 4, steps: float = 1.0
) -> Story:
    return [each for number in range(ranks) for each in member(number, phases, work, steps=steps)]


@pytest.mark.parametrize(
    ("phases", "percent"),
    [
        pytest.param({"backward": 0.4, "communication": 0.3}, 27, id="communication is measured"),
        pytest.param(
            {"backward": 0.4, "communication": 0.2, "host_copy": 0.1}, 20, id="ranks wait no longer than that"
        ),
        pytest.param({"backward": 0.7}, 27, id="communication is not measured"),
    ],
)
def test_ranks_wait_for_the_one_with_the_most_work(
    rulebook: Rulebook, phases: Mapping[str, float], percent: int
) -> None:
    story = together(phases)
    rulebook.check_percent(story, SHARE, [({"run": "train"}, percent)])
    rulebook.check_percent(story, RUN_VERDICT, [({"run": "train", "cause": "uneven_work"}, percent)])


def test_communication_is_what_remains(rulebook: Rulebook) -> None:
    story = together({"backward": 0.3, "communication": 0.5}, {"own": 0.5, "uneven": 0.036, "even": 0.0})
    expected = [({"run": "train", "cause": "uneven_work"}, 28), ({"run": "train", "cause": "comm_bound"}, 22)]
    rulebook.check_percent(story, f'{COST}{{cause=~"uneven_work|comm_bound"}}', expected)


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(together({"backward": 0.7}, ranks=1), id="one rank"),
        pytest.param(together({"backward": 0.7}, {**WORK, "even": 0.05}), id="all ranks vary alike"),
        pytest.param(together({"backward": 0.7}, steps=0.02), id="few steps"),
        pytest.param([each for number in range(4) for each in rank(number, gpus=())], id="own work is unknown"),
    ],
)
def test_there_is_none_without_evidence(rulebook: Rulebook, story: Story) -> None:
    rulebook.check(story, {SHARE: [], f'{COST}{{cause="uneven_work"}}': []})


def test_own_work_that_is_counted_late_makes_communication_no_longer_than_it_is(rulebook: Rulebook) -> None:
    story = together({"backward": 0.7, "communication": 0.3}, {**WORK, "own": 1.7})
    rulebook.check_percent(story, f'{COST}{{cause="comm_bound"}}', [({"run": "train", "cause": "comm_bound"}, 30)])


def test_the_wait_for_one_slow_rank_is_no_uneven_work(rulebook: Rulebook) -> None:
    waits = [each for number in (1, 2, 3) for each in member(number, {"backward": 0.3, "communication": 0.3})]
    found = f'({COST}{{cause=~"straggler_rank|uneven_work"}} > bool 0.1)'
    expected = [({"run": "train", "cause": "straggler_rank"}, 1.0)]
    rulebook.check(member(0, {"backward": 0.3, "communication": 0.01}) + waits, {found: expected})


def test_uneven_work_explains_slow_steps(rulebook: Rulebook) -> None:
    slow = {"slow_steps": 0.1, "slow_step_excess_seconds": 0.08}
    for uneven, causes in ((0.050, ["uneven_work"]), (0.014, ["step_outliers"])):
        story = together({"backward": 0.4, "communication": 0.3}, {**WORK, "uneven": uneven})
        story += [
            series(f"stallscope_training_{name}_total", growing(value), **TARGET, run="train", rank=str(number))
            for name, value in slow.items()
            for number in range(4)
        ]
        found = f'count by (run, cause) ({COST}{{cause=~"uneven_work|step_outliers"}})'
        rulebook.check(story, {found: [({"run": "train", "cause": cause}, 1) for cause in causes]})


def _counted(own: Floats, run: str) -> Story:
    """Return what the shim counts of steps with this own work of each rank."""
    length = own.max(axis=1) + 0.05
    rate = 1 / float(length.mean())
    slow = SlowSteps(deque())
    for place, seconds in enumerate(length):
        slow.durations.append(float(seconds))
        if place % 10 == 9:
            slow.judge()
    story: Story = []
    for number in range(own.shape[1]):
        counted = OwnWork()
        for work, whole in zip(own[:, number], length, strict=True):
            counted.add(float(work), float(whole))
        share = float(own[:, number].sum() / length.sum())
        totals = {"own": counted.seconds, "uneven": counted.uneven, "even": counted.even}
        story += member(
            number,
            {"backward": 0.6 * share, "communication": 1 - share},
            {key: rate * total / STEPS for key, total in totals.items()},
            run=run,
            steps=rate,
        )
        for name, total in {"slow_steps": slow.count, "slow_step_excess_seconds": slow.excess}.items():
            growth = growing(rate * total / STEPS)
            story.append(series(f"stallscope_training_{name}_total", growth, **TARGET, run=run, rank=str(number)))
    return story


def test_rare_pauses_are_no_uneven_work(rulebook: Rulebook) -> None:
    draw = np.random.default_rng(40)
    paused = 1 + 0.01 * draw.standard_normal((STEPS, 8))
    paused[7::13, :] += 1.5 * np.eye(8)[draw.integers(8, size=len(paused[7::13]))]  # one rank in each 13th step
    worlds = {
        "paused": (paused, "step_outliers"),
        "uneven": (_lognormal(draw, 8, 0.4), "uneven_work"),
        "uneven, of 2": (_lognormal(draw, 2, 0.5), "uneven_work"),
    }
    story = [each for run, (own, _) in worlds.items() for each in _counted(own, run)]
    found = f'count by (run, cause) ({COST}{{cause=~"uneven_work|step_outliers"}})'
    rulebook.check(story, {found: [({"run": run, "cause": cause}, 1) for run, (_, cause) in worlds.items()]})


def test_an_old_shim_has_no_counters_and_keeps_its_verdict(rulebook: Rulebook) -> None:
    story = [
        each
        for number in range(2)
        for each in rank(number, phases={"backward": 0.4, "communication": 0.3}, gpus=()) + gpu(number)
    ]
    rulebook.check_percent(story, f'{COST}{{cause="comm_bound"}}', [({"run": "train", "cause": "comm_bound"}, 30)])


def _lognormal(draw: np.random.Generator, ranks: int, spread: float) -> Floats:
    deviation = np.sqrt(np.log1p(spread**2))
    return draw.lognormal(-(deviation**2) / 2, deviation, (STEPS, ranks))


def _worlds() -> dict[str, tuple[Floats, Floats]]:
    """Own work of each step and rank, and seconds of the collective."""
    draw = np.random.default_rng(39)
    steady = np.full((STEPS, 1), 0.05)
    logging = 1 + 0.02 * draw.standard_normal((STEPS, 8))
    logging[::20, 0] += 3
    return {
        "sequences of 2 ranks": (0.3 + 0.7 * _lognormal(draw, 2, 0.5), steady),
        "sequences of 8 ranks": (_lognormal(draw, 8, 0.4), steady),
        "sequences of 32 ranks": (_lognormal(draw, 32, 0.3), steady),
        "cut sequences": (np.minimum(_lognormal(draw, 16, 0.6), 2.0), steady),
        "experts": (0.5 + 0.5 * draw.gamma(4, 0.25, (STEPS, 8)), 2 * steady),
        "sequences over a slow network": (_lognormal(draw, 8, 0.3), 0.4 * _lognormal(draw, 1, 0.3)),
        "a slow network": (1 + 0.02 * draw.standard_normal((STEPS, 8)), 0.5 * _lognormal(draw, 1, 0.6)),
        "equal lengths in a step": (_lognormal(draw, 1, 0.5) * (1 + 0.01 * draw.standard_normal((STEPS, 8))), steady),
        "logging on rank 0": (logging, steady),
    }


def test_the_estimate_is_within_five_points_of_the_truth(rulebook: Rulebook) -> None:
    story: Story = []
    expected = []
    for run, (own, network) in _worlds().items():
        longest = own.max(axis=1, keepdims=True)
        length = longest + network
        lost = (longest - own).mean() / length.mean()
        # Logging on one rank is a straggler's.
        truth = 0.0 if run == "logging on rank 0" else lost
        expected.append((run, truth))
        for number in range(own.shape[1]):
            counted = OwnWork()
            for work, whole in zip(own[:, number], length[:, 0], strict=True):
                counted.add(work, whole)
            rate = 1 / float(length.mean())
            share = float(own[:, number].sum() / length.sum())
            work = {"own": counted.seconds, "uneven": counted.uneven, "even": counted.even}
            rates = {key: rate * total / STEPS for key, total in work.items()}
            phases = {"backward": 0.6 * share, "communication": 1 - share}
            story += member(number, phases, rates, run=run, steps=rate)
    found = " or ".join(
        f'(abs(({SHARE}{{run="{run}"}} or 0 * run:ranks:count{{run="{run}"}}) - {truth}) < bool 0.05)'
        for run, truth in expected
    )
    rulebook.check(story, {found: [({"run": run}, 1) for run, _ in expected]})
