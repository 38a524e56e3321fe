"""No metric family that is missing makes the rules name another specific cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import count

import pytest

from stallscope.model.catalogue.causes import CAUSES
from tests.scenarios import absence
from tests.scenarios.absence import Finding, Trial
from tests.scenarios.case import Case

pytestmark = [pytest.mark.nightly, pytest.mark.slow(90), pytest.mark.timeout(600)]
_FURTHER = frozenset(["stalled", "callback_stall", "small_batch", "gpu_mem_fragmented"])
_CAUSES = [cause for cause in absence.representatives() if CAUSES[cause].domain == "input" or cause in _FURTHER]
"""Causes that claim that there is room, or that are distinguished by what else has room. All others take ten times as
long: `python -m tests.scenarios absence` tries them, and takes every family from every case."""
_FEW_WORKERS = "input_few_workers"
_READ_BY_MOST = 12
"""Cases that a family is common to: it is taken away from every sixth of them."""


@pytest.fixture(scope="module")
def found() -> Mapping[Trial, frozenset[Finding]]:
    of_each_case = [
        absence.without_each(absence.representatives()[cause], absence.inputs(cause)) for cause in _CAUSES
    ] + [
        absence.without_each(case, absence.inputs(case.cause) | absence.inputs(_FEW_WORKERS))
        for case in absence.with_one_worker()
    ]
    cases = Counter(trial.family for trials in of_each_case for trial in trials)
    turns = {family: count(position) for position, family in enumerate(sorted(cases))}
    return absence.findings(
        trial
        for trials in of_each_case
        for trial in trials
        if not trial.family or cases[trial.family] < _READ_BY_MOST or next(turns[trial.family]) % 6 == 0
    )


@pytest.mark.parametrize("cause", _CAUSES)
def test_without_a_family_that_a_cause_reads_no_other_cause_is_named(
    cause: str, found: Mapping[Trial, frozenset[Finding]]
) -> None:
    _check(absence.representatives()[cause], found)


@pytest.mark.parametrize("case", absence.with_one_worker(), ids=lambda case: case.name)
def test_few_workers_do_not_replace_a_cause_that_is_no_longer_seen(
    case: Case, found: Mapping[Trial, frozenset[Finding]]
) -> None:
    _check(case, found)


def _check(case: Case, found: Mapping[Trial, frozenset[Finding]]) -> None:
    of_case = {trial: named for trial, named in found.items() if trial.case is case}
    assert len(of_case) > 1
    assert not absence.complaints(of_case)


def test_inputs_are_followed_through_recorded_series() -> None:
    few = absence.inputs(_FEW_WORKERS)
    assert {"stallscope_training_dataloader_workers", "stallscope_host_cpus", "stallscope_gpu_up"} <= few
    assert "stallscope_gpu_temperature_celsius" not in few
    assert all(absence.inputs(cause) for cause in absence.representatives())


def test_another_specific_cause_is_wrong_and_its_parent_is_not() -> None:
    case = absence.representatives()[_FEW_WORKERS]
    complete = [Finding("run:verdict:ratio5m", _FEW_WORKERS)]

    def wrong(cause: str, family: str = "stallscope_host_cpus") -> list[str]:
        return absence.wrong(Trial(case, family), complete, [Finding("run:verdict:ratio5m", cause)])

    assert not wrong(_FEW_WORKERS)
    assert not wrong("input_bound")
    assert wrong("input_disk_bound") == ["run:verdict:ratio5m: input_disk_bound"]
    assert wrong("underused")
    assert not wrong("underused", "stallscope_training_rank_gpu_info")
