"""The conditions of causes are those of the rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from stallscope.model.catalogue.causes import CAUSES, Domain
from stallscope.model.catalogue.conditions import (
    CONDITIONS,
    GENERAL,
    GPU_SIDE,
    SIGNALS,
    UNUSED,
    USED,
    Condition,
    general_of,
)
from stallscope.model.view.gpu_explanation import NOT_SERVED

RULES = Path(__file__).parents[2] / "prometheus" / "rules"
ALL = [(cause, each) for cause, conditions in CONDITIONS.items() for each in conditions]


ALSO_IN: Mapping[Domain, tuple[str, ...]] = {"time": ("signals", "steps"), "hardware": ("limits", "xid")}
"""Files that hold a part of the rules of a domain."""


@cache
def text(*names: str) -> str:
    """Return the text of rule files with single spaces."""
    return " ".join(" ".join((RULES / f"{name}.yml").read_text(encoding="utf-8").split()) for name in names)


def recording(series: str, rules: str) -> str:
    """Return the rules that record a series, and those that record what they read."""
    by_name: dict[str, str] = {}
    for each in rules.split("- record: "):
        name = each.partition(" ")[0]
        by_name[name] = by_name.get(name, "") + each
    own = by_name.get(series, "")
    return " ".join([own, *(rule for name, rule in by_name.items() if ":" in name and f"{name} " in own)])


def is_recorded(condition: Condition, rules: str) -> bool:
    """Return whether the rule of the series makes the comparison, with the threshold of the condition."""
    limit = re.fullmatch(r'([<>]=?) (?:scalar\(stallscope:threshold{name="(\w+)"}\)|([\d.]+))', condition.recorded)
    threshold: str | float | None = None
    if limit is not None:
        threshold = limit[2] or float(limit[3]) + (limit[1] == ">")  # constants are counts if more is required
        assert condition.below == limit[1].startswith("<")
    return condition.threshold == threshold and condition.recorded in recording(condition.series, rules)


def is_compared(condition: Condition, rules: str) -> bool:
    """Return whether the rules make the comparison, or exclude what does not meet the condition.

    The series may be the last of several in parentheses, such as that of a young GPU.
    """
    if condition.recorded:
        return is_recorded(condition, rules)
    threshold = condition.threshold
    assert threshold is not None
    level = (
        rf'scalar\(stallscope:threshold{{name="{threshold}"}}\)'
        if isinstance(threshold, str)
        else re.escape(f"{threshold:g}") + ("0?" if threshold < 1 else "")
    )
    required, excluded = ("<", ">=?") if condition.below else (">=?", "<")

    def made(operator: str) -> str:
        return rf"{re.escape(condition.series)}\)? {operator} (?:bool )?{level}(?![\w.])"

    unless = r"unless (?:on \([\w, ]*\) )?"
    if SIGNALS[condition.series].is_time:
        since = rf"{'>' if condition.below else '<='} time\(\) - {level}"
        own = recording(condition.series, rules)
        return bool(re.search(rf"{condition.series} {since}", rules) or re.search(rf"\) {since}", own))
    return bool(re.search(made(required), rules) or re.search(unless + made(excluded), rules))


@pytest.mark.parametrize(("cause", "condition"), ALL, ids=[f"{cause}-{each.series}" for cause, each in ALL])
def test_a_condition_is_a_comparison_in_the_rules(cause: str, condition: Condition) -> None:
    domain = CAUSES[cause].domain
    assert is_compared(condition, text(domain, *ALSO_IN.get(domain, ())))


@pytest.mark.parametrize("condition", GPU_SIDE, ids=[each.series for each in GPU_SIDE])
def test_the_gpu_side_is_not_judged_under_these_conditions(condition: Condition) -> None:
    assert is_compared(condition, text("device"))


def test_a_held_gpu_without_a_run_has_enough_evidence_under_this_condition() -> None:
    assert is_compared(USED, text("verdicts"))
    assert all(CAUSES[each].domain == "use" for each in UNUSED)


def test_the_rules_except_the_gpus_of_inference_servers_from_these_causes() -> None:
    served = "unless on (cluster, job, instance, gpu, uuid, mig) serving_gpu:server:info"
    rules = text("use").split("- record: ")
    signals = [each.partition(" ")[0] for each in rules if each.startswith("gpu:") and served in each]
    found = set()
    for rule in rules:
        cause = re.match(r"pair_cause:time_lost:ratio5m labels: {cause: (\w+)", rule)
        if cause and any(each in rule for each in (served, *signals)):
            found.add(cause[1])
    assert found == {*NOT_SERVED}


def test_a_comparison_that_no_rule_makes_is_found() -> None:
    busy = "host:cpu_busy:ratio1m"
    assert is_compared(Condition(busy, "cpu_saturated"), text("input"))
    assert not is_compared(Condition(busy, "cpu_saturated", below=True), text("input"))
    assert not is_compared(Condition(busy, "network_high"), text("input"))
    assert not is_compared(Condition(busy, 0.31, below=True), text("input"))
    sharers, idle = "gpu:sharers:count", "gpu:last_use:timestamp_seconds"
    assert is_compared(Condition(sharers, 2, recorded="> 1"), text("use"))
    assert not is_compared(Condition(sharers, 3, recorded="> 2"), text("use"))
    assert not is_compared(Condition(sharers, 3, recorded="> 1"), text("use"))
    assert not is_compared(Condition(idle, "idle_seconds", below=True), text("use"))
    assert not is_compared(Condition(idle, "idle_busy"), text("use"))


def test_every_signal_is_recorded_and_read_by_a_condition() -> None:
    recorded = text(*(path.stem for path in RULES.glob("*.yml")))
    assert [name for name in SIGNALS if f"record: {name} " not in recorded] == []
    assert SIGNALS.keys() == {each.series for each in (*(each for _, each in ALL), *GPU_SIDE, USED)}
    assert [name for name, signal in SIGNALS.items() if len(signal.words) > 27] == []


def test_a_reason_has_the_general_cause_of_its_own_kind() -> None:
    assert general_of("input_few_workers") == "input_bound"
    assert general_of("hang_spin") == "stalled"
    assert general_of("straggler_hw") == "straggler_rank"
    assert general_of("power_brake") is None
    assert [general_of(cause) for cause in GENERAL] == [None] * len(GENERAL)
