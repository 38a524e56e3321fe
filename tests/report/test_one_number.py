"""One number for one thing: all sections, commands and views show the same value over the filled installation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from operator import itemgetter
from typing import NamedTuple

import pytest

from stallscope.model.analysis.run_figures import RunFigures, read_figures
from stallscope.model.analysis.runs import find_run
from stallscope.model.clients.prometheus import Prometheus
from stallscope.model.view.model import Node, runs_of
from stallscope.model.view.observer import Observer, wanted
from stallscope.tools.report import owners
from stallscope.tools.report.contents import build
from stallscope.tools.report.document import Document, Facts, Table, Value
from stallscope.tools.report.options import Options
from stallscope.tools.report.subject import of_everything, of_nodes, of_run
from tests.filled_prometheus import FilledPrometheus
from tests.grafana.dashboard_queries import Chosen, Window, choose, run_query
from tests.grafana.pages import PAGES, drawn
from tests.installation import CLUSTER, PARTS, SCRAPE_SECONDS, part

RUNS = ("healthy", "straggling", "broken", "restarting", "lopsided", "waiting")
STEADY = ("healthy", "straggling", "lopsided")
"""Runs whose last seconds are like their last five minutes."""


class Numbers(NamedTuple):
    """The numbers of one run in all places."""

    report: Document
    nodes: Document
    everything: Document
    compared: RunFigures


NumbersOf = Callable[[str], Numbers]


@pytest.fixture(scope="module")
def server(filled: FilledPrometheus) -> Iterator[Prometheus]:
    found = Prometheus(filled.server.address, timeout=60)
    yield found
    found.close()


@pytest.fixture(scope="module")
def everything(server: Prometheus, filled: FilledPrometheus) -> Document:
    return build(of_everything(filled.start - 60, filled.end), server, Options(rows=len(PARTS)))


@pytest.fixture(scope="module")
def numbers(server: Prometheus, filled: FilledPrometheus, everything: Document) -> NumbersOf:
    @cache
    def of(name: str) -> Numbers:
        run = find_run(server, name, filled.start - 60, filled.end)
        nodes = of_nodes(run.instances, filled.start - 60, filled.end)
        return Numbers(build(of_run(server, run), server), build(nodes, server), everything, read_figures(server, run))

    return of


def fact(document: Document, title: str, name: str) -> float:
    (value,) = (
        each.value
        for block in document.blocks
        if isinstance(block, Facts) and block.title == title
        for each in block.facts
        if each.name == name
    )
    return number(value)


def number(value: Value) -> float:
    assert isinstance(value, float)
    return value


def columns(document: Document, title: str) -> dict[Value, dict[str, Value]]:
    """Return the rows of a table by their first value; empty without the table."""
    found = [block for block in document.blocks if isinstance(block, Table) and block.title.startswith(title)]
    names = [column.name for column in found[0].columns] if found else []
    return {row[0]: dict(zip(names, row, strict=True)) for row in found[0].rows} if found else {}


def shown_by(filled: FilledPrometheus, chosen: Chosen, title: str, *labels: str) -> dict[str, dict[Value, float]]:
    """Return the columns of a table of a dashboard by heading, each with its values by label."""
    (panel,) = (each for each in drawn(chosen.page) if each["title"] == title)
    headings = panel["transformations"][-1]["options"]["renameByName"]
    found = {}
    for target in panel["targets"]:
        result = run_query(filled.server, chosen, target)["data"]["result"]
        of = itemgetter(*labels)
        found[headings[f"Value #{target['refId']}"]] = {of(each["metric"]): float(each["value"][1]) for each in result}
    return found


def mean(values: list[Value]) -> float:
    known = [value for value in values if isinstance(value, float)]
    return sum(known) / len(known)


@pytest.mark.parametrize("name", RUNS)
def test_gpu_hours_and_lost_time_agree_in_reports_and_comparison(numbers: NumbersOf, name: str) -> None:
    found = numbers(name)
    hours = fact(found.report, "Cost", "GPU-hours")
    lost = fact(found.report, "Cost", "Lost")
    verdicts = columns(found.report, "Duration of each verdict").values()
    assert sum(number(row["Time"]) for row in verdicts) == pytest.approx(hours)
    for other in (found.everything, found.nodes):
        row = columns(other, "Runs by lost time")[name]
        # The report of the run counts its own start and end to the second, other reports to half a minute.
        assert row["GPU-hours"] == pytest.approx(hours, rel=0.03)
        assert row["Lost"] == pytest.approx(lost, rel=0.03)
        assert row["Share"] == pytest.approx(lost / hours, abs=0.02)
    assert found.compared.time_lost == pytest.approx(lost / hours, abs=0.02)
    shares = {cause: row["Share"] for cause, row in columns(found.report, "Time lost by cause").items()}
    assert {cause: share for cause, share in found.compared.lost.items() if share} == pytest.approx(shares, abs=0.02)
    # Causes overlap, but nothing is lost without a cause.
    assert lost / hours <= 1.01 * sum(map(number, shares.values()))


def test_the_hours_of_a_run_as_an_owner_are_those_of_its_report(
    server: Prometheus, filled: FilledPrometheus, numbers: NumbersOf
) -> None:
    period = owners.Period(filled.start - 60, filled.end)
    table = columns(owners.build(server, period, owners.Grouping("run")), "GPU-hours by run")
    for name in RUNS:
        report = numbers(name).report
        # The rules record owners every two minutes.
        assert table[name]["Held"] == pytest.approx(fact(report, "Cost", "GPU-hours"), rel=0.06)
        assert table[name]["Lost"] == pytest.approx(fact(report, "Cost", "Lost"), rel=0.06, abs=0.02)


@pytest.mark.parametrize(("by", "chosen"), [("user", "user"), ("namespace", "namespace"), ("team", "label_team")])
def test_owners_and_savings_of_the_fleet_dashboard_are_those_of_the_report(
    server: Prometheus, filled: FilledPrometheus, by: owners.By, chosen: str
) -> None:
    window = Window(filled.end - 1199, filled.end)
    grouping = owners.Grouping(by, "label_team", "kube_namespace_labels", CLUSTER)
    report = owners.build(
        server, owners.Period(filled.end - 1200, filled.end), grouping, Options(gpu_hour_price=2.5), compare_to=1200
    )
    opened = choose(filled.server, PAGES["stallscope-fleet"], window, {"cluster": [CLUSTER], "owner": [chosen]})
    shown = shown_by(filled, opened, "GPU-hours by owner", "owner")
    reported = columns(report, f"GPU-hours by {by}")
    assert len(reported) > 1
    assert {name for name in reported if reported[name]["Held"]} == shown["Held"].keys()
    for heading, values in shown.items():
        # The report has 0 and the dashboard nothing where no rule recorded a value.
        unit = 3600.0 if heading == "Energy" else 1.0  # the report stores joules, the dashboard shows watt-hours
        expected = {name: float(value) / unit for name, row in reported.items() if (value := row[heading])}
        assert {name: value for name, value in values.items() if value} == pytest.approx(expected), heading
    (totals,) = (each for each in drawn(opened.page) if each["title"] == "GPU-hours in the time range")
    for target in totals["targets"]:
        ((_moment, value),) = (each["value"] for each in run_query(filled.server, opened, target)["data"]["result"])
        assert float(value) == pytest.approx(fact(report, "", target["legendFormat"].capitalize()))
    hours = shown_by(filled, opened, "Largest savings", "owner", "cause")["GPU-hours"]
    (savings,) = (block for block in report.blocks if isinstance(block, Table) and block.key == "savings")
    rows = [dict(zip((column.key for column in savings.columns), row, strict=True)) for row in savings.rows]
    assert hours == pytest.approx({(row[by], row["cause"]): row["lost_gpu_hours"] for row in rows})


@pytest.mark.parametrize("name", RUNS)
def test_the_busy_share_of_a_gpu_agrees_in_all_sections(numbers: NumbersOf, name: str) -> None:
    found = numbers(name)
    by_gpu = columns(found.report, "Utilization of each GPU")
    busy = mean([row["Busy"] for row in by_gpu.values()])
    for rank, row in columns(found.report, "Ranks, stragglers first").items():
        own = [gpu["Busy"] for gpu_name, gpu in by_gpu.items() if str(gpu_name).startswith(f"rank {rank},")]
        assert row["GPU busy"] == pytest.approx(mean(own)) if own else row["GPU busy"] is None
    assert fact(found.report, "Work", "GPU busy") == pytest.approx(busy, abs=0.005)
    assert found.compared.gpu_busy == fact(found.report, "Work", "GPU busy")
    of_nodes = [row["Busy"] for row in columns(found.nodes, "Utilization of each GPU").values()]
    if name != "broken":  # its lost GPU counts only while it is up
        assert fact(found.nodes, "GPUs", "Busy") == pytest.approx(mean(of_nodes), abs=0.001)


@pytest.mark.parametrize("name", RUNS)
def test_step_time_rate_and_batch_agree_in_report_and_comparison(numbers: NumbersOf, name: str) -> None:
    found = numbers(name)
    step = fact(found.report, "", "Mean step time")
    assert found.compared.step_seconds == step
    ranks = columns(found.report, "Ranks, stragglers first")
    if ranks:
        assert mean([row["Step time"] for row in ranks.values()]) == pytest.approx(step, rel=0.005)
    assert found.compared.samples == fact(found.report, "Work", "Samples per second")
    assert found.compared.batch == fact(found.report, "The job", "Batch")


def test_steps_made_are_the_steps_reached_by_a_run_that_began_in_this_time(numbers: NumbersOf) -> None:
    found = numbers("bert")
    made, reached = fact(found.report, "", "Steps"), fact(found.report, "", "Step reached")
    assert made == reached
    assert made > 1000


def test_a_run_that_restarted_made_more_steps_than_it_reached(numbers: NumbersOf) -> None:
    found = numbers("restarting")
    made, reached = fact(found.report, "", "Steps"), fact(found.report, "", "Step reached")
    assert made > 2 * reached


def test_the_rate_of_a_young_run_is_that_of_its_own_counters(
    server: Prometheus, filled: FilledPrometheus, numbers: NumbersOf
) -> None:
    young = read_figures(server, find_run(server, "healthy", filled.start - 60, filled.start + 180))
    assert (young.young, young.gpu_busy) == (True, None)
    assert young.samples == pytest.approx(numbers("healthy").compared.samples, rel=0.02)
    assert young.step_seconds == pytest.approx(numbers("healthy").compared.step_seconds, rel=0.01)
    older = read_figures(server, find_run(server, "healthy", filled.start - 60, filled.start + 600))
    assert not older.young
    assert older.samples == pytest.approx(numbers("healthy").compared.samples, rel=0.01)


def observed(filled: FilledPrometheus, instance: str) -> Node:
    """Return what `top` and the status page show after two scrapes of an exporter."""
    observer = Observer()
    for scrape in (1, 0):
        at = filled.end - SCRAPE_SECONDS * scrape
        expression = f'{{__name__=~"stallscope_.+", instance="{instance}"}}'
        answer = filled.server.get("query", query=expression, time=f"{at}")["data"]["result"]
        lines = []
        for sample in answer:
            labels = {name: value for name, value in sample["metric"].items() if name not in ("job", "instance")}
            name = labels.pop("__name__")
            shown = ",".join(f'{label}="{value}"' for label, value in labels.items())
            lines.append(f"{name}{{{shown}}} {sample['value'][1]}")
        node = observer.observe(wanted("\n".join(lines) + "\n"), at)
    return node


@pytest.mark.parametrize("name", STEADY)
def test_top_and_status_page_agree_with_the_recorded_series(
    numbers: NumbersOf, filled: FilledPrometheus, name: str
) -> None:
    found = numbers(name)
    node = observed(filled, part(name).instances[0])
    recorded = {
        sample["metric"]["uuid"]: float(sample["value"][1])
        for sample in filled.query(f'gpu:busy:ratio5m{{instance="{part(name).instances[0]}"}}')
    }
    assert {gpu.uuid: gpu.utilization for gpu in node.gpus if gpu.uuid in recorded} == pytest.approx(recorded, abs=0.02)
    (run,) = (run for run in runs_of(node.ranks) if run.name.run == name)
    # Ranks report at different moments, up to 5 s apart, and the page has those of one node.
    assert run.step == pytest.approx(fact(found.report, "", "Step reached"), abs=5 / 0.4)
    (recorded_step,) = filled.query(f'run:step:seconds5m{{run="{name}"}}')
    assert run.step_seconds == pytest.approx(float(recorded_step["value"][1]), rel=0.02)
