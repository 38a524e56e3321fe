"""The step of the test of a cluster with claims of dynamic resource allocation.

The driver of claims_driver.py publishes two devices: one has the UUID of a GPU of the node, the other an unknown one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.deploy import claims_driver
from tests.deploy.cluster_commands import Failed, Skipped, apply, exporter_on, metrics_of, pod, run, wait_for

_DRIVER = "gpu.example.org"
_API = "/apis/resource.k8s.io/v1"
_KNOWN, _UNKNOWN = "stallscope-known", "stallscope-unknown"
"""Names of device, claim and pod."""
_NO_GPU = "GPU-00000000-0000-0000-0000-000000000000"
_QUEUE = "research"
_DRIVER_POD = ("stallscope-claims-driver", "--namespace", "stallscope")
_KUBELET = ("plugins", "plugins_registry")
"""Folders of the kubelet that a driver needs."""
_Series = Sequence[tuple[str, Mapping[str, str], float]]


def check_claims(image: str, node: str, file: Path) -> None:
    """Claim devices, and compare the owners that the node's exporter reports.

    Raises:
        Skipped: the cluster has no such API, the node no GPU, or its kubelet registers no driver.
        Failed: a GPU has the wrong owner, or none.
    """
    try:
        run(("kubectl", "get", "--raw", _API))
    except Failed:
        raise Skipped("the cluster has no resource.k8s.io/v1; it needs Kubernetes 1.34 or newer") from None
    exporter = exporter_on(node)
    uuids = [labels["uuid"] for name, labels, _ in metrics_of(exporter) if name == "stallscope_gpu_info"]
    if not uuids:
        raise Skipped(f"the exporter of node {node} has no GPU; see tests/deploy/README.md for stand-ins")
    try:
        apply([_driver(image, node)], file)
        ready = ("--for=condition=ready", "--timeout=1m")
        try:
            run(("kubectl", "wait", f"pod/{_DRIVER_POD[0]}", *_DRIVER_POD[1:], *ready))
        except Failed as problem:
            raise Skipped(f"the kubelet of node {node} registers no driver ({problem})") from None
        apply([*_devices(node, uuids[-1]), *_claimers(image, node, uuids[-1])], file)
        pods = (f"pod/{_KNOWN}", f"pod/{_UNKNOWN}", "--namespace", "training")
        run(("kubectl", "wait", *pods, "--for=condition=ready", "--timeout=3m"))
        found: list[str] = []

        def is_right() -> bool:
            found[:] = differences(metrics_of(exporter), uuids[-1])
            return not found

        if not wait_for(is_right, 90):
            raise Failed("; ".join(found))
    finally:
        _remove()


def differences(series: _Series, uuid: str) -> list[str]:
    """Return what is wrong with the owners on an exporter's page, with the claimed GPU."""

    def of(name: str, pod_name: str) -> list[Mapping[str, str]]:
        return [labels for each, labels, _ in series if each == name and labels.get("pod") == pod_name]

    held = [labels["uuid"] for labels in of("stallscope_gpu_owner_info", _KNOWN)]
    wrong = [labels["uuid"] for labels in of("stallscope_gpu_owner_info", _UNKNOWN)]
    queues = {labels["queue"] for labels in of("stallscope_gpu_owner_workload_info", _KNOWN)}
    api = [
        value
        for name, labels, value in series
        if name == "stallscope_exporter_source_up" and labels["source"] == "kubernetes"
    ]
    found = []
    if held != [uuid]:
        found.append(f"pod {_KNOWN} claims GPU {uuid}, but the exporter reports {', '.join(held) or 'none'}")
    if wrong:
        found.append(f"pod {_UNKNOWN} claims a device that is unknown, but the exporter reports {', '.join(wrong)}")
    if queues != {_QUEUE}:
        found.append(f"pod {_KNOWN} has the queue {_QUEUE}, but the exporter reports {', '.join(queues) or 'none'}")
    if api != [1.0]:
        found.append("the source kubernetes is not up; see the exporter's log")
    return found


def _driver(image: str, node: str) -> dict[str, Any]:
    program = Path(claims_driver.__file__).read_text(encoding="utf-8")
    made = pod("stallscope", _DRIVER_POD[0], image, node, "python", "-c", program, _DRIVER)
    made["spec"]["securityContext"] = {"runAsUser": 0}
    made["spec"]["volumes"] = [
        {"name": name.replace("_", "-"), "hostPath": {"path": f"/var/lib/kubelet/{name}", "type": "Directory"}}
        for name in _KUBELET
    ]
    made["spec"]["containers"][0] |= {
        "env": [{"name": "POOL", "value": node}],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/registered"]}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": name.replace("_", "-"), "mountPath": f"/var/lib/kubelet/{name}"} for name in _KUBELET
        ],
    }
    return made


def _devices(node: str, uuid: str) -> list[dict[str, Any]]:
    devices = [
        {"name": name, "attributes": {"uuid": {"string": value}}}
        for name, value in ((_KNOWN, uuid), (_UNKNOWN, _NO_GPU))
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": _DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    slices = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": _KNOWN}, "spec": spec}
    selector = {"cel": {"expression": f'device.driver == "{_DRIVER}"'}}
    return [
        slices,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": _DRIVER},
            "spec": {"selectors": [selector]},
        },
    ]


def _claimers(image: str, node: str, uuid: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for name, value in ((_KNOWN, uuid), (_UNKNOWN, _NO_GPU)):
        selector = f'device.attributes["{_DRIVER}"].uuid == "{value}"'
        exactly = {"deviceClassName": _DRIVER, "selectors": [{"cel": {"expression": selector}}]}
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "training"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        }
        claimer = pod("training", name, image, node)
        claimer["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = _QUEUE
        claimer["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
        claimer["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        made += [claim, claimer]
    return made


def _remove() -> None:
    """Delete all objects, the pods before the driver that must release their devices."""
    missing = ("--ignore-not-found", "--timeout=2m")
    run(("kubectl", "delete", "pod", _KNOWN, _UNKNOWN, "--namespace", "training", *missing))
    run(("kubectl", "delete", "resourceclaim", _KNOWN, _UNKNOWN, "--namespace", "training", *missing))
    run(("kubectl", "delete", "resourceslice", _KNOWN, *missing))
    run(("kubectl", "delete", "deviceclass", _DRIVER, *missing))
    run(("kubectl", "delete", "pod", *_DRIVER_POD, *missing))
