"""The conditions of causes are those of the rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from stallscope.model.catalogue.causes import CAUSES, Domain
from stallscope.model.catalogue.conditions import CONDITIONS, GENERAL, GPU_SIDE, SIGNALS, Condition, general_of

RULES = Path(__file__).parents[2] / "prometheus" / "rules"
ALL = [(cause, each) for cause, conditions in CONDITIONS.items() for each in conditions]


ALSO_IN: Mapping[Domain, tuple[str, ...]] = {"time": ("signals", "steps"), "hardware": ("limits",)}
"""Files that hold a part of the rules of a domain."""


@cache
def text(*names: str) -> str:
    """Return the text of rule files with single spaces."""
    return " ".join(" ".join((RULES / f"{name}.yml").read_text(encoding="utf-8").split()) for name in names)


def is_compared(condition: Condition, rules: str) -> bool:
    """Return whether the rules make the comparison, or exclude what does not meet the condition.

    The series may be the last of several in parentheses, such as that of a young GPU.
    """
    threshold = condition.threshold
    level = (
        rf'scalar\(stallscope:threshold{{name="{threshold}"}}\)'
        if isinstance(threshold, str)
        else re.escape(f"{threshold:.2f}" if threshold < 1 else f"{threshold:g}")
    )
    required, excluded = ("<", ">=?") if condition.below else (">=?", "<")

    def made(operator: str) -> str:
        return rf"{re.escape(condition.series)}\)? {operator} (?:bool )?{level}(?![\w.])"

    unless = r"unless (?:on \([\w, ]*\) )?"
    return bool(re.search(made(required), rules) or re.search(unless + made(excluded), rules))


@pytest.mark.parametrize(("cause", "condition"), ALL, ids=[f"{cause}-{each.series}" for cause, each in ALL])
def test_a_condition_is_a_comparison_in_the_rules(cause: str, condition: Condition) -> None:
    domain = CAUSES[cause].domain
    assert is_compared(condition, text(domain, *ALSO_IN.get(domain, ())))


@pytest.mark.parametrize("condition", GPU_SIDE, ids=[each.series for each in GPU_SIDE])
def test_the_gpu_side_is_not_judged_under_these_conditions(condition: Condition) -> None:
    assert is_compared(condition, text("device"))


def test_a_comparison_that_no_rule_makes_is_found() -> None:
    busy = "host:cpu_busy:ratio1m"
    assert is_compared(Condition(busy, "cpu_saturated"), text("input"))
    assert not is_compared(Condition(busy, "cpu_saturated", below=True), text("input"))
    assert not is_compared(Condition(busy, "network_high"), text("input"))
    assert not is_compared(Condition(busy, 0.31, below=True), text("input"))


def test_every_signal_is_recorded_and_read_by_a_condition() -> None:
    recorded = text(*(path.stem for path in RULES.glob("*.yml")))
    assert [name for name in SIGNALS if f"record: {name} " not in recorded] == []
    assert SIGNALS.keys() == {each.series for _, each in ALL} | {each.series for each in GPU_SIDE}
    assert [name for name, signal in SIGNALS.items() if len(signal.words) > 27] == []


def test_a_reason_has_the_general_cause_of_its_own_kind() -> None:
    assert general_of("input_few_workers") == "input_bound"
    assert general_of("hang_spin") == "stalled"
    assert general_of("straggler_hw") == "straggler_rank"
    assert general_of("power_brake") is None
    assert [general_of(cause) for cause in GENERAL] == [None] * len(GENERAL)
