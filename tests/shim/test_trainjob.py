"""The status of a TrainJob: posted to a server that checks it as Kubeflow Trainer and its API do."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from stallscope.tools.summary import trainjob as trainjob_commands
from stallscope.tools.summary.trainjob import finish
from stallscope.training.protocol.report import from_document
from stallscope.training.shim import trainjob
from stallscope.training.shim.stored_reports import NEWEST, SETTINGS, STARTED, UPDATES_ITSELF, StoredReports
from stallscope.training.shim.trainjob import INTERVAL, LONGEST_INTERVAL, Progress, StatusServer, Updater, watch
from stallscope.training.shim.trainjob_process import trainjob_of
from tests.handled import handled, reply
from tests.summary.reports import START, document
from tests.web.certificates import Authority, needs_openssl

pytestmark = needs_openssl
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team-a/trainjobs/resnet/status"
TOKEN = "eyJhbGciOi.first"
OF_PROGRAM = {**os.environ}


class Server:
    """The endpoint of Kubeflow Trainer: authorization, then the schema; an answer of `failures` comes first."""

    def __init__(self) -> None:
        self.statuses: list[dict[str, Any]] = []
        self.attempts = 0
        self.most_at_once = 0
        self.failures: list[int] = []
        self.token = TOKEN
        self.hanging: threading.Event | None = None
        self.received = threading.Event()
        self._at_once = 0
        self._lock = threading.Lock()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.attempts += 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        self.received.set()
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if self.hanging is not None:
            self.hanging.wait(60)
        status, message = self._judge(handler, body)
        with self._lock:
            self._at_once -= 1
        kind = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": status}
        reply(handler, body if status == 200 else json.dumps(kind).encode(), status=status)

    def _judge(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, str]:
        if self.failures:
            return self.failures.pop(0), "Internal error"
        if handler.headers["Authorization"] != f"Bearer {self.token}":
            return 403, "Forbidden"
        if handler.path != PATH or len(body) > 1 << 16:
            return 404, "Not found"
        try:
            self.statuses.append(valid(json.loads(body)))
        except AssertionError as problem:
            return 422, str(problem)
        return 200, ""


def valid(update: dict[str, Any]) -> dict[str, Any]:
    """Check an update as the schema of `UpdateTrainJobStatusRequest` in trainer.kubeflow.org/v1alpha1 does."""
    assert set(update) == {"trainerStatus"}
    status = update["trainerStatus"]
    allowed = {"progressPercentage", "estimatedRemainingSeconds", "metrics", "lastUpdatedTime"}
    assert set(status) <= allowed, set(status) - allowed
    for name, highest in (("progressPercentage", 100), ("estimatedRemainingSeconds", 2**31 - 1)):
        if name in status:
            assert type(status[name]) is int, name
            assert 0 <= status[name] <= highest, name
    datetime.strptime(status["lastUpdatedTime"], "%Y-%m-%dT%H:%M:%S%z")  # RFC 3339
    assert len(status["metrics"]) <= 256
    for metric in status["metrics"]:
        assert set(metric) == {"name", "value"}
        assert all(isinstance(text, str) and 1 <= len(text) <= 64 for text in metric.values()), metric
    return dict(status)


def metrics(status: Mapping[str, Any]) -> dict[str, str]:
    return {metric["name"]: metric["value"] for metric in status["metrics"]}


@contextmanager
def serving(server: Server, authority: Authority) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.answer(self)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.folder / "server.crt", authority.folder / "server.key")
    with handled(Handler, context) as address:
        yield f"https://{address}{PATH}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.sign("server")
    return made


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def environment(
    server: Server, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """Set the variables that Kubeflow Trainer sets in a pod."""
    for name in [name for name in os.environ if name.startswith(("KUBEFLOW_", "STALLSCOPE_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with serving(server, authority) as url:
        variables = {
            "KUBEFLOW_TRAINER_SERVER_URL": url,
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(tmp_path / "token"),
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(authority.certificate),
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield variables


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "reports"
    made.mkdir()
    (made / f"{STARTED}{os.getpid()}").touch()
    (made / SETTINGS).write_text('{"prometheus": ""}')
    return made


def store(folder: Path, **changes: Any) -> None:
    report = document(**{"state": "running", "pid": os.getpid(), **changes})
    (folder / f"{report['session']}{NEWEST}").write_text(json.dumps(report) + "\n")


def updater(folder: Path, environment: Mapping[str, str]) -> Updater:
    found = trainjob_of(environment)
    assert found is not None
    return Updater(str(folder), StatusServer(*found))


def test_progress_remaining_time_and_measurements_are_posted(
    server: Server, environment: dict[str, str], folder: Path
) -> None:
    posting = updater(folder, environment)
    store(folder, gauges={"step": 100, "steps_planned": 400, "loss": 0.25}, values={"accuracy": 0.875})
    posting.update()
    store(folder, sequence=8, sent=START + 205.0, gauges={"step": 150, "steps_planned": 400, "loss": 0.125})
    posting.update()
    first, second = server.statuses
    assert (first["progressPercentage"], first["estimatedRemainingSeconds"]) == (25, 300)
    assert (second["progressPercentage"], second["estimatedRemainingSeconds"]) == (37, 500)  # 2 s a step since then
    assert first["lastUpdatedTime"] == "2023-11-14T22:15:05Z"
    assert metrics(first) == {
        "run": "job",
        "state": "running",
        "step": "100",
        "steps_planned": "400",
        "loss": "0.25",
        "step_seconds": "1",
        "data_wait_share": "0.3",
        "accuracy": "0.875",
    }


def test_unknown_progress_and_remaining_time_are_absent() -> None:
    status = Progress().status(from_document(document(state="running", gauges={"step": 100})), {})
    assert not {"progressPercentage", "estimatedRemainingSeconds"} & status.keys()


@pytest.mark.parametrize(
    ("state", "step", "expected"),
    [("finished", 400, (100, 0)), ("failed", 100, (25, None)), ("running", 401, (100, 0))],
)
def test_a_training_that_has_ended_has_no_remaining_time_except_zero(
    state: str, step: int, expected: tuple[int, int | None]
) -> None:
    report = from_document(document(state=state, gauges={"step": step, "steps_planned": 400}))
    status = Progress().status(report, {})
    assert (status["progressPercentage"], status.get("estimatedRemainingSeconds")) == expected


def test_values_of_any_size_stay_within_the_schema() -> None:
    values = {f"{'v' * 80}{number}": 1e300 for number in range(32)}
    report = document(
        state="running", run="r" * 120, gauges={"step": 1, "steps_planned": 2**52, "loss": 1e-30}, values=values
    )
    valid({"trainerStatus": Progress().status(from_document(report), {"verdict": "data_wait"})})


def test_a_verdict_is_posted_where_prometheus_has_one(
    server: Server, environment: dict[str, str], folder: Path
) -> None:
    store(folder)
    found = trainjob_of(environment)
    assert found is not None
    Updater(str(folder), StatusServer(*found), lambda report: {"verdict": f"slow {report.run}"}).update()
    assert metrics(server.statuses[0])["verdict"] == "slow job"


def test_a_rotated_token_is_read_again(server: Server, environment: dict[str, str], folder: Path) -> None:
    posting = updater(folder, environment)
    store(folder)
    posting.update()
    server.token = "eyJhbGciOi.second"
    Path(environment["KUBEFLOW_TRAINER_SERVER_TOKEN"]).write_text(server.token)
    store(folder, sequence=8)
    posting.update()
    assert len(server.statuses) == server.attempts == 2


def test_a_refusal_is_one_line_and_later_attempts_are_rarer(
    server: Server, environment: dict[str, str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    posting = updater(folder, environment)
    store(folder)
    server.failures = [500] * 7
    intervals = []
    for _ in range(7):
        posting.update()
        intervals.append(posting.interval)
    assert intervals == [30.0, 60.0, 120.0, 240.0, LONGEST_INTERVAL, LONGEST_INTERVAL, LONGEST_INTERVAL]
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("stallscope run: status of the TrainJob: ")
    assert line.endswith("HTTP status 500 (Internal error); see the log of Kubeflow Trainer")
    posting.update()
    assert (posting.interval, len(server.statuses), capfd.readouterr().err) == (INTERVAL, 1, "")


@pytest.mark.parametrize(("status", "remedy"), [(401, "the token is of this pod"), (404, "the TrainJob exists")])
def test_a_refusal_names_the_remedy(
    status: int, remedy: str, server: Server, environment: dict[str, str], folder: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    store(folder)
    server.failures = [status]
    updater(folder, environment).update()
    assert f"HTTP status {status} (Internal error); check that {remedy}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("URL", "http://127.0.0.1:1/", "the token is sent only with TLS"),
        ("URL", "https://127.0.0.1:1/", "no response"),
        ("TOKEN", "/absent/token", "check the pod's projected volume"),
        ("CA_CERT", "/absent/ca.crt", "check the pod's projected volume"),
    ],
)
def test_what_can_not_be_reached_or_read_is_one_line(
    variable: str, value: str, problem: str, server: Server, environment: dict[str, str], folder: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    store(folder)
    updater(folder, {**environment, f"KUBEFLOW_TRAINER_SERVER_{variable}": value}).update()
    (line,) = capfd.readouterr().err.splitlines()
    assert problem in line
    assert not server.attempts


def test_a_server_with_another_authority_gets_no_token(
    server: Server, environment: dict[str, str], folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store(folder)
    other = Authority(tmp_path, "other")
    updater(folder, {**environment, "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(other.certificate)}).update()
    assert "CERTIFICATE_VERIFY_FAILED" in capfd.readouterr().err
    assert not server.attempts


def test_a_server_that_hangs_ends_the_attempt(
    environment: dict[str, str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(trainjob, "_TIMEOUT", 0.2)
    store(folder)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts no connection, so that no handshake ends
        url = f"https://127.0.0.1:{silent.getsockname()[1]}{PATH}"
        updater(folder, {**environment, "KUBEFLOW_TRAINER_SERVER_URL": url}).update()
    assert "timed out" in capfd.readouterr().err


def test_the_last_status_waits_for_an_attempt_in_progress(
    server: Server, environment: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, sleep = threading.Event(), time.sleep

    def noted(seconds: float) -> None:
        waits.set()
        sleep(seconds)

    monkeypatch.setattr(trainjob, "_TIMEOUT", 60.0)
    monkeypatch.setattr(time, "sleep", noted)
    store(folder)
    server.hanging = threading.Event()
    threads = [
        threading.Thread(target=updater(folder, environment).update),
        threading.Thread(target=finish, args=(folder, {"prometheus": ""})),
    ]
    threads[0].start()
    assert server.received.wait(60)
    threads[1].start()
    assert waits.wait(60)
    server.hanging.set()
    for thread in threads:
        thread.join(60)
    assert (len(server.statuses), server.attempts, server.most_at_once) == (2, 2, 1)


def test_an_update_that_waited_for_the_last_one_posts_nothing_older(
    server: Server, environment: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(folder)
    late = updater(folder, environment)
    alone = late._alone

    @contextmanager
    def after_the_end() -> Iterator[None]:
        with alone():
            (folder / f"6f1c{NEWEST}").unlink()  # the summary has posted the last status and deleted the reports
            yield

    monkeypatch.setattr(late, "_alone", after_the_end)
    late.update()
    assert server.attempts == 0


def test_only_rank_0_is_posted_and_only_from_its_node(
    server: Server, environment: dict[str, str], folder: Path
) -> None:
    posting = updater(folder, environment)
    store(folder, rank=9, session="b", info={"local_rank": "1"})
    posting.update()
    assert not posting.is_elsewhere()
    store(folder, rank=8, session="a", info={"local_rank": "0"})
    assert posting.is_elsewhere()
    watch(posting)
    assert not server.attempts


def test_a_report_is_posted_once(server: Server, environment: dict[str, str], folder: Path) -> None:
    posting = updater(folder, environment)
    store(folder)
    for _ in range(2):
        posting.update()
    assert server.attempts == 1


def test_a_program_that_updates_the_status_itself_is_left_alone(
    server: Server, environment: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callbacks = type(os)("transformers.integrations.integration_utils")
    callbacks.KubeflowCallback = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers.trainer", callbacks)
    monkeypatch.setitem(sys.modules, "transformers.integrations.integration_utils", callbacks)
    StoredReports(str(folder), "6f1c").store(json.dumps(document()).encode(), False)
    assert {path.suffix for path in folder.glob("6f1c.*")} == {UPDATES_ITSELF, NEWEST}
    updater(folder, environment).update()
    assert server.statuses == []
    monkeypatch.setenv("DISABLE_KUBEFLOW_INTEGRATION", "true")
    updater(folder, environment).update()
    assert len(server.statuses) == 1


@pytest.mark.parametrize(
    "changes",
    [{"KUBEFLOW_TRAINER_SERVER_URL": ""}, {"KUBEFLOW_TRAINER_SERVER_TOKEN": ""}, {"STALLSCOPE_TRAINJOB": "0"}],
)
def test_without_the_variables_or_switched_off_nothing_is_posted(
    changes: dict[str, str], server: Server, environment: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("logging.disable", lambda level: None)  # it would last in this process
    store(folder)
    trainjob_commands.main(str(folder))
    finish(folder, {"prometheus": ""})
    assert not server.attempts


def test_the_names_of_the_proposal_are_read_too(environment: dict[str, str]) -> None:
    proposed = {name.replace("_SERVER_", "_STATUS_"): value for name, value in environment.items()}
    assert trainjob_of(proposed) == trainjob_of(environment) is not None


PROGRAM = """
import os, stallscope
with stallscope.Run("job", steps_planned=40) as run:
    for _ in range(40):
        run.step()
try:
    os.wait()
except ChildProcessError:
    print("no child")
"""


def test_a_program_under_stallscope_run_ends_with_its_last_status(
    server: Server, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    variables = {**OF_PROGRAM, **environment, "STALLSCOPE_ADDRESS": f"unix://{tmp_path}/absent.sock"}
    command = [sys.executable, "-m", "stallscope", "run", "--summary", "off", "train.py"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "no child\n", "")
    assert server.statuses[-1]["progressPercentage"] == 100
    assert metrics(server.statuses[-1])["state"] == "finished"
    assert server.most_at_once == 1
