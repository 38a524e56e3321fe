"""Every query of every dashboard, run on a real Prometheus with an installation that has every kind of fault."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from grafana.builders.lines import LINES
from stallscope.model.catalogue.causes import CAUSES, REMAINDERS
from tests.filled_prometheus import FilledPrometheus
from tests.grafana.dashboard_queries import ALL, Chosen, Window, choose, legend, run_query
from tests.grafana.pages import PAGES, Json, drawn, marks, sentence, variables
from tests.installation import HEALTHY, PARTS

pytestmark = pytest.mark.slow
HOUR = 3600
COMPARING = "stallscope-compare"
"""The dashboard that shows several runs."""

SHOWN_FOR = {
    ("stallscope-gpu", "Alerts over time", "A"): "hot",
    ("stallscope-gpu", "Clock throttle reasons", "A"): "hot",
    ("stallscope-gpu", "Xid errors", "A"): "broken",
    ("stallscope-gpu", "Lost GPUs", "A"): "broken",
    ("stallscope-gpu", "Row remapping", "A"): "broken",
    ("stallscope-gpu", "Row remapping", "B"): "broken",
    ("stallscope-gpu", "GPUs with several holders", "A"): "shared",
    ("stallscope-gpu", "Held but idle", "A"): "idle",
    ("stallscope-gpu", "Memory without a process", "A"): "shared",
    ("stallscope-gpu", "Thermal and power brake throttling", "A"): "hot",
    ("stallscope-gpu", "Thermal and power brake throttling", "B"): "broken",
    ("stallscope-health", "Collectors and receivers that fail now", "A"): "exporters",
    ("stallscope-health", "Collectors and receivers that fail now", "B"): "exporters",
    ("stallscope-health", "Ranks without a verdict, by missing data", "A"): "unknown",
    ("stallscope-health", "Exporters that were down", "A"): "exporters",
    ("stallscope-health", "Rejected requests per minute, by reason", "A"): "exporters",
    ("stallscope-health", "Failed polls and rejected values per minute", "B"): "exporters",
    ("stallscope-health", "Rejected reports per minute, by reason", "A"): "exporters",
    ("stallscope-host", "Alerts over time", "A"): "host",
    ("stallscope-host", "Firing alerts of this node and its GPUs", "A"): "host",
    ("stallscope-host", "Network: packet loss, over an hour", "A"): "host",
    ("stallscope-host", "OOM kills", "A"): "host",
    ("stallscope-host", "OOM kills", "B"): "host",
    ("stallscope-run", "Verdict, alerts, checkpoints and starts", "B"): "waiting",
    ("stallscope-run", "Verdict, alerts, checkpoints and starts", "C"): "saving",
    ("stallscope-run", "Firing alerts", "A"): "waiting",
    ("stallscope-run", "Missing data", "A"): "unknown",
    ("stallscope-run", "Work that recurs every N steps", "A"): "saving",
    ("stallscope-run", "GPUs with regular dips", "A"): "saving",
    ("stallscope-run", "GPUs with regular dips", "B"): "saving",
    ("stallscope-run", "GPUs with regular dips", "C"): "saving",
    ("stallscope-run", "Step time", "D"): "stuttering",
    ("stallscope-run", "Scaling efficiency and load", "B"): "lopsided",
    ("stallscope-run", "Lines of code by phase", "A"): "waiting",
    ("stallscope-run", "Loader workers", "C"): "waiting",
}
"""Queries that return data only for a specific fault, not for a healthy run and its nodes."""
NO_STORY = {
    ("stallscope-compare", "Time lost by $run, by cause", "B"): "no run has more than five causes",
    ("stallscope-fleet", "GPU-hours by owner", "F"): "the data are not longer than the time range",
    ("stallscope-fleet", "GPU-hours by owner", "G"): "the data are not longer than the time range",
    ("stallscope-fleet", "GPU-hours lost in serving", "A"): "no story has an inference server",
    ("stallscope-fleet", "GPU-hours lost in serving", "B"): "no story has an inference server",
    ("stallscope-fleet", "GPU-hours lost in serving, by owner", "A"): "no story has an inference server",
    ("stallscope-fleet", "GPU-hours lost in serving, by owner", "B"): "no story has an inference server",
    ("stallscope-fleet", "GPUs of inference servers, by cause", "A"): "no story has an inference server",
    ("stallscope-fleet", "Held but idle GPUs", "D"): "a run would first have to be stalled for an hour",
    ("stallscope-gpu", "Row remapping", "C"): "no story has a GPU that could not remap a row",
    ("stallscope-host", "Links slower than on the other hosts of the run", "A"): "no story has a slow link",
    ("stallscope-run", "Bandwidth of communicators, compared with their peers", "A"): "no run uses NCCL Inspector",
    ("stallscope-run", "GPU time lost, by cause", "B"): "no run has more than five causes",
    ("stallscope-run", "Time by phase, GPU clock", "B"): "no run has more than five phases on the device",
    ("stallscope-run", "Ranks by activity", "B"): "no run has more than five activities",
    ("stallscope-run", "Ranks by straggler score", "I"): "no run is a pipeline",
    ("stallscope-run", "Ranks that arrive last in collectives", "A"): "no run uses NCCL Inspector",
}
"""Queries for which no part of the installation has data, with the reason."""

MARKED = {
    ("stallscope-gpu", "Alerts"): "hot",
    ("stallscope-gpu", "Xids"): "broken",
    ("stallscope-host", "Alerts"): "host",
    ("stallscope-run", "Alerts"): "waiting",
    ("stallscope-run", "Starts and restarts"): HEALTHY,
}
"""Annotations, and the part of the installation with their events."""
VERDICTS = {
    HEALTHY: "compute_bound",
    "waiting": "input_few_workers",
    "starving": "input_network_bound",
    "straggling": "straggler_hw",
    "hot": "thermal_throttle",
    "saving": "checkpoint_stall",
    "stuttering": "step_outliers",
    "restarting": "restart_loop",
    "unknown": "insufficient_data",
}
"""Cause of the run of a part."""


class Answer(NamedTuple):
    """Result of one query of a panel."""

    panel: Json
    target: Json
    result: list[dict[str, Any]]
    warnings: list[str]

    @property
    def place(self) -> tuple[str, str]:
        """Panel and letter."""
        return self.panel["title"], self.target["refId"]


class Library:
    """Dashboards for the parts of the installation; each query runs once, also where two parts have the same."""

    def __init__(self, filled: FilledPrometheus) -> None:
        self.server = filled.server
        self._filled = filled
        self._opened: dict[tuple[str, str], Chosen] = {}
        self._found: dict[tuple[str, frozenset[tuple[str, tuple[str, ...]]]], list[Answer]] = {}

    def opened(self, uid: str, part: str) -> Chosen:
        """Return a dashboard as opened by a link to a part's run and nodes."""
        if (uid, part) not in self._opened:
            self._opened[uid, part] = self._open(uid, part)
        return self._opened[uid, part]

    def _open(self, uid: str, part: str) -> Chosen:
        shown = self._filled.parts[part]
        wanted = {
            "cluster": [shown.cluster] if shown.cluster else [],
            "instance": shown.instances,
            "run": [shown.run, *(["starving"] if uid == COMPARING else [])],
            "shift": ["15m"],  # for which there are data
        }
        window = Window(self._filled.end - HOUR, self._filled.end)
        return choose(self._filled.server, PAGES[uid], window, wanted)

    def answers(self, uid: str, part: str) -> list[Answer]:
        """Return the results of all queries of the dashboard's panels."""
        chosen = self.opened(uid, part)
        key = (uid, frozenset(chosen.values.items()))
        if key not in self._found:
            self._found[key] = [
                Answer(panel, target, answer["data"]["result"], answer.get("warnings", []))
                for panel in drawn(PAGES[uid])
                for target in panel.get("targets", ())
                for answer in [run_query(self._filled.server, chosen, target, panel)]
            ]
        return self._found[key]

    def found(self, uid: str, part: str, place: tuple[str, str]) -> list[dict[str, Any]]:
        """Return the result of one query."""
        return next(answer.result for answer in self.answers(uid, part) if answer.place == place)


@pytest.fixture(scope="module")
def library(filled: FilledPrometheus) -> Library:
    return Library(filled)


def labels_of(result: list[dict[str, Any]], name: str) -> set[str]:
    return {series["metric"][name] for series in result if name in series["metric"]}


@pytest.mark.parametrize("part", [part.name for part in PARTS])
@pytest.mark.parametrize("uid", PAGES)
def test_every_query_is_answered_without_a_warning(library: Library, uid: str, part: str) -> None:
    assert [(answer.place, answer.warnings) for answer in library.answers(uid, part) if answer.warnings] == []


@pytest.mark.parametrize("part", [part.name for part in PARTS])
@pytest.mark.parametrize("uid", PAGES)
def test_no_value_is_infinite(library: Library, uid: str, part: str) -> None:
    infinite = {
        answer.place
        for answer in library.answers(uid, part)
        for series in answer.result
        for _moment, value in series.get("values", [series.get("value")])
        if math.isinf(float(value))
    }
    assert infinite == set()


@pytest.mark.parametrize("uid", PAGES)
def test_every_variable_offers_something(library: Library, uid: str) -> None:
    chosen = library.opened(uid, HEALTHY)
    assert [name for name, options in chosen.options.items() if not options] == []
    assert all(chosen.values[variable["name"]] for variable in variables(PAGES[uid]))


@pytest.mark.parametrize("uid", PAGES)
def test_a_link_to_a_run_and_its_nodes_shows_these(library: Library, uid: str) -> None:
    values = library.opened(uid, HEALTHY).values
    assert values.get("instance", ("healthy0:19400",))[0] == "healthy0:19400"
    assert values.get("run", ("healthy",))[0] == "healthy"


@pytest.mark.parametrize("uid", PAGES)
def test_every_query_finds_what_it_is_for(library: Library, uid: str) -> None:
    empty = [
        answer.place
        for answer in library.answers(uid, HEALTHY)
        if not library.found(uid, SHOWN_FOR.get((uid, *answer.place), HEALTHY), answer.place)
    ]
    assert sorted(empty) == sorted(place[1:] for place in NO_STORY if place[0] == uid)


@pytest.mark.parametrize("uid", PAGES)
def test_nothing_is_shown_of_trouble_that_a_healthy_run_does_not_have(
    filled: FilledPrometheus, library: Library, uid: str
) -> None:
    false = [
        (answer.place, said)
        for answer in library.answers(uid, HEALTHY)
        if (uid, *answer.place) in SHOWN_FOR and (said := [each for each in answer.result if _lately(filled, each)])
    ]
    assert false == []


def _lately(filled: FilledPrometheus, series: dict[str, Any]) -> bool:
    """Return whether a query has a value in the second half of the hour: no verdict exists in the first minutes."""
    newest = float((series.get("value") or series["values"][-1])[0])
    return newest > filled.end - HOUR / 2


def test_every_query_that_is_listed_exists() -> None:
    there = {
        (uid, panel["title"], target["refId"])
        for uid, page in PAGES.items()
        for panel in drawn(page)
        for target in panel.get("targets", ())
    }
    assert (SHOWN_FOR.keys() | NO_STORY.keys()) - there == set()


@pytest.mark.parametrize("uid", PAGES)
def test_every_annotation_marks_what_it_is_for(filled: FilledPrometheus, library: Library, uid: str) -> None:
    for mark in marks(PAGES[uid]):
        part = MARKED[uid, mark["name"]]
        assert marked(filled, library.opened(uid, part), mark), (mark["name"], part)


@pytest.mark.parametrize("uid", ["stallscope-run", "stallscope-gpu", "stallscope-host"])
def test_no_annotation_marks_trouble_of_a_healthy_run(filled: FilledPrometheus, library: Library, uid: str) -> None:
    chosen = library.opened(uid, HEALTHY)
    trouble = [mark for mark in marks(PAGES[uid]) if MARKED[uid, mark["name"]] != HEALTHY]
    assert trouble
    assert [mark["name"] for mark in trouble if marked(filled, chosen, mark)] == []


def marked(filled: FilledPrometheus, chosen: Chosen, mark: Json) -> list[dict[str, Any]]:
    answer = run_query(filled.server, chosen, {"expr": mark["expr"], "interval": mark["step"], "instant": False})
    assert answer.get("warnings", []) == [], mark["name"]
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


ANSWERS = {
    ("stallscope-run", HEALTHY): "healthy: GPU-bound, well used. Nothing to fix; use a faster GPU or more GPUs.",
    ("stallscope-run", "straggling"): (
        "straggling loses 21 % of its GPU time, for 29 min now: rank 3, GPU 1 of straggling1, "
        "slowed by heat. Check airflow, fans and inlet temperature. (cluster operator)"
    ),
    ("stallscope-run", "starving"): (
        "starving loses 30 % of its GPU time, for 29 min now: waiting for data: network full. Cache the data on the "
        "node, or compress and shrink it before it travels. (owner of the run)"
    ),
    ("stallscope-run", "unknown"): "unknown: not enough evidence yet; the missing data are listed below.",
    ("stallscope-gpu", "hot"): (
        "GPU 0 of hot0 loses 27 % of its GPU time, for 29 min now: slowed by heat. Check airflow, fans and inlet "
        "temperature. (cluster operator)"
    ),
    ("stallscope-gpu", "partitioned"): (
        "GPU 0 MIG 3g.40gb of partitioned0: GPU-bound, well used. Nothing to fix; use a faster GPU or more GPUs."
    ),
    ("stallscope-fleet", "hot"): (
        "7.8 of 29 held GPUs are lost, 3 of them in run broken: rank 3, GPU 1 of broken1, GPU lost. Drain the node "
        "and reboot; reseat or replace the GPU if it happens again. (cluster operator)"
    ),
}
"""Sentence at the top of each dashboard for a part of the installation."""


@pytest.mark.parametrize(("uid", "part"), ANSWERS)
def test_a_dashboard_begins_with_the_loss_its_place_and_the_remedy(library: Library, uid: str, part: str) -> None:
    assert library.opened(uid, part).values["answer"] == (ANSWERS[uid, part],)


def test_the_sentence_says_so_if_nothing_reports(library: Library) -> None:
    chosen = library.opened("stallscope-run", HEALTHY)
    later = replace(chosen, window=Window(chosen.window.start + 9 * HOUR, chosen.window.end + 9 * HOUR))
    (variable,) = (each for each in variables(PAGES["stallscope-run"]) if each["name"] == "answer")
    assert answer_of(library, later, variable) == "No rank of this run is active."


def answer_of(library: Library, chosen: Chosen, variable: Json) -> str:
    expression = chosen.put_in(sentence(variable), 15)
    found = library.server.get("query", query=expression, time=f"{chosen.window.end}")["data"]["result"]
    return str(found[0]["metric"]["answer"])


@pytest.mark.parametrize("part", [part.name for part in PARTS])
@pytest.mark.parametrize("uid", PAGES)
def test_no_chart_has_more_lines_than_a_person_follows(library: Library, uid: str, part: str) -> None:
    lines: Counter[str] = Counter()
    for answer in library.answers(uid, part):
        if answer.panel["type"] == "timeseries":
            lines[answer.panel["title"]] += len(answer.result)
    assert {title: count for title, count in lines.items() if count > LINES} == {}


CURVES = ("timeseries", "state-timeline", "status-history", "bargauge", "stat")


@pytest.mark.parametrize("uid", PAGES)
@pytest.mark.parametrize("part", [HEALTHY, "straggling", "broken"])
def test_no_two_series_of_a_panel_are_called_the_same(library: Library, uid: str, part: str) -> None:
    names: dict[str, Counter[str]] = {}
    for answer in library.answers(uid, part):
        if answer.panel["type"] in CURVES:
            called = [legend(answer.target, series["metric"]) for series in answer.result]
            names.setdefault(answer.panel["title"], Counter()).update(called)
    assert {
        title: [name for name, count in counted.items() if count > 1]
        for title, counted in names.items()
        if max(counted.values(), default=0) > 1
    } == {}


HARMLESS = {*REMAINDERS, *(cause.name for cause in CAUSES.values() if cause.alert is None)}


def test_the_fleet_lists_no_healthy_run_and_no_healthy_gpu_among_the_worst(library: Library) -> None:
    for answer in library.answers("stallscope-fleet", HEALTHY):
        if answer.panel["type"] != "table":
            continue
        listed = [series for series in answer.result if series["metric"].get("cause") not in {None, *HARMLESS}]
        assert HEALTHY not in labels_of(listed, "run"), answer.place
        assert not {"healthy0:19400", "healthy1:19400"} & labels_of(listed, "instance"), answer.place


LISTED = {
    ("Held but idle GPUs", "A"): {("idle0:19400", "0")},
    ("GPUs that are down", "A"): {("broken1:19400", "1")},
}
"""Tables of the fleet, and the GPUs in them."""


@pytest.mark.parametrize("place", LISTED)
def test_the_fleet_lists_the_gpus_that_are_ill_and_no_other(library: Library, place: tuple[str, str]) -> None:
    found = library.found("stallscope-fleet", "hot", place)
    assert {(series["metric"]["instance"], series["metric"]["gpu"]) for series in found} == LISTED[place]


CULPRITS = {
    "straggling": "rank 3, GPU 1 of straggling1: thermal_throttle",
    "broken": "rank 3, GPU 1 of broken1: lost",
    "waiting": None,
}
"""Return the culprit of the run of a part, before its cause is replaced by its title."""


def _root_causes(library: Library) -> list[dict[str, Any]]:
    return library.found("stallscope-fleet", "hot", ("What costs most now", "A"))


def test_the_fleet_has_one_row_for_each_run_that_loses_time(library: Library) -> None:
    rows = [series["metric"] for series in _root_causes(library) if series["metric"].get("run")]
    said = {row["run"]: row["cause"] for row in rows}
    assert len(said) == len(rows)
    losing = {part: cause for part, cause in VERDICTS.items() if cause not in HARMLESS}
    assert {part: said.get(part) for part in losing} == losing
    assert HEALTHY not in said


def test_the_fleet_has_one_row_for_the_gpus_of_a_node_that_lose_time_outside_a_run(library: Library) -> None:
    rows = [series["metric"] for series in _root_causes(library) if not series["metric"].get("run")]
    assert {(row["instance"], row["cause"]) for row in rows} == {("idle0:19400", "idle_allocated")}


def test_the_fleet_names_the_culprit_of_a_run_and_none_where_no_rank_is_to_blame(library: Library) -> None:
    rows = {series["metric"].get("run"): series["metric"] for series in _root_causes(library)}
    assert {part: rows[part].get("culprit") for part in CULPRITS} == CULPRITS
    assert {part: rows[part]["reason"] for part in CULPRITS} == {
        part: culprit or VERDICTS[part] for part, culprit in CULPRITS.items()
    }
    assert {part: rows[part]["remedy"] for part in CULPRITS} == {
        part: culprit.rpartition(": ")[2] if culprit else VERDICTS[part] for part, culprit in CULPRITS.items()
    }


def test_the_fleet_lists_a_hung_run_with_a_lost_gpu_as_such_with_all_of_its_time(library: Library) -> None:
    (broken,) = [series for series in _root_causes(library) if series["metric"].get("run") == "broken"]
    assert (broken["metric"]["cause"], float(broken["value"][1])) == ("lost", 3.0)


def test_all_stands_for_everything_and_for_what_has_no_cluster(library: Library) -> None:
    values = library.opened("stallscope-fleet", "hot").values
    assert values["cluster"] == ALL
    runs = {run for answer in library.answers("stallscope-fleet", "hot") for run in labels_of(answer.result, "run")}
    assert {"hot", "straggling"} <= runs


def test_holders_have_queue_and_workload_of_their_pods_and_neither_where_they_are_unknown(library: Library) -> None:
    of_pods = library.found("stallscope-gpu", HEALTHY, ("Current holders", "A"))
    assert labels_of(of_pods, "workload") == {f"PyTorchJob/{HEALTHY}"}
    assert labels_of(of_pods, "queue") == {"research"}
    of_users = library.found("stallscope-gpu", "idle", ("Current holders", "A"))
    assert labels_of(of_users, "user") == {"ada", "grace"}
    assert labels_of(of_users, "workload") | labels_of(of_users, "queue") == set()
