from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stallscope.training.shim import identity


def test_the_framework_is_the_one_that_the_program_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torch", "tensorflow", "jax"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert identity.framework() == ""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert identity.framework() == "pytorch"


def test_an_unknown_job_class_is_production() -> None:
    assert identity.information({"STALLSCOPE_JOB_CLASS": "toy"})["job_class"] == "production"
    assert identity.information({"STALLSCOPE_JOB_CLASS": "experiment"})["job_class"] == "experiment"


def test_pod_job_commit_and_user_are_reported() -> None:
    found = identity.information(
        {"POD_NAMESPACE": "ml", "POD_NAME": "p-0", "SLURM_JOB_ID": "4", "STALLSCOPE_GIT_COMMIT": "abc", "USER": "u"}
    )
    assert {key: found[key] for key in ("namespace", "pod", "slurm_job", "git_commit", "user")} == {
        "namespace": "ml",
        "pod": "p-0",
        "slurm_job": "4",
        "git_commit": "abc",
        "user": "u",
    }


def test_without_the_downward_interface_a_pod_knows_its_namespace_and_name(tmp_path: Path) -> None:
    for path, text in {
        "var/run/secrets/kubernetes.io/serviceaccount/namespace": "ml",
        "etc/hosts": "# Kubernetes-managed hosts file.\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "bert-worker-0"}
    found = identity.information(environment, str(tmp_path))
    assert (found["namespace"], found["pod"]) == ("ml", "bert-worker-0")
    found = identity.information({"HOSTNAME": "workstation"}, str(tmp_path))
    assert (found["namespace"], found["pod"]) == ("", "")


def test_the_commit_is_that_of_the_program_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text("0" * 40 + "\n")
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    assert identity.information({})["git_commit"] == "0" * 40
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.chdir(tmp_path)
    assert identity.information({})["git_commit"] == "0" * 40
