"""Install, use, change and remove Stallscope in a cluster: `make test-cluster KUBECONFIG=…`. README.md describes it.

Every step is a list of commands. The first command that fails ends the test, and the cluster is left as it is.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.deploy.cluster_claims import check_claims
from tests.deploy.cluster_commands import EXPORTERS, Command, Failed, Skipped, exporter_on, metrics_of, run
from tests.deploy.cluster_limits import check_full, check_killed, check_rejected
from tests.deploy.cluster_policies import check_policies
from tests.deploy.rendering import CHART, KUBERNETES

_DAEMONSET = ("daemonset/stallscope-exporter", "--namespace", "stallscope")
_READY = ("kubectl", "rollout", "status", *_DAEMONSET, "--timeout=5m")
_KINDS = "all,configmaps,secrets,serviceaccounts,networkpolicies,roles,rolebindings"
_CLUSTER_KINDS = "clusterroles,clusterrolebindings"
_STALLSCOPE = ("--selector", "app.kubernetes.io/part-of=stallscope", "--output", "name")
_RUN = "stallscope-steps"
_WAIT = ("--wait", "--timeout", "5m")
_CHART = ("stallscope", str(CHART), "--namespace", "stallscope")
_UPGRADE = ("helm", "upgrade", *_CHART, "--reset-then-reuse-values", "--set")
_UNINSTALL = ("helm", "uninstall", "stallscope", "--namespace", "stallscope", "--wait")
_GONE = ("kubectl", "wait", "pod", *EXPORTERS, "--for=delete", "--timeout=2m")
"""Helm does not wait for the pods of a DaemonSet that it deletes."""
_JOB = (_RUN, "--namespace", "training")

_PROGRAM = f"""
import os, time
os.environ["STALLSCOPE_ADDRESS"] = "udp://stallscope-exporter.stallscope.svc:19400"
import stallscope
for _ in stallscope.track(range(600), run="{_RUN}"):
    time.sleep(0.1)
"""
"""A training of a minute, on the exporter's image."""

_WEB_CONFIG = "http_server_config: {headers: {X-Frame-Options: deny}}"


class Step(NamedTuple):
    """Commands that must succeed, in this order."""

    name: str
    commands: Sequence[Command]
    hint: str = ""
    """Further words for the message of a failure."""
    check: Callable[[], None] | None = None
    """Check of the result, which raises Failed, or Skipped if the cluster cannot do the step."""


def steps(image: str, flags: Sequence[str], node: str, file: Path) -> tuple[Step, ...]:
    """Return the steps with the chart.

    Args:
        image: repository and tag of the exporter's image.
        flags: further flags for helm.
        node: the node for the pods of steps, and to drain.
        file: a file for objects, which steps overwrite.
    """
    level = "pod-security.kubernetes.io/enforce=privileged"
    too_little = ("--set", "resources.requests.memory=24Mi", "--set", "resources.limits.memory=24Mi")
    missing = "stallscope-missing"
    back = (("helm", "rollback", "stallscope", "--namespace", "stallscope", "--wait"), _READY)
    return (
        Step(
            "install",
            (
                ("kubectl", "create", "namespace", "stallscope"),
                ("kubectl", "label", "namespace", "stallscope", level),
                ("helm", "install", *_CHART, *_WAIT, *_values(image, flags)),
                _READY,
            ),
        ),
        Step(
            "train",
            (
                ("kubectl", "create", "namespace", "training"),
                ("kubectl", "label", "namespace", "training", "stallscope-reports=allowed"),
                ("kubectl", "create", "job", *_JOB, f"--image={image}", "--", "python", "-c", _PROGRAM),
                ("kubectl", "wait", f"job/{_JOB[0]}", *_JOB[1:], "--for=condition=complete", "--timeout=10m"),
            ),
            check=find_steps,
        ),
        Step(
            "check",
            (("helm", "test", "stallscope", "--namespace", "stallscope", "--timeout", "10m"),),
            f" (kubectl logs job/stallscope-check {' '.join(_JOB[1:])})",
        ),
        Step("policies", (), check=partial(check_policies, image, node, file)),
        Step(
            "claims",
            ((*_UPGRADE, "kubernetesApi=true", *_WAIT), _READY),
            check=partial(check_claims, image, node, file),
        ),
        Step("ranks", (), check=partial(check_full, image, node, file)),
        Step("upgrade", ((*_UPGRADE, "podAnnotations.step=upgrade", *_WAIT), _READY)),
        Step("roll back", back),
        Step("too little memory", ((*_UPGRADE[:-1], *too_little),), check=check_killed),
        Step("more memory", back),
        Step(
            "no runtime class",
            ((*_UPGRADE, f"runtimeClassName={missing}"),),
            check=partial(check_rejected, missing),
        ),
        Step("runtime class", back),
        Step("kill", (("kubectl", "delete", "pod", *EXPORTERS, "--grace-period=0", "--force"), _READY)),
        Step(
            "drain",
            (
                ("kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5m"),
                _READY,
                ("kubectl", "uncordon", node),
            ),
        ),
        Step("uninstall", (("kubectl", "delete", "namespace", "training"), _UNINSTALL, _GONE)),
    )


def steps_of_kustomize(image: str, flags: Sequence[str], folder: Path) -> tuple[Step, ...]:
    """Return the steps with the overlays `plain` and `web-config` of the folder."""
    apply = ("kubectl", "apply", "--server-side", "--kustomize")
    web_config = f"--from-literal=web-config.yml={_WEB_CONFIG}"
    secret = ("kubectl", "create", "secret", "generic", "stallscope-web-config", "--namespace", "stallscope")
    replace = ("kubectl", "delete", *_DAEMONSET, "--cascade=orphan")
    take_over = ("--take-ownership", "--force-conflicts")
    upgrade = (*_UPGRADE, "webConfigSecret=stallscope-web-config", *_WAIT)
    return (
        Step("kustomize", ((*apply, str(folder / "plain")), _READY)),
        Step(
            "undo",
            (
                (*secret, web_config),
                (*apply, str(folder / "web-config")),
                _READY,
                ("kubectl", "rollout", "undo", *_DAEMONSET),
                _READY,
                replace,
                (*apply, str(folder / "web-config")),
                _READY,
                (*apply, str(folder / "plain")),
                _READY,
            ),
        ),
        Step(
            "take over",
            (
                replace,
                ("helm", "install", *_CHART, *_WAIT, *_values(image, flags), *take_over),
                _READY,
                upgrade,
                _READY,
            ),
        ),
        Step("uninstall", (_UNINSTALL, _GONE)),
    )


def write_overlays(folder: Path, image: str, *, runtime_class: bool) -> None:
    """Write the overlays `plain` and `web-config` of the image into the folder."""
    repository, _, tag = image.rpartition(":")
    base = os.path.relpath(KUBERNETES, folder / "plain")
    for name, components in (("plain", ()), ("web-config", (f"{base}/components/web-config",))):
        patch = '[{"op": "remove", "path": "/spec/template/spec/runtimeClassName"}]'
        target = {"kind": "DaemonSet", "name": "stallscope-exporter"}
        overlay = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"{base}/base"],
            "components": list(components),
            "images": [{"name": "stallscope/stallscope-exporter", "newName": repository, "newTag": tag}],
            "patches": [] if runtime_class else [{"target": target, "patch": patch}],
        }
        (folder / name).mkdir()
        (folder / name / "kustomization.yaml").write_text(json.dumps(overlay), encoding="utf-8")


def _values(image: str, flags: Sequence[str]) -> tuple[str, ...]:
    repository, _, tag = image.rpartition(":")
    return ("--set", f"image.repository={repository}", "--set", f"image.tag={tag}", *flags)


def remaining() -> list[str]:
    """Return the objects of Stallscope that are still in the cluster.

    Raises:
        Failed: the cluster cannot be queried.
    """
    found = run(("kubectl", "get", _KINDS, "--all-namespaces", *_STALLSCOPE))
    return (found + run(("kubectl", "get", _CLUSTER_KINDS, *_STALLSCOPE))).split()


def find_steps() -> None:
    """Look for the training in the metrics of the exporter on its node.

    Raises:
        Failed: the exporter has no step of it.
    """
    pods = ("kubectl", "get", "pods", "--output", "jsonpath={.items[0].spec.nodeName}")
    node = run((*pods, "--namespace", "training", "--selector", f"job-name={_RUN}"))
    name = "stallscope_training_last_step_timestamp_seconds"
    if not any(each == name and labels["run"] == _RUN for each, labels, _ in metrics_of(exporter_on(node))):
        raise Failed(f"the exporter of node {node} has no step of the training; see deploy/kubernetes/README.md")


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
    get = ("kubectl", "get", "runtimeclass", "nvidia", "--ignore-not-found", "--output", "name")
    runtime_class = bool(run(get).strip())
    if not runtime_class:
        flags = ("--set", "runtimeClassName=", *flags)
    flags = ("--set", "check.namespace=training", *flags)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        write_overlays(folder, image, runtime_class=runtime_class)
        _make(steps(image, flags, nodes[-1].removeprefix("node/"), folder / "objects.json"))
        _make(steps_of_kustomize(image, flags, folder))
    run(("kubectl", "delete", "namespace", "stallscope"))


def _make(made: Sequence[Step]) -> None:
    for step in made:
        print(f"test-cluster: {step.name}", flush=True)
        try:
            for command in step.commands:
                run(command)
            if step.check:
                step.check()
        except Skipped as reason:
            print(f"test-cluster: {step.name}: skipped: {reason}", flush=True)
        except Failed as problem:
            raise Failed(f"{step.name}: {problem}{step.hint}; the cluster is left as it is") from None
    print("test-cluster: what remains", flush=True)
    if left := remaining():
        raise Failed(f"what remains: {' '.join(left)}; delete the objects")


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
