"""Verdicts are printed once they are stable, and again once they have changed by a quarter."""

from __future__ import annotations

from stallscope.lab.stack.verdict_log import STABLE_SECONDS, VerdictLog
from stallscope.model.view.verdicts import Culprit, Verdict


def printed(log: VerdictLog, *verdicts: Verdict, start: float = 0.0) -> list[Verdict]:
    """Return what is printed of the successive verdicts on a run, two seconds apart."""
    found = []
    for place, verdict in enumerate(verdicts):
        found += [each for _, each in log.due({"resnet": verdict}, start + 2.0 * place)]
    return found


STEADY = int(STABLE_SECONDS / 2) + 2


def test_a_steady_verdict_is_printed_once() -> None:
    assert printed(VerdictLog(), *[Verdict("input_bound", 0.5)] * 50) == [Verdict("input_bound", 0.5)]


def test_a_verdict_is_not_printed_while_its_share_grows() -> None:
    growing = [Verdict("thermal_throttle", 0.03 * 1.4**step) for step in range(9)]
    final = [Verdict("thermal_throttle", 0.5)] * STEADY
    assert printed(VerdictLog(), *growing, *final) == [Verdict("thermal_throttle", 0.5)]


def test_a_share_that_has_changed_by_a_quarter_is_printed_again_and_a_smaller_change_is_not() -> None:
    log = VerdictLog()
    shares = [0.4] * STEADY + [0.48] * STEADY + [0.52] * STEADY + [0.3] * STEADY
    assert [each.share for each in printed(log, *[Verdict("input_bound", share) for share in shares])] == [
        0.4,
        0.52,
        0.3,
    ]


def test_a_change_below_two_percent_of_time_is_not_printed() -> None:
    shares = [0.01] * STEADY + [0.025] * STEADY
    assert len(printed(VerdictLog(), *[Verdict("input_bound", share) for share in shares])) == 1


def test_a_verdict_that_alternates_is_not_printed() -> None:
    two = [Verdict("input_bound", 0.2), Verdict("comm_bound", 0.2)]
    assert printed(VerdictLog(), *two * 20) == []


def test_another_rank_to_blame_is_printed_and_another_address_of_it_is_not() -> None:
    first, moved, other = (
        Verdict("straggler_hw", 0.2, culprit=Culprit(rank, instance, "1", "", "thermal_throttle"))
        for rank, instance in (("3", "a:1"), ("3", "b:1"), ("4", "b:1"))
    )
    assert printed(VerdictLog(), *[first] * STEADY, *[moved] * STEADY, *[other] * STEADY) == [first, other]


def test_missing_data_is_printed_only_where_a_verdict_ends() -> None:
    missing, healthy = Verdict("insufficient_data", 0.0), Verdict("healthy", 0.0)
    assert printed(VerdictLog(), *[missing] * STEADY) == []
    assert printed(VerdictLog(), *[healthy] * STEADY, *[missing] * STEADY) == [healthy, missing]


def test_runs_are_independent() -> None:
    log = VerdictLog()
    both = {"a": Verdict("healthy", 0.0), "b": Verdict("input_bound", 0.3)}
    assert list(log.due(both, 0.0)) == []
    assert dict(log.due(both, STABLE_SECONDS)) == both
