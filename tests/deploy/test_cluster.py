"""The test of a cluster, with stand-ins for kubectl and helm that record their arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy import cluster, cluster_commands
from tests.deploy.rendering import container, kustomized, only

STAND_IN = """#!/bin/sh
echo "${{0##*/}} $*" >> {log}
case "${{0##*/}} $*" in
*{fails}*) echo "first line" >&2; echo "the reason" >&2; exit 1;;
*"get nodes"*) echo node/a; echo node/b;;
*create_connection*) echo connected;;
*19400/metrics*) cat {page};;
*terminated.reason*) echo "OOMKilled ";;
*"get events"*) echo 'pod rejected: RuntimeClass "stallscope-missing" not found';;
*"get runtimeclass"*) echo {runtime_class};;
*"get all"*) [ -e {remains} ] && grep -q uninstall {log} && echo configmap/left;;
esac
exit 0
"""


LAST_STEP = "stallscope_training_last_step_timestamp_seconds"
PAGE = f'{LAST_STEP}{{run="stallscope-steps"}} 1\n{LAST_STEP}{{run="stallscope-ranks-00"}} 1\n'


class Clock:
    """A clock of which half a minute passes in each sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        self.now += 30


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(cluster_commands, "time", Clock())
    write(tmp_path)
    (tmp_path / "page").write_text(PAGE)
    return tmp_path


def write(folder: Path, fails: str = "no such command", runtime_class: str = "") -> None:
    text = STAND_IN.format(
        log=folder / "log",
        remains=folder / "remains",
        page=folder / "page",
        fails=f'"{fails}"',
        runtime_class=runtime_class,
    )
    for name in ("kubectl", "helm"):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)


def run(**environment: str) -> int:
    return cluster.main({"KUBECONFIG": "/cluster", "IMAGE": "registry:5000/exporter:1.0", **environment})


def called(folder: Path) -> list[str]:
    """Return program and first argument of every command that changes something."""
    lines = (folder / "log").read_text().splitlines()
    words = [line.split() for line in lines if line.startswith(("kubectl ", "helm "))]
    return [" ".join(each[:2]) for each in words if each[1] not in ("get", "wait", "exec") and "status" not in each]


def test_the_steps_are_made_in_their_order(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(HELM_FLAGS="--set hostPID=true") == 0
    names = ["install", "train", "check", "policies", "claims", "ranks", "upgrade", "roll back", "too little memory"]
    names += ["more memory", "no runtime class", "runtime class", "kill", "drain", "uninstall", "what remains"]
    names += ["kustomize", "undo", "take over", "uninstall", "what remains", "done"]
    printed = capsys.readouterr().out.splitlines()
    assert [each for each in printed if "skipped" not in each] == [f"test-cluster: {name}" for name in names]
    assert [each for each in printed if "skipped" in each] == [
        "test-cluster: policies: skipped: the cluster's network does not enforce network policies",
        "test-cluster: claims: skipped: the exporter of node b has no GPU; see tests/deploy/README.md for stand-ins",
    ]
    commands = [
        *("kubectl create", "kubectl label", "helm install"),
        *("kubectl create", "kubectl label", "kubectl create", "helm test"),
        *("kubectl apply", "kubectl apply", *["kubectl delete"] * 7),
        "helm upgrade",
        *("kubectl apply", "kubectl delete"),
        *["helm upgrade", "helm rollback"] * 3,
        *("kubectl delete", "kubectl drain", "kubectl uncordon", "kubectl delete", "helm uninstall"),
        *("kubectl apply", "kubectl create", "kubectl apply", "kubectl rollout", "kubectl delete", "kubectl apply"),
        *("kubectl apply", "kubectl delete", "helm install", "helm upgrade", "helm uninstall", "kubectl delete"),
    ]
    assert called(programs) == commands
    log = (programs / "log").read_text()
    assert "--set image.repository=registry:5000/exporter --set image.tag=1.0 --set " in log
    assert "--set hostPID=true" in log
    assert "kubectl drain b " in log


@pytest.mark.parametrize(("found", "expected"), [("runtimeclass.node.k8s.io/nvidia", False), ("", True)])
def test_a_runtime_class_that_the_cluster_lacks_is_left_out(programs: Path, found: str, expected: bool) -> None:
    write(programs, runtime_class=found)
    assert run() == 0
    assert ("--set runtimeClassName= " in (programs / "log").read_text()) is expected


@pytest.mark.parametrize("runtime_class", [False, True])
def test_the_overlays_differ_in_the_web_configuration(tmp_path: Path, runtime_class: bool) -> None:
    cluster.write_overlays(tmp_path, "registry:5000/exporter:1.0", runtime_class=runtime_class)
    for name, arguments in (("plain", 0), ("web-config", 1)):
        daemonset = only(kustomized(tmp_path / name), "DaemonSet")
        assert ("runtimeClassName" in daemonset["spec"]["template"]["spec"]) is runtime_class
        exporter = container(daemonset)
        assert exporter["image"] == "registry:5000/exporter:1.0"
        assert len([each for each in exporter["args"] if each.startswith("--web.config.file=")]) == arguments


def test_without_a_cluster_it_is_skipped(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(KUBECONFIG="") == 0
    assert "skipped: KUBECONFIG is not set" in capsys.readouterr().out
    assert not (programs / "log").exists()


@pytest.mark.parametrize("image", ["", "registry:5000/exporter"])
def test_an_image_without_a_tag_is_refused(programs: Path, capsys: pytest.CaptureFixture[str], image: str) -> None:
    assert run(IMAGE=image) == 2
    assert "IMAGE: expected an image with a tag" in capsys.readouterr().err
    assert not (programs / "log").exists()


def test_a_training_without_steps_in_the_exporter_is_a_failure(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (programs / "page").write_text(PAGE.replace("stallscope-steps", "another"))
    assert run() == 1
    assert "train: the exporter of node  has no step of the training; see deploy/kub" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "step"), [("helm install", "install"), ("kubectl drain", "drain")])
def test_a_failure_names_step_command_and_reason_and_ends_the_test(
    programs: Path, capsys: pytest.CaptureFixture[str], command: str, step: str
) -> None:
    write(programs, fails=command)
    assert run() == 1
    message = capsys.readouterr().err
    assert message.startswith(f"test-cluster: {step}: {command} ")
    assert message.endswith(": the reason; the cluster is left as it is\n")
    assert called(programs)[-1] == command


def test_an_object_that_remains_is_a_failure(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (programs / "remains").touch()
    assert run() == 1
    assert "what remains: configmap/left; delete the objects" in capsys.readouterr().err


def test_a_cluster_with_stallscope_is_not_touched(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (programs / "remains").touch()
    (programs / "log").write_text("kubectl uninstall\n")
    assert run() == 1
    assert "the cluster has configmap/left" in capsys.readouterr().err
    assert called(programs) == ["kubectl uninstall"]
