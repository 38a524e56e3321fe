"""When the local stack counts as working."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler

import pytest

from stallscope.lab.stack.readiness import rules
from stallscope.model.clients.prometheus import Prometheus
from tests.handled import handled, reply


def said_of(frequent: list[str], rare: list[str]) -> str | None:
    """Return the status text for rules with the given health, evaluated every five seconds and once a minute."""
    groups = [
        {
            "interval": interval,
            "rules": [{"name": f"rule {each}", "type": "recording", "health": each} for each in health],
        }
        for interval, health in ((5, frequent), (60, rare))
    ]

    class Rules(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply(self, json.dumps({"status": "success", "data": {"groups": groups}}).encode())

    with handled(Rules) as address:
        return rules(Prometheus(f"http://{address}"))


@pytest.mark.parametrize(
    ("frequent", "rare", "said"),
    [
        pytest.param(["ok", "ok"], ["ok"], "3 recording and 0 alert rules, none fails", id="all is well"),
        pytest.param(["ok", "unknown"], ["ok"], None, id="a frequent rule is waited for"),
        pytest.param([], [], None, id="none is loaded yet"),
        pytest.param(
            ["ok"],
            ["unknown"],
            "2 recording and 0 alert rules, none fails; 1 are evaluated once a minute and still pending",
            id="an infrequent rule is not waited for",
        ),
        pytest.param(["ok", "err"], [], "2 recording and 0 alert rules, these fail: rule err", id="one fails"),
    ],
)
def test_rules_count_as_there_when_those_that_come_often_were_evaluated(
    frequent: list[str], rare: list[str], said: str | None
) -> None:
    assert said_of(frequent, rare) == said
