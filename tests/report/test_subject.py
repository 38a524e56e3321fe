"""Subjects of reports select exactly their own series, whatever the name of the run."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import pytest

from stallscope.model.analysis.runs import Place, Run
from stallscope.model.clients.prometheus import RangeSeries, Series
from stallscope.tools.report.options import Options
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.subject import Subject, of_everything, of_nodes, of_run

START, END = 1_700_000_011.0, 1_700_003_611.0


class Scripted:
    """A server with a fixed response that records its queries."""

    name = "http://prometheus"

    def __init__(self, *values: float, curve: tuple[tuple[float, float], ...] = ()) -> None:
        self.queried: list[tuple[str, float | None]] = []
        self._values = values
        self._curve = curve

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        self.queried.append((expression, at))
        return [Series({"cause": f"cause {number}"}, value) for number, value in enumerate(self._values)]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[RangeSeries]:
        self.queried.append((expression, start))
        times, values = zip(*self._curve, strict=True)
        return [RangeSeries({}, array("d", times), array("d", values))]

    def take_warnings(self) -> list[str]:
        return []


def a_run(*, goes_on: bool = False, name: str = "resnet50", states: Mapping[str, int] | None = None) -> Run:
    return Run(
        name=name,
        namespace="vision",
        cluster="east",
        start=START,
        end=END,
        goes_on=goes_on,
        states=states or {"finished": 1},
        places=(Place("0", "stallscope", "node-1:19400"), Place("1", "stallscope", "node-2:19400")),
        claims=(),
        info={},
    )


def test_a_run_is_selected_by_cluster_namespace_and_nodes() -> None:
    subject = of_run(Scripted(), a_run(goes_on=True))
    assert subject.run_matchers == 'cluster="east", namespace="vision", run="resnet50"'
    nodes = 'instance=~"node-1:19400|node-2:19400"'
    assert subject.rank_matchers == f'cluster="east", run="resnet50", job=~"stallscope", {nodes}'
    assert (subject.start, subject.end, subject.live) == (START, END, True)


def test_a_name_full_of_quotes_stays_a_name() -> None:
    subject = of_run(Scripted(), a_run(goes_on=True, name='a"} or up{x="\\'))
    assert subject.run_matchers.endswith('run="a\\"} or up{x=\\"\\\\"')


def test_the_end_of_a_live_run_is_not_queried() -> None:
    server = Scripted()
    of_run(server, a_run(goes_on=True))
    assert not [expression for expression, _ in server.queried if "run:ranks:count" in expression]


@pytest.mark.parametrize(
    ("started", "start"),
    [
        pytest.param(START - 12, START - 12, id="before its first scrape"),
        pytest.param(START - 4000, START, id="before the time of the report"),
        pytest.param(START + 60, START, id="by a clock that is ahead"),
    ],
)
def test_a_run_is_covered_from_the_start_of_its_process(started: float, start: float) -> None:
    assert of_run(Scripted(started), a_run(goes_on=True)).start == start


@pytest.mark.parametrize("last", [END - 1000, END - 10])
def test_a_run_whose_ranks_were_lost_is_covered_until_its_last_live_moment(last: float) -> None:
    assert of_run(Scripted(last), a_run(states={"lost": 2})).end == last


def test_a_run_unknown_to_the_rules_is_covered_until_its_last_scrape() -> None:
    assert of_run(Scripted(), a_run()).end == END


def test_nodes_and_everything_have_no_run_matchers() -> None:
    for subject in (of_nodes(["node-1:19400"], START, END), of_everything(START, END)):
        with pytest.raises(ValueError, match="is not a run"):
            _ = subject.run_matchers
    assert of_nodes(["node-1:19400"], START, END).title == "Node node-1:19400"
    assert of_nodes([f"node-{number}" for number in range(5)], START, END).title == "5 nodes: node-0, node-1, node-2 …"


def queries_of(subject: Subject, server: Scripted) -> Queries:
    return Queries(server, subject, Options())


def test_a_query_is_sent_once_for_the_end_of_the_range() -> None:
    server = Scripted(1.0, float("nan"))
    queries = queries_of(of_everything(START, END), server)
    assert [each.value for each in queries.instant("up")] == [1.0]
    assert queries.value("up") == 1.0
    assert queries.by("cause", "up") == {"cause 0": 1.0}
    assert server.queried == [("up", END)]


@pytest.mark.parametrize(
    ("hours", "resolution", "step"),
    [
        pytest.param(1, 30, 30, id="an hour"),
        pytest.param(24, 30, 300, id="a day"),
        pytest.param(7 * 24, 60, 2040, id="a week"),
        pytest.param(30 * 24, 270, 8640, id="a month"),
    ],
)
def test_resolution_and_step_grow_with_the_range(hours: float, resolution: float, step: float) -> None:
    queries = queries_of(of_everything(END - 3600 * hours, END), Scripted())
    assert (queries.resolution, queries.step) == (resolution, step)


def test_a_sum_over_time_counts_each_moment_once() -> None:
    queries = queries_of(of_everything(END - 3600, END), Scripted())
    assert queries.integral("x") == "sum_over_time((x)[3599s:30s]) * 30"
    assert (
        queries.over_time("quantile_over_time(0.5, ", "x", resolution=60) == "quantile_over_time(0.5, (x)[3599s:60s])"
    )


def test_a_range_result_has_every_time_and_none_for_missing_values() -> None:
    first = 1_700_000_040.0  # the first full half minute of the range
    server = Scripted(curve=((first, 1.0), (first + 60, float("nan")), (first + 90, 4.0)))
    result = queries_of(of_everything(START, START + 150), server).over_range("x")
    assert result.times == tuple(first + 30 * number for number in range(5))
    assert [curve.values for curve in result.series] == [(1.0, None, None, 4.0, None)]


def test_a_range_shorter_than_a_step_has_no_series() -> None:
    result = queries_of(of_everything(START, START + 5), Scripted()).over_range("x")
    assert (result.times, result.series) == ((), ())
