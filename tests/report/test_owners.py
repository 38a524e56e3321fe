"""The report by owner: GPU-hours, teams, trend, savings and CSV, from the series that rules record of owners."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence

import pytest

from stallscope.model.clients.prometheus import RangeSeries, Series
from stallscope.tools.report import csv as csv_format
from stallscope.tools.report import html, markdown
from stallscope.tools.report import json as json_format
from stallscope.tools.report.document import Bars, Document, Facts, Figure, Notice, Table, Value
from stallscope.tools.report.options import Options
from stallscope.tools.report.owners import By, Grouping, Period, build

HOUR = 3600.0
PERIOD = Period(1_700_000_000.0, 1_700_000_000.0 + 24 * HOUR)
BEFORE = 7 * 24 * HOUR
ADA = {"namespace": "vision", "run": "resnet50", "user": "ada"}
GRACE = {"namespace": "lab", "user": "grace"}
NO_LABELS: Mapping[str, str] = {}
Records = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]

HELD: Records = {"owner:gpus_held:sum": [(ADA, 8.0), (GRACE, 2.0), (NO_LABELS, 1.0)]}
NOW: Records = {
    **HELD,
    "owner:gpus_busy:sum5m": [(ADA, 6.0), (GRACE, 0.5)],
    "owner:gpus_lost:sum5m": [(ADA, 2.0), (GRACE, 1.5)],
    "owner:power:watts5m": [(ADA, 4000.0)],
    "owner_cause:gpus_lost:sum5m": [
        ({**ADA, "cause": "input_few_workers"}, 1.6),
        ({**ADA, "cause": "comm_bound"}, 3.0),
        ({**GRACE, "cause": "idle_allocated"}, 1.5),
    ],
    "cluster:gpus_known:count": [(NO_LABELS, 16.0)],
    "kube_namespace_labels": [({"namespace": "vision", "label_team": "perception"}, 1.0)],
}
"""GPUs, for the whole day; the series of teams as they are."""
EARLIER: Records = {
    "owner:gpus_held:sum": [(ADA, 4.0), ({"namespace": "old", "user": "hopper"}, 1.0)],
    "owner:gpus_lost:sum5m": [(ADA, 2.0)],
}


class Recorded:
    """A server with the same values all day, and others a week before."""

    name = "http://prometheus"

    def __init__(self, now: Records, warnings: tuple[str, ...] = ()) -> None:
        self._now = now
        self._warnings = list(warnings)
        self.queried: list[str] = []

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        self.queried.append(expression)
        series = {PERIOD.end: self._now, PERIOD.end - BEFORE: EARLIER}[at or 0.0]
        record = next((name for name in series if re.search(rf"\b{name}\b", expression)), "")
        by = re.search(r"sum by \(([^)]*)\)", expression)
        if by is None and "kube" in expression:
            return [Series(labels, value) for labels, value in series.get(record, [])]
        found: dict[tuple[tuple[str, str], ...], float] = {}
        for labels, value in series.get(record, []):
            names = by.group(1).split(", ") if by is not None else []
            key = tuple((name, labels[name]) for name in names if name in labels)
            found[key] = found.get(key, 0.0) + value * PERIOD.seconds
        return [Series(dict(key), value) for key, value in found.items()]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[RangeSeries]:
        raise AssertionError("not needed")

    def take_warnings(self) -> list[str]:
        return self._warnings


def report(by: By = "user", records: Records = NOW, *, compare: bool = False, rows: int | None = None) -> Document:
    grouping = Grouping(by, "label_team", "kube_namespace_labels")
    options = Options(gpu_hour_price=2.0, currency="EUR")
    return build(Recorded(records), PERIOD, grouping, options, compare_to=BEFORE if compare else None, rows=rows)


def rows_of(document: Document, key: str = "owners") -> list[dict[str, Value]]:
    (table,) = (block for block in document.blocks if isinstance(block, Table) and block.key == key)
    return [dict(zip((column.key for column in table.columns), row, strict=True)) for row in table.rows]


def notices(document: Document) -> list[str]:
    return [block.text for block in document.blocks if isinstance(block, Notice)]


def test_each_user_has_the_hours_held_busy_lost_and_idle() -> None:
    ada, grace, unknown = rows_of(report())
    assert (ada["user"], ada["held_gpu_hours"], ada["busy_gpu_hours"]) == ("ada", 8 * 24, 6 * 24)
    assert (ada["lost_gpu_hours"], ada["lost_ratio"], ada["idle_gpu_hours"]) == (2 * 24, 0.25, 0)
    assert (ada["energy_joules"], ada["cost"], ada["lost_cost"]) == (4000 * 24 * HOUR, 2 * 8 * 24, 2 * 2 * 24)
    assert (grace["idle_gpu_hours"], grace["energy_joules"]) == (1.5 * 24, None)
    assert (unknown["user"], unknown["lost_ratio"]) == ("unknown", 0)


def test_losses_of_inference_servers_have_a_column_of_their_own() -> None:
    serves = {**NOW, "serving_owner:gpus_lost:sum5m": [({**GRACE, "cause": "serving_idle"}, 0.5)]}
    ada, grace, _ = rows_of(report(records=serves))
    assert (grace["serving_lost_gpu_hours"], grace["lost_gpu_hours"]) == (0.5 * 24, 1.5 * 24)
    assert ada["serving_lost_gpu_hours"] == 0
    assert "serving_lost_gpu_hours" not in rows_of(report())[0]


def test_held_but_idle_gpus_are_counted_apart_from_free_ones() -> None:
    (facts,) = (block for block in report().blocks if isinstance(block, Facts))
    hours = {fact.key: fact.value for fact in facts.facts}
    assert hours["idle_gpu_hours"] == 1.5 * 24
    assert hours["free_gpu_hours"] == (16 - 11) * 24
    assert hours["known_gpu_hours"] == 16 * 24


@pytest.mark.parametrize(
    ("by", "owners"),
    [
        ("namespace", [("vision", ""), ("lab", ""), ("unknown", "")]),
        ("run", [("resnet50", "vision"), ("no run", "lab"), ("no run", "")]),
        ("team", [("perception", None), ("unknown", None)]),
    ],
)
def test_owners_are_grouped_by_namespace_run_and_team(by: By, owners: list[tuple[str, str | None]]) -> None:
    second = {"namespace": "cluster", "run": "namespace", "team": "-"}[by]
    assert [(row[by], row.get(second)) for row in rows_of(report(by))] == owners


def test_the_team_of_a_user_takes_precedence_over_that_of_the_namespace() -> None:
    teams = [
        *NOW["kube_namespace_labels"],
        ({"user": "ada", "label_team": "research"}, 1.0),
        ({"namespace": "monitoring", "exported_namespace": "lab", "label_team": "lab team"}, 1.0),
    ]
    found = [row["team"] for row in rows_of(report("team", {**NOW, "kube_namespace_labels": teams}))]
    assert found == ["research", "lab team", "unknown"]


def test_without_a_series_of_teams_the_report_says_how_to_get_one() -> None:
    (said,) = notices(report("team", {**NOW, "kube_namespace_labels": []}))
    assert "--metric-labels-allowlist=namespaces=[team]" in said
    assert not notices(report("team"))


def test_the_period_before_has_its_own_owners_and_shares() -> None:
    rows = {row["user"]: row for row in rows_of(report(compare=True))}
    assert rows["ada"]["held_gpu_hours_before"] == 4 * 24
    assert rows["ada"]["held_gpu_hours_change"] == 4 * 24
    assert rows["ada"]["lost_ratio_before"] == 0.5
    assert rows["grace"]["lost_ratio_before"] is None
    assert (rows["hopper"]["held_gpu_hours"], rows["hopper"]["held_gpu_hours_change"]) == (0, -24)
    assert "held_gpu_hours_before" not in rows_of(report())[0]


def test_the_largest_savings_name_owner_cause_and_remedy() -> None:
    first, second, third = rows_of(report(), "savings")
    assert (first["user"], first["cause"], first["lost_gpu_hours"]) == ("ada", "comm_bound", 72)
    assert (second["user"], second["cause"]) == ("ada", "input_few_workers")
    assert second["lost_cost"] == pytest.approx(2 * 1.6 * 24)
    assert "num_workers" in str(second["remedy"])
    assert third["cause"] == "idle_allocated"


def test_the_report_begins_with_the_largest_saving_and_has_bars_of_owners_and_causes() -> None:
    document = report()
    first = document.first_recommendation
    assert first is not None
    assert (first.cause, first.arithmetic) == ("comm_bound", "72 of 192 GPU-hours = 38 %.")
    assert first.advice.startswith("User ada: ")
    assert [(fact.name, fact.value) for fact in document.highlights[:2]] == [
        ("Largest saving", "comm_bound"),
        ("Lost", pytest.approx(3.5 / 11)),
    ]
    owners, causes = (block.plot for block in document.blocks if isinstance(block, Figure))
    assert isinstance(owners, Bars)
    assert isinstance(causes, Bars)
    assert owners.rows == ("ada", "grace", "unknown")
    assert [part.values for part in owners.parts] == [(144, 12, 24), (48, 36, 0)]
    assert causes.rows == ("Communication", "Waiting for data: too few workers", "Held but idle")


def test_a_server_without_owners_says_so_instead_of_zeros() -> None:
    document = build(Recorded({}), PERIOD, Grouping("user"))
    assert "No GPU was held in this time" in notices(document)[0]
    assert not [block for block in document.blocks if isinstance(block, (Table, Figure))]
    assert not document.highlights
    assert csv_format.write(document).splitlines() == ["start_timestamp_seconds,end_timestamp_seconds,currency"]


def test_owners_beyond_the_limit_are_summed_in_a_note() -> None:
    (table,) = (block for block in report(rows=1).blocks if isinstance(block, Table) and block.key == "owners")
    assert len(table.rows) == 1
    assert table.note == "2 more owners held 72 GPU-hours together."


def test_csv_has_every_owner_with_period_and_currency() -> None:
    lines = list(csv.DictReader(io.StringIO(csv_format.write(report()))))
    assert [line["user"] for line in lines] == ["ada", "grace", "unknown"]
    assert lines[0]["start_timestamp_seconds"] == "1700000000"
    assert (lines[0]["held_gpu_hours"], lines[0]["cost"], lines[0]["currency"]) == ("192", "384", "EUR")
    assert lines[1]["energy_joules"] == ""


def test_a_name_is_no_formula_in_a_spreadsheet() -> None:
    held = [({"user": '=HYPERLINK("http://x")'}, 1.0)]
    assert "\"'=HYPERLINK" in csv_format.write(report("user", {**NOW, "owner:gpus_held:sum": held}))


def test_every_format_renders_the_report() -> None:
    document = report("run", compare=True)
    assert "GPU-hours by run" in html.write(document)
    assert "## Largest savings" in markdown.write(document)
    found = json.loads(json_format.write(document))
    assert found["owners"][0]["run"] == "resnet50"
    assert found["savings"][0]["number"] == 1
    assert found["held_gpu_hours"] == 11 * 24


def test_a_column_that_is_empty_in_every_row_is_not_shown() -> None:
    document = report("run")
    assert "Cluster" not in markdown.write(document)
    assert '"columnheader">Cluster' not in html.write(document)
    assert "Namespace" in markdown.write(document)
    assert [row["cluster"] for row in rows_of(document)] == ["", "", ""]


def test_only_the_chosen_cluster_is_queried() -> None:
    server = Recorded(NOW)
    build(server, PERIOD, Grouping("user", cluster="east"))
    assert all('cluster="east"' in each for each in server.queried)


def test_warnings_of_the_server_make_the_report_incomplete() -> None:
    assert build(Recorded(NOW, ("store b is down",)), PERIOD, Grouping("user")).incomplete == ("store b is down",)
