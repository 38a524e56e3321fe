"""deploy/kubernetes, rendered by kubectl, is valid by Kubernetes' schemas and does what its README states."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import generate
from stallscope.common.version import __version__
from stallscope.node.collectors.base import available
from stallscope.node.configuration import OWN_PATHS, Configuration, ConfigurationError, load
from stallscope.training.protocol.vocabulary import DEFAULT_PORT
from stallscope.training.shim.launchers import ranks
from stallscope.training.shim.transport import Datagrams, transport
from tests.deferred import Deferred
from tests.deploy import pod_security
from tests.deploy.rendering import (
    FOLDERS,
    OVERLAYS,
    ROOT,
    STACKS,
    Object,
    container,
    kustomized,
    of_kind,
    only,
    run,
)
from tests.rules.layers import LOADER
from tests.waiting import until

jsonschema = Deferred("jsonschema")
kubernetes_validate = Deferred("kubernetes_validate")

VERSIONS = ("1.26", "1.29", "1.32", "1.34", "1.37")
"""The first does not know what is new, and the last one not what is gone; the others are tried nightly."""
OPERATOR = "monitoring.coreos.com/v1"
SELECTOR = {"app.kubernetes.io/name": "stallscope-exporter"}
"""Published: a DaemonSet's selector is immutable, so that a new selector needs a new name."""

LEVELS = {
    "plain": {"HostPath Volumes"},
    "prometheus-operator": {"HostPath Volumes"},
    "grafana-sidecar": {"HostPath Volumes"},
    "amd": {"HostPath Volumes"},
    "web-config": {"HostPath Volumes"},
    "signed-reports": {"HostPath Volumes"},
    "prometheus-url": {"HostPath Volumes"},
    "kubernetes-api": {"HostPath Volumes"},
    "node-conditions": {"HostPath Volumes"},
    "mig": {"HostPath Volumes", "Capabilities"},
    "host-processes": {"HostPath Volumes", "Capabilities", "Host Namespaces"},
    "without-hostpath": set(),
}
"""Controls of level baseline that each overlay violates."""
WITH_API = ("kubernetes-api", "node-conditions")
"""Overlays that send requests to the API server."""


def exporter_of(overlay: str) -> Object:
    return only(kustomized(f"overlays/{overlay}"), "DaemonSet")


def pod_of(workload: Object) -> dict[str, Any]:
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    return pod


def configuration_of(daemonset: Object) -> Configuration:
    summaries = {name: source.summary for name, source in available().items()}
    arguments = [each.replace("$(NODE_NAME)", "gpu-node-7") for each in container(daemonset)["args"]]
    return load(arguments, {}, summaries)


def operator_schema(kind: str) -> Any:
    return json.loads((Path(__file__).parent / f"operator_schemas/{kind}.json").read_text())


@pytest.mark.parametrize("folder", [*FOLDERS, STACKS])
def test_every_folder_builds(folder: str) -> None:
    objects = kustomized(folder)
    assert objects
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "version",
    [VERSIONS[0], *(pytest.param(each, marks=pytest.mark.nightly) for each in VERSIONS[1:-1]), VERSIONS[-1]],
)
@pytest.mark.parametrize("folder", [*FOLDERS, STACKS])
def test_objects_are_valid_by_the_schemas_of_kubernetes(folder: str, version: str) -> None:
    for each in kustomized(folder):
        if each["apiVersion"] != OPERATOR:
            kubernetes_validate.validate(each, version, strict=True)


def test_the_schemas_reject_a_misspelt_field() -> None:
    daemonset = exporter_of("plain")
    pod_of(daemonset)["tolerationz"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="tolerationz"):
        kubernetes_validate.validate(daemonset, VERSIONS[-1], strict=True)


def test_the_operators_objects_are_valid_by_its_schemas() -> None:
    objects = [each for each in kustomized("overlays/prometheus-operator") if each["apiVersion"] == OPERATOR]
    assert {each["kind"] for each in objects} == {"PodMonitor", "PrometheusRule"}
    for each in objects:
        jsonschema.validate(each, operator_schema(each["kind"]))


def test_the_operators_schemas_reject_a_misspelt_field() -> None:
    monitor = only(kustomized("overlays/prometheus-operator"), "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["honourLabels"] = True
    with pytest.raises(jsonschema.ValidationError, match="honourLabels"):
        jsonschema.validate(monitor, operator_schema("PodMonitor"))


class TestDaemonSet:
    @pytest.mark.parametrize("overlay", OVERLAYS)
    def test_it_never_requests_a_gpu(self, overlay: str) -> None:
        resources = container(exporter_of(overlay))["resources"]
        assert {name for part in resources.values() for name in part} == {"cpu", "memory"}

    @pytest.mark.parametrize("overlay", OVERLAYS)
    def test_it_mounts_a_token_only_for_the_api_and_opens_no_host_port(self, overlay: str) -> None:
        objects = kustomized(f"overlays/{overlay}")
        pod = pod_of(only(objects, "DaemonSet"))
        assert pod["automountServiceAccountToken"] is (overlay in WITH_API)
        assert only(objects, "ServiceAccount")["automountServiceAccountToken"] is False
        assert "hostNetwork" not in pod
        assert not any("hostPort" in port for port in container(only(objects, "DaemonSet"))["ports"])
        assert len(of_kind(objects, "ClusterRole") + of_kind(objects, "Role")) == (overlay in WITH_API)

    @pytest.mark.parametrize("overlay", OVERLAYS)
    def test_its_root_file_system_and_its_one_host_path_are_read_only(self, overlay: str) -> None:
        daemonset = exporter_of(overlay)
        assert container(daemonset)["securityContext"]["readOnlyRootFilesystem"] is True
        host = [volume for volume in pod_of(daemonset)["volumes"] if "hostPath" in volume]
        mounts = {mount["name"]: mount for mount in container(daemonset)["volumeMounts"]}
        assert len(host) == (0 if overlay == "without-hostpath" else 1)
        for volume in host:
            assert volume["hostPath"]["path"] == mounts[volume["name"]]["mountPath"]
            assert mounts[volume["name"]]["readOnly"] is True

    def test_the_kubelets_socket_is_mounted_at_the_exporters_path(self) -> None:
        from stallscope.node.owners.pod_resources import SOCKET

        mounts = [mount["mountPath"] for mount in container(exporter_of("plain"))["volumeMounts"]]
        assert str(Path("/", SOCKET).parent) in mounts

    @pytest.mark.parametrize("overlay", OVERLAYS)
    def test_the_exporter_accepts_its_flags(self, overlay: str) -> None:
        configuration = configuration_of(exporter_of(overlay))
        assert {address.port for address in configuration.listen_addresses} == {DEFAULT_PORT}
        assert configuration.report_udp_address is not None
        assert configuration.allow_remote_reports is False

    def test_an_unknown_flag_is_detected(self) -> None:
        daemonset = exporter_of("plain")
        container(daemonset)["args"].append("--web.no-such-flag")
        with pytest.raises(ConfigurationError, match="no-such-flag"):
            configuration_of(daemonset)

    def test_it_writes_only_to_a_volume(self) -> None:
        daemonset = exporter_of("plain")
        state = configuration_of(daemonset).report_state_file
        mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container(daemonset)["volumeMounts"]}
        assert state is not None
        assert mounts[str(state.parent)] is False

    def test_its_ports_are_opened_by_its_flags(self) -> None:
        daemonset = exporter_of("plain")
        configuration = configuration_of(daemonset)
        ports = {
            port["name"]: (port["containerPort"], port.get("protocol", "TCP")) for port in container(daemonset)["ports"]
        }
        assert configuration.report_udp_address is not None
        assert ports == {
            "http": (configuration.listen_addresses[0].port, "TCP"),
            "reports": (configuration.report_udp_address.port, "UDP"),
        }

    def test_its_probes_use_the_health_endpoints(self) -> None:
        found = container(exporter_of("plain"))
        paths = [found[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")]
        assert paths == ["/-/healthy", "/-/ready"]
        assert set(paths) <= set(OWN_PATHS)

    def test_with_passwords_the_probes_only_check_the_port(self) -> None:
        daemonset = exporter_of("web-config")
        found, file = container(daemonset), configuration_of(daemonset).web_config_file
        assert file is not None
        (mount,) = [each for each in found["volumeMounts"] if each["mountPath"] == str(file.parent)]
        (volume,) = [each for each in pod_of(daemonset)["volumes"] if each["name"] == mount["name"]]
        for name in ("livenessProbe", "readinessProbe"):
            assert found[name]["tcpSocket"] == {"port": "http"}
            assert "httpGet" not in found[name]
        readme = (ROOT / "deploy/kubernetes/README.md").read_text()
        assert f"secret generic {volume['secret']['secretName']} --from-file={file.name} " in readme

    def test_it_has_no_cpu_limit(self) -> None:
        assert "cpu" not in container(exporter_of("plain"))["resources"]["limits"]

    def test_with_the_api_it_has_the_permissions_of_its_requests_and_no_more(self) -> None:
        objects = kustomized("overlays/kubernetes-api")
        assert only(objects, "ClusterRole")["rules"] == [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["get"]},
            {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list"]},
        ]
        (subject,) = only(objects, "ClusterRoleBinding")["subjects"]
        account = only(objects, "ServiceAccount")["metadata"]
        assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
        found = container(only(objects, "DaemonSet"))
        assert found["args"][-1] == "--kubernetes.node=$(NODE_NAME)"
        (node,) = [each["valueFrom"]["fieldRef"] for each in found["env"] if each["name"] == "NODE_NAME"]
        assert node == {"fieldPath": "spec.nodeName"}
        egress = [policy["spec"].get("egress", []) for policy in of_kind(objects, "NetworkPolicy")]
        assert sorted(port["port"] for rules in egress for rule in rules for port in rule["ports"]) == [443, 6443]

    def test_conditions_of_nodes_need_two_permissions_more(self) -> None:
        plain, more = (only(kustomized(f"overlays/{overlay}"), "ClusterRole")["rules"] for overlay in WITH_API)
        assert more == [
            *plain,
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        ]
        assert container(exporter_of("node-conditions"))["args"][-1] == "--collector.node_conditions"
        assert not any("node_conditions" in each for each in container(exporter_of("kubernetes-api"))["args"])

    def test_the_amd_overlay_has_nothing_of_nvidia(self) -> None:
        assert "nvidia" not in json.dumps(exporter_of("amd")).lower()

    def test_mig_instances_are_requested_with_the_capability_they_need(self) -> None:
        found = container(exporter_of("mig"))
        assert {"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"} in found["env"]
        assert found["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}


class TestSecurity:
    @pytest.mark.parametrize("overlay", OVERLAYS)
    def test_each_overlay_violates_only_the_listed_controls(self, overlay: str) -> None:
        pod = pod_of(exporter_of(overlay))
        assert pod_security.baseline(pod) == LEVELS[overlay]
        if LEVELS[overlay]:
            beyond = pod_security.restricted(pod) - pod_security.baseline(pod)
            assert beyond <= {
                "Volume Types",
                "Running as Non-root",
                "Running as Non-root user (v1.23+)",
                "Capabilities (v1.22+)",
            }

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_the_namespace_enforces_the_strictest_level_that_admits_its_pods(self, folder: str) -> None:
        objects = kustomized(folder)
        labels = only(objects, "Namespace")["metadata"]["labels"]
        (workload,) = of_kind(objects, "DaemonSet") + of_kind(objects, "Job")
        assert labels["pod-security.kubernetes.io/enforce"] == pod_security.level(pod_of(workload))

    def test_pods_that_read_stacks_have_one_capability_and_no_network_and_are_not_the_exporters(self) -> None:
        objects = kustomized(STACKS)
        assert sorted(each["kind"] for each in objects) == ["DaemonSet", "NetworkPolicy"]  # deleting it leaves the rest
        daemonset, policy = only(objects, "DaemonSet"), only(objects, "NetworkPolicy")
        pod, found, exporter = pod_of(daemonset), container(daemonset), exporter_of("plain")
        assert pod_security.baseline(pod) == {"Host Namespaces", "Capabilities"}
        assert found["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE"]}
        assert found["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["automountServiceAccountToken"] is False
        assert "volumes" not in pod
        labels = daemonset["spec"]["template"]["metadata"]["labels"]
        assert policy["spec"] == {
            "podSelector": daemonset["spec"]["selector"],
            "policyTypes": ["Ingress", "Egress"],
        }
        assert labels.items() >= daemonset["spec"]["selector"]["matchLabels"].items()
        assert not labels.items() >= SELECTOR.items()
        assert {each["metadata"]["namespace"] for each in objects} == {exporter["metadata"]["namespace"]}
        assert pod["affinity"] == pod_of(exporter)["affinity"]
        assert found["image"] == container(exporter)["image"]

    def test_the_readme_lists_the_level_of_each_overlay(self) -> None:
        readme = (ROOT / "deploy/kubernetes/README.md").read_text()
        listed = dict(re.findall(r"^\| `([a-z-]+)` \|.*\| `([a-z]+)` \|$", readme, re.MULTILINE))
        assert listed == {name: pod_security.level(pod_of(exporter_of(name))) for name in OVERLAYS}

    def test_policies_admit_scrapes_and_reports_and_no_outgoing_traffic(self) -> None:
        policies = of_kind(kustomized("overlays/plain"), "NetworkPolicy")
        ports = {}
        for policy in policies:
            spec = policy["spec"]
            assert spec["podSelector"]["matchLabels"] == SELECTOR
            assert spec["policyTypes"] == ["Ingress", "Egress"]
            assert "egress" not in spec
            for rule in spec["ingress"]:
                assert all("namespaceSelector" in peer and peer["namespaceSelector"] for peer in rule["from"])
                ports.update({port["port"]: port["protocol"] for port in rule["ports"]})
        assert ports == {"http": "TCP", "reports": "UDP"}

    def test_with_a_prometheus_url_the_exporter_may_reach_only_prometheus_and_the_name_server(self) -> None:
        objects = kustomized("overlays/prometheus-url")
        assert configuration_of(only(objects, "DaemonSet")).prometheus_url
        scrapes, reports = (
            next(each["spec"] for each in of_kind(objects, "NetworkPolicy") if each["metadata"]["name"].endswith(end))
            for end in ("-scrapes", "-reports")
        )
        names, prometheus = scrapes["egress"]
        assert {(port["port"], port["protocol"]) for port in names["ports"]} == {(53, "UDP"), (53, "TCP")}
        assert prometheus == {"to": scrapes["ingress"][0]["from"]}
        assert "egress" not in reports

    @pytest.mark.parametrize(
        ("change", "broken"),
        [
            ({"hostNetwork": True}, "Host Namespaces"),
            ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "HostPath Volumes"),
            ({"containers": [{"securityContext": {"privileged": True}}]}, "Privileged Containers"),
            ({"containers": [{"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}, "Capabilities"),
            ({"containers": [{"ports": [{"hostPort": 1}]}]}, "Host Ports"),
            ({"initContainers": [{"securityContext": {"procMount": "Unmasked"}}]}, "/proc Mount Type"),
            ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "Seccomp"),
            ({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}]}}, "Sysctls"),
            ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "SELinux"),
        ],
    )
    def test_the_check_of_levels_finds_each_breach_of_baseline(self, change: dict[str, Any], broken: str) -> None:
        pod = pod_of(only(kustomized("training-job"), "Job"))
        assert pod_security.level(pod) == "restricted"
        assert pod_security.baseline({**pod, **change}) == {broken}

    def test_the_check_of_levels_finds_what_restricted_requires_beyond_baseline(self) -> None:
        assert pod_security.level({"containers": [{}]}) == "baseline"
        assert pod_security.restricted({"containers": [{}]}) == {
            "Privilege Escalation",
            "Running as Non-root",
            "Seccomp (v1.19+)",
            "Capabilities (v1.22+)",
        }


class TestReports:
    def test_the_service_leads_to_the_exporter_of_the_senders_node(self) -> None:
        objects = kustomized("overlays/plain")
        spec = only(objects, "Service")["spec"]
        assert spec["internalTrafficPolicy"] == "Local"
        assert spec["selector"] == SELECTOR
        assert spec.get("clusterIP") != "None"  # shims resolve the address once, and pods are replaced
        names = {port["name"]: port.get("protocol", "TCP") for port in container(only(objects, "DaemonSet"))["ports"]}
        assert [(port["protocol"], names[port["targetPort"]]) for port in spec["ports"]] == [("UDP", "UDP")]

    def test_the_training_job_sends_to_the_service(self) -> None:
        service = only(kustomized("overlays/plain"), "Service")
        metadata, (port,) = service["metadata"], service["spec"]["ports"]
        assert (
            self.environment()["STALLSCOPE_ADDRESS"]
            == f"udp://{metadata['name']}.{metadata['namespace']}.svc:{port['port']}"
        )

    def test_the_policy_admits_the_training_job(self) -> None:
        labels = only(kustomized("training-job"), "Namespace")["metadata"]["labels"]
        policies = of_kind(kustomized("overlays/plain"), "NetworkPolicy")
        peers = [
            peer["namespaceSelector"]["matchLabels"]
            for policy in policies
            for rule in policy["spec"]["ingress"]
            for peer in rule["from"]
            if rule["ports"][0]["port"] == "reports"
        ]
        assert any(peer.items() <= labels.items() for peer in peers)

    def test_the_shim_understands_the_training_jobs_environment(self) -> None:
        environment = {**self.environment(), "RANK": "1"}
        assert ranks(environment) == (1, 0, 2)
        sender = transport({**environment, "STALLSCOPE_ADDRESS": "udp://localhost:19400"})
        assert isinstance(sender, Datagrams)
        sender.close()

    def test_signed_reports_are_checked_with_the_secret_of_the_readme(self) -> None:
        daemonset = exporter_of("signed-reports")
        file = configuration_of(daemonset).report_token_file
        assert file is not None
        (mount,) = [each for each in container(daemonset)["volumeMounts"] if each["mountPath"] == str(file.parent)]
        assert mount["readOnly"] is True
        (volume,) = [each for each in pod_of(daemonset)["volumes"] if each["name"] == mount["name"]]
        assert "optional" not in volume["secret"]  # without the Secret no report must be accepted
        readme = (ROOT / "deploy/kubernetes/README.md").read_text()
        assert f"secret generic {volume['secret']['secretName']} --from-file={file.name}=token\n" in readme
        (token,) = [
            each["valueFrom"]["secretKeyRef"]
            for each in container(only(kustomized("training-job"), "Job"))["env"]
            if each["name"] == "STALLSCOPE_TOKEN"
        ]
        assert f"secret generic {token['name']} --from-file={token['key']}\n" in readme
        assert token["optional"] is True

    def test_each_rank_of_the_training_job_gets_its_number(self) -> None:
        job = only(kustomized("training-job"), "Job")
        variables = {
            each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"]
            for each in container(job)["env"]
            if "fieldRef" in each.get("valueFrom", {})
        }
        assert job["spec"]["completionMode"] == "Indexed"
        assert variables["RANK"] == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        assert int(self.environment()["WORLD_SIZE"]) == job["spec"]["completions"] == job["spec"]["parallelism"]

    @staticmethod
    def environment() -> dict[str, str]:
        job = only(kustomized("training-job"), "Job")
        return {each["name"]: each["value"] for each in container(job)["env"] if "value" in each}


class TestPrometheus:
    def test_the_rule_objects_contain_the_rule_files(self) -> None:
        files = generate.rule_files()
        for name, path in files.items():
            found, expected = (
                yaml.load(text, LOADER) for text in (generate.prometheus_rule(name, path), path.read_text())
            )
            assert found["spec"] == expected
        names = {path.name for folder in ("prometheus/rules", "alerts") for path in (ROOT / folder).glob("*.yml")}
        assert {path.name for path in files.values()} == names - {"alertmanager.yml"}
        rules = of_kind(kustomized("overlays/prometheus-operator"), "PrometheusRule")
        assert {rule["metadata"]["name"] for rule in rules} == {"stallscope-kubernetes", *files}

    def test_generated_files_are_fresh(self) -> None:
        stale = [str(path) for path, text in generate.files().items() if (ROOT / path).read_text() != text]
        assert not stale, "run `make generate`"
        assert {path.name for path in (ROOT / generate.RULES).iterdir()} == {
            path.name for path in generate.files() if path.parent == generate.RULES
        }

    @pytest.mark.parametrize("folder", [*FOLDERS, STACKS])
    def test_kubectl_apply_can_store_every_object_in_its_annotation(self, folder: str) -> None:
        for each in kustomized(folder):
            applied = json.dumps(each, separators=(",", ":"), ensure_ascii=False).encode()
            # The limit of all annotations of an object is 256 KiB; a fifth is left for growth.
            assert len(applied) < 0.8 * 2**18, each["metadata"]["name"]

    def test_the_pod_monitor_selects_the_exporters_pods(self) -> None:
        objects = kustomized("overlays/prometheus-operator")
        monitor, daemonset = only(objects, "PodMonitor"), only(objects, "DaemonSet")
        assert monitor["metadata"]["namespace"] == daemonset["metadata"]["namespace"]
        assert monitor["spec"]["selector"]["matchLabels"] == SELECTOR
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in {port["name"] for port in container(daemonset)["ports"]}
        assert endpoint["honorLabels"] is True

    def test_with_and_without_the_operator_a_node_has_the_same_labels(self, tmp_path: Path) -> None:
        (endpoint,) = only(kustomized("overlays/prometheus-operator"), "PodMonitor")["spec"]["podMetricsEndpoints"]
        (plain,) = yaml.safe_load((ROOT / "deploy/kubernetes/scrape.yml").read_text())["scrape_configs"]
        # The relabelling that the operator adds before the monitor's own.
        operators: list[dict[str, Any]] = [
            {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
            {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
            {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
            {"target_label": "job", "replacement": "stallscope/stallscope-exporter"},
            {"target_label": "endpoint", "replacement": "http"},
        ]
        own = [{_snake(key): value for key, value in step.items()} for step in endpoint["relabelings"]]
        with_operator = self.labels(tmp_path, [*operators, *own])
        assert with_operator == self.labels(tmp_path, plain["relabel_configs"])
        assert with_operator == {"instance": "node-7", "job": "stallscope"}
        assert plain["honor_labels"] is True

    def test_a_scrape_without_the_operator_ignores_other_pods(self, tmp_path: Path) -> None:
        (plain,) = yaml.safe_load((ROOT / "deploy/kubernetes/scrape.yml").read_text())["scrape_configs"]
        assert self.labels(tmp_path, plain["relabel_configs"], name="something-else") == {}

    @staticmethod
    def labels(folder: Path, steps: list[dict[str, Any]], name: str = "stallscope-exporter") -> dict[str, str]:
        """Return the labels of a discovered pod after relabelling by the real Prometheus; empty if it is dropped."""
        pod = {
            "__meta_kubernetes_namespace": "stallscope",
            "__meta_kubernetes_pod_name": "stallscope-exporter-x7x9z",
            "__meta_kubernetes_pod_node_name": "node-7",
            "__meta_kubernetes_pod_container_name": "exporter",
            "__meta_kubernetes_pod_container_port_name": "http",
            "__meta_kubernetes_pod_label_app_kubernetes_io_name": name,
        }
        # Debian's promtool has no Kubernetes discovery: a static target has the labels that discovery would set.
        targets = [{"targets": ["10.0.0.7:19400"], "labels": pod}]
        job = {"job_name": "stallscope", "relabel_configs": steps, "static_configs": targets}
        path = folder / "prometheus.yml"
        path.write_text(yaml.safe_dump({"scrape_configs": [job]}))
        command = ("promtool", "check", "service-discovery", "--timeout=200ms", str(path), "stallscope")
        # promtool keeps a CPU busy all that time, and has no target yet if the machine pauses in it.
        (found,) = until(lambda: json.loads(run(*command)))
        labels: dict[str, str] = found["labels"] or {}
        return {key: value for key, value in labels.items() if not key.startswith("__")}


class TestGrafana:
    def test_each_dashboard_is_a_config_map_with_the_sidecars_label(self) -> None:
        maps = of_kind(kustomized("overlays/grafana-sidecar"), "ConfigMap")
        files = {path.name: path.read_text() for path in (ROOT / "grafana/dashboards").glob("*.json")}
        assert {name: text for each in maps for name, text in each["data"].items()} == files
        assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in maps)


class TestRollout:
    def test_an_update_changes_only_what_may_change_in_place_and_a_rollback_changes_it_back(
        self, tmp_path: Path
    ) -> None:
        old, new = self.at(tmp_path, __version__), self.at(tmp_path, "0.2.0")
        assert _differences(old, new) == {
            ("DaemonSet", "spec.template.spec.containers.0.image"),
            *(("DaemonSet", f"{place}metadata.labels.app.kubernetes.io/version") for place in ("", "spec.template.")),
            *(
                (kind, "metadata.labels.app.kubernetes.io/version")
                for kind in ("Namespace", "NetworkPolicy", "Service", "ServiceAccount")
            ),
        }
        assert self.at(tmp_path, __version__) == old

    @pytest.mark.parametrize("overlay", OVERLAYS)
    def test_a_change_of_overlay_keeps_immutable_fields(self, overlay: str) -> None:
        spec = exporter_of(overlay)["spec"]
        assert spec["selector"] == {"matchLabels": SELECTOR}
        assert SELECTOR.items() <= spec["template"]["metadata"]["labels"].items()

    def test_an_update_replaces_few_exporters_at_a_time_and_stops_at_a_failing_one(self) -> None:
        spec = exporter_of("plain")["spec"]
        assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
        assert spec["minReadySeconds"] > 0
        assert spec["revisionHistoryLimit"] > 1  # a rollback needs an old revision

    def test_the_version_is_the_packages(self) -> None:
        daemonset = exporter_of("plain")
        assert daemonset["metadata"]["labels"]["app.kubernetes.io/version"] == __version__
        assert container(daemonset)["image"] == f"stallscope/stallscope-exporter:{__version__}"

    @staticmethod
    def at(folder: Path, version: str) -> list[Object]:
        """Return the objects with the base and image of another version."""
        place = folder / version
        place.mkdir(exist_ok=True)
        overlay = {
            "resources": [str(from_folder(place, "base"))],
            "images": [{"name": "stallscope/stallscope-exporter", "newTag": version}],
            "labels": [{"pairs": {"app.kubernetes.io/version": version}, "includeTemplates": True}],
        }
        (place / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        return kustomized(place)


@pytest.mark.parametrize("folder", FOLDERS)
def test_objects_have_the_standard_labels_and_one_namespace(folder: str) -> None:
    objects = kustomized(folder)
    namespace = only(objects, "Namespace")["metadata"]["name"]
    for each in objects:
        if each["kind"] not in ("Namespace", "ClusterRole", "ClusterRoleBinding"):
            assert each["metadata"]["namespace"] == namespace
        if folder != "training-job":
            assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "stallscope"


@pytest.mark.parametrize("folder", [*FOLDERS, STACKS])
def test_names_and_labels_are_valid_for_the_api_server(folder: str) -> None:
    # Not in the schemas: DNS labels, label values, names of ports.
    for each in kustomized(folder):
        metadata = each["metadata"]
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", metadata["name"])
        for key, value in metadata.get("labels", {}).items():
            assert re.fullmatch(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", key)
            assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", value)
    ports = re.findall(r'"containerPort": \d+, "name": "([^"]+)"', json.dumps(kustomized(folder), sort_keys=True))
    assert all(re.fullmatch(r"[a-z0-9-]{1,15}", port) for port in ports)


@pytest.mark.parametrize("folder", [*FOLDERS, STACKS])
def test_no_image_names_a_registry(folder: str) -> None:
    images = re.findall(r'"image": "([^"]+)"', json.dumps(kustomized(folder)))
    assert images
    assert not any(re.search(r"[.:]", image.split("/")[0]) for image in images if "/" in image)


def from_folder(folder: Path, path: str) -> Path:
    """Return a path below deploy/kubernetes relative to the folder: kustomize accepts no absolute paths."""
    up = Path("../" * (len(folder.resolve().parts) - 1))
    return up / (ROOT / "deploy/kubernetes" / path).resolve().relative_to("/")


def test_a_second_vendors_exporters_can_have_their_own_namespace(tmp_path: Path) -> None:
    overlay = {"resources": [str(from_folder(tmp_path, "overlays/amd"))], "namespace": "stallscope-amd"}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    objects = kustomized(tmp_path)
    assert only(objects, "Namespace")["metadata"]["name"] == "stallscope-amd"
    namespaces = {each["metadata"]["namespace"] for each in objects if each["kind"] != "Namespace"}
    assert namespaces == {"stallscope-amd"}


def test_components_can_be_combined(tmp_path: Path) -> None:
    root = from_folder(tmp_path, ".")
    names = sorted(
        {path.name for path in (ROOT / "deploy/kubernetes/components").iterdir()} - {"amd", "without-hostpath"}
    )
    overlay = {"resources": [str(root / "base")], "components": [str(root / "components" / name) for name in names]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    objects = kustomized(tmp_path)
    added = container(only(objects, "DaemonSet"))["securityContext"]["capabilities"]["add"]
    assert sorted(added) == ["DAC_READ_SEARCH", "SYS_ADMIN", "SYS_PTRACE"]
    assert of_kind(objects, "PodMonitor")
    assert of_kind(objects, "ConfigMap")


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)


def _differences(old: list[Object], new: list[Object]) -> set[tuple[str, str]]:
    """Return the differences by kind and path; added and removed objects have the path ''."""
    before, after = (
        {(each["kind"], each["metadata"]["name"]): dict(_leaves(each)) for each in objects} for objects in (old, new)
    )
    found = {(kind, "") for kind, _name in before.keys() ^ after.keys()}
    for key in before.keys() & after.keys():
        paths = before[key].keys() | after[key].keys()
        found |= {(key[0], path) for path in paths if before[key].get(path) != after[key].get(path)}
    return found


def _leaves(node: Any, path: str = "") -> Any:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from _leaves(child, f"{path}.{key}".removeprefix("."))
    if not isinstance(node, dict | list):
        yield path, node
