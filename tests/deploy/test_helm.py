"""The chart renders the objects of deploy/kubernetes: the plain overlay by default, every other overlay by a value."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stallscope.common.version import __version__
from tests.deferred import Deferred
from tests.deploy.rendering import CHART, STACKS, Object, container, helmed, kustomized, of_kind, only, run
from tests.rules.layers import LOADER

kubernetes_validate = Deferred("kubernetes_validate")

SWITCHES = {
    "plain": (),
    "amd": ("maker=amd",),
    "mig": ("mig=true",),
    "host-processes": ("hostProcesses=true",),
    "without-hostpath": ("podResources=false",),
    "web-config": ("webConfigSecret=stallscope-web-config",),
    "signed-reports": ("reportTokensSecret=stallscope-report-tokens",),
    "prometheus-url": ("prometheusUrl=http://prometheus-operated.monitoring.svc:9090",),
    "kubernetes-api": ("kubernetesApi=true",),
    "node-conditions": ("kubernetesApi=true", "nodeConditions=true"),
    "prometheus-operator": ("prometheusOperator.enabled=true",),
    "grafana-sidecar": ("grafanaSidecar.enabled=true",),
}
CHART_ONLY = ("app.kubernetes.io/managed-by", "helm.sh/chart")


def normal(objects: list[Object]) -> dict[tuple[str, str], Any]:
    """Return the objects by kind and name, without intended differences: Helm's labels and the namespace."""
    found = {}
    for each in objects:
        metadata = each["metadata"]
        metadata["labels"] = {key: value for key, value in metadata["labels"].items() if key not in CHART_ONLY}
        assert metadata.pop("namespace", "stallscope") == "stallscope"
        if each["kind"] != "Namespace":
            found[each["kind"], metadata["name"]] = each
    return found


@pytest.mark.parametrize("overlay", SWITCHES)
def test_kubectl_apply_can_store_every_rendered_object_in_its_annotation(overlay: str) -> None:
    for each in helmed(*SWITCHES[overlay]):
        applied = json.dumps(each, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(applied) < 0.8 * 2**18, each["metadata"]["name"]


@pytest.mark.parametrize("overlay", SWITCHES)
def test_the_chart_renders_the_objects_of_the_overlay(overlay: str) -> None:
    assert normal(helmed(*SWITCHES[overlay])) == normal(kustomized(f"overlays/{overlay}"))


def test_the_pods_that_read_stacks_are_those_of_their_folder_and_off_by_default() -> None:
    with_stacks, plain = normal(helmed("stacks=true")), normal(helmed())
    assert {key: with_stacks.pop(key) for key in with_stacks.keys() - plain.keys()} == normal(kustomized(STACKS))
    assert with_stacks == plain


def test_values_for_a_cluster_reach_the_pods_that_read_stacks(tmp_path: Path) -> None:
    values = {
        "stacks": True,
        "fullnameOverride": "gpus",
        "nameOverride": "telemetry",
        "commonLabels": {"team": "platform", "app.kubernetes.io/name": "theirs"},
        "image": {"repository": "registry/exporter", "tag": "1.2.3"},
        "imagePullSecrets": [{"name": "pull"}],
        "nodeSelector": {"pool": "a100"},
        "tolerations": [],
        "seLinuxOptions": {"type": "spc_t"},
        "networkPolicies": {"enabled": False},
    }
    objects = rendered(values, tmp_path)
    assert not of_kind(objects, "NetworkPolicy")
    (daemonset,) = (each for each in of_kind(objects, "DaemonSet") if each["metadata"]["name"] == "gpus-stacks")
    kubernetes_validate.validate(daemonset, "1.34", strict=True)
    template, found = daemonset["spec"]["template"], container(daemonset)
    assert daemonset["spec"]["selector"]["matchLabels"] == {"app.kubernetes.io/name": "telemetry-stacks"}
    assert (
        template["metadata"]["labels"].items()
        >= {"app.kubernetes.io/name": "telemetry-stacks", "team": "platform"}.items()
    )
    assert found["image"] == "registry/exporter:1.2.3"
    assert found["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    pod = template["spec"]
    assert (pod["imagePullSecrets"], pod["nodeSelector"]) == ([{"name": "pull"}], {"pool": "a100"})
    assert "tolerations" not in pod


def test_every_overlay_has_a_value() -> None:
    from tests.deploy.rendering import OVERLAYS

    assert sorted(SWITCHES) == OVERLAYS


def test_the_chart_has_the_packages_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_a_release_with_everything_fits_into_its_secret_with_room_to_grow() -> None:
    """Helm stores chart, values and manifest compressed; a Secret has at most 1 MiB."""
    values = {value for each in SWITCHES.values() for value in each} - {"podResources=false", "maker=amd"}
    kept = [part for value in sorted(values) for part in ("--set", value)]
    release = json.loads(run("helm", "install", "stallscope", str(CHART), "--dry-run=client", "-o", "json", *kept))
    assert "PrometheusRule" in release["manifest"]
    assert "stallscope-run.json" in release["manifest"]
    assert release["chart"]["files"]
    stored = base64.b64encode(gzip.compress(json.dumps(release).encode()))
    assert len(stored) < 0.7 * 2**20


def test_the_rules_fit_into_two_of_the_operators_config_maps() -> None:
    """The operator fills each with rule files of at most 512 KiB in all."""
    rules = of_kind(helmed("prometheusOperator.enabled=true"), "PrometheusRule")
    sizes = [len(yaml.safe_dump(each["spec"]).encode()) for each in rules]
    assert max(sizes) < 128 * 2**10
    assert sum(sizes) < 0.9 * 2 * 512 * 2**10


@pytest.mark.parametrize("overlay", SWITCHES)
def test_helm_can_take_over_an_overlay_without_a_change_of_an_immutable_field(overlay: str) -> None:
    """A name or selector that differs would leave a second DaemonSet, or be rejected."""
    applied, released = (
        {(each["kind"], each["metadata"]["name"]): each.get("spec", {}).get("selector") for each in objects}
        for objects in (kustomized(f"overlays/{overlay}"), helmed(*SWITCHES[overlay]))
    )
    applied.pop(("Namespace", "stallscope"))
    assert released == applied


def test_the_flags_that_take_over_an_installation_exist() -> None:
    reported = run("helm", "install", "--help")
    page = (CHART.parent / "README.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if "--take-ownership" in line and line.startswith("  --"))
    assert all(flag in reported for flag in line.split("#")[0].split())


def test_helm_lint_passes() -> None:
    assert "0 chart(s) failed" in run("helm", "lint", "--strict", str(CHART))


def test_a_packaged_chart_contains_rules_and_dashboards(tmp_path: Path) -> None:
    run("helm", "package", str(CHART), "--destination", str(tmp_path))
    (packed,) = tmp_path.glob("*.tgz")
    assert packed.stat().st_size < 700_000  # a release is stored in one Secret, which has at most 1 MiB
    switches = ("--set", "prometheusOperator.enabled=true,grafanaSidecar.enabled=true")
    text = run("helm", "template", "stallscope", str(packed), *switches)
    kinds = {each["kind"] for each in yaml.load_all(text, LOADER) if each}
    assert {"PodMonitor", "PrometheusRule", "ConfigMap"} <= kinds


def test_labels_that_an_operator_selects_by_reach_its_objects() -> None:
    objects = helmed("prometheusOperator.enabled=true", "prometheusOperator.labels.release=kps")
    theirs = of_kind(objects, "PodMonitor") + of_kind(objects, "PrometheusRule")
    assert theirs
    assert all(each["metadata"]["labels"]["release"] == "kps" for each in theirs)


def test_values_for_a_cluster_reach_the_pod() -> None:
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


HOSTILE = (
    *("yes", "no", "on", "null", "~", "true", ".inf", "0x10", "0o17", "010", "1e3", "1_000", "1:30", "2026-01-02"),
    *("a: b", "a #b", "- a", "[a]", "{a: b}", "&a", "*a", "!!str a", "!a", "%a", "@a", "`a`", "|", ">", "?", " a "),
    *("'", '"', "\\", "'\\\"", "{{ .Release.Name }}", "$(HOME)", "a\tb", "é\u2028\U0001f600", "#"),
    *("a\nb: c", "a\n---\nkind: Secret", 'a"\n          privileged: true', "a\n\n  b\n", "\na"),
)
"""Texts that YAML reads as another type without quotes, or that contain the end of a line or value."""


class StrictLoader(yaml.SafeLoader):
    """Reject a key that occurs twice in a mapping, as the API server does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _value in node.value]
        assert len(keys) == len(set(keys)), keys
        return super().construct_mapping(node, deep)


def rendered(values: Object, folder: Path) -> list[Object]:
    """Return the objects of the chart with these values in addition to its defaults."""
    file = folder / "values.yaml"
    file.write_text(json.dumps(values, ensure_ascii=False).replace("\u2028", "\\u2028"))
    text = run("helm", "template", "stallscope", str(CHART), "--namespace", "stallscope", "--values", str(file))
    return [each for each in yaml.load_all(text, StrictLoader) if each]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_value_is_rendered_as_the_same_text(text: str, tmp_path: Path) -> None:
    folder = "/" + text.replace("\n", " ")
    values = {
        "image": {"repository": text, "tag": text},
        "imagePullSecrets": [{"name": text}],
        "runtimeClassName": text,
        "visibleDevices": text,
        "tolerations": [{"key": text, "operator": "Exists"}],
        "priorityClassName": text,
        "kubeletFolder": folder,
        "seLinuxOptions": {"type": text},
        "webConfigSecret": text,
        "reportTokensSecret": text,
        "extraArgs": [f"--log.format={text}"],
        "podLabels": {text: text},
        "podAnnotations": {text: text},
        "networkPolicies": {"scrapesFrom": [{"podSelector": {"matchLabels": {"team": text}}}]},
    }
    objects = rendered(values, tmp_path)
    kinds = Counter(each["kind"] for each in objects)
    assert kinds == Counter(each["kind"] for each in helmed())
    daemonset = only(objects, "DaemonSet")
    template, found = daemonset["spec"]["template"], container(daemonset)
    pod = template["spec"]
    assert found["image"] == f"{text}:{text}"
    assert pod["imagePullSecrets"] == [{"name": text}]
    assert (pod["runtimeClassName"], pod["priorityClassName"]) == (text, text)
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": text} in found["env"]
    assert pod["tolerations"] == [{"key": text, "operator": "Exists"}]
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": []},
        "seLinuxOptions": {"type": text},
    }
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["pod-resources"]["hostPath"]["path"] == f"{folder}/pod-resources"
    assert {volumes[name]["secret"]["secretName"] for name in ("web-config", "report-tokens")} == {text}
    assert found["args"][-1] == f"--log.format={text}"
    assert template["metadata"]["labels"][text] == template["metadata"]["annotations"][text] == text
    peers = [rule["from"] for each in of_kind(objects, "NetworkPolicy") for rule in each["spec"]["ingress"]]
    assert [{"podSelector": {"matchLabels": {"team": text}}}] in peers


def test_labels_of_rules_and_dashboards_are_rendered_as_the_same_texts(tmp_path: Path) -> None:
    labels = {text: text for text in HOSTILE}
    values = {name: {"enabled": True, "labels": labels} for name in ("prometheusOperator", "grafanaSidecar")}
    objects = rendered(values, tmp_path)
    for kind in ("PodMonitor", "PrometheusRule", "ConfigMap"):
        assert of_kind(objects, kind)
        assert all(each["metadata"]["labels"].items() >= labels.items() for each in of_kind(objects, kind))


def test_a_label_of_the_charts_own_is_not_replaced_by_that_of_a_value(tmp_path: Path) -> None:
    daemonset = only(rendered({"podLabels": {"app.kubernetes.io/name": "theirs", "team": "a"}}, tmp_path), "DaemonSet")
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "a"
    assert labels.items() >= daemonset["spec"]["selector"]["matchLabels"].items()


@pytest.mark.parametrize(("switch", "user"), [("mig=true", 0), ("hostProcesses=true", 0), ("mig=false", 65532)])
def test_a_pod_with_capabilities_runs_as_root_which_alone_can_use_them(switch: str, user: int) -> None:
    pod = only(helmed("podResources=false", switch), "DaemonSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == user
    assert pod["securityContext"].get("runAsNonRoot", False) is (user != 0)


def test_an_empty_list_of_senders_admits_no_reports() -> None:
    policies = of_kind(helmed("networkPolicies.reportsFrom=null"), "NetworkPolicy")
    (reports,) = [each for each in policies if each["metadata"]["name"].endswith("reports")]
    assert reports["spec"]["ingress"] == []
