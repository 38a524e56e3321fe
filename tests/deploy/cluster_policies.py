"""The step of the test of a cluster with its network policies.

Pods in several namespaces try to read the metrics page and to report. First a policy of this step shows whether the
cluster enforces policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.deploy.cluster_commands import (
    Command,
    Failed,
    Skipped,
    apply,
    exporter_on,
    metrics_of,
    namespace,
    pod,
    run,
    wait_for,
)

_PORT = 8080
_EXPORTERS_PORT = 19400
_SERVER = ("python", "-m", "http.server", str(_PORT), "--directory", "/etc")
_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
except OSError:
    print("refused")
else:
    print("connected")
"""
_REPORT = """
import os, sys, time
os.environ["STALLSCOPE_ADDRESS"] = "udp://stallscope-exporter.stallscope.svc:19400"
import stallscope
for _ in stallscope.track(range(30), run=sys.argv[1]):
    time.sleep(0.1)
"""
_MISSING = ("--ignore-not-found", "--timeout=2m")


class Client(NamedTuple):
    """A pod, and what the policies permit it."""

    namespace: str
    name: str
    may_scrape: bool = False
    may_report: bool = False
    label: tuple[str, str] = ("app.kubernetes.io/name", "stallscope-steps")

    @property
    def execute(self) -> Command:
        """Start of a command inside it."""
        return ("kubectl", "exec", f"pod/{self.name}", "--namespace", self.namespace, "--", "python", "-c")


_PROMETHEUS = ("app.kubernetes.io/name", "prometheus")
_RANK = Client("training", "stallscope-policies-rank", may_report=True)
_OPEN = Client("stallscope-steps", "open")
_CLOSED = Client("stallscope-steps", "closed", label=("policy", "closed"))
CLIENTS = (
    Client("monitoring", "stallscope-policies-prometheus", may_scrape=True, label=_PROMETHEUS),
    Client("monitoring", "stallscope-policies-other"),
    Client("training", "stallscope-policies-false", label=_PROMETHEUS, may_report=True),
    _OPEN,
    _RANK,
)
"""The last one may report: when its run is on the page, reports of the others have been there or are refused."""


class Access(NamedTuple):
    """Access of a pod to the exporter."""

    may_scrape: bool
    may_report: bool


def check_policies(image: str, node: str, file: Path) -> None:
    """Compare what pods on a node can do with what the policies of the chart permit.

    Raises:
        Skipped: the cluster does not enforce policies.
        Failed: a pod can do more or less.
    """
    found = run(("kubectl", "get", "namespace", "monitoring", "--ignore-not-found", "--output", "name"))
    made = [_OPEN.namespace] if found.strip() else [_OPEN.namespace, "monitoring"]
    pods = []
    for client in (_CLOSED, *CLIENTS):
        command = _SERVER if client in (_OPEN, _CLOSED) else ()
        pods.append(pod(client.namespace, client.name, image, node, *command))
        pods[-1]["metadata"]["labels"] |= dict([client.label])
    try:
        apply([*map(namespace, made), *pods], file)
        for client in (_CLOSED, *CLIENTS):
            inside = (f"pod/{client.name}", "--namespace", client.namespace)
            run(("kubectl", "wait", *inside, "--for=condition=ready", "--timeout=2m"))
        _require_enforcement(file)
        exporter = exporter_on(node)
        if problems := differences(_access(exporter)):
            raise Failed("; ".join(problems))
        execute = ("kubectl", "exec", exporter, "--namespace", "stallscope", "--", "python", "-c")
        if _connects(execute, _address(_OPEN.name, _OPEN.namespace), _PORT):
            raise Failed("the exporter can connect to any pod")
    finally:
        for client in (_CLOSED, *CLIENTS):
            run(("kubectl", "delete", "pod", client.name, "--namespace", client.namespace, *_MISSING))
        run(("kubectl", "delete", "namespace", *made, *_MISSING))


def differences(found: Mapping[Client, Access]) -> list[str]:
    """Return what pods can do that they must not, and the reverse."""
    problems = []
    for client, access in found.items():
        for what, may, expected in (
            ("read the metrics page", access.may_scrape, client.may_scrape),
            ("report", access.may_report, client.may_report),
        ):
            if may != expected:
                problems.append(f"pod {client.namespace}/{client.name} {'can' if may else 'cannot'} {what}")
    return problems


def _require_enforcement(file: Path) -> None:
    address = _address(_CLOSED.name, _CLOSED.namespace)
    if not wait_for(lambda: _connects(_OPEN.execute, address, _PORT), 60):
        raise Failed("a pod cannot connect to a pod without a policy; check the cluster's network")
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": _CLOSED.namespace},
        "spec": {"podSelector": {"matchLabels": dict([_CLOSED.label])}, "policyTypes": ["Ingress"]},
    }
    apply([policy], file)
    if not wait_for(lambda: not _connects(_OPEN.execute, address, _PORT), 30):
        raise Skipped("the cluster's network does not enforce network policies")


def _access(exporter: str) -> dict[Client, Access]:
    address = _address(exporter.removeprefix("pod/"), "stallscope")
    for client in CLIENTS:
        run((*client.execute, _REPORT, _run_of(client)))
    wait_for(lambda: _run_of(_RANK) in _runs(exporter), 60)
    runs = _runs(exporter)
    return {
        client: Access(_connects(client.execute, address, _EXPORTERS_PORT), _run_of(client) in runs)
        for client in CLIENTS
    }


def _run_of(client: Client) -> str:
    return f"{client.namespace}.{client.name}"


def _runs(exporter: str) -> set[str]:
    series = metrics_of(exporter)
    return {labels["run"] for name, labels, _ in series if name == "stallscope_training_last_step_timestamp_seconds"}


def _address(name: str, inside: str) -> str:
    return run(("kubectl", "get", "pod", name, "--namespace", inside, "--output", "jsonpath={.status.podIP}"))


def _connects(execute: Command, address: str, port: int) -> bool:
    return run((*execute, _CONNECT, address, str(port))).strip() == "connected"
