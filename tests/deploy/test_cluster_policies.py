"""Comparison of what pods can do in the test of a cluster with what the policies permit."""

from __future__ import annotations

import pytest

from tests.deploy.cluster_policies import CLIENTS, Access, differences

PERMITTED = {client: Access(client.may_scrape, client.may_report) for client in CLIENTS}


def test_what_is_permitted_is_no_problem() -> None:
    assert differences(PERMITTED) == []


@pytest.mark.parametrize(
    ("number", "access", "problem"),
    [
        (0, Access(False, False), "stallscope-policies-prometheus cannot read the metrics page"),
        (1, Access(True, False), "stallscope-policies-other can read the metrics page"),
        (3, Access(False, True), "pod stallscope-steps/open can report"),
        (4, Access(False, False), "pod training/stallscope-policies-rank cannot report"),
    ],
)
def test_more_or_less_than_is_permitted_is_a_problem(number: int, access: Access, problem: str) -> None:
    (found,) = differences({**PERMITTED, CLIENTS[number]: access})
    assert found.endswith(problem)
