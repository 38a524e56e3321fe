"""Commands of the test of a cluster, and what several of its steps use."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.kubernetes_tools import environment_folder

Command = tuple[str, ...]
_SECONDS = 900
"""Longest time of a command."""
EXPORTERS = ("--namespace", "stallscope", "--selector", "app.kubernetes.io/name=stallscope-exporter")
_PAGE = """
from urllib.request import urlopen
print(urlopen("http://127.0.0.1:19400/metrics", timeout=30).read().decode())
"""
"""For the exporter's pod."""


class Failed(Exception):
    """A step failed; the message is the reason."""


class Skipped(Exception):
    """The cluster cannot do a step; the message is the reason."""


def run(command: Command) -> str:
    """Run a command and return its output.

    Raises:
        Failed: it failed, or took too long.
    """
    path = os.pathsep.join((os.environ["PATH"], str(environment_folder())))
    environment = {**os.environ, "PATH": path}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise Failed(f"{_shown(command)}: no end after {_SECONDS} s") from None
    except FileNotFoundError:
        raise Failed(f"{command[0]}: not found; install it, or add its folder to PATH") from None
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise Failed(f"{_shown(command)}: {reason}")
    return done.stdout


def _shown(command: Command) -> str:
    return shlex.join("…" if "\n" in word else word for word in command)


def exporter_on(node: str) -> str:
    """Return the exporter's pod on a node, such as `pod/stallscope-exporter-x`.

    Raises:
        Failed: the cluster cannot be queried.
    """
    on = ("--field-selector", f"spec.nodeName={node}", "--output", "name")
    return run(("kubectl", "get", "pods", *EXPORTERS, *on)).strip()


def metrics_of(exporter: str) -> list[tuple[str, Mapping[str, str], float]]:
    """Return name, labels and value of each series of an exporter's pod.

    Raises:
        Failed: it does not respond.
    """
    page = run(("kubectl", "exec", exporter, "--namespace", "stallscope", "--", "python", "-c", _PAGE))
    families = text_string_to_metric_families(page)
    return [(each.name, each.labels, each.value) for family in families for each in family.samples]


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether the condition holds within `seconds` seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(1)
    return True


def apply(objects: Iterable[Mapping[str, Any]], file: Path) -> None:
    """Create or change objects, through a file that is overwritten.

    Raises:
        Failed: the cluster rejects them.
    """
    listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    file.write_text(json.dumps(listed), encoding="utf-8")
    run(("kubectl", "apply", "--server-side", "--filename", str(file)))


def pod(namespace: str, name: str, image: str, node: str, *command: str) -> dict[str, Any]:
    """Return a pod on a node that runs a command on the exporter's image, or only waits."""
    container = {
        "name": "main",
        "image": image,
        "command": list(command) or ["sleep", "3600"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"operator": "Exists"}],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }


def namespace(name: str) -> dict[str, Any]:
    """Return a namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
