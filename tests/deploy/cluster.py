"""Install, use, change and remove Stallscope in a cluster: `make test-cluster KUBECONFIG=…`. README.md describes it.

Every step is a list of commands. The first command that fails ends the test, and the cluster is left as it is.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.deploy.rendering import CHART

_SECONDS = 900
"""Longest time of a command."""
_EXPORTERS = ("--namespace", "stallscope", "--selector", "app.kubernetes.io/name=stallscope-exporter")
_READY = ("kubectl", "rollout", "status", "daemonset/stallscope-exporter", "--namespace", "stallscope", "--timeout=5m")
_KINDS = "all,configmaps,secrets,serviceaccounts,networkpolicies,roles,rolebindings"
_CLUSTER_KINDS = "clusterroles,clusterrolebindings"
_STALLSCOPE = ("--selector", "app.kubernetes.io/part-of=stallscope", "--output", "name")

_PROGRAM = """
import os, time
os.environ["STALLSCOPE_ADDRESS"] = "udp://stallscope-exporter.stallscope.svc:19400"
import stallscope
for _ in stallscope.track(range(600), run="stallscope-steps"):
    time.sleep(0.1)
"""
"""A training of a minute, on the exporter's image."""

Command = tuple[str, ...]


class Failed(Exception):
    """A step failed; the message is the reason."""


class Step(NamedTuple):
    """Commands that must succeed, in this order."""

    name: str
    commands: Sequence[Command]


def steps(image: str, flags: Sequence[str], node: str) -> tuple[Step, ...]:
    """Return the steps up to the uninstallation.

    Args:
        image: repository and tag of the exporter's image.
        flags: further flags for helm.
        node: the node to drain.
    """
    repository, _, tag = image.rpartition(":")
    chart = ("stallscope", str(CHART), "--namespace", "stallscope", "--wait", "--timeout", "5m")
    values = ("--set", f"image.repository={repository}", "--set", f"image.tag={tag}", *flags)
    job = ("stallscope-steps", "--namespace", "training")
    level = "pod-security.kubernetes.io/enforce=privileged"
    return (
        Step(
            "install",
            (
                ("kubectl", "create", "namespace", "stallscope"),
                ("kubectl", "label", "namespace", "stallscope", level),
                ("helm", "install", *chart, *values),
                _READY,
            ),
        ),
        Step(
            "train",
            (
                ("kubectl", "create", "namespace", "training"),
                ("kubectl", "label", "namespace", "training", "stallscope-reports=allowed"),
                ("kubectl", "create", "job", *job, f"--image={image}", "--", "python", "-c", _PROGRAM),
                ("kubectl", "wait", f"job/{job[0]}", *job[1:], "--for=condition=complete", "--timeout=10m"),
            ),
        ),
        Step("check", (("helm", "test", "stallscope", "--namespace", "stallscope", "--timeout", "10m"),)),
        Step(
            "upgrade",
            (("helm", "upgrade", *chart, "--reset-then-reuse-values", "--set", "podAnnotations.step=upgrade"), _READY),
        ),
        Step("roll back", (("helm", "rollback", "stallscope", "--namespace", "stallscope", "--wait"), _READY)),
        Step("kill", (("kubectl", "delete", "pod", *_EXPORTERS, "--grace-period=0", "--force"), _READY)),
        Step(
            "drain",
            (
                ("kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5m"),
                _READY,
                ("kubectl", "uncordon", node),
            ),
        ),
        Step(
            "uninstall",
            (
                ("kubectl", "delete", "namespace", "training"),
                ("helm", "uninstall", "stallscope", "--namespace", "stallscope", "--wait"),
            ),
        ),
    )


def run(command: Command) -> str:
    """Run a command and return its output.

    Raises:
        Failed: it failed, or took too long.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
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


def remaining() -> list[str]:
    """Return the objects of Stallscope that are still in the cluster.

    Raises:
        Failed: the cluster cannot be queried.
    """
    found = run(("kubectl", "get", _KINDS, "--all-namespaces", *_STALLSCOPE))
    return (found + run(("kubectl", "get", _CLUSTER_KINDS, *_STALLSCOPE))).split()


def run_steps(image: str, flags: Sequence[str]) -> None:
    """Run all steps, and print the name of each.

    Raises:
        Failed: with the step, the command and the reason.
    """
    if left := remaining():
        raise Failed(f"before the test: the cluster has {left[0]}; choose a cluster without Stallscope")
    nodes = run(("kubectl", "get", "nodes", "--output", "name")).split()
    if not nodes:
        raise Failed("before the test: the cluster has no node; add one")
    for step in steps(image, flags, nodes[-1].removeprefix("node/")):
        print(f"test-cluster: {step.name}", flush=True)
        try:
            for command in step.commands:
                run(command)
        except Failed as problem:
            raise Failed(f"{step.name}: {problem}; the cluster is left as it is") from None
    print("test-cluster: what remains", flush=True)
    if left := remaining():
        raise Failed(f"what remains: {' '.join(left)}; delete the objects")
    run(("kubectl", "delete", "namespace", "stallscope"))


def main(environment: Mapping[str, str]) -> int:
    """Return 0 if all steps passed or there is no cluster, 1 if a step failed, 2 for a missing image."""
    if not environment.get("KUBECONFIG"):
        print(
            "test-cluster: skipped: KUBECONFIG is not set; name a cluster for tests, and the exporter's image in IMAGE"
        )
        return 0
    image = environment.get("IMAGE", "")
    if ":" not in image.rpartition("/")[2]:
        print(f"test-cluster: IMAGE: expected an image with a tag, got {image!r}; push one first", file=sys.stderr)
        return 2
    try:
        run_steps(image, shlex.split(environment.get("HELM_FLAGS", "")))
    except Failed as problem:
        print(f"test-cluster: {problem}", file=sys.stderr)
        return 1
    print("test-cluster: done")
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
