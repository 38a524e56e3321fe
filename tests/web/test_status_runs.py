"""Training runs on the status page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.model.view.observer import STACK_INFO
from stallscope.model.view.stack_groups import grouped
from stallscope.model.view.verdicts import CodeLine, Culprit, RunName, Verdict, Verdicts
from stallscope.node.intake.held import Held
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.web.status.history import MARK_SECONDS, History
from stallscope.training.protocol.report import StepSeconds
from stallscope.training.protocol.stacks import Frame, Stack, place_of
from stallscope.training.protocol.vocabulary import STEP_BUCKET_COUNT
from tests.terminal.pages import sample
from tests.web.status_page import NOW, Element, ScriptedVerdicts, held, ranks, shown


def runs(**changes: Any) -> list[Element]:
    return shown(**changes).one("section", **{"aria-labelledby": "runs"}).all("article")


def run(*ranks: Held, **changes: Any) -> Element:
    (only,) = runs(held=ranks, **changes)
    return only


def facts(article: Element) -> dict[str, str]:
    return {each.one("dt").text: each.one("dd").text for each in article.one("dl", class_="facts").all("div")}


def legend(article: Element) -> list[str]:
    return [each.text for each in article.one("ul", class_="legend").all("li")]


def rows(article: Element) -> list[str]:
    return [row.text for row in article.one("tbody").all("tr")]


def test_a_run_shows_state_progress_and_step_time() -> None:
    article = run(held(steps=250, step_seconds=0.25, gauges={"step": 250.0, "steps_planned": 1000.0, "loss": 0.125}))
    assert article.one("h3").text == "resnet50 running"
    assert "1 rank on this node; training" in article.text
    # A step takes 0.4 s with what lies between steps: 100 s of phases for 250 of them.
    assert "Step 250 of 1,000, 25 %; about 5 min left" in article.text
    assert [each.attributes["width"] for each in article.all("rect", class_="progress")] == ["250"]
    assert facts(article) == {"Step time": "250 ms", "Loss": "0.125", "Last report": "1 s ago"}


def test_a_run_without_a_planned_end_shows_its_step_alone() -> None:
    article = run(held(gauges={"step": 12345.0}))
    assert "Step 12,345" in article.text
    assert "left" not in article.text
    assert not article.all("rect", class_="progress")


def test_steps_are_the_counted_ones_where_no_step_is_reported() -> None:
    assert "Step 100" in run(held(gauges={})).text


def test_a_run_is_done_only_when_it_is() -> None:
    assert "99 %" in run(held(gauges={"step": 999.0, "steps_planned": 1000.0})).text
    assert "100 %" in run(held(gauges={"step": 1000.0, "steps_planned": 1000.0})).text


def test_phases_are_in_the_order_of_a_step_with_their_shares_and_small_ones_together() -> None:
    phases = {
        "optimizer": 4.0,
        "forward": 20.0,
        "augment": 5.0,
        "data_wait": 30.0,
        "backward": 40.2,
        "a": 0.4,
        "b": 0.4,
    }
    article = run(held(phases=phases))
    assert legend(article) == [
        "data wait 30 %",
        "forward 20 %",
        "backward 40 %",
        "optimizer 4 %",
        "augment 5 %",
        "small phases 1 %",
    ]
    assert "Where the time goes, since the start" in article.text


def test_phases_of_the_last_minutes_are_shown_once_there_are_some() -> None:
    clock = ScriptedClock()
    history = History(clock.monotonic)
    early = held(phases={"initialization": 600.0}, steps=0, step_seconds=0.0, arrived=NOW - 210)
    history.note(ranks(early))
    clock.advance(MARK_SECONDS)
    history.note(ranks(early))
    late = {"initialization": 600.0, "data_wait": 30.0, "forward": 90.0}
    article = run(held(phases=late, steps=60, step_seconds=2.0, arrived=NOW), history=history)
    assert legend(article) == ["data wait 25 %", "forward 75 %"]
    assert "Where the time goes, in the last 3 min 30 s" in article.text
    assert facts(article)["Step time"] == "2.00 s"


def test_a_run_without_recent_steps_is_shown_since_its_start() -> None:
    clock = ScriptedClock()
    history = History(clock.monotonic)
    for _ in range(2):
        history.note(ranks(held()))
        clock.advance(MARK_SECONDS)
    article = run(held(), history=history)
    assert "Where the time goes, since the start" in article.text
    assert facts(article)["Step time"] == "250 ms"


def test_a_rank_that_counts_nothing_yet_claims_no_phases() -> None:
    article = run(held(state="starting", phases={"forward": 0.0}, steps=0))
    assert "Phases: nothing was reported yet." in article.text
    assert facts(article)["Step time"] == "unknown"


def test_several_ranks_are_listed_one_by_one() -> None:
    world = {"world_size": "16"}
    article = run(
        held(rank=0, info=world),
        held(rank=1, info=world, phases={"communication": 90.0, "forward": 10.0}, arrived=NOW - 95),
        held(rank=2, info=world, lost=True, ended=1.0, gpus=[]),
        held(rank=3, info=world, state="failed", failure="OutOfMemoryError", ended=1.0, steps=7, step_seconds=0.5),
    )
    assert article.one("h3").text == "resnet50 1 failed 1 lost 2 running"
    assert "4 of 16 ranks on this node; training" in article.text
    assert rows(article) == [
        "0 GPU 0 running 100 250 ms backward 50 %",
        "1 GPU 1 running, silent for 1 min 30 s 100 250 ms communication 90 %",
        "2 lost 100 250 ms backward 50 %",
        "3 GPU 3 failed, OutOfMemoryError 100 500 ms backward 50 %".replace(" 100 ", " 7 "),
    ]


_AMOUNTS = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@given(
    step=st.floats(allow_nan=False, allow_infinity=False),
    planned=st.floats(allow_nan=False, allow_infinity=False),
    phases=st.dictionaries(st.sampled_from(["data_wait", "forward", "other", "mine"]), _AMOUNTS, min_size=1),
    step_seconds=_AMOUNTS.filter(lambda seconds: seconds < 1e306),
    steps=st.integers(0, 2**50),
)
def test_no_figure_that_can_be_reported_breaks_the_page(
    step: float, planned: float, phases: dict[str, float], step_seconds: float, steps: int
) -> None:
    gauges = {"step": step, "steps_planned": planned, "loss": step, "epoch": planned}
    ranks = [held(rank=rank, phases=phases, gauges=gauges) for rank in range(2)]
    seconds = StepSeconds((*[0] * (STEP_BUCKET_COUNT - 1), steps), step_seconds, steps)
    ranks = [each._replace(report=each.report._replace(step_seconds=seconds)) for each in ranks]
    article = run(*ranks)
    assert not re.search(r"\b(nan|inf)\b", article.text)
    assert len(article.text) < 1000


def test_one_rank_needs_no_table() -> None:
    assert not run(held()).all("table")


def test_one_failed_rank_shows_its_failure() -> None:
    article = run(held(state="failed", failure="OutOfMemoryError", ended=1.0))
    assert "1 rank on this node; ended by OutOfMemoryError" in article.text


def test_restarts_are_those_of_the_rank_with_most_where_there_were_any() -> None:
    assert facts(run(held(restarts=2), held(rank=1, restarts=1)))["Restarts"] == "2"
    assert "Restarts" not in facts(run(held()))


def test_a_thousand_ranks_show_those_in_trouble_and_how_many_more_there_are() -> None:
    ranks = [held(rank=rank) for rank in range(1024)]
    ranks[1000] = held(rank=1000, lost=True, ended=1.0)
    article = run(*ranks)
    assert len(rows(article)) == 16
    assert rows(article)[-1].startswith("1000 GPU 1000 lost")
    assert article.one("caption").text == "Ranks, 1,008 more not shown"
    assert article.one("h3").text == "resnet50 1 lost 1,023 running"


def test_says_so_where_no_run_has_reported() -> None:
    assert "No training run has reported." in shown().text


NAMESPACED = RunName("resnet50", "research")


def judged(
    *,
    runs: dict[RunName, Verdict] | None = None,
    ambiguous: frozenset[RunName] = frozenset(),
    age: float | None = 12.0,
    problem: str = "",
) -> ScriptedVerdicts:
    return ScriptedVerdicts(Verdicts("http://prometheus:9090", runs or {}, ambiguous, {}, age, problem))


def test_the_verdict_shows_cause_cost_and_remedy() -> None:
    watch = judged(runs={NAMESPACED: Verdict("input_disk_bound", 0.42, 0.5)})
    article = run(held(info={"namespace": "research"}), verdicts=watch)
    assert article.one(class_="verdict").text == (
        "Verdict: Waiting for data: disk. It costs 42 % of the GPU time, all causes together 50 %. "
        "Read from local NVMe or memory, in larger sequential shards."
    )
    assert [queried for queried, _gpus in watch.queried] == [[NAMESPACED]]


def test_names_of_a_culprit_are_text_and_nothing_else() -> None:
    watch = judged(runs={NAMESPACED: Verdict("straggler_hw", 0.21, None, Culprit("<b>", "<i>", "<u>", "<s>", "<a>"))})
    article = run(held(info={"namespace": "research"}), verdicts=watch)
    assert "Rank <b>, GPU <u> MIG <s> of <i>: <a>. Drain or replace" in article.one(class_="verdict").text


def test_a_line_of_code_is_text_between_the_cost_and_the_remedy() -> None:
    line = CodeLine("data_wait", "<b>/augment.py:41", "<i>", 0.62, 4)
    watch = judged(runs={NAMESPACED: Verdict("input_disk_bound", 0.42, line=line)})
    article = run(held(info={"namespace": "research"}), verdicts=watch)
    sentence = "62 % of the wait is in <b>/augment.py:41 <i>, with 4 loader workers. Read"
    assert sentence in article.one(class_="verdict").text


def test_a_run_without_a_gpu_loses_its_own_time() -> None:
    watch = judged(runs={NAMESPACED: Verdict("input_disk_bound", 0.42)})
    article = run(held(info={"namespace": "research"}, gpus=[]), verdicts=watch)
    assert "It costs 42 % of its time. Read" in article.text


def test_the_verdict_of_another_namespace_is_not_shown() -> None:
    watch = judged(runs={NAMESPACED: Verdict("input_disk_bound", 0.42)})
    assert "Waiting for data" not in run(held(), verdicts=watch).text


def test_a_run_unknown_to_prometheus_is_marked_while_it_lives() -> None:
    words = "Verdict: none yet. Prometheus has no rules, or does not know this run, or only for a short time."
    assert words in run(held(), verdicts=judged()).text
    assert words not in run(held(), verdicts=judged(age=None)).text
    assert words not in run(held(state="finished", ended=1.0), verdicts=judged()).text


def test_a_name_that_several_runs_have_gets_no_verdict_of_either() -> None:
    watch = judged(ambiguous=frozenset({NAMESPACED}))
    article = run(held(info={"namespace": "research"}), verdicts=watch)
    assert "Verdict: unknown. Prometheus has several runs of this name" in article.text


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("healthy", "Verdict: Healthy. Nothing to do."),
        ("insufficient_data", "Verdict: Not enough evidence."),
        ("of_tomorrow", "Verdict: of_tomorrow."),
        ("<b>", "Verdict: <b>."),
    ],
)
def test_verdicts_missing_from_the_catalogue_are_shown_as_they_are(cause: str, words: str) -> None:
    watch = judged(runs={RunName("resnet50", ""): Verdict(cause, 0.0)})
    assert words in run(held(), verdicts=watch).text


def test_the_source_of_verdicts_is_shown_with_their_age() -> None:
    assert "Verdicts: http://prometheus:9090, 12 s ago." in shown(verdicts=judged()).text
    assert "Querying http://prometheus:9090 for verdicts." in shown(verdicts=judged(age=None)).text
    assert "--prometheus.url" in shown().text


def test_a_prometheus_that_does_not_respond_is_reported_with_the_age_of_the_verdicts() -> None:
    watch = judged(
        runs={RunName("resnet50", ""): Verdict("input_disk_bound", 0.42)}, age=95.0, problem="no answer within 5 s"
    )
    page = shown(held=(held(),), verdicts=watch)
    assert "Verdicts can't be had. no answer within 5 s. The verdicts shown are from 1 min 35 s ago." in page.text
    assert "Verdict: Waiting for data: disk." in page.text
    page = shown(verdicts=judged(age=None, problem="no answer within 5 s"))
    assert "no answer within 5 s. No verdict is known meanwhile." in page.text


def test_a_standstill_is_shown_with_the_rank_that_differs() -> None:
    where = "7 ranks wait in all_reduce at job/trainer.py:88; rank 3 is in <b>read</b> at job/dataset.py:12"
    assert f"Standstill: {where}." in run(held(), stacks={"resnet50": HANG}).text
    assert "Standstill" not in run(held(), stacks={"another": HANG}).text


def stack(number: int) -> Stack:
    """Return the stack of a rank in a hang of eight."""
    if number == 3:
        return (Frame("/usr/lib/python3/x.py", 1, "<b>read</b>"), Frame("/job/dataset.py", 12, "load"))
    return (Frame("/v/site-packages/torch/distributed/c.py", 9, "all_reduce"), Frame("/job/trainer.py", 88, "step"))


HANG = grouped({number: [stack(number)] for number in range(8)})


def hang(last_step: float) -> Element:
    """Return the run of eight ranks, of which rank 3 is elsewhere, at a standstill if the last step is long ago."""
    places = [sample(STACK_INFO, ("resnet50", str(number), *place_of(stack(number)))) for number in range(8)]
    ranks = [held(rank=number, last_step=last_step) for number in range(8)]
    return run(*ranks, samples=places, stacks={"resnet50": HANG})


def test_in_a_hang_the_rank_that_differs_comes_first_and_equal_ranks_share_a_row() -> None:
    odd, others = rows(hang(NOW - 600))
    assert odd == (
        "3 GPU 3 running, no step for 10 min, differs from most ranks 100 unknown in <b>read</b> at job/dataset.py:12"
    )
    assert others == ("7 ranks as rank 0 running, no step for 10 min 100 unknown in all_reduce at job/trainer.py:88")


def test_the_phases_of_earlier_steps_are_shown_only_without_a_standstill() -> None:
    assert "Where the time goes" not in hang(NOW - 600).text
    article = hang(NOW - 1)
    assert article.text.count("Where the time goes") == 2
    assert len(rows(article)) == 8
