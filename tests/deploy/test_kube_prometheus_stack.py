"""The page for kube-prometheus-stack: its commands render, its policies fit the Service, and its check runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import generate
from stallscope.common.version import __version__
from tests.deferred import Deferred
from tests.deploy import pod_security
from tests.deploy.rendering import ROOT, Object, container, helmed, kustomized, of_kind, only, run
from tests.deploy.test_kubernetes_pods import page, port
from tests.free_ports import free_port
from tests.handled import handled, reply
from tests.rules.layers import LOADER

kubernetes_validate = Deferred("kubernetes_validate")

__all__ = ["port"]
FOLDER = ROOT / "deploy/kubernetes/kube-prometheus-stack"
PAGE = (FOLDER / "README.md").read_text()
ADDRESS = "udp://stallscope-exporter.stallscope.svc:19400"
IMAGE = f"registry.example.org/ml/stallscope-exporter:{__version__}"
JOB = ROOT / "deploy/kubernetes/check/job.yaml"


def commands() -> list[list[str]]:
    """Return the words of each command of the page."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def rendered(release: str) -> list[Object]:
    """Return the objects of the page's `helm upgrade --install RELEASE`, hooks included."""
    (command,) = [each for each in commands() if each[:4] == ["helm", "upgrade", "--install", release]]
    words = [str(ROOT / each) if each.startswith("deploy/") else each for each in command[3:]]
    return [each for each in yaml.load_all(run("helm", "template", *words), LOADER) if each]


@pytest.fixture(scope="module")
def installed() -> list[Object]:
    return rendered("stallscope")


def values(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def test_files_of_the_commands_exist() -> None:
    assert ["docker", "push", IMAGE] in commands()
    files = {word for command in commands() for word in command if word.startswith("deploy/")}
    assert {Path(name).name for name in files} >= {path.name for path in FOLDER.glob("*.yaml")}
    assert all((ROOT / name).exists() for name in files)


def test_the_installation_has_what_the_page_promises(installed: list[Object]) -> None:
    assert container(only(installed, "DaemonSet"))["image"] == IMAGE
    for each in of_kind(installed, "PodMonitor") + of_kind(installed, "PrometheusRule"):
        assert each["metadata"]["labels"]["release"] == "kps"
    folder = values("stack.yaml")["grafana"]["sidecar"]["dashboards"]["folderAnnotation"]
    dashboards = of_kind(installed, "ConfigMap")
    assert dashboards
    assert all(each["metadata"]["annotations"][folder] == "Stallscope" for each in dashboards)


def test_the_labels_of_the_page_satisfy_policies_and_levels(installed: list[Object]) -> None:
    labels = {command[3]: command[4] for command in commands() if command[:3] == ["kubectl", "label", "namespace"]}
    (reports,) = [each for each in of_kind(installed, "NetworkPolicy") if each["metadata"]["name"].endswith("reports")]
    (peer,) = reports["spec"]["ingress"][0]["from"]
    assert labels["training"] == "=".join(*peer["namespaceSelector"]["matchLabels"].items())
    level = pod_security.level(only(installed, "DaemonSet")["spec"]["template"]["spec"])
    assert labels["stallscope"] == f"pod-security.kubernetes.io/enforce={level}"


class TestAlertmanager:
    def configuration(self) -> dict[str, Any]:
        """Return the configuration that the stack's chart creates, with its defaults for missing parts."""
        found: dict[str, Any] = values("alertmanager.yaml")["alertmanager"]["config"]
        return {"global": {"resolve_timeout": "5m"}, **found}

    def test_amtool_accepts_the_configuration_and_its_templates(self, tmp_path: Path) -> None:
        for name, text in values("alertmanager.yaml")["alertmanager"]["templateFiles"].items():
            (tmp_path / name).write_text(text)
            assert text == (ROOT / "alerts/templates" / name).read_text()
        file = tmp_path / "alertmanager.yaml"
        file.write_text(yaml.safe_dump({**self.configuration(), "templates": [f"{tmp_path}/*.tmpl"]}))
        assert "SUCCESS" in run("amtool", "check-config", str(file))

    @pytest.mark.parametrize(
        ("labels", "receiver"),
        [
            ("alertname=StallscopeWatchdog cause=watchdog severity=info", "watchdog"),
            ("alertname=Watchdog severity=none", "watchdog"),
            ("alertname=InfoInhibitor severity=none", "none"),
            ("alertname=GpuLost cause=lost severity=critical instance=n1", "page"),
            ("alertname=KubePodCrashLooping severity=warning namespace=a", "ticket"),
        ],
    )
    def test_alerts_of_both_are_routed(self, labels: str, receiver: str, tmp_path: Path) -> None:
        file = tmp_path / "alertmanager.yaml"
        file.write_text(yaml.safe_dump(self.configuration()))
        routed = run("amtool", "config", "routes", "test", f"--config.file={file}", *labels.split())
        assert routed.strip() == receiver

    def test_the_stacks_inhibition_rules_ignore_alerts_of_this_bundle(self) -> None:
        own = yaml.safe_load((ROOT / "alerts/alertmanager.yml").read_text())["inhibit_rules"]
        found = self.configuration()["inhibit_rules"]
        stacks = [each for each in found if each not in own]
        assert [each for each in found if each in own] == own
        assert len(stacks) == 3
        assert all('cause = ""' in each["target_matchers"] for each in stacks)
        alerts = [path for path in (ROOT / "alerts").glob("*.yml") if path.name != "alertmanager.yml"]
        rules = [rule for path in alerts for rule in yaml.safe_load(path.read_text())["groups"][0]["rules"]]
        assert all(rule["labels"]["cause"] for rule in rules)

    def test_the_receivers_of_the_example_are_those_of_the_routes(self) -> None:
        (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
        names = [each["name"] for each in yaml.safe_load(example)["alertmanager"]["config"]["receivers"]]
        assert names == [each["name"] for each in self.configuration()["receivers"]]

    def test_a_marker_that_is_gone_is_noticed(self) -> None:
        text = generate.stack_alertmanager()
        assert text.count("InfoInhibitor") == 2


class TestPolicies:
    def test_kubernetes_own_policy_is_valid(self) -> None:
        policy, binding = yaml.safe_load_all((FOLDER / "mutating-admission-policy.yaml").read_text())
        for each in (policy, binding):
            kubernetes_validate.validate(each, "1.37", strict=True)
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]

    @pytest.mark.parametrize("name", ["kyverno.yaml", "mutating-admission-policy.yaml"])
    def test_a_policy_adds_the_services_address_in_namespaces_that_may_report(
        self, name: str, installed: list[Object]
    ) -> None:
        text = (FOLDER / name).read_text()
        service = only(installed, "Service")
        (ports,) = service["spec"]["ports"]
        assert f"udp://{service['metadata']['name']}.stallscope.svc:{ports['port']}" == ADDRESS
        assert ADDRESS in text
        assert "matchLabels:\n" in text
        assert "stallscope-reports: allowed\n" in text
        assert "failurePolicy: Ignore" in text  # a policy that fails must not keep a training from starting


class TestCheck:
    def test_the_charts_job_is_that_of_the_folder(self, installed: list[Object]) -> None:
        job, own = only(installed, "Job"), only(kustomized("check"), "Job")
        assert job["metadata"].pop("annotations")["helm.sh/hook"] == "test"
        assert container(job).pop("image") == IMAGE
        del container(own)["image"]
        assert job == own
        kubernetes_validate.validate(own, "1.34", strict=True)

    def test_it_is_left_out_without_a_namespace(self) -> None:
        for switches in (("prometheusUrl=http://p:9090",), ("check.namespace=training",), ()):
            assert not of_kind(helmed(*switches), "Job")

    def test_it_runs_in_a_restricted_namespace_on_the_exporters_nodes(self, installed: list[Object]) -> None:
        pod, exporter = (only(installed, kind)["spec"]["template"]["spec"] for kind in ("Job", "DaemonSet"))
        assert pod_security.level(pod) == "restricted"
        assert pod["affinity"] == exporter["affinity"]
        assert pod["tolerations"] == exporter["tolerations"]

    @pytest.mark.parametrize(("doctors", "last"), [(0, "done"), (1, "not done: see the failed checks")])
    def test_it_reports_steps_and_the_doctors_result(self, port: int, tmp_path: Path, doctors: int, last: str) -> None:
        page(port, "/-/healthy")
        with prometheus_of(port) as url:
            ran = self.program(tmp_path, doctors, f"udp://127.0.0.1:{port}", url)
        assert "note: pods of this namespace have no STALLSCOPE_ADDRESS" in ran.stdout
        assert "ok: Prometheus has the steps of run stallscope-check" in ran.stdout
        assert "doctor prometheus cluster" in ran.stdout
        assert ran.stdout.splitlines()[-1] == last
        assert ran.returncode == doctors

    @pytest.mark.parametrize(
        ("exporters", "refused", "message"),
        [
            (
                0,
                (),
                "it has no series of an exporter; check that the exporters' pods are ready, and that it scrapes them",
            ),
            (1, (), "refused none; label this namespace with stallscope-reports=allowed"),
            (1, ("unsigned",), r"refuse reports \(unsigned\); create the Secret stallscope-report-token in this"),
            (1, ("run_limit",), r"refuse reports \(run_limit\); see the log of the exporter of this node"),
        ],
        ids=["no exporter", "nothing refused", "unsigned", "another reason"],
    )
    def test_if_no_step_arrives_it_names_the_reason_that_prometheus_proves(
        self, tmp_path: Path, exporters: int, refused: tuple[str, ...], message: str
    ) -> None:
        with prometheus_of(None, exporters, refused) as url:
            ran = self.program(tmp_path, 0, "udp://127.0.0.1:9", url, seconds=6)
        assert ran.returncode == 1
        assert re.search(message, ran.stderr)
        assert "done" not in ran.stdout

    def test_it_signs_its_reports_with_the_token_of_the_namespaces_training(self) -> None:
        training = ROOT / "deploy/kubernetes/training-job/job.yaml"
        tokens = [
            [each for each in container(yaml.safe_load(job.read_text()))["env"] if each["name"] == "STALLSCOPE_TOKEN"]
            for job in (JOB, training)
        ]
        assert tokens[0] == tokens[1] != []

    def test_it_fails_if_prometheus_does_not_respond(self, tmp_path: Path) -> None:
        ran = self.program(tmp_path, 0, "udp://127.0.0.1:9", f"http://127.0.0.1:{free_port()}")
        assert ran.returncode == 1
        assert "Prometheus does not respond" in ran.stderr

    @staticmethod
    def program(
        folder: Path, doctors: int, address: str, url: str, seconds: int = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run the Job's program, with a doctor that returns this exit status."""
        found = container(yaml.safe_load(JOB.read_text()))
        (program,) = found["args"]
        stub = folder / "stallscope"
        stub.write_text(f'#!/bin/sh\necho "$@"\nexit {doctors}\n')
        stub.chmod(0o755)
        given = {"SERVICE_ADDRESS": address, "STALLSCOPE_PROMETHEUS_URL": url, "PATH": f"{folder}:{os.environ['PATH']}"}
        assert {each["name"] for each in found["env"]} == {*given} - {"PATH"} | {"STALLSCOPE_TOKEN"}
        environment = {key: value for key, value in os.environ.items() if not key.startswith("STALLSCOPE")}
        quick = program.replace('"stallscope-check", 180, 0.1', f'"stallscope-check", {seconds}, 0.05')
        assert quick != program
        command = [sys.executable, *found["command"][1:], quick]
        return subprocess.run(
            command, env={**environment, **given}, capture_output=True, text=True, timeout=120, check=False
        )


@contextmanager
def prometheus_of(port: int | None, exporters: int = 1, refused: tuple[str, ...] = ()) -> Iterator[str]:
    """Serve a Prometheus that has the run as soon as the exporter's page has it; without a port, never.

    It also has series of so many exporters, and reports that they refused for these reasons.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "stallscope_training_last_step_timestamp_seconds" in self.path:
                metrics = page(port, "/metrics") if port is not None else ""
                has_run = 'stallscope_training_last_step_timestamp_seconds{run="stallscope-check"' in metrics
                series: list[dict[str, str]] = [{}] if has_run else []
            elif "reports_rejected_total" in self.path:
                series = [{"reason": reason} for reason in refused]
            else:
                assert "stallscope_exporter_source_up" in self.path
                series = [{}] * exporters
            reply(self, json.dumps({"data": {"result": [{"metric": each} for each in series]}}).encode())

    with handled(Handler) as address:
        yield f"http://{address}"
