"""Advice and lines of the summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs

import pytest

from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.catalogue.general_causes import PHASE_CAUSES
from stallscope.model.catalogue.metrics import OUTSIDE_PHASES, PHASES
from stallscope.model.clients.exposition import Page
from stallscope.model.view.observer import GPU_UP, LOST_INFO, PROCESSES, RANK_GPU, RANK_STATE
from stallscope.model.view.phase_shares import LEAST_STEPS, WORK
from stallscope.model.view.verdicts import Culprit, Verdict
from stallscope.tools.summary.conditions import EXCEEDED, parse
from stallscope.tools.summary.document import document_of
from stallscope.tools.summary.evidence import FAMILIES, Evidence, gather, gpus_of
from stallscope.tools.summary.findings import gpu_findings, main_finding
from stallscope.tools.summary.main import judge
from stallscope.tools.summary.measured import RankTime, RunTime
from stallscope.tools.summary.text import lines_of, unmeasured
from stallscope.training.shim.slow_steps import FEWEST, WARM_UP
from tests.free_ports import free_port
from tests.handled import handled, reply
from tests.summary.reports import START, rank
from tests.terminal.pages import sample, text

NOTHING = Evidence({}, {}, ())
XID = ("stallscope_gpu_xid_events_total", ("1", "GPU-1", "79"))


def a_run(*ranks: RankTime) -> RunTime:
    return RunTime("job", ranks or (rank(),))


def shown(run: RunTime, evidence: Evidence = NOTHING) -> dict[str, str]:
    first, *lines = lines_of([run], evidence)
    return {"": first, **{line[:12].strip(): line[12:] for line in lines}}


def on_gpu(number: int, **changes: Any) -> RunTime:
    return a_run(rank(gpus=[{"gpu": str(number), "uuid": f"GPU-{number}"}], **changes))


def evidence_of(run: RunTime, second: float = 1100.0, *, has_before: bool = True, **changes: Any) -> Evidence:
    before = Page(text(1000.0, ranks=0, gpus=changes.get("gpus", 2)), FAMILIES) if has_before else None
    return Evidence({"job": gpus_of(run, Page(text(second, ranks=0, **changes), FAMILIES), before)}, {}, ())


def titles(evidence: Evidence) -> list[str]:
    return [finding.title for finding in gpu_findings(evidence.gpus["job"][0])]


def test_a_forward_pass_that_is_not_measured_is_no_loss_and_is_named() -> None:
    run = a_run(rank({"backward": 30.0, "optimizer": 10.0, "other": 60.0}))
    assert main_finding(run, NOTHING) is None
    assert "Forward: no call of a module was found, so its time is part of other." in unmeasured(run)
    assert not [line for line in unmeasured(a_run()) if line.startswith("Forward")]


@pytest.mark.parametrize("url", ["http://[::1", "http://ops:secret@host:70000", "a server"])
def test_a_malformed_address_of_prometheus_is_named(url: str) -> None:
    unknown = gather([a_run()], f"http://127.0.0.1:{free_port()}", "", url).missing
    words = "Verdict: the address of Prometheus must be http://HOST:PORT or https://HOST:PORT, got "
    assert any(line.startswith(words) for line in unknown)
    assert "secret" not in "".join(unknown)


def test_report_and_summary_advise_from_the_same_number_of_steps_on() -> None:
    assert LEAST_STEPS == WARM_UP + FEWEST


def test_every_known_phase_apart_from_the_work_has_a_cause_of_the_catalogue() -> None:
    known = {*PHASES, *OUTSIDE_PHASES} - {*WORK, "initialization", "paused"}
    assert set(PHASE_CAUSES) == known
    assert set(PHASE_CAUSES.values()) <= set(CAUSES)


@pytest.mark.parametrize(
    ("phases", "title", "share"),
    [
        ({"data_wait": 30.0, "forward": 60.0, "checkpoint": 10.0}, "Waiting for data", 0.3),
        ({"data_wait": 5.0, "forward": 60.0, "checkpoint": 35.0}, "Blocking checkpoints", 0.35),
        ({"data_wait": 5.0, "forward": 60.0, "other": 35.0}, "Time outside the measured phases", 0.35),
        ({"data_wait": 5.0, "other": 95.0}, "Waiting for data", 0.05),
        ({"augment": 30.0, "forward": 70.0}, "Augment", 0.3),
    ],
)
def test_the_largest_share_apart_from_the_work_is_named(phases: Mapping[str, float], title: str, share: float) -> None:
    found = main_finding(a_run(rank(phases)), NOTHING)
    assert found is not None
    assert (found.source, found.title, found.share) == ("largest_share", title, share)


def test_much_time_that_no_phase_explains_has_its_share_and_its_line() -> None:
    phases = {"checkpoint": 45.0, "forward": 15.0, "other": 40.0}
    code = {"other": [{"location": "train.py:31", "function": "main", "seconds": 9.0}]}
    assert shown(a_run(rank(phases, code=code)))["other"] == "40 % of the time, most of it at train.py:31 main"
    assert shown(a_run(rank(phases)))["other"] == "40 % of the time"
    first_steps = RankTime(rank(phases, code=code).report, None)
    assert shown(a_run(first_steps))["other"] == "40 % of the time, most of it at train.py:31 main"


@pytest.mark.parametrize(
    "phases",
    [
        {"forward": 60.0, "other": 40.0},  # it is the largest
        {"checkpoint": 50.0, "forward": 45.0, "other": 5.0},
        {"checkpoint": 50.0, "other": 50.0},  # the work itself
    ],
)
def test_time_that_no_phase_explains_has_no_second_line_and_none_if_it_is_little_or_the_work(
    phases: Mapping[str, float],
) -> None:
    assert "other" not in shown(a_run(rank(phases)))


def test_a_share_is_rounded_alike_in_all_lines() -> None:
    lines = shown(a_run(rank({"data_wait": 44.4, "forward": 22.4, "backward": 31.4, "other": 1.8})))
    assert lines["time"] == "data wait 45 %, forward 22 %, backward 31 %, other 2 %"
    assert lines["largest"] == "Waiting for data: 45 % of the time"


def test_a_run_that_only_works_has_nothing_to_name() -> None:
    lines = shown(a_run(rank({"data_wait": 0.1, "forward": 99.9})))
    assert lines["lost"] == "No phase apart from the work takes 1 % of the time."
    assert "try" not in lines


def test_a_verdict_replaces_the_largest_share() -> None:
    culprit = Culprit("0", "node1:9400", "3", "", "thermal_throttle")
    verdict = Verdict("straggler_hw", 0.24, 0.3, culprit)
    lines = shown(a_run(rank(sent=START + 400.0)), Evidence({}, {"job": verdict}, ()))
    assert lines["verdict"] == (
        "One rank's hardware is slow. Rank 0, GPU 3 of node1:9400: slowed by heat: 24 % of the time, "
        "in the last five minutes"
    )
    assert lines["try"] == CAUSES["thermal_throttle"].remedy
    assert "largest" not in lines


def test_a_healthy_run_needs_no_advice() -> None:
    lines = shown(a_run(), Evidence({}, {"job": Verdict("healthy", 0.0)}, ()))
    assert (lines["verdict"], lines["try"]) == ("Healthy", "Nothing to do.")
    assert "largest" not in lines


def test_the_verdict_of_a_short_run_claims_no_longer_time_and_has_the_share_of_its_own_phases() -> None:
    lines = shown(a_run(), Evidence({}, {"job": Verdict("input_bound", 0.9)}, ()))
    assert lines["verdict"] == "Waiting for data: 30 % of the time"
    assert "data wait 30 %" in lines["time"]


def test_insufficient_data_leaves_the_largest_share() -> None:
    lines = shown(a_run(), Evidence({}, {"job": Verdict("insufficient_data", 0.0)}, ()))
    assert lines["largest"] == "Waiting for data: 30 % of the time"


def test_ranks_are_compared_in_the_phase_that_loses_most() -> None:
    run = a_run(
        rank({"data_wait": 10.0, "forward": 90.0}),
        rank({"data_wait": 40.0, "forward": 60.0}, rank=3, info={"world_size": "8"}),
    )
    lines = shown(run)
    assert lines["ranks"] == "2 ranks; data wait: 10 % of rank 0's time to 40 % of rank 3's"


def test_a_rank_that_the_others_wait_for_in_collectives_is_named_in_place_of_communication() -> None:
    waiting = {"data_wait": 5.0, "forward": 35.0, "communication": 60.0}
    slow = {"data_wait": 60.0, "forward": 35.0, "communication": 5.0}
    run = a_run(*(rank(waiting, rank=number) for number in range(3)), rank(slow, rank=3))
    found = main_finding(run, NOTHING)
    assert found is not None
    assert found.title == "Ranks wait for rank 3, which spends 60 % in data wait"
    assert found.cause == "straggler_input"
    assert found.share == pytest.approx(0.4125)
    assert run.lost == pytest.approx(0.65)
    assert shown(run)["ranks"] == "4 ranks; communication: 5 % of rank 3's time to 60 % of rank 0's"


def test_communication_that_all_ranks_share_is_communication() -> None:
    run = a_run(*(rank({"forward": 60.0, "communication": 40.0}, rank=number) for number in range(3)))
    found = main_finding(run, NOTHING)
    assert found is not None
    assert found.cause == "comm_bound"
    assert found.share == pytest.approx(0.4)


def test_what_the_processes_know_about_their_input_is_evidence() -> None:
    run = a_run(rank(gauges={"step": 100, "dataloader_workers": 0}, counters={"main_thread_cpu_seconds": 50.0}))
    assert shown(run)["evidence"] == "no loader workers, main thread on a CPU for 50 % of the time"


def test_the_line_with_most_of_the_time_of_the_phase_is_named() -> None:
    def lines(first: float, second: float) -> dict[str, Any]:
        spots = (("augment.py:41", "warp", first), ("augment.py:7", "load", second))
        keys = ("location", "function", "seconds")
        return {"data_wait": [dict(zip(keys, spot, strict=True)) for spot in spots]}

    run = a_run(rank(code=lines(2.0, 9.0)), rank(code=lines(30.0, 1.0), rank=1), rank(rank=2))
    for evidence in (NOTHING, Evidence({}, {"job": Verdict("input_few_workers", 0.3)}, ())):
        line = "augment.py:41 warp: 76 % of the sampled data wait"
        assert shown(run, evidence)["line"] == line
        cause = document_of("x.py", [run], evidence, [])["runs"][0]["cause"]
        assert cause["line"] == {
            "location": "augment.py:41",
            "function": "warp",
            "share": pytest.approx(32 / 42, abs=1e-5),
        }
    assert "line" not in shown(a_run(rank(code={"checkpoint": lines(1.0, 1.0)["data_wait"]})))


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ({"forward": 60.0, "backward": 40.0}, "100 steps of 1.00 s, 100 samples/s"),
        ({"forward": 90.0, "checkpoint": 10.0}, "100 steps of 1.00 s with checkpoints, 100 samples/s"),
        (
            {"forward": 100.0, "evaluation": 100.0},
            "100 steps of 1.00 s without evaluation, 50 samples/s with evaluation",
        ),
        (
            {"forward": 90.0, "checkpoint": 10.0, "evaluation": 80.0, "restore": 20.0},
            "100 steps of 1.00 s with checkpoints but without evaluation and restore, 50 samples/s with evaluation",
        ),
        ({"forward": 99.9, "evaluation": 0.1}, "100 steps of 1.00 s, 100 samples/s"),
        ({"data_wait": 10.0, "other": 90.0}, "100 steps of 1.00 s with any evaluation in the loop, 100 samples/s"),
        (
            {"checkpoint": 10.0, "other": 90.0},
            "100 steps of 1.00 s with checkpoints and any evaluation in the loop, 100 samples/s",
        ),
        (
            {"data_wait": 50.0, "other": 50.0, "evaluation": 100.0},
            "100 steps of 1.00 s without evaluation, 50 samples/s with evaluation",
        ),
    ],
)
def test_the_first_line_says_what_a_step_and_a_rate_contain(phases: dict[str, float], words: str) -> None:
    assert f": {words}" in shown(a_run(rank(phases, counters={"samples": 10_000.0})))[""]


def test_a_condition_on_the_step_says_what_the_step_contains() -> None:
    condition = parse("step>250ms")
    run = a_run(rank({"data_wait": 10.0, "other": 90.0}))
    assert judge([condition], [run]) == (
        EXCEEDED,
        ["step>250ms: 1000 ms with any evaluation in the loop in run job"],
    )
    run = a_run(rank({"forward": 100.0, "evaluation": 100.0}))
    assert judge([condition], [run]) == (EXCEEDED, ["step>250ms: 1000 ms without evaluation in run job"])


def test_heat_of_the_own_gpu_since_the_program_began_is_reported_with_its_remedy() -> None:
    evidence = evidence_of(on_gpu(1))
    assert titles(evidence) == [
        "slowed by heat for 25 % of the time",
        "also used by 1 process from before this program",
    ]
    assert shown(on_gpu(1), evidence)["GPU"].startswith("1 (NVIDIA L40S), busy 90 %: slowed by heat for 25 %")
    assert "Check airflow, fans and inlet temperature." in shown(on_gpu(1), evidence)["GPU"]


def test_a_gpu_without_faults_says_so_only_if_it_was_observed_from_the_start() -> None:
    run = on_gpu(0, info={"user": "bob", "slurm_job": "40"})
    without = evidence_of(run, has_before=False)
    assert shown(run, without)["GPU"] == "0 (NVIDIA L40S)"
    assert document_of("x.py", [run], without, [])["runs"][0]["gpus"][0]["busy"] is None
    before = Page(text(1000.0, ranks=0, without=[PROCESSES]), FAMILIES)
    observed = Evidence({"job": gpus_of(run, Page(text(1100.0, ranks=0), FAMILIES), before)}, {}, ())
    assert shown(run, observed)["GPU"] == "0 (NVIDIA L40S), busy 90 %, no heat, Xid or neighbour"


def test_xids_and_a_lost_gpu_are_reported() -> None:
    run = on_gpu(1, info={"user": "alice", "slurm_job": "41"})
    evidence = evidence_of(run, extra=[sample(*XID, 2.0)])
    assert "Xid 79, 2 events" in titles(evidence)
    lost = [sample(GPU_UP, ("1", "GPU-1"), 0.0), sample(LOST_INFO, ("1", "GPU-1", "fell_off_the_bus"))]
    assert titles(evidence_of(run, extra=lost, without=[GPU_UP]))[0] == "lost (fell_off_the_bus)"


def test_xids_from_before_the_program_are_not_reported() -> None:
    before = Page(text(1000.0, ranks=0, extra=[sample(*XID, 2.0)]), FAMILIES)
    now = Page(text(1100.0, ranks=0, extra=[sample(*XID, 2.0)]), FAMILIES)
    (found,) = gpus_of(on_gpu(1), now, before)
    assert found.xids == {}


def test_other_runs_and_owners_on_the_gpu_are_neighbours_and_the_own_ones_are_not() -> None:
    def states(run: str, state: str) -> list[Any]:
        return [sample(RANK_STATE, (run, "0", each), float(each == state)) for each in ("running", "finished")]

    names = {"other": "running", "ended": "finished", "job": "running", f"job-{2**22 + 1}": "running"}
    extra = [sample(RANK_GPU, (name, "0", "1", "GPU-1")) for name in names]
    for name, state in names.items():
        extra += states(name, state)
    assert evidence_of(on_gpu(1), extra=extra).gpus["job"][0].other_runs == ("other",)
    stranger = evidence_of(on_gpu(1, info={"user": "carol", "slurm_job": "7"}))
    assert "also used by alice, job 41" in titles(stranger)
    own = evidence_of(on_gpu(1, info={"user": "alice", "slurm_job": "41"}))
    assert own.gpus["job"][0].other_owners == ()


def test_gpus_with_the_same_findings_share_a_line() -> None:
    gpus = [{"gpu": str(number), "uuid": f"GPU-{number}"} for number in range(4)]
    run = a_run(rank(gpus=gpus, info={"user": "", "slurm_job": ""}))
    lines = [line for line in lines_of([run], evidence_of(run, gpus=4)) if line.startswith("  GPU ")]
    assert [line[12:16] for line in lines] == ["0, 2", "1, 3"]


def test_a_page_of_an_exporter_and_no_prometheus() -> None:
    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply(self, text(1100.0, ranks=0).encode())

    with handled(Exporter) as address:
        nowhere = f"http://127.0.0.1:{free_port()}"
        evidence = gather([on_gpu(1)], f"http://{address}", text(1000.0, ranks=0), nowhere)
    assert evidence.gpus["job"][0].busy == pytest.approx(0.9)
    assert [sentence.partition(":")[0] for sentence in evidence.missing] == ["Verdict"]


def test_the_verdict_comes_from_prometheus() -> None:
    class Prometheus(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            (query,) = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["query"]
            known = {"run:verdict:ratio5m": "0.3", "run:time_lost:ratio5m": "0.4"}
            labels = {"run": "job", "cause": "input_few_workers"}
            found = [{"metric": labels, "value": [0, known[name]]} for name in known if query.startswith(name)]
            answer = {"status": "success", "data": {"resultType": "vector", "result": found}}
            reply(self, json.dumps(answer).encode())

    with handled(Prometheus) as address:
        evidence = gather([a_run()], "http://unused", "", f"http://{address}")
    assert (evidence.verdicts, evidence.missing) == ({"job": Verdict("input_few_workers", 0.3, 0.4)}, ())
    assert shown(a_run(), evidence)["try"] == CAUSES["input_few_workers"].remedy


def test_a_prometheus_without_a_verdict_on_the_run_is_named_and_not_called_missing() -> None:
    class Prometheus(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            reply(self, b'{"status": "success", "data": {"resultType": "vector", "result": []}}')

    with handled(Prometheus) as address:
        (missing,) = gather([a_run()], "http://unused", "", f"http://{address}").missing
    assert missing.startswith(f"Verdict: http://{address} has none of this run: it needs Stallscope's rules there, ")


def test_a_run_without_gpus_needs_no_exporter_and_one_with_gpus_misses_it() -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    assert [each[:7] for each in gather([a_run()], nowhere, "", nowhere).missing] == ["Verdict"]
    assert [each[:4] for each in gather([on_gpu(0)], nowhere, "", nowhere).missing] == ["Heat", "Verd"]


def test_names_from_outside_cannot_control_the_terminal() -> None:
    lines = lines_of([RunTime("a\x1b[31m", (rank(),))], NOTHING)
    assert "".join(lines).isprintable()
