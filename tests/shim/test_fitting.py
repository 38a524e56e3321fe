"""Fields that are dropped from an oversized report, and fields that are always kept."""

from __future__ import annotations

from typing import Any

import pytest

from stallscope.training.protocol.report import from_document, parse
from stallscope.training.protocol.vocabulary import MAX_BYTES, MAX_GPUS, MAX_PHASES, MAX_VALUES, STEP_BUCKET_COUNT
from stallscope.training.shim.fitting import fit
from stallscope.training.shim.timeline import OUTSIDE_PHASES, STEP_PHASES

LONG = "𝄞" * 120


def document(values: int, phases: int, gpus: int, name: str = LONG) -> dict[str, Any]:
    reported = [*STEP_PHASES, *OUTSIDE_PHASES]
    reported += [f"{name}{number}" for number in range(phases - len(reported))]
    return {
        "version": 1,
        "run": name,
        "rank": 3,
        "session": "s",
        "sequence": 9,
        "pid": 1,
        "start": 1.7e9,
        "sent": 1.7e9,
        "state": "running",
        "activity": "training",
        "info": {"hostname": name, "user": name},
        "gpus": [{"gpu": str(number), "uuid": f"GPU-{number:036}"} for number in range(gpus)],
        "step_seconds": {"counts": [10**9] * STEP_BUCKET_COUNT, "sum": 1e9, "count": 10**9 * STEP_BUCKET_COUNT},
        "phases": {each: {"seconds": 2.0, "occurrences": 3, "max": 0.5} for each in reported},
        "values": {f"{name}{number}": 0.123456 for number in range(values)},
        "dropped": {},
    }


def test_the_largest_report_of_a_rank_fits_under_plain_names() -> None:
    whole = document(MAX_VALUES, MAX_PHASES, MAX_GPUS, "n" * 120)
    payload, shortened = fit(whole)
    assert not shortened
    assert parse(payload) == from_document(whole)


def test_lines_of_code_go_before_values() -> None:
    lines = [{"location": f"{LONG}:{number}", "function": LONG, "seconds": 1.0} for number in range(5)]
    whole = {**document(8, 20, 8), "code": {"data_wait": lines, "other": lines}}
    report = parse(fit(whole)[0])
    assert len(report.values) == 8
    assert len(report.code) < 2


def test_values_go_first_and_the_newest_of_them() -> None:
    payload, shortened = fit(document(MAX_VALUES, 20, 8))
    report = parse(payload)
    assert shortened
    assert 0 < len(report.values) < MAX_VALUES
    assert list(report.values) == [f"{LONG}{number}" for number in range(len(report.values))]
    assert len(report.phases) == 20


def test_phases_of_the_user_go_next_and_their_time_stays() -> None:
    whole = document(MAX_VALUES, MAX_PHASES, MAX_GPUS)
    whole["phases"][f"{LONG}20"]["max"] = 7.0
    report = parse(fit(whole)[0])
    assert not report.values
    assert set(report.phases) >= {*STEP_PHASES, *OUTSIDE_PHASES}
    assert len(report.phases) < MAX_PHASES
    assert sum(phase.seconds for phase in report.phases.values()) == 2.0 * MAX_PHASES
    assert report.phases["other"].max == 7.0
    assert (report.step_seconds, report.run) == (from_document(whole).step_seconds, LONG)


def test_what_is_left_out_stays_out_while_numbers_grow() -> None:
    whole = document(MAX_VALUES, MAX_PHASES, MAX_GPUS)
    kept = set(parse(fit(whole)[0]).phases)
    for phase in whole["phases"].values():
        phase["seconds"] = 123456.789012
    assert set(parse(fit(whole)[0]).phases) == kept


def test_a_limit_that_only_gpus_can_meet_leaves_the_first_ones() -> None:
    whole = document(0, 11, MAX_GPUS)
    report = parse(fit(whole, 5000)[0])
    assert [gpu.gpu for gpu in report.gpus[:8]] == [str(number) for number in range(8)]
    assert len(report.gpus) < MAX_GPUS


@pytest.mark.parametrize("longest", [10, 2000])
def test_what_can_not_be_shortened_enough_ends_as_it_is(longest: int) -> None:
    payload, shortened = fit(document(3, 12, 9), longest)
    assert shortened
    assert longest < len(payload) <= MAX_BYTES
