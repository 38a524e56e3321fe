"""The background queries for verdicts: their times, their content, and the state in between."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stallscope.model.clients.prometheus import Prometheus, PrometheusError, Series
from stallscope.model.view.verdicts import (
    CodeLine,
    Culprit,
    OddRank,
    RunName,
    Verdict,
    Verdicts,
    VerdictWatch,
)
from stallscope.model.view.watch import USEFUL_SECONDS, WATCHED_SECONDS
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.stacks import Place
from tests.analysis.servers import prometheus

RESNET = RunName("resnet50", "")


class Scripted:
    """A server with scripted results by series name."""

    name = "http://prometheus"

    def __init__(self, **answers: Sequence[Series]) -> None:
        self.answers = answers
        self.problem: Exception | None = None
        self.queries: list[str] = []
        self.came = threading.Condition()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def query(self, expression: str) -> Sequence[Series]:
        with self.came:
            self.queries.append(expression)
            self.came.notify_all()
        assert self.may_answer.wait(60)
        if self.problem is not None:
            raise self.problem
        return self.answers.get(
            re.sub(r":ratio\dm$", "", expression.partition("{")[0].rpartition("(")[2]).replace(":", "_"), ()
        )

    def await_queries(self, number: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: len(self.queries) >= number, 60)


def series(value: float, **labels: str) -> Series:
    return Series(labels, value)


@pytest.fixture
def clock() -> ScriptedClock:
    return ScriptedClock()


@pytest.fixture
def watch(clock: ScriptedClock) -> Callable[[Scripted], VerdictWatch]:
    return lambda server: VerdictWatch(server, monotonic=clock.monotonic)


Make = Callable[[Scripted], VerdictWatch]


def after_query(watching: VerdictWatch, runs: Sequence[RunName] = (RESNET,), gpus: Sequence[str] = ()) -> Verdicts:
    """Return the verdicts after one query."""
    watching.look(runs, gpus)
    watching.poll()
    return watching.look(runs, gpus)


def test_the_displayed_runs_and_gpus_are_queried(watch: Make) -> None:
    server = Scripted()
    watching = watch(server)
    watching.look([RunName("b.c", "x"), RunName("a", "")], ["GPU-1", "GPU-2"])
    watching.poll()
    assert server.queries == [
        'run:time_lost:ratio5m{run=~"a|b\\\\.c"}',
        'run:culprit:info{run=~"a|b\\\\.c"}',
        'count by (run, namespace, missing) (rank:missing:info{run=~"a|b\\\\.c"})',
        'run:code:ratio2m{run=~"a|b\\\\.c"}',
        'rank:odd_stack:info{run=~"a|b\\\\.c"}',
        'run:verdict:ratio5m{run=~"a|b\\\\.c"}',
        'gpu:verdict:ratio5m{uuid=~"GPU-1|GPU-2"}',
    ]


def test_without_runs_and_gpus_nothing_is_queried(watch: Make) -> None:
    server = Scripted()
    watching = watch(server)
    watching.look([], [])
    watching.poll()
    assert not server.queries


def test_verdicts_have_cause_share_total_and_age(watch: Make, clock: ScriptedClock) -> None:
    server = Scripted(
        run_verdict=[series(0.4, run="resnet50", cause="input_bound"), series(0.9, run="other", cause="stalled")],
        run_time_lost=[series(0.5, run="resnet50")],
        gpu_verdict=[series(0.1, uuid="GPU-1", cause="thermal_throttle")],
    )
    watching = watch(server)
    watching.look([RESNET], ["GPU-1", "GPU-2"])
    watching.poll()
    clock.advance(12)
    found = watching.look([RESNET], ["GPU-1", "GPU-2"])
    assert found.runs == {RESNET: Verdict("input_bound", 0.4, 0.5)}
    assert found.gpus == {"GPU-1": Verdict("thermal_throttle", 0.1)}
    assert (found.age, found.problem) == (12, "")


@pytest.mark.parametrize(("cause", "missing"), [("insufficient_data", ("reports", "warmup")), ("input_bound", ())])
def test_insufficient_data_has_its_reasons(watch: Make, cause: str, missing: tuple[str, ...]) -> None:
    reasons = [series(8, run="resnet50", missing=reason) for reason in ("warmup", "reports")]
    verdict = [series(0.0, run="resnet50", cause=cause)]
    assert after_query(watch(Scripted(run_verdict=verdict, rank_missing_info=reasons))).runs == {
        RESNET: Verdict(cause, 0.0, missing=missing)
    }


HOT = {"rank": "3", "instance": "b:9400", "gpu": "1", "uuid": "GPU-1", "mig": "", "cause": "thermal_throttle"}


def test_a_verdict_of_a_run_has_its_culprit(watch: Make) -> None:
    verdict = [series(0.2, run="resnet50", cause="straggler_hw")]
    watching = watch(Scripted(run_verdict=verdict, run_culprit_info=[series(1, run="resnet50", **HOT)]))
    blamed = Culprit("3", "b:9400", "1", "", "thermal_throttle")
    assert after_query(watching).runs == {RESNET: Verdict("straggler_hw", 0.2, None, blamed)}


def test_runs_of_one_name_with_different_culprits_have_none(watch: Make) -> None:
    verdict = [series(0.2, run="resnet50", cause="straggler_hw")]
    culprits = [series(1, run="resnet50", **HOT), series(1, cluster="b", run="resnet50", **{**HOT, "rank": "0"})]
    assert after_query(watch(Scripted(run_verdict=verdict, run_culprit_info=culprits))).runs[RESNET].culprit is None


def differs(rank: str, **labels: str) -> Series:
    return series(1, run="resnet50", rank=rank, location=f"a.py:{rank}", function="f", call="all_gather", **labels)


def test_a_verdict_of_a_standstill_has_the_ranks_that_differ_by_number(watch: Make) -> None:
    watching = watch(
        Scripted(
            run_verdict=[series(1.0, run="resnet50", cause="hang_spin")],
            rank_odd_stack_info=[differs("10"), differs("9"), series(1, run="other", rank="1")],
        )
    )
    assert after_query(watching).runs[RESNET].odd == (
        OddRank("9", Place("a.py:9", "f", "all_gather")),
        OddRank("10", Place("a.py:10", "f", "all_gather")),
    )


def test_runs_of_one_name_in_two_clusters_have_no_ranks_that_differ(watch: Make) -> None:
    verdict = [series(1.0, run="resnet50", cause="hang_spin")]
    odd = [differs("1", cluster="a"), differs("2", cluster="b")]
    assert not after_query(watch(Scripted(run_verdict=verdict, rank_odd_stack_info=odd))).runs[RESNET].odd


LINE = {"run": "resnet50", "phase": "data_wait", "location": "data/augment.py:41", "function": "elastic"}


def lines(**changes: str) -> Series:
    return series(0.62, **{**LINE, "cause": "input_bound", **changes})


@pytest.mark.parametrize(
    ("found", "workers", "expected"),
    [
        ([lines()], 4, CodeLine("data_wait", "data/augment.py:41", "elastic", 0.62, 4)),
        ([lines()], None, CodeLine("data_wait", "data/augment.py:41", "elastic", 0.62)),
        ([lines(phase="other")], 4, CodeLine("other", "data/augment.py:41", "elastic", 0.62)),
        ([lines(cause="stalled")], 4, None),
        ([lines(), lines(cluster="b", location="read.py:1")], 4, None),
        ([series(float("nan"), **LINE, cause="input_bound")], 4, None),
        ([], 4, None),
    ],
)
def test_a_verdict_of_a_run_has_the_line_of_code_of_its_cause(
    watch: Make, found: Sequence[Series], workers: int | None, expected: CodeLine | None
) -> None:
    loaders = [] if workers is None else [series(workers, run="resnet50")]
    verdict = [series(0.3, run="resnet50", cause="input_bound")]
    server = Scripted(run_verdict=verdict, run_code=found, stallscope_training_dataloader_workers=loaders)
    assert after_query(watch(server)).runs[RESNET].line == expected


def test_before_the_first_query_there_are_no_verdicts(watch: Make) -> None:
    found = watch(Scripted()).look([RESNET], [])
    assert (found.runs, found.gpus, found.age, found.problem) == ({}, {}, None, "")


def test_runs_of_one_name_are_distinguished_by_namespace(watch: Make) -> None:
    names = [RunName("resnet50", "red"), RunName("resnet50", "blue")]
    verdicts = [
        series(0.4, run="resnet50", namespace="red", cause="input_bound"),
        series(0.2, run="resnet50", namespace="blue", cause="comm_bound"),
        series(0.3, run="resnet50", cause="stalled"),
    ]
    found = after_query(watch(Scripted(run_verdict=verdicts)), names)
    assert [found.runs[name].cause for name in names] == ["input_bound", "comm_bound"]
    assert not found.ambiguous


def test_a_run_that_clusters_judge_differently_has_no_verdict(watch: Make) -> None:
    verdicts = [
        series(0.4, run="resnet50", cluster="a", cause="input_bound"),
        series(0.2, run="resnet50", cluster="b", cause="comm_bound"),
    ]
    found = after_query(watch(Scripted(run_verdict=verdicts)))
    assert not found.runs
    assert found.ambiguous == {RESNET}


def test_the_greater_share_counts_for_two_series_of_a_gpu(watch: Make) -> None:
    verdicts = [
        series(0.3, uuid="GPU-1", job="a", cause="thermal_throttle"),
        series(0.0, uuid="GPU-1", job="b", cause="healthy"),
    ]
    assert after_query(watch(Scripted(gpu_verdict=verdicts)), [], ["GPU-1"]).gpus["GPU-1"].cause == "thermal_throttle"


def test_shares_are_limited_to_plausible_values(watch: Make) -> None:
    verdicts = [
        series(1.7, run="resnet50", cause="input_bound"),
        series(float("nan"), run="resnet50", cause="stalled"),
        series(float("inf"), run="resnet50", cause="stalled"),
    ]
    assert after_query(watch(Scripted(run_verdict=verdicts))).runs == {RESNET: Verdict("input_bound", 1.0)}


@pytest.mark.parametrize("problem", [PrometheusError("no answer within 5 s"), RuntimeError("unforeseen")])
def test_a_failed_query_keeps_the_last_verdicts(watch: Make, clock: ScriptedClock, problem: Exception) -> None:
    server = Scripted(run_verdict=[series(0.4, run="resnet50", cause="input_bound")])
    watching = watch(server)
    watching.look([RESNET], [])
    watching.poll()
    server.problem = problem
    clock.advance(20)
    watching.poll()
    found = watching.look([RESNET], [])
    assert (found.problem, found.age) == (str(problem), 20)
    assert RESNET in found.runs
    server.problem = None
    watching.poll()
    found = watching.look([RESNET], [])
    assert (found.problem, found.age) == ("", 0)


def test_outdated_verdicts_are_dropped(watch: Make, clock: ScriptedClock) -> None:
    watching = watch(Scripted(run_verdict=[series(0.4, run="resnet50", cause="input_bound")]))
    watching.look([RESNET], [])
    watching.poll()
    clock.advance(USEFUL_SECONDS + 1)
    found = watching.look([RESNET], [])
    assert (found.runs, found.age) == ({}, None)


def test_a_pending_query_is_reported_with_its_age(watch: Make, clock: ScriptedClock) -> None:
    server = Scripted()
    server.may_answer.clear()
    watching = watch(server)
    watching.look([RESNET], [])
    polling = threading.Thread(target=watching.poll)
    polling.start()
    try:
        server.await_queries(1)
        clock.advance(33)
        assert watching.look([RESNET], []).problem == "http://prometheus: no answer for 33 s"
    finally:
        server.may_answer.set()
        polling.join()


def test_queries_stop_without_readers(clock: ScriptedClock) -> None:
    server = Scripted()
    watching = VerdictWatch(server, interval=0.01, monotonic=clock.monotonic)
    watching.start()
    try:
        assert not server.queries
        watching.look([], ["GPU-1"])
        server.await_queries(3)
        clock.advance(WATCHED_SECONDS + 1)
        seen = -1
        while seen < len(server.queries):  # until the queries stop
            seen = len(server.queries)
            threading.Event().wait(0.1)
        watching.look([], ["GPU-1"])
        server.await_queries(seen + 1)
    finally:
        watching.stop()


def test_the_first_run_of_a_node_is_queried_at_once() -> None:
    server = Scripted()
    watching = VerdictWatch(server, interval=600.0)
    watching.start()
    try:
        watching.look([], [])
        threading.Event().wait(0.1)  # until the thread waits again
        watching.look([RESNET], [])
        server.await_queries(1)
    finally:
        watching.stop()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_verdicts_are_read_from_a_real_prometheus(tmp_path: Path) -> None:
    rules = [
        ("run:verdict:ratio5m", {"run": "resnet50", "cause": "input_disk_bound"}, 0.42),
        ("run:time_lost:ratio5m", {"run": "resnet50"}, 0.5),
        ("gpu:verdict:ratio5m", {"instance": "a", "uuid": "GPU-1", "cause": "healthy"}, 0),
    ]
    with prometheus(tmp_path, rules) as url:
        client = Prometheus(url, timeout=60)
        found = after_query(VerdictWatch(client), [RESNET], ["GPU-1"])
        client.close()
    assert found.runs == {RESNET: Verdict("input_disk_bound", 0.42, 0.5)}
    assert found.gpus == {"GPU-1": Verdict("healthy", 0.0)}
    assert not re.search(r"\S", found.problem)
