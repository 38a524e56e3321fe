"""Shim and exporter of different versions: the table of exporter/SHIM.md.

`tests/protocol/recorded` has the reports of the first shim, and the responses of the first exporter (commit e1d5300e of
21 November 2026), as they were on the wire; only host and user are replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.intake.service import Intake, IntakeSettings
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol import vocabulary
from stallscope.training.shim import step_requests
from stallscope.training.shim.process import ProcessProbe
from stallscope.training.shim.transport import transport
from tests.handled import handled

RECORDED = Path(__file__).parents[1] / "protocol/recorded"
REPORTS = [json.loads(line) for line in (RECORDED / "first_reports.jsonl").read_text(encoding="utf-8").splitlines()]
USER = {"user": "alice"}
ANSWERS: dict[str, str] = json.loads((RECORDED / "first_answers.json").read_text(encoding="utf-8"))


@pytest.fixture
def intake(tmp_path: Path) -> Iterator[Intake]:
    """The newest exporter's intake, a moment after the recording."""
    settings = IntakeSettings(socket=None, udp=None, state_file=None)
    opened = Intake(settings, clock=ScriptedClock(REPORTS[-1]["sent"]), root=tmp_path)
    yield opened
    opened.stop(timeout=60)


def values(intake: Intake) -> dict[str, Any]:
    return {sample.family.name: sample.value for sample in intake.collect() if sample.labels[:1] == ("resnet50",)}


def test_the_newest_exporter_reads_every_report_of_the_first_shim(intake: Intake) -> None:
    assert [report["state"] for report in REPORTS] == ["starting", "running", "running", "running", "finished"]
    for report in REPORTS:
        assert intake.post(json.dumps(report).encode()) == (204, b"")
    found = values(intake)
    assert found["stallscope_training_step_seconds"].count == 60
    assert found["stallscope_training_loss"] == pytest.approx(1 / 60)
    assert found["stallscope_training_samples_total"] == 1920


def test_the_newest_exporter_refuses_another_version_and_names_the_remedy(intake: Intake) -> None:
    status, body = intake.post(json.dumps(REPORTS[0] | {"version": vocabulary.VERSION + 1}).encode())
    assert status == 400
    assert json.loads(body)["error"] == "version"
    assert "update the older end" in json.loads(body)["message"]


def kinds(value: Any) -> Any:
    """Return keys and types of a document, with all numbers alike."""
    if isinstance(value, dict):
        return {key: kinds(each) for key, each in value.items()}
    return "number" if isinstance(value, (int, float)) else type(value).__name__


def missing(first: Any, newest: Any) -> list[str]:
    """Return the keys that the first has and the newest lacks, or has with another type."""
    if not isinstance(first, dict) or not isinstance(newest, dict):
        return [] if first == newest else [f"{first} became {newest}"]
    return [
        f"{key}: {problem}"
        for key, value in first.items()
        for problem in (missing(value, newest[key]) if key in newest else ["missing"])
    ]


def test_a_report_of_the_newest_shim_has_every_key_that_the_first_exporter_reads() -> None:
    sent: list[bytes] = []
    clock = ScriptedClock()

    def sender(payload: bytes) -> None:
        sent.append(payload)

    probe = ProcessProbe()
    with SimulatedRun("resnet50", clock=clock, sender=sender, process=probe, samples_per_step=32, info=USER) as run:
        for batch in stallscope.track(range(60), run):
            for phase in ("forward", "backward"):
                with run.phase(phase):
                    clock.advance(0.01)
            run.report(loss=1 / (batch + 1), accuracy=0.5)
    newest = json.loads(sent[-1])
    assert newest["version"] == REPORTS[-1]["version"] == 1
    assert len(newest["step_seconds"]["counts"]) == len(REPORTS[-1]["step_seconds"]["counts"])
    cgroup = ("cpu_periods", "cpu_throttled_periods", "cpu_throttled_seconds")  # absent on a machine without a limit
    first = kinds(REPORTS[-1])
    first["counters"] = {name: kind for name, kind in first["counters"].items() if name not in cgroup}
    assert missing(first, kinds(newest)) == []


@pytest.mark.parametrize(
    ("answer", "cause", "warning"),
    [
        ("accepted", None, ""),
        ("other version", "error", "update the older end"),
        ("too large", "too_large", "longer than 32768 bytes"),
    ],
)
def test_the_newest_shim_reads_the_responses_of_the_first_exporter(
    answer: str, cause: str | None, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    class First(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.wfile.write(ANSWERS[answer].encode())

    with handled(First) as address:
        sender = transport({"STALLSCOPE_ADDRESS": f"http://{address}"})
        assert sender(json.dumps(REPORTS[0]).encode()) == cause
    assert warning in caplog.text


def test_a_trace_request_without_an_action_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    run = SimulatedRun("resnet50", clock=ScriptedClock(), sender=lambda _: None)
    request = {"version": 1, "run": "resnet50", "first_step": 0, "steps": 1, "ranks": [], "expires": 4e9}
    step_requests.requests_of(run).take_answer(json.dumps(request).encode())
    assert "a request from outside is invalid: action is None" in caplog.text
