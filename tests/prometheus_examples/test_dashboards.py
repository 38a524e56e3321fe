"""Dashboards on VictoriaMetrics."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.grafana.dashboard_queries import Window, choose, run_query
from tests.grafana.pages import PAGES, drawn
from tests.prometheus_examples.victoria_metrics import VictoriaMetrics, missing, victoria_metrics

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not on PATH: {', '.join(missing())}")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VictoriaMetrics]:
    with victoria_metrics(tmp_path_factory.mktemp("dashboards")) as found:
        yield found


@pytest.mark.parametrize("uid", PAGES)
def test_victoria_metrics_understands_every_query(storage: VictoriaMetrics, uid: str) -> None:
    now = time.time()
    chosen = choose(storage, PAGES[uid], Window(now - 3600, now), {})
    answers = [
        run_query(storage, chosen, target, panel) for panel in drawn(PAGES[uid]) for target in panel.get("targets", ())
    ]
    assert answers
    assert {answer["status"] for answer in answers} == {"success"}
