"""Batches that are late on another rank in each step: the others wait for them in communication."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stallscope.training.shim.own_work import OwnWork
from tests.rules.rulebook import TARGET, Rulebook, Story, growing, rank, scrapes, series

Floats = NDArray[np.float64]
SHARE = "run:late_batch:ratio5m"
COST = "run_cause:time_lost:ratio5m"
STEPS = 600


def by_turns(draw: np.random.Generator, ranks: int, delay: float) -> Floats:
    """The batch of one rank is late in each step."""
    late = np.zeros((STEPS, ranks))
    late[np.arange(STEPS), draw.integers(ranks, size=STEPS)] = delay
    return late


def now_and_then(draw: np.random.Generator, ranks: int, chance: float, delay: float, tail: float = 0.0) -> Floats:
    """Each rank's batch is late with that chance, by at least that delay where there is a tail."""
    late = np.full((STEPS, ranks), delay)
    if tail:
        late *= 1 + draw.pareto(tail, late.shape)
    late[draw.random(late.shape) >= chance] = 0.0
    return late


def trained(
    run: str, waits: Floats, work: Floats, network: Floats, *, hook: bool = True, old_shim: bool = False
) -> tuple[Story, float]:
    """Return the series of a run with these data waits and this own work, and the share that ranks wait for others."""
    ended = (waits + work).max(axis=1, keepdims=True)
    length = ended + network
    rate = 1 / float(length.mean())
    story: Story = []
    for number in range(waits.shape[1]):
        counted = OwnWork()
        for wait, own, whole in zip(waits[:, number], work[:, number], length[:, 0], strict=True):
            if hook:
                counted.add(own, whole - wait, waited=wait)
            else:
                counted.add_forward(own / 3, whole - wait, waited=wait)
        shares = {"data_wait": waits[:, number], "backward": 2 / 3 * work[:, number]}
        rest = length[:, 0] - waits[:, number] - work[:, number]
        shares["communication" if hook else "backward"] = rest if hook else rest + shares["backward"]
        phases = {phase: float(seconds.sum() / length.sum()) for phase, seconds in shares.items()}
        wait = phases.pop("data_wait")
        labels: dict[str, Any] = {**TARGET, "run": run, "rank": str(number)}
        story += rank(number, run=run, wait=wait, phases=phases, steps=growing(rate), gpus=())
        for name, total in counted.counters().items():
            if not (old_shim and name.startswith("late_batch")):
                story.append(series(f"stallscope_training_{name}_total", growing(rate * total / STEPS), **labels))
    lost = float((ended.mean() - work.max(axis=1).mean() - waits.mean()) * rate)
    return story, lost


def labelled(story: Story, *, changes: float) -> Story:
    """Return the series with a further target label that changes its value in that minute."""
    place = scrapes(changes)
    found: Story = []
    for name, values in story:
        first, step, count = map(float, re.split("[+x]", values))
        later = f"_x{place} {first + step * place:.10g}+{step:g}x{count - place:g}"
        found += [
            (name.replace("}", ',pod="old"}'), f"{first:.10g}+{step:g}x{place - 1} stale"),
            (name.replace("}", ',pod="new"}'), later),
        ]
    return found


def _steady(ranks: int) -> tuple[Floats, Floats]:
    draw = np.random.default_rng(40)
    return 0.5 + 0.005 * draw.standard_normal((STEPS, ranks)), 0.05 * draw.lognormal(0, 0.1, (STEPS, 1))


def _worlds() -> Mapping[str, tuple[Floats, bool]]:
    draw = np.random.default_rng(39)
    return {
        "by turns, of 4": (by_turns(draw, 4, 0.3), True),
        "by turns, of 16": (by_turns(draw, 16, 0.3), True),
        "by turns, not measured": (by_turns(draw, 8, 0.2), False),
        "by chance": (now_and_then(draw, 8, 0.1, 0.3), True),
        "heavy tail": (now_and_then(draw, 8, 0.1, 0.15, 2.5), True),
        "heavy tail, not measured": (now_and_then(draw, 16, 0.05, 0.15, 2.5), False),
        "all ranks wait": (draw.exponential(0.1, (STEPS, 8)), True),
    }


def test_the_wait_for_late_batches_is_within_three_points_of_the_truth(rulebook: Rulebook) -> None:
    story: Story = []
    near, verdicts = [], []
    for run, (late, hook) in _worlds().items():
        found, lost = trained(run, late, *_steady(late.shape[1]), hook=hook)
        story += found
        near.append(f'(abs({SHARE}{{run="{run}"}} - {lost}) < bool 0.03)')
        verdicts.append(({"run": run, "cause": "input_bound"}, 1))
    rulebook.check(
        story,
        {
            " or ".join(near): [({"run": run}, 1) for run in _worlds()],
            "count by (run, cause) (run:verdict:ratio5m)": verdicts,
            f'{COST}{{cause="comm_bound"}} > 0.1': [],
        },
    )


def test_communication_with_equal_data_waits_is_communication(rulebook: Rulebook) -> None:
    draw = np.random.default_rng(41)
    work, network = _steady(4)
    worlds = {
        "steady waits": np.full((STEPS, 4), 0.03),
        "waits of all ranks at once": np.repeat(now_and_then(draw, 1, 0.1, 0.2), 4, axis=1),
        "short waits by chance": draw.exponential(0.004, (STEPS, 4)),
    }
    story = [each for run, waits in worlds.items() for each in trained(run, waits, work, 6 * network)[0]]
    expected = [({"run": run, "cause": "comm_bound"}, 1) for run in worlds]
    rulebook.check(story, {f"({SHARE} > 0.03)": [], "count by (run, cause) (run:verdict:ratio5m)": expected})


@pytest.mark.parametrize(("changes", "at"), [(18, "20m"), (2.5, "5m")], ids=["later", "in the first minutes"])
def test_while_a_target_label_changes_equal_data_waits_are_no_late_batches(
    changes: float, at: str, rulebook: Rulebook
) -> None:
    work, network = _steady(4)
    waits = np.repeat(now_and_then(np.random.default_rng(44), 1, 0.1, 0.2), 4, axis=1)
    runs = {"measured": True, "not measured": False}
    story = [
        each
        for run, hook in runs.items()
        for each in labelled(trained(run, waits, work, 6 * network, hook=hook)[0], changes=changes)
    ]
    both = [({"run": run}, 1) for run in runs]
    expected = {
        "count by (run) (run:late_batch_rest:ratio5m)": both,
        f"{SHARE} > 0.03": [],
        'run:verdict:ratio5m{cause="input_bound"}': [],
    }
    rulebook.check(story, expected, at=at)


def test_uneven_work_is_uneven_work_where_long_sequences_also_take_longer_to_load(rulebook: Rulebook) -> None:
    work = 0.5 * np.random.default_rng(42).lognormal(-0.06, 0.35, (STEPS, 8))
    story, _ = trained("train", 0.03 * work, work, _steady(8)[1])
    rulebook.check(story, {"count by (cause) (run:verdict:ratio5m)": [({"cause": "uneven_work"}, 1)]})


def test_the_late_batches_of_one_rank_are_a_straggler_s(rulebook: Rulebook) -> None:
    waits = np.full((STEPS, 4), 0.002)
    waits[:, 3] = 0.2
    story, _ = trained("train", waits, *_steady(4))
    rulebook.check(
        story, {"count by (cause) (run:verdict:ratio5m)": [({"cause": "straggler_input"}, 1)], f"{SHARE} > 0.02": []}
    )


def test_an_old_shim_has_no_counters_and_keeps_its_verdict(rulebook: Rulebook) -> None:
    late = by_turns(np.random.default_rng(43), 4, 0.2)
    story, _ = trained("train", late, *_steady(4), old_shim=True)
    rulebook.check(story, {SHARE: [], "count by (cause) (run:verdict:ratio5m)": [({"cause": "comm_bound"}, 1)]})
