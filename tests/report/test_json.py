"""Reports as JSON: the values by name, each of which REPORT.md describes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stallscope.model.analysis.runs import find_run
from stallscope.model.clients.prometheus import Prometheus
from stallscope.tools.report import json as json_format
from stallscope.tools.report.contents import build
from stallscope.tools.report.document import Document
from stallscope.tools.report.options import Options
from stallscope.tools.report.subject import of_everything, of_run
from tests.filled_prometheus import FilledPrometheus
from tests.report import example

PAGE = (Path(__file__).parents[2] / "exporter/REPORT.md").read_text(encoding="utf-8")
DOCUMENTED = frozenset(re.findall(r"`([a-z0-9_]+)(?:\[\])?`", "".join(re.findall(r"^\|.*", PAGE, re.MULTILINE))))
LAYOUT = frozenset({"sections", "highlights", "subtitle"})


def parsed(document: Document) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json_format.write(document))
    return found


def names(value: object) -> set[str]:
    """Return the names of an object and of the objects in it."""
    if isinstance(value, dict):
        return {*value, *(name for each in value.values() for name in names(each))}
    return {name for each in value for name in names(each)} if isinstance(value, list) else set()


@pytest.fixture(scope="module")
def documents(filled: FilledPrometheus) -> dict[str, dict[str, Any]]:
    """The reports on two runs and on everything."""
    server = Prometheus(filled.server.address, timeout=60)
    options = Options(gpu_hour_price=2.0, currency="EUR")
    try:
        runs = {name: find_run(server, name, filled.start - 60, filled.end) for name in ("straggling", "saving")}
        subjects = {name: of_run(server, run) for name, run in runs.items()}
        subjects["everything"] = of_everything(filled.start - 60, filled.end)
        return {name: parsed(build(subject, server, options)) for name, subject in subjects.items()}
    finally:
        server.close()


def test_every_name_is_described_in_the_reference(documents: dict[str, dict[str, Any]]) -> None:
    for document in documents.values():
        data = {name: value for name, value in document.items() if name not in LAYOUT}
        assert names(data) <= DOCUMENTED


def test_the_lost_time_of_a_run_is_data(documents: dict[str, dict[str, Any]]) -> None:
    found = documents["straggling"]
    assert found["schema_version"] == json_format.SCHEMA_VERSION
    assert found["main_verdict"] == "straggler_hw"
    assert found["lost_ratio"] == pytest.approx(found["lost_gpu_hours"] / found["gpu_hours"])
    assert found["lost_cost"] == pytest.approx(2 * found["lost_gpu_hours"])
    worst = found["causes"][0]
    assert worst["cause"] == "straggler_hw"
    assert 0 < worst["lost_ratio"] < found["lost_ratio"]
    assert found["recommendations"][0]["lost_ratio"] == worst["lost_ratio"]
    slow = found["ranks"][0]
    assert (slow["rank"], slow["instance"]) == ("3", "straggling1:19400")
    assert found["start"] <= found["verdicts"][0]["first_timestamp_seconds"] < found["end"]


def test_the_runs_of_everything_are_data(documents: dict[str, dict[str, Any]]) -> None:
    runs = {run["run"]: run for run in documents["everything"]["runs"]}
    assert runs["straggling"]["lost_gpu_hours"] == pytest.approx(documents["straggling"]["lost_gpu_hours"])
    assert "ranks" not in documents["everything"]


def test_layout_is_kept_but_not_needed(documents: dict[str, dict[str, Any]]) -> None:
    for document in documents.values():
        assert document.keys() >= LAYOUT


def test_a_report_without_verdicts_has_no_causes() -> None:
    assert "causes" not in parsed(example.nothing())
