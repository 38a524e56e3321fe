"""The chart gives the objects of deploy/kubernetes: by default those of the plain overlay, by a switch each other's."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from stallscope.common.version import __version__
from tests.deploy.kubernetes_tools import program
from tests.deploy.rendering import CHART, Object, container, helmed, kustomized, of_kind, only, run

SWITCHES = {
    "plain": (),
    "amd": ("maker=amd",),
    "mig": ("mig=true",),
    "host-processes": ("hostProcesses=true",),
    "without-hostpath": ("podResources=false",),
    "web-config": ("webConfigSecret=stallscope-web-config",),
    "signed-reports": ("reportTokensSecret=stallscope-report-tokens",),
    "prometheus-operator": ("prometheusOperator.enabled=true",),
    "grafana-sidecar": ("grafanaSidecar.enabled=true",),
}
CHART_ONLY = ("app.kubernetes.io/managed-by", "helm.sh/chart")


def normal(objects: list[Object]) -> dict[tuple[str, str], Any]:
    """The objects by kind and name, less what differs by design: Helm's labels, and the namespace, which it takes."""
    found = {}
    for each in objects:
        metadata = each["metadata"]
        metadata["labels"] = {key: value for key, value in metadata["labels"].items() if key not in CHART_ONLY}
        assert metadata.pop("namespace", "stallscope") == "stallscope"
        if each["kind"] != "Namespace":
            found[each["kind"], metadata["name"]] = each
    return found


@pytest.mark.parametrize("overlay", SWITCHES)
def test_the_chart_gives_what_the_overlay_gives(overlay: str) -> None:
    assert normal(helmed(*SWITCHES[overlay])) == normal(kustomized(f"overlays/{overlay}"))


def test_every_overlay_has_its_switch() -> None:
    from tests.deploy.rendering import OVERLAYS

    assert sorted(SWITCHES) == OVERLAYS


def test_the_chart_has_the_packages_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_helm_finds_nothing_to_object_to() -> None:
    assert "0 chart(s) failed" in run("helm", "lint", "--strict", str(CHART))


def test_a_packed_chart_brings_rules_and_dashboards_along(tmp_path: Path) -> None:
    run("helm", "package", str(CHART), "--destination", str(tmp_path))
    (packed,) = tmp_path.glob("*.tgz")
    assert packed.stat().st_size < 700_000  # a release is kept in one Secret of 1 MiB at most
    switches = ("--set", "prometheusOperator.enabled=true,grafanaSidecar.enabled=true")
    text = run("helm", "template", "stallscope", str(packed), *switches)
    kinds = {each["kind"] for each in yaml.safe_load_all(text) if each}
    assert {"PodMonitor", "PrometheusRule", "ConfigMap"} <= kinds


def test_labels_that_an_operator_selects_by_reach_its_objects() -> None:
    objects = helmed("prometheusOperator.enabled=true", "prometheusOperator.labels.release=kps")
    theirs = of_kind(objects, "PodMonitor") + of_kind(objects, "PrometheusRule")
    assert theirs
    assert all(each["metadata"]["labels"]["release"] == "kps" for each in theirs)


def test_values_of_a_clusters_own_reach_the_pod() -> None:
    daemonset = only(
        helmed(
            "image.tag=1.2.3",
            "extraArgs={--log.format=json}",
            "runtimeClassName=",
            "visibleDevices=management.nvidia.com/gpu=all",
            "kubeletFolder=/var/lib/k0s/kubelet",
            "seLinuxOptions.type=spc_t",
            "podLabels.team=platform",
            "podAnnotations.reviewed=yes",
        ),
        "DaemonSet",
    )
    kubernetes_validate.validate(daemonset, "1.34", strict=True)
    metadata = daemonset["spec"]["template"]["metadata"]
    assert metadata["labels"]["team"] == "platform"
    assert metadata["annotations"] == {"reviewed": "yes"}
    pod, found = daemonset["spec"]["template"]["spec"], container(daemonset)
    assert found["image"] == "stallscope/stallscope-exporter:1.2.3"
    assert found["args"][-1] == "--log.format=json"
    assert "runtimeClassName" not in pod
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "management.nvidia.com/gpu=all"} in found["env"]
    assert [each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each] == [
        "/var/lib/k0s/kubelet/pod-resources"
    ]
    assert "/var/lib/kubelet/pod-resources" in [each["mountPath"] for each in found["volumeMounts"]]
    assert found["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


@pytest.mark.parametrize(("switch", "user"), [("mig=true", 0), ("hostProcesses=true", 0), ("mig=false", 65532)])
def test_a_pod_with_capabilities_is_roots_who_alone_can_use_them(switch: str, user: int) -> None:
    pod = only(helmed("podResources=false", switch), "DaemonSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == user
    assert pod["securityContext"].get("runAsNonRoot", False) is (user != 0)


def test_a_cluster_that_lets_nobody_report_says_so_with_an_empty_list() -> None:
    policies = of_kind(helmed("networkPolicies.reportsFrom=null"), "NetworkPolicy")
    (reports,) = [each for each in policies if each["metadata"]["name"].endswith("reports")]
    assert reports["spec"]["ingress"] == []


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("mgi=true", "mgi"),
        ("maker=intel", "maker"),
        ("resources.limits.nvidia\\.com/gpu=1", "nvidia.com/gpu"),
        ("extraArgs={log}", "extraArgs"),
        ("kubeletFolder=var/lib/kubelet", "kubeletFolder"),
    ],
)
def test_values_that_make_no_sense_are_refused(value: str, complaint: str) -> None:
    helm = program("helm")
    if helm is None:
        pytest.skip("helm is not on PATH, and could not be fetched")
    command = [helm, "template", "stallscope", str(CHART), "--set", value]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode != 0
    assert complaint in ran.stderr
