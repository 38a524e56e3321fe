"""Actions on alerts: the script that the webhook executor runs, its examples, and the route in a real Alertmanager."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml

from tests.alerting.alertmanager import ALERTS, Alert, bundled, hastened, running
from tests.alerting.subjects import on_gpu, on_run
from tests.free_ports import free_port
from tests.handled import handled, reply
from tests.known_names import rules, selects_something
from tests.promql_names import names_in
from tests.waiting import until

ACTIONS = ALERTS / "actions"
SCRIPT = ACTIONS / "act.py"
Entry = dict[str, Any]


class Workshop:
    """A file of actions, their log, and what their commands have done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done = folder / "done"
        self.settings: dict[str, Any] = {
            "dry_run": False,
            "log": str(folder / "actions.jsonl"),
            "actions": [self.action("end it")],
        }

    def action(self, name: str, **fields: Any) -> dict[str, Any]:
        command = ["sh", "-c", 'echo "$$@" >> ' + str(self.done), "--", name, "$run"]
        return {"name": name, "alerts": ["TrainingHangSpin"], "command": command, **fields}

    def begin(self, *alerts: dict[str, Any], **environment: str) -> subprocess.Popen[str]:
        """Start the script on a notification."""
        (self.folder / "actions.json").write_text(json.dumps(self.settings), encoding="utf-8")
        notification = self.folder / f"notification-{time.monotonic_ns()}.json"
        notification.write_text(json.dumps({"alerts": alerts}), encoding="utf-8")
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), str(self.folder / "actions.json")],
            env={**os.environ, "NOTIFICATION": str(notification), **environment},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    def act(self, *alerts: dict[str, Any], **environment: str) -> tuple[int, str]:
        """Run the script on a notification; return its exit status and its errors."""
        process = self.begin(*alerts, **environment)
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors

    @property
    def ran(self) -> list[str]:
        """The arguments of each command that ran."""
        return self.done.read_text().splitlines() if self.done.exists() else []

    @property
    def entries(self) -> list[Entry]:
        return [json.loads(line) for line in Path(self.settings["log"]).read_text().splitlines()]

    @property
    def results(self) -> list[str]:
        return [entry["result"] for entry in self.entries]


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def alert(minutes: float = 20.0, status: str = "firing", **labels: str) -> dict[str, Any]:
    """An alert that has been firing for some minutes, as Alertmanager posts it: with nine digits of a second."""
    began = datetime.fromtimestamp(time.time() - 60 * minutes, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")
    named = {"alertname": "TrainingHangSpin", "namespace": "vision", "run": "resnet50", **labels}
    return {"status": status, "labels": named, "annotations": {}, "startsAt": f"{began}789Z"}


def test_a_command_runs_once_an_hour_for_each_run(workshop: Workshop) -> None:
    assert workshop.act(alert(), alert(run="bert")) == (0, "")
    assert workshop.act(alert(), alert(run="bert")) == (0, "")  # another process: as after a restart
    assert workshop.ran == ["end it resnet50", "end it bert"]
    assert workshop.results == ["begins", "ok", "begins", "ok"]
    log = Path(workshop.settings["log"])
    log.write_text("".join(json.dumps({**each, "time": each["time"] - 3601}) + "\n" for each in workshop.entries))
    workshop.act(alert())
    assert workshop.ran == ["end it resnet50", "end it bert", "end it resnet50"]


def test_another_action_on_the_same_run_waits_too(workshop: Workshop) -> None:
    workshop.settings["actions"].append(workshop.action("restart it"))
    workshop.act(alert())
    assert workshop.ran == ["end it resnet50"]


def test_a_crash_while_a_command_runs_leads_to_no_second_one(workshop: Workshop) -> None:
    begun = {"time": time.time(), "subject": {"namespace": "vision", "run": "resnet50"}, "dry_run": False}
    Path(workshop.settings["log"]).write_text(json.dumps({**begun, "result": "begins"}) + '\n{"time": 17', "utf-8")
    assert workshop.act(alert()) == (0, "")
    assert workshop.ran == []


def test_notifications_at_the_same_time_lead_to_one_action(workshop: Workshop) -> None:
    processes = [workshop.begin(alert()) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    for process in processes:
        process.communicate()
    assert workshop.ran == ["end it resnet50"]


def test_by_default_nothing_is_run_and_the_log_shows_what_would_be(workshop: Workshop) -> None:
    del workshop.settings["dry_run"]
    assert workshop.act(alert()) == (0, "")
    assert workshop.ran == []
    assert workshop.results == ["begins", "dry run"]
    assert workshop.entries[1]["command"][-2:] == ["end it", "resnet50"]
    workshop.settings["dry_run"] = False
    workshop.act(alert())
    assert workshop.ran == ["end it resnet50"], "the dry run must not delay the first action"


@pytest.mark.parametrize(
    "ignored",
    [alert(status="resolved"), alert(alertname="TrainingInputBound"), alert(minutes=5)],
    ids=["resolved", "another alert", "too young"],
)
def test_other_alerts_lead_to_nothing(ignored: dict[str, Any], workshop: Workshop) -> None:
    workshop.settings["actions"] = [workshop.action("end it", after_seconds=86400)]
    assert workshop.act(ignored) == (0, "")
    assert workshop.ran == []
    assert workshop.results == []


@pytest.mark.parametrize("run", ["--all", "-9", "", "a\nb", "$(reboot)", "x" * 300])
def test_a_hostile_label_is_no_argument(run: str, workshop: Workshop) -> None:
    assert workshop.act(alert(run=run)) == (0, "")
    assert workshop.ran == []
    (result,) = workshop.results
    assert result.startswith("refused: label run is ")


def test_a_command_that_fails_is_logged_and_not_repeated(workshop: Workshop) -> None:
    workshop.settings["actions"] = [workshop.action("end it", command=["sh", "-c", "echo no rights >&2; exit 3"])]
    assert workshop.act(alert())[0] == 1
    assert workshop.results == ["begins", "failed: exit status 3: no rights"]
    assert workshop.act(alert())[0] == 0
    workshop.settings["actions"][0]["command"] = ["/nowhere/command"]
    assert workshop.act(alert(run="bert"))[0] == 1
    assert "No such file" in workshop.results[-1]


@pytest.mark.parametrize("fault", ["no JSON", "unknown key", "no log"])
def test_an_unusable_file_is_one_line_of_error(fault: str, workshop: Workshop) -> None:
    if fault == "unknown key":
        workshop.settings["actoins"] = []
    elif fault == "no log":
        workshop.settings["log"] = str(workshop.folder / "nowhere/actions.jsonl")
    else:
        workshop.settings["actions"] = "end it"
    status, errors = workshop.act(alert())
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.startswith("act.py: ")


@contextlib.contextmanager
def prometheus(*results: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """A server that answers each query with these labels; and the queries."""
    queries: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            queries.append(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["query"][0])
            reply(self, json.dumps({"data": {"result": [{"metric": each} for each in results]}}).encode())

    with handled(Handler) as address:
        yield f"http://{address}", queries


def test_a_query_completes_the_command(workshop: Workshop) -> None:
    command = ["sh", "-c", 'echo "$$@" >> ' + str(workshop.done), "--", "stop", "$run", ["--node", "$host"]]
    query = 'up{run="$run", cluster="$cluster"}'
    workshop.settings["actions"] = [workshop.action("stop", query=query, command=command)]
    with prometheus({"instance": "node1:19400"}, {"instance": "node2"}) as (url, queries):
        workshop.settings["prometheus_url"] = url
        workshop.act(alert())
        workshop.act(alert(run='"} or vector(1)'))
    assert workshop.ran == ["stop resnet50 --node node1 --node node2"]
    assert queries == ['up{run="resnet50", cluster=""}', 'up{run="\\"} or vector(1)", cluster=""}']


def test_without_a_result_nothing_is_done_and_without_prometheus_alertmanager_tries_again(workshop: Workshop) -> None:
    workshop.settings["actions"] = [workshop.action("end it", query="up")]
    with prometheus() as (url, _):
        workshop.settings["prometheus_url"] = url
        assert workshop.act(alert()) == (0, "")
    assert workshop.results == []
    workshop.settings["prometheus_url"] = f"http://127.0.0.1:{free_port()}"
    status, errors = workshop.act(alert())
    assert (status, "Connection refused" in errors) == (1, True)
    with prometheus({}) as (url, _):
        workshop.settings["prometheus_url"] = url
        workshop.act(alert())
    assert workshop.ran == ["end it resnet50"]


@pytest.mark.parametrize("proxy", ["", "HTTP_PROXY", "http_proxy"])
def test_an_action_is_an_annotation_in_a_grafana_on_this_machine_whatever_the_proxy(
    workshop: Workshop, proxy: str
) -> None:
    posted: queue.SimpleQueue[tuple[str, str | None, Any]] = queue.SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            posted.put((self.path, self.headers["Authorization"], body))
            reply(self, b"{}")

    with handled(Handler) as address:
        workshop.settings["grafana_url"] = f"http://{address}"
        environment = {proxy: f"http://127.0.0.1:{free_port()}", "NO_PROXY": "", "no_proxy": ""} if proxy else {}
        workshop.act(alert(), GRAFANA_TOKEN="secret", **environment)
    path, authorization, annotation = posted.get(timeout=60)
    assert (path, authorization) == ("/api/annotations", "Bearer secret")
    assert annotation["tags"] == ["stallscope-action", "vision", "resnet50"]
    assert annotation["text"].startswith("end it (TrainingHangSpin): sh -c")
    assert annotation["text"].endswith(": ok")
    assert abs(annotation["time"] / 1000 - time.time()) < 600
    status, errors = workshop.act(alert(run="bert"))
    assert (status, "no annotation at" in errors) == (0, True), "the action counts, even if it is not shown"


def test_every_dashboard_shows_the_annotations_of_actions() -> None:
    for file in (ALERTS.parent / "grafana/dashboards").glob("*.json"):
        targets = [each.get("target", {}) for each in json.loads(file.read_text())["annotations"]["list"]]
        assert any(target.get("tags") == ["stallscope-action"] for target in targets), file.name


def examples() -> list[dict[str, Any]]:
    document: dict[str, Any] = json.loads((ACTIONS / "actions.json").read_text(encoding="utf-8"))
    assert document["dry_run"] is True
    actions: list[dict[str, Any]] = document["actions"]
    return actions


@pytest.mark.parametrize("action", examples(), ids=lambda action: action["name"])
def test_examples_name_known_alerts_and_series(action: dict[str, Any]) -> None:
    assert set(action["alerts"]) <= {rule["alert"] for rule in rules() if "alert" in rule}
    if "query" in action:
        names = names_in(Template(action["query"]).substitute(dict.fromkeys(_LABELS, "x")))
        unknown = [each for each in names.selectors if each.metric and not selects_something(each)]
        assert not unknown


_LABELS = ("cluster", "namespace", "run", "instance", "uuid")


def with_actions(port: int, token: Path) -> dict[str, Any]:
    """Return the bundle's configuration with the route for actions, as its comment says."""
    configuration = bundled()
    added = yaml.safe_load((ACTIONS / "route.yml").read_text(encoding="utf-8"))
    added["routes"][0]["repeat_interval"] = "1s"
    (webhook,) = added["receivers"][0]["webhook_configs"]
    webhook["url"] = webhook["url"].replace("9000", str(port))
    webhook["http_config"]["authorization"]["credentials_file"] = str(token)
    configuration["route"]["routes"][1:1] = added["routes"]
    configuration["receivers"] += added["receivers"]
    return hastened(configuration)


@contextlib.contextmanager
def executor(folder: Path, token: str) -> Iterator[int]:
    """Run Debian's `webhook` if it is installed, or a receiver that reads the same file of hooks."""
    text = (ACTIONS / "hooks.json").read_text(encoding="utf-8")
    text = text.replace("/opt/stallscope/actions/act.py", str(SCRIPT))
    text = text.replace("/etc/stallscope/actions.json", str(folder / "actions.json"))
    if (program := shutil.which("webhook")) is not None:
        hooks, port = folder / "hooks.json", free_port()
        hooks.write_text(text, encoding="utf-8")
        command = [program, "-hooks", str(hooks), "-template", "-ip", "127.0.0.1", "-port", str(port)]
        with subprocess.Popen(command, env={**os.environ, "STALLSCOPE_ACTIONS_TOKEN": token}) as process:
            try:
                yield port
            finally:
                process.terminate()
        return
    (hook,) = json.loads(text.replace('{{ getenv "STALLSCOPE_ACTIONS_TOKEN" | js }}', token))
    arguments = [each["name"] for each in hook["pass-arguments-to-command"]]
    expected = hook["trigger-rule"]["match"]["value"]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path != f"/hooks/{hook['id']}" or self.headers["Authorization"] != expected:
                reply(self, b"", status=hook["trigger-rule-mismatch-http-response-code"])
                return
            file = folder / f"payload-{time.monotonic_ns()}"
            file.write_bytes(body)
            environment = {**os.environ, hook["pass-file-to-command"][0]["envname"]: str(file)}
            done = subprocess.run([hook["execute-command"], *arguments], env=environment, check=False)
            reply(self, b"", status=500 if done.returncode else 200)

    with handled(Handler) as address:
        yield int(address.rpartition(":")[2])


def test_alertmanager_and_the_executor_act_once_on_each_subject(workshop: Workshop, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    workshop.settings["actions"] = [
        workshop.action("end it", alerts=["TrainingHangSpin"]),
        workshop.action("cordon", alerts=["GpuLost"], subject=["cluster", "instance"]),
    ]
    workshop.settings["actions"][1]["command"][-1] = "$host"
    (tmp_path / "actions.json").write_text(json.dumps(workshop.settings), encoding="utf-8")
    log = Path(workshop.settings["log"])
    with executor(tmp_path, "secret") as port, running(with_actions(port, token), tmp_path / "am") as alertmanager:
        alertmanager.post(
            [
                Alert(on_run("TrainingHangSpin")),
                Alert(on_run("TrainingInputBound", run="other")),
                Alert(on_gpu("GpuLost", gpu="0", run="")),
                Alert(on_gpu("GpuLost", gpu="1", uuid="GPU-1", run="")),
            ]
        )
        until(lambda: log.exists() and sum(entry["result"] == "ok" for entry in workshop.entries) == 2)
        sent = alertmanager.notified()
        until(lambda: alertmanager.notified() >= sent + 4)  # repeated notifications
    node = on_gpu("GpuLost")["instance"].rpartition(":")[0] or on_gpu("GpuLost")["instance"]
    assert sorted(workshop.ran) == [f"cordon {node}", f"end it {on_run('TrainingHangSpin')['run']}"]


def test_the_script_can_be_executed() -> None:
    assert SCRIPT.stat().st_mode & stat.S_IXUSR
    assert SCRIPT.read_text().startswith("#!/usr/bin/env python3\n")
