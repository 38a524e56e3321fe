"""Each value of the chart reaches the objects, and invalid values are rejected."""

from __future__ import annotations

import copy
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from stallscope.common.bundle import RUNBOOKS
from tests.deferred import Deferred
from tests.deploy.kubernetes_tools import program
from tests.deploy.rendering import CHART, Object, helmed, of_kind, only, run
from tests.deploy.test_kubernetes import configuration_of, operator_schema
from tests.rules.layers import LOADER

jsonschema = Deferred("jsonschema")
kubernetes_validate = Deferred("kubernetes_validate")

SELECTED = {"app.kubernetes.io/name": "gpu-telemetry"}
SECRET = {"name": "scrape", "key": "password"}
RULE = {"from": [{"namespaceSelector": {}}], "ports": [{"port": "http", "protocol": "TCP"}]}
EGRESS = {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 9090, "protocol": "TCP"}]}
VALUES: Object = {
    "nameOverride": "gpu-telemetry",
    "fullnameOverride": "gpus",
    "commonLabels": {"team": "platform", "app.kubernetes.io/part-of": "theirs"},
    "serviceAccount": {"annotations": {"owner": "platform"}},
    "nodeSelector": {"pool": "a100"},
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
    "updateStrategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
    "hostPID": True,
    "hostNetwork": True,
    "prometheusUrl": "https://prometheus.example/path",
    "runbooksUrl": "http://gpus.monitoring:19400/runbooks/",
    "grafanaUrl": "https://grafana.example/prefix/",
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    "livenessProbe": {"periodSeconds": 30, "failureThreshold": 5},
    "readinessProbe": {"exec": {"command": ["stallscope", "gpus"]}},
    "service": {"type": "NodePort", "annotations": {"reviewed": "yes"}},
    "networkPolicies": {"scrapesFrom": RULE["from"], "egress": [EGRESS]},
    "prometheusOperator": {
        "enabled": True,
        "labels": {"release": "kps"},
        "podMonitor": {
            "interval": "30s",
            "scrapeTimeout": "10s",
            "scheme": "https",
            "tlsConfig": {"insecureSkipVerify": True},
            "basicAuth": {"username": SECRET, "password": SECRET},
            "relabelings": [{"targetLabel": "cluster", "replacement": "eu"}],
            "metricRelabelings": [{"action": "labeldrop", "regex": "serial"}],
        },
        "rules": {"alerts-gpu-use": False, "rules-canonical-dcgm": False, "alerts-host": True},
        "thresholds": {"input_warning": 0.15, "warmup_steps": 50},
    },
    "grafanaSidecar": {
        "enabled": True,
        "annotations": {"grafana_folder": "Stallscope"},
        "pricePerGpuHour": "1.75",
        "currency": "EUR",
    },
}
"""A value of each kind that other exporters' charts have."""


def rendered(values: Object, folder: Path) -> list[Object]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    text = run("helm", "template", "stallscope", str(CHART), "--namespace", "stallscope", "--values", str(file))
    return [each for each in yaml.load_all(text, LOADER) if each]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    return rendered(VALUES, tmp_path_factory.mktemp("values"))


@cache
def defaults() -> list[Object]:
    return helmed("prometheusOperator.enabled=true", "grafanaSidecar.enabled=true")


def at(objects: list[Object], path: str) -> Any:
    """Return the part of an object: `Kind/name:key.0.key`; without a name, the only object of its kind."""
    place, _, keys = path.partition(":")
    kind, _, name = place.partition("/")
    found: Any = only([each for each in of_kind(objects, kind) if name in ("", each["metadata"]["name"])], kind)
    for key in filter(None, keys.split(".")):
        found = found[int(key)] if isinstance(found, list) else found.get(key)
    return found


POD = "DaemonSet:spec.template.spec"
CONTAINER = f"{POD}.containers.0"
ENDPOINT = "PodMonitor:spec.podMetricsEndpoints.0"
EXPECTED: dict[str, Any] = {
    "DaemonSet:metadata.name": "gpus",
    "Service:metadata.name": "gpus",
    "ServiceAccount:metadata.name": "gpus",
    f"{POD}.serviceAccountName": "gpus",
    "PodMonitor:metadata.name": "gpus",
    "DaemonSet:spec.selector.matchLabels": SELECTED,
    "Service:spec.selector": SELECTED,
    "PodMonitor:spec.selector.matchLabels": SELECTED,
    "NetworkPolicy/gpus-scrapes:spec.podSelector.matchLabels": SELECTED,
    "NetworkPolicy/gpus-reports:spec.podSelector.matchLabels": SELECTED,
    "ServiceAccount:metadata.annotations": {"owner": "platform"},
    f"{POD}.nodeSelector": {"pool": "a100"},
    f"{POD}.affinity.podAntiAffinity": VALUES["affinity"]["podAntiAffinity"],
    "DaemonSet:spec.updateStrategy": {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    },
    f"{POD}.hostPID": True,
    f"{POD}.hostNetwork": True,
    f"{POD}.dnsPolicy": "ClusterFirstWithHostNet",
    f"{CONTAINER}.env.2": {"name": "TZ", "value": "UTC"},
    f"{POD}.volumes.2": {"name": "ca", "configMap": {"name": "ca"}},
    f"{CONTAINER}.volumeMounts.2": {"name": "ca", "mountPath": "/etc/ca", "readOnly": True},
    f"{CONTAINER}.livenessProbe": {
        "httpGet": {"path": "/-/healthy", "port": "http"},
        "periodSeconds": 30,
        "timeoutSeconds": 5,
        "failureThreshold": 5,
    },
    f"{CONTAINER}.readinessProbe": {"exec": {"command": ["stallscope", "gpus"]}, "periodSeconds": 5},
    "Service:spec.type": "NodePort",
    "Service:spec.externalTrafficPolicy": "Local",  # else a report from outside reaches another node's exporter
    "Service:metadata.annotations": {"reviewed": "yes"},
    "NetworkPolicy/gpus-scrapes:spec.ingress": [RULE],
    "NetworkPolicy/gpus-scrapes:spec.egress": [
        {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
        EGRESS,
        {"to": RULE["from"]},
    ],
    f"{ENDPOINT}.interval": "30s",
    f"{ENDPOINT}.scrapeTimeout": "10s",
    f"{ENDPOINT}.scheme": "https",
    f"{ENDPOINT}.tlsConfig": {"insecureSkipVerify": True},
    f"{ENDPOINT}.basicAuth": {"username": SECRET, "password": SECRET},
    f"{ENDPOINT}.honorLabels": True,
    f"{ENDPOINT}.relabelings.3": {"targetLabel": "cluster", "replacement": "eu"},
    f"{ENDPOINT}.metricRelabelings": [{"action": "labeldrop", "regex": "serial"}],
    "ConfigMap/stallscope-fleet:metadata.annotations": {"grafana_folder": "Stallscope"},
}


@pytest.mark.parametrize("path", EXPECTED)
def test_a_value_reaches_its_object(objects: list[Object], path: str) -> None:
    assert at(objects, path) == EXPECTED[path]
    before = defaults()
    if not path.startswith("NetworkPolicy/"):  # named differently
        assert path.endswith("honorLabels") or _absent(before, path) or at(before, path) != EXPECTED[path]


def _absent(objects: list[Object], path: str) -> bool:
    try:
        return at(objects, path) is None
    except (AttributeError, IndexError):
        return True


def test_objects_with_these_values_are_valid(objects: list[Object]) -> None:
    for each in objects:
        if each["apiVersion"].startswith("monitoring.coreos.com"):
            jsonschema.validate(each, operator_schema(each["kind"]))
        else:
            kubernetes_validate.validate(each, "1.34", strict=True)


def test_flags_with_these_values_are_valid(objects: list[Object]) -> None:
    configuration = configuration_of(only(objects, "DaemonSet"))
    assert configuration.prometheus_url.startswith("https://prometheus.example/path")
    arguments = at(objects, f"{CONTAINER}.args")
    assert "--no-collector.network" not in arguments  # on the node's network its metrics are the node's


def test_common_labels_are_on_every_object_and_replace_no_label_of_the_charts_own(objects: list[Object]) -> None:
    for each in [*objects, only(objects, "DaemonSet")["spec"]["template"]]:
        labels = each["metadata"]["labels"]
        assert labels["team"] == "platform"
        assert labels["app.kubernetes.io/part-of"] == "stallscope"


def test_the_default_affinity_remains_unless_it_is_replaced(tmp_path: Path, objects: list[Object]) -> None:
    path = f"{POD}.affinity.nodeAffinity"
    assert at(objects, path) == at(defaults(), path)
    own: Object = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": []}]}}
    assert at(rendered({"affinity": {"nodeAffinity": own}}, tmp_path), path) == own


def test_rules_can_be_left_out_by_group(objects: list[Object]) -> None:
    names = {each["metadata"]["name"] for each in of_kind(objects, "PrometheusRule")}
    all_names = {each["metadata"]["name"] for each in of_kind(defaults(), "PrometheusRule")}
    assert all_names - names == {"stallscope-alerts-gpu-use", "stallscope-rules-canonical-dcgm"}


def test_every_link_to_a_runbook_has_the_address_of_the_value(objects: list[Object]) -> None:
    texts = {f"{each['kind']}/{each['metadata']['name']}": json.dumps(each) for each in objects}
    linking = {name for name, text in texts.items() if "http://gpus.monitoring:19400/runbooks/" in text}
    assert linking == {
        f"{each['kind']}/{each['metadata']['name']}" for each in defaults() if RUNBOOKS in json.dumps(each)
    } - {"PrometheusRule/stallscope-alerts-gpu-use"}
    assert any(name.startswith("PrometheusRule/") for name in linking)
    assert not any(RUNBOOKS in text or "/runbooks//" in text for text in texts.values())


def test_every_link_of_an_alert_to_a_dashboard_has_the_address_of_the_value(objects: list[Object]) -> None:
    found, before = _dashboards(objects), _dashboards(defaults())
    assert found
    assert found.items() <= {alert: f"https://grafana.example/prefix{path}" for alert, path in before.items()}.items()
    assert {path[:14] for path in before.values()} == {"/d/stallscope-"}


def _dashboards(objects: list[Object]) -> dict[str, str]:
    rules = [rule for each in of_kind(objects, "PrometheusRule") for rule in each["spec"]["groups"][0]["rules"]]
    return {
        rule["expr"]: rule["annotations"]["dashboard_url"]
        for rule in rules
        if "dashboard_url" in rule.get("annotations", {})
    }


def test_thresholds_replace_those_of_the_bundle(objects: list[Object]) -> None:
    found, before = (_thresholds(each) for each in (objects, defaults()))
    assert found["input_warning"] == "vector(0.15)"
    assert found["warmup_steps"] == "vector(50)"
    assert {**found, "input_warning": "vector(0.10)", "warmup_steps": "vector(6)"} == before


def _thresholds(objects: list[Object]) -> dict[str, str]:
    (group,) = at(objects, "PrometheusRule/stallscope-rules-thresholds:spec.groups")
    return {rule["labels"]["name"]: rule["expr"] for rule in group["rules"] if rule.get("labels")}


def test_a_threshold_and_a_price_can_be_set_on_the_command_line() -> None:
    operator = "prometheusOperator"
    objects = helmed(
        f"{operator}.enabled=true", f"{operator}.thresholds.input_warning=0.2", "grafanaSidecar.enabled=true"
    )
    assert _thresholds(objects)["input_warning"] == "vector(0.2)"
    priced = helmed("grafanaSidecar.enabled=true", "grafanaSidecar.pricePerGpuHour=3")
    (text,) = at(priced, "ConfigMap/stallscope-fleet:data").values()
    assert [each["query"] for each in json.loads(text)["templating"]["list"] if "price" in each["name"]] == ["3"]


def test_price_and_currency_are_the_defaults_of_the_dashboard_and_nothing_else_changes(objects: list[Object]) -> None:
    for each in of_kind(objects, "ConfigMap"):
        ((file, text),) = each["data"].items()
        found = json.loads(text)
        before: str = at(defaults(), f"ConfigMap/{each['metadata']['name']}:data")[file]
        expected = json.loads(before.replace(f"{RUNBOOKS}/", VALUES["runbooksUrl"]))
        for variable in expected["templating"]["list"]:
            own = {"price_per_gpu_hour": "1.75", "currency": "EUR"}.get(variable["name"])
            if own is not None:
                option = {"selected": True, "text": own, "value": own}
                variable.update(query=own, current=option, options=[option])
        assert found == expected


def test_an_account_of_the_cluster_is_used_and_not_created() -> None:
    objects = helmed("serviceAccount.create=false", "serviceAccount.name=theirs")
    assert not of_kind(objects, "ServiceAccount")
    assert at(objects, f"{POD}.serviceAccountName") == "theirs"
    assert at(helmed("serviceAccount.create=false"), f"{POD}.serviceAccountName") == "default"


def test_policies_and_the_monitor_can_be_switched_off() -> None:
    off = ("networkPolicies.enabled=false", "prometheusOperator.enabled=true")
    objects = helmed(*off, "prometheusOperator.podMonitor.enabled=false")
    assert {each["kind"] for each in objects} == {"DaemonSet", "Service", "ServiceAccount", "PrometheusRule"}


def test_without_peers_that_scrape_a_prometheus_url_permits_no_traffic_to_everywhere() -> None:
    objects = helmed("networkPolicies.scrapesFrom=null", "prometheusUrl=http://prometheus.monitoring.svc")
    (names,) = at(objects, "NetworkPolicy/stallscope-exporter-scrapes:spec.egress")
    assert {each["port"] for each in names["ports"]} == {53}


def test_on_delete_is_valid_without_a_rolling_update(tmp_path: Path) -> None:
    values = {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}
    daemonset = only(rendered(values, tmp_path), "DaemonSet")
    assert daemonset["spec"]["updateStrategy"] == {"type": "OnDelete"}


INVALID: dict[str, tuple[Object, str]] = {
    "a misspelt value": ({"mgi": True}, "mgi"),
    "another vendor": ({"maker": "intel"}, "maker"),
    "a GPU among the resources": ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, "nvidia.com/gpu"),
    "an argument that is no flag": ({"extraArgs": ["log"]}, "extraArgs"),
    "a relative folder": ({"kubeletFolder": "var/lib/kubelet"}, "kubeletFolder"),
    "a name that Kubernetes rejects": ({"fullnameOverride": "GPU_exporter"}, "fullnameOverride"),
    "a name that is too long": ({"nameOverride": "a" * 56}, "nameOverride"),
    "a variable without a name": ({"extraEnv": [{"value": "UTC"}]}, "extraEnv"),
    "an unknown strategy": ({"updateStrategy": {"type": "Recreate"}}, "updateStrategy"),
    "an unknown affinity": ({"affinity": {"gpuAffinity": {}}}, "affinity"),
    "a misspelt field of a probe": ({"livenessProbe": {"period": 5}}, "livenessProbe"),
    "an unknown type of service": ({"service": {"type": "Headless"}}, "service"),
    "a URL without a scheme": ({"prometheusUrl": "prometheus:9090"}, "prometheusUrl"),
    "a switch as a text": ({"hostNetwork": "yes"}, "hostNetwork"),
    "policies that are not a list": ({"networkPolicies": {"egress": {}}}, "egress"),
    "an interval without a unit": ({"prometheusOperator": {"podMonitor": {"interval": "15"}}}, "interval"),
    "labels that the rules need": ({"prometheusOperator": {"podMonitor": {"honorLabels": False}}}, "honorLabels"),
    "an unknown threshold": (
        {"prometheusOperator": {"enabled": True, "thresholds": {"input_wraning": 0.1}}},
        'prometheusOperator.thresholds: unknown threshold "input_wraning"; the names are listed in',
    ),
    "a threshold as a text": ({"prometheusOperator": {"thresholds": {"input_warning": "a lot"}}}, "input_warning"),
    "conditions without the API": ({"nodeConditions": True}, "nodeConditions: needs the Kubernetes API"),
    "rules that others need": (
        {"prometheusOperator": {"enabled": True, "rules": {"rules-signals": False}}},
        'prometheusOperator.rules: "rules-signals" cannot be left out; expected one of alerts-gpu-hardware, ',
    ),
    "a price as words": ({"grafanaSidecar": {"pricePerGpuHour": "cheap"}}, "pricePerGpuHour"),
    "a negative price": ({"grafanaSidecar": {"pricePerGpuHour": -1}}, "pricePerGpuHour"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_values_are_rejected(name: str, tmp_path: Path) -> None:
    helm = program("helm")
    if helm is None:
        pytest.skip("helm is not on PATH, and could not be fetched")
    values, message = copy.deepcopy(INVALID[name])
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    command = [helm, "template", "stallscope", str(CHART), "--values", str(tmp_path / "values.yaml")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode != 0
    assert message in ran.stderr
