"""The exporter runs with the DaemonSet's command, and a rank with the Job's environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.rendering import container, kustomized, only
from tests.free_ports import free_port
from tests.waiting import until

LOOP = "import stallscope\nfor _ in stallscope.track(range(200)): pass\n"
FIELDS = {
    "metadata.labels['batch.kubernetes.io/job-name']": "train",
    "metadata.annotations['batch.kubernetes.io/job-completion-index']": "1",
    "metadata.name": "train-1-x7x9z",
    "metadata.namespace": "training",
}
"""Values that the kubelet sets for the second pod."""
SERVICE = {
    "STALLSCOPE_EXPORTER_SERVICE_HOST": "10.96.0.7",
    "STALLSCOPE_EXPORTER_SERVICE_PORT": "19400",
    "STALLSCOPE_EXPORTER_PORT": "udp://10.96.0.7:19400",
}
"""Variables that a kubelet adds if service links are enabled; the exporter must ignore them."""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Start the exporter of the plain overlay on a free port."""
    number = free_port()
    found = container(only(kustomized("overlays/plain"), "DaemonSet"))
    args = [each.replace("19400", str(number)).replace("/var/lib/stallscope", str(tmp_path)) for each in found["args"]]
    assert found["command"] == ["stallscope", "exporter"]
    environment = {**os.environ, **SERVICE, **{each["name"]: each["value"] for each in found["env"]}}
    command = [sys.executable, "-m", *found["command"], *args]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log, env=environment) as process:
        try:
            yield number
        finally:
            process.terminate()
            assert process.wait(60) == 0, (tmp_path / "log").read_text()


def page(port: int, path: str, wanted: str = "") -> str:
    """Return the page as soon as it contains the text."""

    def found() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
            answer = str(reply.read().decode())
        return answer if wanted in answer else ""

    return until(found, f"{path} does not contain {wanted!r}")


def test_the_probes_of_the_pod_succeed(port: int) -> None:
    found = container(only(kustomized("overlays/plain"), "DaemonSet"))
    for probe in ("livenessProbe", "readinessProbe"):
        assert page(port, found[probe]["httpGet"]["path"])


def test_metrics_of_the_pod_are_not_exported_as_the_nodes(port: int) -> None:
    metrics = page(port, "/metrics", "stallscope_host_memory_total_bytes")
    assert "stallscope_host_network_receive_bytes_total{" not in metrics
    assert "stallscope_host_shared_memory_total_bytes" not in metrics


def limited_to(capabilities: list[str]) -> list[str]:
    """Return the beginning of a command that runs as root with these capabilities only."""
    setpriv = shutil.which("setpriv")
    held = int(re.search(r"CapBnd:\s*(\w+)", Path("/proc/self/status").read_text())[1], 16)  # type: ignore[index]
    if setpriv is None or os.geteuid() != 0 or held & (1 << 2 | 1 << 19) != (1 << 2 | 1 << 19):
        pytest.skip("only root with all capabilities can give some of them away, with setpriv")
    names = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities)])
    return [setpriv, f"--bounding-set={names}", f"--inh-caps={names}"]


def test_other_users_processes_are_visible_with_exactly_its_capabilities() -> None:
    daemonset = only(kustomized("overlays/host-processes"), "DaemonSet")
    added = container(daemonset)["securityContext"]["capabilities"]["add"]
    limited_to(added)  # skips where the test may not start a process of another user
    look = "import sys; from pathlib import Path; from stallscope.node.owners.processes import Processes; "
    look += "print(Processes(Path('/')).look_up([int(sys.argv[1])])[int(sys.argv[1])].pod_name)"
    another_user = {"user": 65534, "group": 65534, "extra_groups": [], "env": {"POD_NAME": "train-0"}}
    with subprocess.Popen(["/bin/sleep", "600"], **another_user) as process:  # type: ignore[call-overload]
        try:
            for given in (added, *([name] for name in added)):
                command = [*limited_to(given), sys.executable, "-c", look]
                done = subprocess.run(
                    [*command, str(process.pid)], capture_output=True, text=True, timeout=60, check=True
                )
                assert done.stdout.strip() == ("train-0" if given == added else "")
        finally:
            process.kill()


def test_stacks_of_another_users_process_are_readable_with_exactly_the_capability_for_them() -> None:
    added: list[str] = container(only(kustomized("stacks"), "DaemonSet"))["securityContext"]["capabilities"]["add"]
    nothing: list[str] = []
    python = shutil.which("python3", path="/usr/bin")
    if python is None or not (shutil.which("py-spy") or Path(sys.executable).with_name("py-spy").exists()):
        pytest.skip("needs py-spy, and a Python that every user can execute")
    limited_to(added)
    program = "import time; print(flush=True); time.sleep(600)"
    with subprocess.Popen([python, "-c", program], user=65534, group=65534, extra_groups=[], stdout=-1) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            for given in (added, nothing):
                command = [*limited_to(given), sys.executable, "-m", "stallscope", "stacks", "--pid", str(process.pid)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
                assert ("<module> at <string>:1" in done.stdout) is bool(given), done.stderr
                assert ("capability SYS_PTRACE" in done.stderr) is not bool(given)
        finally:
            process.kill()


def test_a_rank_of_the_training_job_shows_on_the_page(port: int) -> None:
    page(port, "/-/healthy")
    variables = container(only(kustomized("training-job"), "Job"))["env"]
    variables = {
        each["name"]: each["value"] if "value" in each else FIELDS[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in variables
        if "secretKeyRef" not in each.get("valueFrom", {})  # optional, and absent
    }
    host = "stallscope-exporter.stallscope.svc:19400"
    assert host in variables["STALLSCOPE_ADDRESS"]
    variables["STALLSCOPE_ADDRESS"] = variables["STALLSCOPE_ADDRESS"].replace(host, f"localhost:{port}")
    subprocess.run([sys.executable, "-c", LOOP], env={**os.environ, **variables}, check=True, timeout=60)
    metrics = page(port, "/metrics", "stallscope_training_rank_info{")
    (line,) = [line for line in metrics.splitlines() if line.startswith("stallscope_training_rank_info{")]
    for label in ('run="train"', 'rank="1"', 'world_size="2"', 'namespace="training"', 'pod="train-1-x7x9z"'):
        assert label in line
