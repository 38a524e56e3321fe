"""Render the objects of deploy/ with kubectl and helm."""

from __future__ import annotations

import copy
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes_tools import program
from tests.rules.layers import LOADER

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
CHART = ROOT / "deploy/helm/stallscope"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
FOLDERS = [*(f"overlays/{name}" for name in OVERLAYS), "training-job"]
"""The folders that can be applied, with a namespace."""
STACKS = "stacks"
"""The folder that can be applied next to an overlay, in its namespace."""

Object = dict[str, Any]


def kustomized(folder: str | Path) -> list[Object]:
    """Return the objects that `kubectl apply -k` would apply; the path is absolute or below deploy/kubernetes."""
    return copy.deepcopy(_kustomized(KUBERNETES / folder))


def helmed(*values: str, namespace: str = "stallscope") -> list[Object]:
    """Return the objects that `helm install --set VALUES` would install."""
    return copy.deepcopy(_helmed(values, namespace))


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """Return the objects of this kind."""
    return [each for each in objects if each["kind"] == kind]


def only(objects: list[Object], kind: str) -> Object:
    """Return the only object of this kind."""
    (found,) = of_kind(objects, kind)
    return found


def container(workload: Object) -> Object:
    """Return the only container of a DaemonSet or a Job."""
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    found_container: Object = found
    return found_container


def run(name: str, *arguments: str) -> str:
    """Run a program and return its output."""
    path = program(name)
    if path is None:
        pytest.skip(f"{name} is not on PATH, and could not be fetched")
    ran = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@cache
def _kustomized(folder: Path) -> list[Object]:
    return list(yaml.load_all(run("kubectl", "kustomize", str(folder)), LOADER))


@cache
def _helmed(values: tuple[str, ...], namespace: str) -> list[Object]:
    sets = [part for value in values for part in ("--set", value)]
    text = run("helm", "template", "stallscope", str(CHART), "--skip-tests", "--namespace", namespace, *sets)
    return [each for each in yaml.load_all(text, LOADER) if each]
