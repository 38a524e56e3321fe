"""Reports on an installation with every kind of problem, compared with the stories that produced its data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import inf, isfinite
from typing import TypeVar

import pytest

from stallscope.common.percentiles import Bucket
from stallscope.model.analysis.runs import Run, find_run
from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.clients.prometheus import Prometheus, PrometheusError, RangeSeries, Series
from stallscope.tools.report import html, json, markdown, steps
from stallscope.tools.report.alerts import Alerts, FiredAlert
from stallscope.tools.report.contents import PARTS, build
from stallscope.tools.report.document import (
    Document,
    Fact,
    Facts,
    Figure,
    HeatMap,
    Notice,
    Paragraph,
    Recommendation,
    States,
    Table,
    Value,
)
from stallscope.tools.report.options import Options
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.subject import of_everything, of_nodes, of_run
from stallscope.tools.report.words import percent
from tests.filled_prometheus import FilledPrometheus
from tests.installation import HEALTHY, part
from tests.installation import PARTS as INSTALLED

PRICES = Options(gpu_hour_price=2.0, kilowatt_hour_price=0.25, currency="EUR")
JUDGED = {
    "waiting": "input_few_workers",
    "starving": "input_network_bound",
    "straggling": "straggler_hw",
    "hot": "thermal_throttle",
    "saving": "checkpoint_stall",
    "stuttering": "step_outliers",
    "restarting": "restart_loop",
    "lopsided": "gpu_load_imbalance",
}
"""The first recommended cause in parts with a single problem."""

Report = Callable[[str], Document]
FindRun = Callable[[str], Run]
_Block = TypeVar("_Block")


@pytest.fixture(scope="module")
def server(filled: FilledPrometheus) -> Iterator[Prometheus]:
    found = Prometheus(filled.server.address, timeout=60)
    yield found
    found.close()


@pytest.fixture(scope="module")
def run_of(server: Prometheus, filled: FilledPrometheus) -> FindRun:
    return lambda name: find_run(server, name, filled.start - 60, filled.end)


@pytest.fixture(scope="module")
def report_of(server: Prometheus, run_of: FindRun) -> Report:
    """Return a function that builds the report of a part's run once."""

    @cache
    def report(name: str) -> Document:
        return build(of_run(server, run_of(name)), server, PRICES)

    return report


class Partly:
    """A server that returns nothing for some queries, or fails."""

    def __init__(
        self, server: Prometheus, unanswered: str, problem: Exception | None = None, *, warns: bool = False
    ) -> None:
        self.name = server.name
        self._warns = warns
        self._server = server
        self._unanswered = re.compile(unanswered)
        self._problem = problem

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        return [] if self._silent(expression) else self._server.query(expression, at)

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[RangeSeries]:
        return [] if self._silent(expression) else self._server.query_range(expression, start, end, step)

    def take_warnings(self) -> list[str]:
        return ["store b is down"] if self._warns else []

    def _silent(self, expression: str) -> bool:
        silent = self._unanswered.search(expression) is not None
        if silent and self._problem is not None:
            raise self._problem
        return silent


class Saying(Partly):
    """A server that returns a given series for some queries."""

    def __init__(self, server: Prometheus, expression: str, answer: Series) -> None:
        super().__init__(server, expression)
        self._answer = answer

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        return [self._answer] if self._silent(expression) else super().query(expression, at)


class Unclaimed(Partly):
    """A server without claims of GPUs by ranks."""

    def __init__(self, server: Prometheus) -> None:
        super().__init__(server, "rank_gpu:claim:info")

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        return super().query(expression.replace("run:gpus:count", "run:no_gpus:count"), at)

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[RangeSeries]:
        return super().query_range(expression.replace("run:gpus:count", "run:no_gpus:count"), start, end, step)


class Inactive(Partly):
    """A server without the activity of GPUs 1."""

    def __init__(self, server: Prometheus) -> None:
        super().__init__(server, "^$")

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        return super().query(expression.replace("gpu:busy:ratio5m{", 'gpu:busy:ratio5m{gpu!="1", '), at)


def blocks(document: Document, key: str, kind: type[_Block]) -> list[_Block]:
    section = next(section for section in document.sections if section.key == key)
    return [block for block in section.blocks if isinstance(block, kind)]


def table(document: Document, key: str, title: str) -> list[dict[str, Value]]:
    """Return the rows of the table whose title contains a text."""
    found = next(each for each in blocks(document, key, Table) if title in each.title)
    names = [column.name for column in found.columns]
    return [dict(zip(names, row, strict=True)) for row in found.rows]


def facts(document: Document, key: str) -> dict[str, Fact]:
    return {fact.name: fact for block in blocks(document, key, Facts) for fact in block.facts}


def advice(document: Document) -> list[Recommendation]:
    return blocks(document, "recommendations", Recommendation)


def words(document: Document, key: str) -> str:
    found: list[Notice | Paragraph] = [*blocks(document, key, Notice), *blocks(document, key, Paragraph)]
    return " ".join(block.text for block in found)


def number(value: Value) -> float:
    assert isinstance(value, (float, int))
    return float(value)


@pytest.mark.parametrize(("name", "cause"), JUDGED.items())
def test_the_first_recommendation_is_for_the_cause_of_the_story(report_of: Report, name: str, cause: str) -> None:
    assert advice(report_of(name))[0].cause == cause


@pytest.mark.parametrize("name", [each.name for each in INSTALLED if each.name in JUDGED and each.case.lost])
def test_gpu_hours_lost_are_those_of_the_story(report_of: Report, name: str) -> None:
    case = part(name).case
    assert case.lost is not None
    from_minute = case.onset if case.story.runs[0].start > -60 * 40 else 0.0
    truth = case.lost * (case.length - from_minute) / case.length
    (row,) = (row for row in table(report_of(name), "lost-time", "by cause") if row["Cause"] == JUDGED[name])
    assert number(row["Share"]) == pytest.approx(truth, abs=0.04)
    gpus = sum(node.gpus for node in case.story.nodes) if len(case.story.nodes) > 1 else 1
    assert number(row["Lost"]) == pytest.approx(number(row["Share"]) * gpus * case.length / 60, rel=0.02)


@pytest.mark.parametrize("name", ["waiting", "straggling"])
def test_the_calculation_of_a_gain_is_exact_to_the_displayed_digits(report_of: Report, name: str) -> None:
    first = advice(report_of(name))[0]
    found = re.match(
        r"(\S+) of (\S+) GPUs? \S (\S+) h = (\S+) GPU-hours; without it the same work would take "
        r"1 - \1 = (\S+) of its time, 1 / \5 = (\S+) times as fast; "
        r"\4 GPU-hours \S 2 \+ (\S+) kWh \S 0.25 = (\S+) EUR\.$",
        first.arithmetic,
    )
    assert found is not None, first.arithmetic
    share, gpus, hours, gpu_hours, rest, speed_up, energy, money = map(float, found.groups())
    assert gpu_hours == pytest.approx(share * gpus * hours, rel=0.01)
    assert rest == pytest.approx(1 - share, abs=0.001)
    assert speed_up == pytest.approx(1 / rest, rel=0.01)
    assert money == pytest.approx(2 * gpu_hours + 0.25 * energy, abs=0.01)
    gain = {fact.name: fact.value for fact in first.gain}
    assert gain["Cost"] == pytest.approx(money, abs=0.01)
    assert gain["Time"] == pytest.approx(share, abs=0.001)


def test_recommendations_are_ordered_by_gain(report_of: Report) -> None:
    document = report_of("straggling")
    hours = [{fact.name: fact.value for fact in each.gain}["GPU-hours"] for each in advice(document)]
    assert hours == sorted(hours, key=lambda value: -number(value))
    assert [each.rank for each in advice(document)] == list(range(1, len(hours) + 1))


def test_broken_hardware_comes_before_the_losses_that_follow_from_it(report_of: Report) -> None:
    causes = [each.cause for each in advice(report_of("broken"))]
    assert causes[0] == "lost"
    assert causes.index("hang_spin") > causes.index("ecc_uncorrected")


def test_a_lost_gpu_promises_no_speed_up(report_of: Report) -> None:
    gains = {each.cause: [fact.name for fact in each.gain] for each in advice(report_of("broken"))}
    assert "lost" in gains
    assert "Speed-up" not in gains["lost"]
    assert "Speed-up" in [fact.name for fact in advice(report_of("saving"))[0].gain]


@pytest.mark.parametrize(("subject", "is_muted"), [("GPU 1 of a", True), ("GPU 2 of a", False)])
def test_an_alert_on_a_lost_gpu_has_no_advice_of_its_own(subject: str, is_muted: bool) -> None:
    fired = Alerts(
        tuple(
            FiredAlert(cause, "critical", cause, place, 1, 60.0, 0.0, 60.0)
            for cause, place in (("lost", "GPU 1 of a"), ("xid_hw", subject))
        ),
        rules_loaded=True,
    )
    assert fired.muted("xid_hw") == is_muted
    assert not fired.muted("lost")


def test_a_run_with_a_single_point_of_steps_has_its_ranks(server: Prometheus, run_of: FindRun) -> None:
    once = Saying(server, r"timestamp\(run:step:seconds5m", Series({}, run_of("straggling").end - 60.0))
    document = build(of_run(server, run_of("straggling")), once, PRICES)
    assert document.incomplete == ()
    assert table(document, "ranks", "Ranks")


def test_a_run_without_trouble_gets_no_advice(report_of: Report) -> None:
    document = report_of(HEALTHY)
    assert advice(document) == []
    assert words(document, "recommendations").startswith("GPU-bound, well used")
    assert words(document, "alerts") == "No alert fired."


def test_a_run_without_verdicts_is_not_reported_as_fine(server: Prometheus, run_of: FindRun) -> None:
    unjudged = Saying(server, r"^sum_over_time\(.*run:verdict", Series({"cause": "insufficient_data"}, 3600.0))
    document = build(of_run(unjudged, run_of("healthy")), unjudged)
    assert advice(document) == []
    assert "only 0 % of the time has a verdict" in words(document, "recommendations")


def test_work_is_reported_as_total_and_per_second(report_of: Report) -> None:
    work, length = facts(report_of("healthy"), "summary"), 60 * part("healthy").case.length
    assert number(work["Samples per second"].value) == pytest.approx(2242, rel=0.01)
    assert number(work["Samples"].value) == pytest.approx(2242 * length, rel=0.01)


def test_a_loss_without_verdict_is_reported_without_recommendation(report_of: Report) -> None:
    lost = {row["Cause"] for row in table(report_of(HEALTHY), "lost-time", "by cause")}
    assert lost == {"uneven_work"}


def test_the_straggler_is_named_with_its_gpu_and_root_cause(report_of: Report) -> None:
    document = report_of("straggling")
    assert dict(part("straggling").case.culprit or ()) == {"rank": "3"}
    assert "rank 3 (GPU 1 of straggling1:19400)" in words(document, "ranks")
    assert "rank 3 (GPU 1 of straggling1:19400)" in advice(document)[0].evidence
    assert "Slowed by heat" in advice(document)[0].evidence
    first, *others = table(document, "ranks", "Ranks")
    assert first["Rank"] == "3"
    assert all(number(first["Waited for"]) > 10 * number(row["Waited for"]) for row in others)


def test_the_advice_names_rank_gpu_node_and_root_cause_and_the_summary_does_not_repeat_it(report_of: Report) -> None:
    document = report_of("straggling")
    blamed = "rank 3, GPU 1 of straggling1:19400: slowed by heat"
    remedy = "Check airflow, fans and inlet temperature."
    assert blamed not in words(document, "summary")
    assert remedy not in words(document, "summary")
    assert advice(document)[0].advice == f"R{blamed[1:]}. {remedy}"
    assert document.highlights[0].note == blamed


@pytest.mark.parametrize(("run", "reason"), [("waiting", "input_few_workers"), ("starving", "input_network_bound")])
def test_the_verdict_before_the_reason_was_known_has_no_advice_of_its_own(
    report_of: Report, run: str, reason: str
) -> None:
    document = report_of(run)
    assert {"input_bound", reason} <= {row["Cause"] for row in table(document, "lost-time", "by cause")}
    causes = [each.cause for each in advice(document)]
    assert reason in causes
    assert "input_bound" not in causes


def test_what_makes_the_straggler_slow_has_no_advice_of_its_own(report_of: Report) -> None:
    document = report_of("straggling")
    assert "GpuThermalThrottle" in {row["Alert"] for row in table(document, "alerts", "Alerts")}
    assert "thermal_throttle" not in [each.cause for each in advice(document)]


def test_what_makes_the_straggler_slow_has_advice_of_its_own_where_no_culprit_is_recorded(
    server: Prometheus, run_of: FindRun
) -> None:
    document = build(of_run(server, run_of("straggling")), Partly(server, "run:culprit:info"), PRICES)
    assert "thermal_throttle" in [each.cause for each in advice(document)]


def test_a_hung_run_is_reported_as_the_lost_gpu_of_the_rank_that_ended(report_of: Report) -> None:
    advised = {each.cause: each.advice for each in advice(report_of("broken"))}
    assert advised["lost"].startswith("Rank 3, GPU 1 of broken1:19400: GPU lost. ")


def test_every_cause_considered_has_the_thresholds_of_its_verdict_and_of_its_alert(report_of: Report) -> None:
    rows = {row["Cause"]: row for row in table(report_of("saving"), "considered", "Causes")}
    found = rows[CAUSES["checkpoint_stall"].title]
    assert (found["Result"], found["Verdict from"], found["Alert from"]) == ("found", 0.05, 0.05)
    evaluation = rows[CAUSES["evaluation_overhead"].title]
    assert (evaluation["Result"], evaluation["Verdict from"], evaluation["Alert from"]) == ("not found", 0.1, 0.25)
    assert rows[CAUSES["callback_stall"].title]["Alert from"] == 0.05
    assert rows[CAUSES["stalled"].title]["Alert from"] is None


def test_the_last_verdict_is_explained_by_the_values_beside_its_thresholds(report_of: Report) -> None:
    rows = {row["Signal"]: row for row in table(report_of("waiting"), "why", "Values")}
    assert rows["loader workers per CPU"] == {
        "Signal": "loader workers per CPU",
        "Value": "0.125",
        "Threshold": "under 0.7: yes",
    }
    assert rows["time lost to it"]["Threshold"] == "from 5 %, alert from 10 %"
    (shown,) = blocks(report_of("waiting"), "why", Table)
    assert "from its threshold: any hardware or progress cause." in shown.note


def test_a_cause_above_its_threshold_is_not_reported_as_below_it(server: Prometheus, run_of: FindRun) -> None:
    most = Series({"cause": "comm_bound"}, 0.3)
    document = build(of_run(server, run_of("saving")), Saying(server, r"^max by \(cause\) \(max_over", most), PRICES)
    rows = {row["Cause"]: row for row in table(document, "considered", "Causes")}
    assert rows["Communication"]["Result"] == "another cause came first"


def test_an_amount_of_money_without_a_currency_has_the_sign_of_an_unknown_one(
    server: Prometheus, run_of: FindRun
) -> None:
    priced = build(of_run(server, run_of("waiting")), server, Options(gpu_hour_price=2.0))
    text = markdown.write(priced)
    assert "Cost of lost time: **" in text
    assert re.search(r"\d \N{CURRENCY SIGN}\*\* \(.*; \N{CURRENCY SIGN}: unknown currency, set --currency\)", text)
    assert not re.search(r"Cost: \*\*[\d.,]+\*\*", text)


def test_no_rank_is_blamed_where_no_culprit_is_recorded(server: Prometheus, run_of: FindRun) -> None:
    document = build(of_run(server, run_of("straggling")), Partly(server, "run:culprit:info"), PRICES)
    assert "slowed by heat" not in words(document, "summary")
    assert advice(document)[0].advice == CAUSES["straggler_hw"].remedy
    assert document.highlights[0].note == "the verdict that held longest"


def test_the_advice_names_the_line_of_code(server: Prometheus, run_of: FindRun) -> None:
    labels = {
        "cause": "input_few_workers",
        "phase": "data_wait",
        "location": "data/augment.py:41",
        "function": "elastic",
    }
    reported = Saying(server, "_over_time.run:code:ratio2m", Series(labels, 0.62))
    advised = {each.cause: each.advice for each in advice(build(of_run(server, run_of("waiting")), reported, PRICES))}
    assert advised["input_few_workers"].startswith(
        "62 % of the wait is in data/augment.py:41 elastic, with 2 loader workers. "
    )
    assert advised["input_few_workers"].endswith(CAUSES["input_few_workers"].remedy)


def test_the_advice_names_no_line_of_another_verdict(server: Prometheus, run_of: FindRun) -> None:
    labels = {"cause": "checkpoint_stall", "phase": "checkpoint", "location": "save.py:3", "function": "save"}
    reported = Saying(server, "run:code:ratio2m", Series(labels, 0.62))
    advised = {each.cause: each.advice for each in advice(build(of_run(server, run_of("waiting")), reported, PRICES))}
    assert advised["input_few_workers"] == CAUSES["input_few_workers"].remedy


def test_a_rank_that_is_gone_is_named(report_of: Report) -> None:
    gone = words(report_of("broken"), "ranks")
    assert gone.startswith(
        "Ranks that had ended at the end of this time: rank 3 (GPU 1 of broken1:19400) lost, last report"
    )
    assert "had ended" not in words(report_of("straggling"), "ranks")


def test_a_rank_that_differed_by_its_stack_is_named_with_its_line(
    server: Prometheus, run_of: FindRun, report_of: Report
) -> None:
    labels = {"rank": "3", "location": "job/dataset.py:12", "function": "load", "call": "read"}
    reported = Saying(server, "rank:odd_stack:info", Series(labels, 300.0))
    assert (
        "While most ranks waited at another place of the code: rank 3 (GPU 1 of broken1:19400) was in read at "
        "job/dataset.py:12 for 5 min."
    ) in words(build(of_run(server, run_of("broken")), reported, PRICES), "ranks")
    assert "While most ranks" not in words(report_of("broken"), "ranks")


def test_the_recommendation_on_a_standstill_names_the_rank_that_differed_and_its_line(
    server: Prometheus, run_of: FindRun, report_of: Report
) -> None:
    labels = {"rank": "3", "location": "job/dataset.py:12", "function": "load", "call": "read", "verdict": "lost"}
    reported = Saying(server, "rank:odd_stack:info", Series(labels, 300.0))
    document = build(of_run(server, run_of("broken")), reported, PRICES)
    assert advice(document)[0].advice.startswith("Rank 3 is in read at job/dataset.py:12, unlike most ranks. ")
    assert table(document, "ranks", "Ranks")[0]["Rank"] == "3"
    assert "unlike most ranks" not in advice(report_of("broken"))[0].advice


def test_dips_have_their_interval_in_steps_and_events_as_frequent(report_of: Report) -> None:
    (pause,) = part("saving").case.story.runs[0].work[0].state.pauses
    assert pause.phase == "checkpoint"
    document = report_of("saving")
    (dipping,) = table(document, "dips", "regular intervals")
    mean = number(facts(document, "steps")["Mean step time"].value)
    assert number(dipping["Interval"]) == pytest.approx(pause.every_seconds + pause.seconds, rel=0.05)
    assert number(dipping["Interval in steps"]) == pytest.approx(number(dipping["Interval"]) / mean, rel=0.05)
    back = {row["Event"]: row for row in table(document, "dips", "Recurring events")}
    assert number(back["Checkpoint"]["Relative to dips"]) == pytest.approx(1, abs=0.1)


def test_alerts_have_count_duration_and_worst_time(report_of: Report, filled: FilledPrometheus) -> None:
    document = report_of("hot")
    (alert,) = table(document, "alerts", "Alerts")
    assert alert["Alert"] == "GpuThermalThrottle"
    assert alert["Subject"] == "rank 0, GPU 0 of hot0:19400"
    assert alert["Fired"] == 1
    assert number(alert["Last"]) == filled.end
    assert number(alert["Duration"]) == pytest.approx(filled.end - number(alert["First"]), abs=60)
    assert number(alert["First"]) > filled.end - 60 * (part("hot").case.length - part("hot").case.onset)
    assert number(alert["Worst"]) == pytest.approx(0.27, abs=0.03)
    assert number(alert["First"]) <= number(alert["Worst at"]) <= filled.end


def test_alerts_on_a_runs_nodes_count_and_those_on_others_do_not(report_of: Report) -> None:
    names = {row["Alert"] for row in table(report_of("host"), "alerts", "Alerts")}
    assert {"HostOomKill", "HostShmFull"} <= names
    assert not {"HostSwapping", "HostMemPressure"} & names, "the first two explain them"
    assert not any(str(name).startswith("Stallscope") for name in names)


def test_alerts_on_gpus_that_a_run_does_not_use_are_omitted(report_of: Report) -> None:
    document = report_of("shared")
    assert {row["Alert"] for row in table(document, "alerts", "Alerts")} == {"GpuSharedUnexpectedly"}
    assert [each.cause for each in advice(document)] == ["shared_unexpectedly"]


def test_alerts_on_a_lost_gpu_of_the_run_are_kept(report_of: Report) -> None:
    names = {(row["Alert"], row["Subject"]) for row in table(report_of("broken"), "alerts", "Alerts")}
    assert ("GpuLost", "GPU 1 of broken1:19400") in names


def test_percentiles_of_steps_are_estimates_as_on_dashboards_between_their_limits(
    report_of: Report, run_of: FindRun, server: Prometheus, filled: FilledPrometheus
) -> None:
    rows = table(report_of("stuttering"), "steps", "Percentiles")
    assert next((row["At least"], row["At most"]) for row in rows)[1] == pytest.approx(0.5)
    queries = Queries(server, of_run(server, run_of("stuttering")), Options())
    counts = queries.integral(f"sum by (le) (run:step_seconds_bucket:rate5m{{{queries.subject.run_matchers}}})")
    for row in rows:
        (expected,) = server.query(f"histogram_quantile({row['Percentile']}, {counts})", at=filled.end)
        assert number(row["At least"]) <= number(row["Estimate"]) <= number(row["At most"])
        limited = min(number(row["At most"]), max(number(row["At least"]), expected.value))
        assert row["Estimate"] == pytest.approx(limited, rel=0.1)


def test_a_percentile_in_the_last_bucket_has_no_estimate() -> None:
    table = steps._percentiles([Bucket(0.2, 0.5, 60.0), Bucket(1000.0, inf, 40.0)], None)
    assert table.rows[0][1] == pytest.approx(0.2 + 0.3 * 50 / 60)
    assert table.rows[1][1:] == (None, 1000.0, None)


def test_steps_of_one_bucket_have_a_range_and_no_estimate() -> None:
    table = steps._percentiles([Bucket(1.0, 2.0, 26.0)], 1.12)
    assert [column.name for column in table.columns] == ["Percentile", "At least", "At most"]
    assert [number(value) for value in table.rows[0]] == pytest.approx([0.5, 1.0, 1.24])
    assert [number(value) for value in table.rows[1]] == pytest.approx([0.95, 1.0737, 2.0], abs=1e-3)


def test_outliers_are_counted_priced_and_dated(report_of: Report, filled: FilledPrometheus) -> None:
    worst = table(report_of("stuttering"), "steps", "slow steps")
    onset = filled.end - 60 * (part("stuttering").case.length - part("stuttering").case.onset)
    assert len(worst) == 8
    assert all(onset < number(row["Until"]) <= filled.end for row in worst)
    assert all(number(row["Lost"]) > 0 < number(row["Slow steps"]) for row in worst)
    assert "outliers" in words(report_of("stuttering"), "steps")
    assert "No step was an outlier" in words(report_of(HEALTHY), "steps")


def test_phases_sum_to_the_loop(report_of: Report) -> None:
    rows = table(report_of("waiting"), "phases", "Phases")
    assert sum(number(row["Share"]) for row in rows) == pytest.approx(1)
    assert [row["Phase"] for row in rows][:2] == ["Backward", "Data wait"]


def test_the_verdicts_of_the_run_follow_one_another(report_of: Report) -> None:
    (figure,) = blocks(report_of("waiting"), "verdicts", Figure)
    assert isinstance(figure.plot, States)
    states = [span.state for span in figure.plot.spans[0]]
    assert states[0] == "insufficient_data"
    assert states[-1] == "input_few_workers"
    ends, starts = [span.end for span in figure.plot.spans[0]], [span.start for span in figure.plot.spans[0]]
    assert ends[:-1] == starts[1:]


def test_each_gpu_has_its_percentiles_in_order_and_a_row_of_the_heat_map(report_of: Report) -> None:
    document = report_of("straggling")
    rows = table(document, "utilisation", "Utilization")
    assert len(rows) == 4
    for row in rows:
        ordered = [number(row[name]) for name in ("Minimum", "5 %", "Median", "95 %", "99 %", "Maximum")]
        assert ordered == sorted(ordered)
    (heat,) = (each.plot for each in blocks(document, "utilisation", Figure))
    assert isinstance(heat, HeatMap)
    assert heat.rows == tuple(row["GPU"] for row in rows)


def test_a_gpu_without_activity_is_listed_as_unknown_and_not_drawn(server: Prometheus, run_of: FindRun) -> None:
    document = build(of_run(server, run_of("straggling")), Inactive(server), PRICES)
    busy = {row["GPU"]: row["Busy"] for row in table(document, "utilisation", "Utilization")}
    assert len(busy) == 4
    unknown = [name for name, share in busy.items() if share is None]
    assert unknown == [name for name in busy if str(name).endswith("GPU 1")] != []
    (heat,) = (each.plot for each in blocks(document, "utilisation", Figure))
    assert isinstance(heat, HeatMap)
    assert set(heat.rows) == set(busy) - set(unknown)


def test_a_run_at_a_standstill_is_not_reported_as_running(report_of: Report) -> None:
    stopped, goes_on = report_of("broken"), report_of("straggling")
    last_step = facts(stopped, "summary")["Last step"].value
    assert stopped.standstill_timestamp_seconds == last_step
    assert str(facts(stopped, "summary")["State"].value).startswith("at a standstill since ")
    assert goes_on.standstill_timestamp_seconds is None
    assert facts(goes_on, "summary")["State"].value == "running"


def test_a_run_without_phases_has_missing_data_instead_of_a_loss(report_of: Report) -> None:
    document = report_of("unknown")
    assert advice(document) == []
    assert {fact.name: fact.value for fact in document.highlights}["Lost"] is None
    assert "no verdict" in words(document, "lost-time")
    assert "No phase is measured" in words(document, "phases")
    missing = {row["Missing"]: number(row["Share"]) for row in table(document, "missing", "without verdict")}
    assert missing["data_wait"] == pytest.approx(1, abs=0.02)


def test_gaps_and_failed_sources_are_reported(report_of: Report) -> None:
    document = report_of("exporters")
    (gap,) = table(document, "missing", "Gaps")
    assert gap["Node"] == "exporters1:19400"
    assert number(gap["Failed scrapes"]) == pytest.approx(17 / 37, abs=0.05)
    assert {row["Collector"] for row in table(document, "missing", "Failed collectors")} == {"disk"}


@pytest.mark.parametrize(
    ("query", "labels", "said"),
    [
        (
            "source_last_success",
            {"instance": "waiting0:19400"},
            "The clock of node waiting0:19400 was up to 1 min 30 s",
        ),
        ("last_step_.*last_push", {"rank": "0"}, "The clock of rank 0 was up to 1 min 30 s ahead of its exporter's"),
    ],
    ids=["node", "rank"],
)
def test_a_clock_that_is_ahead_is_reported(
    server: Prometheus, run_of: FindRun, report_of: Report, query: str, labels: dict[str, str], said: str
) -> None:
    document = build(of_run(server, run_of("waiting")), Saying(server, f"topk.*{query}", Series(labels, 90.0)))
    assert said in words(document, "missing")
    assert "clock" not in words(report_of("waiting"), "missing").replace("clock_configured_hertz", "")


def test_the_report_of_a_finished_run_ends_with_its_last_live_moment(
    server: Prometheus, run_of: FindRun, filled: FilledPrometheus
) -> None:
    remembered = replace(run_of("waiting"), goes_on=False, end=filled.end + 290, states={"finished": 1})
    document = build(of_run(server, remembered), server)
    assert filled.end - 5 <= document.end <= filled.end + 90  # a rank reports every five seconds
    assert not document.live
    assert facts(document, "summary")["State"].value == "finished"
    assert "Ended" in facts(document, "summary")
    assert advice(document)[0].cause == "input_few_workers"


def test_a_run_without_gpus_loses_rank_hours(server: Prometheus, run_of: FindRun) -> None:
    document = build(of_run(server, run_of("waiting")), Unclaimed(server), PRICES)
    assert "rank-hours" in words(document, "lost-time")
    assert "rank-hours" in advice(document)[0].arithmetic
    assert "GPU-hours" not in advice(document)[0].arithmetic
    assert "no rank of the run claims a GPU" in words(document, "utilisation")


def test_a_server_without_rules_gets_a_report_that_says_so(server: Prometheus, run_of: FindRun) -> None:
    document = build(of_run(server, run_of("straggling")), Partly(server, r"[a-z]:[a-z_]+|ALERTS"), PRICES)
    assert advice(document) == []
    for missing in ("Recording rules in ", "input.yml", "thresholds.yml", "totals.yml", "The alert rules"):
        assert missing in words(document, "missing")
    for key in (
        "recommendations",
        "lost-time",
        "verdicts",
        "alerts",
        "utilisation",
        "dips",
        "ranks",
    ):
        assert blocks(document, key, Notice), key
    assert {fact.name: fact.value for fact in document.highlights}["Lost"] is None
    assert facts(document, "summary")["Ranks"].value == 4
    assert facts(document, "summary")["Live"].value is None
    assert "Cost" not in facts(document, "summary")


def test_the_time_of_a_run_without_rules_is_known_by_its_own_counters(
    server: Prometheus, run_of: FindRun, report_of: Report
) -> None:
    alone = build(of_run(server, run_of("straggling")), Partly(server, r"[a-z]:[a-z_]+|ALERTS"))
    for key, title in (("phases", "Phases of the loop"), ("steps", "Percentiles")):
        assert table(alone, key, title) == table(report_of("straggling"), key, title)
    assert next(fact.name for fact in alone.highlights) == "Largest phase"
    assert "By its own counters" in words(alone, "summary")


def test_a_run_unknown_to_the_rules_is_not_blamed_on_missing_rules(server: Prometheus, run_of: FindRun) -> None:
    document = build(of_run(server, replace(run_of("waiting"), name="too young")), server)
    assert "recorded nothing for this report" in words(document, "missing")
    assert "Load all files" not in words(document, "missing")


def test_a_failed_section_says_so_and_the_others_are_complete(server: Prometheus, run_of: FindRun) -> None:
    failing = Partly(server, "host:cpu_busy:ratio5m", PrometheusError("http://prometheus: no answer within 60 s"))
    document = build(of_run(server, run_of("waiting")), failing)
    assert "no answer within 60 s" in words(document, "hosts")
    assert document.incomplete == ("Hosts: http://prometheus: no answer within 60 s",)
    assert document.incomplete[0] in words(document, "missing")
    assert advice(document)[0].cause == "input_few_workers"


def test_recommendations_do_not_need_alerts_and_affected_ranks(server: Prometheus, run_of: FindRun) -> None:
    failing = Partly(server, "ALERTS|rank_cause:|rank_gpu:claim", PrometheusError("too many samples"))
    document = build(of_run(server, run_of("waiting")), failing)
    assert advice(document)[0].cause == "input_few_workers"
    assert "too many samples" in words(document, "alerts")
    assert "No alert fired" not in words(document, "alerts")
    assert "Alerts: too many samples" in words(document, "missing")
    assert "alert rules are not loaded" not in words(document, "missing")


def test_failures_are_listed_even_if_the_query_for_missing_data_fails(server: Prometheus, run_of: FindRun) -> None:
    failing = Partly(server, "source_up|host:cpu_busy:ratio5m", PrometheusError("too many samples"))
    document = build(of_run(server, run_of("waiting")), failing)
    assert words(document, "missing") == "Hosts: too many samples Missing data: too many samples"
    assert advice(document)[0].cause == "input_few_workers"


def test_warnings_of_the_server_precede_all_numbers(server: Prometheus, run_of: FindRun) -> None:
    document = build(of_run(server, run_of("waiting")), Partly(server, "^$", warns=True))
    first = document.sections[0].blocks[0]
    assert isinstance(first, Notice)
    assert first.text.endswith("may be too low or missing. store b is down.")


def test_a_server_that_hangs_aborts_the_report(server: Prometheus, run_of: FindRun) -> None:
    titles: list[str] = []
    hanging = Partly(server, r"ALERTS|vector\(1\)", PrometheusError("no answer within 60 s"))
    with pytest.raises(PrometheusError, match="no answer"):
        build(of_run(server, run_of("waiting")), hanging, progress=titles.append)
    assert titles[-1] == "Alerts"


def test_a_server_that_is_gone_is_an_error_and_no_report(server: Prometheus, run_of: FindRun) -> None:
    subject = of_run(server, run_of("waiting"))
    with pytest.raises(PrometheusError, match="gone"):
        build(subject, Partly(server, "", PrometheusError("gone")))


def test_scaling_is_compared_with_another_run(server: Prometheus, run_of: FindRun) -> None:
    subject = of_run(server, run_of(HEALTHY))
    document = build(subject, server, Options(against=run_of("starving")))
    base, ours = table(document, "scaling", "Compared with starving")
    assert (base["Run"], ours["Run"]) == ("starving", HEALTHY)
    assert (base["GPUs"], ours["GPUs"]) == (1, 4)
    assert number(ours["Samples per second"]) == pytest.approx(2242, rel=0.02)
    efficiency = facts(document, "scaling")["Efficiency"].value
    assert number(efficiency) == pytest.approx(2242 / 4 / 560, abs=0.02)


def test_a_report_of_nodes_covers_all_users_of_their_gpus(server: Prometheus, filled: FilledPrometheus) -> None:
    document = build(of_nodes(["idle0:19400", "shared0:19400"], filled.start, filled.end), server, PRICES)
    assert advice(document)[0].cause == "idle_allocated"
    assert "GPU 0 of idle0:19400" in advice(document)[0].evidence
    assert {"mem_zombie", "shared_unexpectedly"} <= {each.cause for each in advice(document)}
    assert {row["Run"] for row in table(document, "summary", "Runs")} == {"shared", "bert"}
    assert len(table(document, "utilisation", "Utilization")) == 4


def test_everything_is_the_sum_of_all(server: Prometheus, filled: FilledPrometheus, report_of: Report) -> None:
    document = build(of_everything(filled.start, filled.end), server, PRICES)
    lost = {row["Cause"]: row["Lost"] for row in table(document, "lost-time", "by cause")}
    for name in ("waiting", "saving", "stuttering"):
        (own,) = (row for row in table(report_of(name), "lost-time", "by cause") if row["Cause"] == JUDGED[name])
        assert number(lost[JUDGED[name]]) == pytest.approx(number(own["Lost"]), rel=0.02)
    unjudged = {row["Verdict"]: row["Share"] for row in table(document, "verdicts", "Duration")}["insufficient_data"]
    assert f"{percent(number(unjudged))} of the GPU time has no verdict" in words(document, "summary")
    nodes = build(of_nodes(["broken0:19400", "broken1:19400"], filled.start, filled.end), server, PRICES)
    for row in table(nodes, "lost-time", "by cause")[:2]:
        (same,) = (each for each in table(document, "lost-time", "by cause") if each["Cause"] == row["Cause"])
        assert number(row["Energy"]) == pytest.approx(number(same["Energy"]), rel=0.02)
    runs = [row["Run"] for row in table(document, "summary", "Runs")]
    assert runs[:2] == ["broken", "straggling"]
    assert "StallscopeWatchdog" not in {row["Alert"] for row in table(document, "alerts", "Alerts")}


@pytest.mark.parametrize("name", [each.name for each in INSTALLED if each.run])
def test_every_report_is_plausible_and_can_be_rendered(report_of: Report, name: str) -> None:
    document = report_of(name)
    values = [fact for block in document.blocks if isinstance(block, Facts) for fact in block.facts]
    cells = [(fact.kind, fact.value) for fact in (*values, *document.highlights)]
    for block in document.blocks:
        if isinstance(block, Table):
            cells += [
                (column.kind, value) for row in block.rows for column, value in zip(block.columns, row, strict=True)
            ]
    for kind, value in cells:
        if isinstance(value, float):
            assert isfinite(value)
            assert value >= 0
            assert kind != "share" or value <= 1.001, (kind, value)
    for write in (json.write, markdown.write):
        assert document.title in write(document)


def test_a_report_can_be_drawn(report_of: Report) -> None:
    assert html.write(report_of("broken")).count("<figure") == sum(
        isinstance(block, Figure) for block in report_of("broken").blocks
    )


def test_progress_is_called_at_most_once_per_part(server: Prometheus, run_of: FindRun) -> None:
    calls: list[str] = []
    build(of_run(server, run_of("full")), server, progress=calls.append)
    assert len(calls) <= PARTS
    assert len(set(calls)) == len(calls)
