"""PyTorch's and Accelerate's integration: tests run with the real frameworks, in a process of their own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[3]
FILES = (
    "pytorch_loops.py",
    "pytorch_steady_loops.py",
    "pytorch_states.py",
    "pytorch_pipeline.py",
    "pytorch_gpu.py",
    "accelerate_loops.py",
)
pytestmark = pytest.mark.slow(30)


def names_in(file: str) -> list[str]:
    tree = ast.parse(Path(__file__).with_name(file).read_text())
    return [
        f"{file}::{node.name}"
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Failure messages by test; empty for tests that passed."""
    for package in ("torch", "accelerate"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make frameworks")
    results = tmp_path_factory.mktemp("pytorch") / "results.xml"
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--junitxml={results}", *(str(folder / file) for file in FILES)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TEST_FRAMEWORKS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert results.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, str] = {}
    for case in ET.parse(results).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.py::{case.get('name', '').partition('[')[0]}"
        bad = [each.text or "" for each in case if each.tag in ("failure", "error", "skipped")]
        found[name] = found.get(name, "") + "\n".join(bad)
    return found


@pytest.mark.parametrize("name", [name for file in FILES for name in names_in(file)])
def test_watched(name: str, problems: dict[str, str]) -> None:
    assert name in problems
    assert not problems[name], problems[name]
