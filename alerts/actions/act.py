#!/usr/bin/env python3
"""Run the command that `actions.json` lists for an alert. It needs the standard library alone.

    NOTIFICATION=FILE act.py ACTIONS.json

The variable names a file with what Alertmanager posts to a webhook. Each action is appended to a log file before its
command runs. The log is also the memory: an action on the same subject within an hour is not repeated, also after a
restart or a crash. Without "dry_run": false in the file, commands are logged and not run.

Exit status: 0 if every command succeeded or none was due, 1 if one failed, 2 for a file that cannot be used.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from string import Template
from typing import Any, NamedTuple, TextIO

LIMIT_SECONDS = 3600.0
"""Time between two actions on a subject."""
_COMMAND_SECONDS = 60.0
_THIS_MACHINE = re.compile(r"(.*\.)?localhost\.?|(::ffff:)?127(\.\d+){1,3}|::1|0\.0\.0\.0|::")
_REQUEST_SECONDS = 10.0
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,252}")
"""Values that may be arguments of a command. Labels of runs come from users: none must look like an option."""
_SUBJECT = ("cluster", "namespace", "run")
_TAG = "stallscope-action"
_OUTPUT = 300
"""Characters of a command's output in the log."""


class Refused(Exception):
    """An action is not possible for this alert; the message is one line."""


class Unavailable(Exception):
    """Prometheus does not respond; Alertmanager tries again."""


class Action(NamedTuple):
    """An entry of the file."""

    name: str
    alerts: Sequence[str]
    command: Sequence[str | Sequence[str]]
    """Arguments with $label placeholders. A list within it is repeated for each result of the query."""
    query: str = ""
    """PromQL whose results give further labels. Without a result nothing is done."""
    subject: Sequence[str] = _SUBJECT
    """Labels of the alert that identify what is acted on, once an hour."""
    after_seconds: float = 0.0
    """Time that the alert must have been firing."""


class Settings(NamedTuple):
    """The whole file."""

    actions: Sequence[Action]
    log: Path
    prometheus_url: str = "http://localhost:9090"
    grafana_url: str = ""
    """Where to add annotations, with the token in the variable GRAFANA_TOKEN; empty for none."""
    dry_run: bool = True


def main(arguments: Sequence[str]) -> int:
    """Act on a notification; returns the exit status."""
    try:
        (settings_file,) = arguments
        settings = settings_of(json.loads(Path(settings_file).read_text(encoding="utf-8")))
        alerts = json.loads(Path(os.environ["NOTIFICATION"]).read_text(encoding="utf-8"))["alerts"]
        firing = [alert for alert in alerts if alert["status"] == "firing"]
        with open(settings.log, "a+", encoding="utf-8") as log:
            fcntl.flock(log, fcntl.LOCK_EX)  # notifications may arrive at the same time
            results = [_act(settings, action, alert, log) for alert in firing for action in _due(settings, alert)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"act.py: {type(error).__name__}: {error}; usage: NOTIFICATION=FILE act.py ACTIONS.json", file=sys.stderr)
        return 2
    return int(not all(results))


def settings_of(document: Mapping[str, Any]) -> Settings:
    """Return the settings of a parsed file.

    Raises:
        TypeError: a key is missing or unknown.
    """
    actions = [Action(**action) for action in document["actions"]]
    return Settings(**{**document, "actions": actions, "log": Path(document["log"])})


def _due(settings: Settings, alert: Mapping[str, Any]) -> Iterator[Action]:
    began = datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", alert["startsAt"]).replace("Z", "+00:00"))
    for action in settings.actions:
        if (
            alert["labels"].get("alertname") in action.alerts
            and time.time() - began.timestamp() >= action.after_seconds
        ):
            yield action


def _act(settings: Settings, action: Action, alert: Mapping[str, Any], log: TextIO) -> bool:
    """Run the command of an action unless it ran in the last hour; returns False if it failed."""
    labels: Mapping[str, str] = alert["labels"]
    subject = {name: labels[name] for name in action.subject if labels.get(name)}
    entry: dict[str, Any] = {"action": action.name, "alert": labels["alertname"], "subject": subject}
    entry["dry_run"] = settings.dry_run
    try:
        if _acted_lately(log, subject, dry_run=settings.dry_run):
            return True
        if not subject:
            raise Refused(f"the alert has none of the labels {', '.join(action.subject)}")
        found = _query(settings.prometheus_url, action.query, labels) if action.query else [{}]
        if not found:
            return True
        entry["command"] = _command(action.command, labels, found)
    except Refused as refused:
        _write(log, {**entry, "result": f"refused: {refused}"})
        return True
    except Unavailable as problem:
        print(f"act.py: {action.name}: {problem}", file=sys.stderr)
        return False
    _write(log, {**entry, "result": "begins"})
    result = "dry run" if settings.dry_run else _run(entry["command"])
    _write(log, {**entry, "result": result})
    _annotate(settings, entry, result)
    return result in ("ok", "dry run")


def _acted_lately(log: TextIO, subject: Mapping[str, str], *, dry_run: bool) -> bool:
    """Return True if the log has an action on the subject within the last hour. A dry run delays no action."""
    log.seek(0)
    entries = [_parsed(line) for line in log]
    return any(
        (entry.get("subject"), entry.get("dry_run")) == (subject, dry_run)
        and abs(time.time() - entry.get("time", 0.0)) < LIMIT_SECONDS
        for entry in entries
    )


def _parsed(line: str) -> dict[str, Any]:
    """Return a line of the log; empty for one that a crash has cut off."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _query(url: str, query: str, labels: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the labels of each result.

    Raises:
        Unavailable: Prometheus does not respond, or the query is invalid.
    """
    quoted = _Labels({name: json.dumps(value)[1:-1] for name, value in labels.items()})
    body = urllib.parse.urlencode({"query": Template(query).substitute(quoted)}).encode()
    try:
        return [result["metric"] for result in json.loads(_post(f"{url}/api/v1/query", body, {}))["data"]["result"]]
    except (OSError, ValueError, KeyError) as error:
        raise Unavailable(f"Prometheus at {_without_password(url)}: {error}") from None


class _Labels(dict[str, str]):
    """Labels of an alert: a missing one is empty, as in PromQL."""

    def __missing__(self, name: str) -> str:
        return ""


def _command(
    template: Sequence[str | Sequence[str]], labels: Mapping[str, str], found: Sequence[Mapping[str, str]]
) -> list[str]:
    """Return the command with its placeholders replaced.

    Raises:
        Refused: a label is missing, or its value could be taken for an option.
    """
    command: list[str] = []
    for part in template:
        if isinstance(part, str):
            command.append(_replaced(part, labels))
        else:
            command += [_replaced(word, {**labels, **result}) for result in found for word in part]
    return command


def _replaced(word: str, labels: Mapping[str, str]) -> str:
    host = labels.get("instance", "").rpartition(":")[0] or labels.get("instance", "")
    values = {"host": host, **labels}
    for match in Template.pattern.finditer(word):
        name = match["named"] or match["braced"]
        if name and not _SAFE.fullmatch(values.get(name, "")):
            raise Refused(f"label {name} is {values.get(name, '')!r:.80}, which is not a safe argument")
    return Template(word).substitute(values)


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"failed: {error}"
    if done.returncode == 0:
        return "ok"
    return f"failed: exit status {done.returncode}: {' '.join((done.stderr or done.stdout).split())[-_OUTPUT:]}"


def _write(log: TextIO, entry: Mapping[str, Any]) -> None:
    """Append a line, and wait until it is on the disk: a crash must not lead to a second action."""
    line = json.dumps({"time": round(time.time(), 3), **entry})
    log.write(line + "\n")
    log.flush()
    os.fsync(log.fileno())
    print(line)


def _annotate(settings: Settings, entry: Mapping[str, Any], result: str) -> None:
    """Add an annotation in Grafana, which every dashboard of the bundle shows."""
    if not settings.grafana_url:
        return
    annotation = {
        "time": int(time.time() * 1000),
        "tags": [_TAG, *entry["subject"].values()],
        "text": f"{entry['action']} ({entry['alert']}): {' '.join(entry['command'])}: {result}",
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('GRAFANA_TOKEN', '')}"}
    try:
        _post(f"{settings.grafana_url}/api/annotations", json.dumps(annotation).encode(), headers)
    except (OSError, ValueError) as error:
        print(f"act.py: no annotation at {_without_password(settings.grafana_url)}: {error}", file=sys.stderr)


def _post(url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    parts = urllib.parse.urlsplit(url)
    login = {}
    if parts.username is not None:  # which urllib.request does not accept in an address
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        login["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(url, body, {**headers, **login})  # noqa: S310 - the operator's own address
    handlers = []
    if _THIS_MACHINE.fullmatch(parts.hostname or ""):  # which no proxy of the environment reaches
        handlers.append(urllib.request.ProxyHandler({}))
    with urllib.request.build_opener(*handlers).open(request, timeout=_REQUEST_SECONDS) as response:
        content: bytes = response.read()
    return content


def _without_password(url: str) -> str:
    return re.sub(r"(?<=://)[^/]*@", "", url)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
