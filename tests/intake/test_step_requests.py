from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallscope.node.intake.runs import RunRegistry
from stallscope.node.intake.step_requests import StepRequests
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol import step_request
from stallscope.training.protocol.report import Report
from stallscope.training.protocol.request_name import request_name
from stallscope.training.protocol.vocabulary import STEP_BUCKET_COUNT
from tests.intake.reports import make_report

BUCKET = 6
"""Where steps that last from 0.05 s to 0.1 s are counted."""


@pytest.fixture
def requests(registry: RunRegistry, tmp_path: Path, clock: ScriptedClock) -> StepRequests:
    return StepRequests(registry, tmp_path, allowed=("trace", "stop"), clock=clock)


@pytest.fixture
def report(registry: RunRegistry, clock: ScriptedClock) -> Callable[..., Report]:
    """Report a rank that has made `steps` steps of 0.075 s, with two reports a second."""

    def send(step: int = 1000, **changes: Any) -> Report:
        counts = [0] * STEP_BUCKET_COUNT
        counts[BUCKET] = step
        fields = {
            "sequence": 200,
            "start": clock.time() - 100.0,
            "sent": clock.time(),
            "step_seconds": {"counts": counts, "sum": step * 0.075, "count": step},
            "gauges": {"step": step},
            **changes,
        }
        return registry.accept(make_report(**fields), "unix")

    return send


def post(requests: StepRequests, action: str = "trace", **request: Any) -> tuple[int, dict[str, Any]]:
    status, answer = requests.post(action, json.dumps(request).encode())
    return status, json.loads(answer)


def test_the_first_step_lies_ahead_of_the_furthest_rank_by_the_time_of_two_reports(
    requests: StepRequests, report: Callable[..., Report]
) -> None:
    report(step=1000)
    report(step=1010, rank=1)
    status, request = post(requests, run="resnet50", steps=5)
    assert (status, request["steps"], request["ranks"], request["problem"]) == (202, 5, [0, 1], "")
    # Three seconds of steps of 0.05 s, which is where the bucket begins.
    assert request["first_step"] == 1010 + 60 + 1
    assert request["seconds"] == pytest.approx(3.05, abs=0.1)


def test_steps_done_since_the_last_report_are_reckoned_with(
    requests: StepRequests, report: Callable[..., Report], clock: ScriptedClock
) -> None:
    report(step=1000)
    clock.advance(0.5)
    assert post(requests, run="resnet50", steps=1)[1]["first_step"] == 1000 + 10 + 60 + 1


def test_ranks_that_report_rarely_get_longer_notice(requests: StepRequests, report: Callable[..., Report]) -> None:
    report(step=1000, sequence=20)
    assert post(requests, run="resnet50", steps=1)[1]["first_step"] == 1000 + 12 * 20 + 1


def test_ranks_that_report_over_http_get_longer_notice(requests: StepRequests, report: Callable[..., Report]) -> None:
    requests.answer(report(step=1000))
    assert post(requests, run="resnet50", steps=1)[1]["first_step"] == 1000 + 12 * 20 + 1


def test_the_request_is_next_to_the_socket_readable_for_all_and_writable_for_its_owner(
    requests: StepRequests, report: Callable[..., Report], tmp_path: Path
) -> None:
    report()
    _status, reported = post(requests, run="resnet50", steps=2, ranks=[0], first_step=7000)
    file = tmp_path / request_name("trace", "resnet50")
    request = step_request.parse(file.read_bytes())
    assert (request.run, request.first_step, request.steps, request.ranks) == ("resnet50", 7000, 2, (0,))
    assert request.expires == reported["expires"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert [each.name for each in tmp_path.glob("*.part")] == []


def test_a_report_is_answered_with_the_request_for_its_rank_alone(
    requests: StepRequests, report: Callable[..., Report]
) -> None:
    first, second = report(), report(rank=1)
    assert requests.answer(first) == b""
    post(requests, run="resnet50", steps=2, ranks=[1])
    assert requests.answer(first) == b""
    assert step_request.parse(requests.answer(second)).steps == 2
    assert requests.answer(report(run="other")) == b""


def test_a_request_expires_with_its_file(
    requests: StepRequests, report: Callable[..., Report], clock: ScriptedClock, tmp_path: Path
) -> None:
    reported = report()
    post(requests, run="resnet50", steps=2)
    requests.drop_expired()
    assert list(tmp_path.glob("trace-*"))
    clock.advance(700)
    assert requests.answer(reported) == b""
    requests.drop_expired()
    assert not list(tmp_path.glob("trace-*"))


def test_no_request_outlives_the_exporter(
    requests: StepRequests, report: Callable[..., Report], tmp_path: Path
) -> None:
    report()
    post(requests, run="resnet50", steps=2)
    requests.close()
    assert not list(tmp_path.glob("trace-*"))


def test_a_link_in_place_of_the_file_is_not_followed(
    requests: StepRequests, report: Callable[..., Report], tmp_path: Path
) -> None:
    report()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file = tmp_path / request_name("trace", "resnet50")
    for each in (file, file.with_suffix(".part")):
        each.symlink_to(victim)
    assert post(requests, run="resnet50", steps=2)[1]["problem"] == ""
    assert victim.read_text() == "precious"
    assert step_request.parse(file.read_bytes()).steps == 2
    assert not file.is_symlink()


@pytest.mark.parametrize("folder", ["of another user", "that everybody may write"])
def test_no_request_is_written_into_a_folder_that_is_not_trusted(
    requests: StepRequests, report: Callable[..., Report], tmp_path: Path, folder: str
) -> None:
    if folder == "of another user" and os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    report()
    if folder == "of another user":
        os.chown(tmp_path, 54321, -1)
        expected = "it belongs to user 54321, expected root or user 0"
    else:
        tmp_path.chmod(0o777)
        expected = "every user may replace files in it"
    problem = post(requests, run="resnet50", steps=2)[1]["problem"]
    assert f"({tmp_path}: {expected}): only ranks that use HTTP get the request" in problem
    assert not list(tmp_path.glob("trace-*"))
    tmp_path.chmod(0o1777)
    os.chown(tmp_path, os.getuid(), -1)
    assert post(requests, run="resnet50", steps=2)[1]["problem"] == ""


def test_nothing_is_taken_unless_it_is_allowed(
    requests: StepRequests, report: Callable[..., Report], tmp_path: Path
) -> None:
    report()
    requests.allowed = ("stop",)
    status, answer = post(requests, run="resnet50", steps=2)
    assert (status, answer["error"]) == (403, "off")
    assert "--report.allow-trace-requests" in answer["message"]
    assert not list(tmp_path.glob("trace-*"))


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({}, 400, "run, a string"),
        ({"run": "resnet50"}, 400, "steps is None"),
        ({"run": "resnet50", "steps": 101}, 400, "from 1 to 100"),
        ({"run": "resnet50", "steps": True}, 400, "steps is True"),
        ({"run": "resnet50", "steps": 1, "ranks": "0"}, 400, "ranks"),
        ({"run": "resnet50", "steps": 1, "ranks": [-1]}, 400, "a rank is -1"),
        ({"run": "resnet50", "steps": 1, "first_step": -1}, 400, "first_step is -1"),
        ({"run": "bert", "steps": 1}, 404, "live runs: resnet50"),
        ({"run": "resnet50", "steps": 1, "ranks": [9]}, 404, "its ranks: 0"),
    ],
)
def test_a_wrong_request_is_refused_with_what_is_expected(
    requests: StepRequests, report: Callable[..., Report], fields: dict[str, Any], status: int, message: str
) -> None:
    report()
    refused, answer = post(requests, **fields)
    assert refused == status
    assert message in answer["message"]


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"run": 3, "steps": 1}'])
@pytest.mark.usefixtures("nothing_collected")
def test_what_is_no_request_is_refused(requests: StepRequests, body: bytes) -> None:
    assert requests.post("trace", body)[0] == 400


def test_an_ended_run_accepts_no_request(requests: StepRequests, report: Callable[..., Report]) -> None:
    report(state="finished")
    assert post(requests, run="resnet50", steps=1)[0] == 404


def test_a_folder_that_cannot_be_written_is_reported(
    registry: RunRegistry, report: Callable[..., Report], clock: ScriptedClock
) -> None:
    report()
    status, request = post(
        StepRequests(registry, Path("/proc/nowhere"), allowed=("trace", "stop"), clock=clock), run="resnet50", steps=1
    )
    assert status == 202  # ranks that report over HTTP still receive the request
    assert "can't be written" in request["problem"]


def test_a_stop_is_for_the_same_step_of_all_ranks_and_travels_next_to_a_trace(
    requests: StepRequests, report: Callable[..., Report], tmp_path: Path, clock: ScriptedClock
) -> None:
    first, second = report(), report(rank=1)
    status, reported = post(requests, "stop", run="resnet50")
    assert (status, reported["ranks"], reported["world_size"], reported["created"]) == (202, [0, 1], 8, clock.time())
    post(requests, run="resnet50", steps=2, ranks=[1])
    assert [step_request.parse(line).action for line in requests.answer(second).splitlines()] == ["stop", "trace"]
    (line,) = requests.answer(first).splitlines()
    assert step_request.parse(line).first_step == reported["first_step"]
    assert len(list(tmp_path.glob("stop-*"))) == len(list(tmp_path.glob("trace-*"))) == 1
    clock.advance(5000)
    requests.drop_expired()
    assert not list(tmp_path.glob("*-*"))


def test_a_stop_needs_its_own_permission(requests: StepRequests, report: Callable[..., Report]) -> None:
    report()
    requests.allowed = ("trace",)
    status, answer = post(requests, "stop", run="resnet50")
    assert (status, answer["error"]) == (403, "off")
    assert "--report.allow-stop-requests" in answer["message"]


def test_the_log_names_who_requested_a_stop(
    requests: StepRequests, report: Callable[..., Report], caplog: pytest.LogCaptureFixture
) -> None:
    report()
    caplog.set_level("INFO")
    requests.post("stop", b'{"run": "resnet50"}', None, "user 1001")
    (record,) = [each for each in caplog.records if each.getMessage() == "stop requested"]
    assert record.__dict__["fields"]["sender"] == "user 1001"


def test_the_time_since_the_last_step_is_returned(
    requests: StepRequests, report: Callable[..., Report], clock: ScriptedClock
) -> None:
    report(first_step=clock.time() - 90, last_step=clock.time() - 70)
    assert post(requests, "stop", run="resnet50")[1]["silent"] == 70.0
