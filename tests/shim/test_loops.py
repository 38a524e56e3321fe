"""The shim judged by training programs: each program's steps, phases, files and exit code (`tests/shim/loops`)."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOOPS = Path(__file__).parent / "loops"
PROGRAMS = sorted(path.stem for path in (LOOPS / "programs").glob("*.py"))
EVERY_CHANGE = {
    *("checkpoints_everywhere", "compiled_aot", "ddp_forked", "dqn_replay", "evaluation_between_memory", "fsdp2"),
    *("generator_batches", "imagenet", "nanogpt", "ppo_rollouts", "prefetch_one_ahead", "transformers_trainer"),
}
"""Programs of different kinds that run at every change; the others run nightly.

None spawns ranks, because each would import PyTorch itself; `tests/cli/test_run_command.py` has two.
"""
PACKAGES = ("accelerate", "lightning", "safetensors", "tqdm", "transformers")
"""Packages besides PyTorch that some programs import."""

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: make frameworks"),
    pytest.mark.slow(120),
    pytest.mark.timeout(1500),  # the first test runs all programs
]


@pytest.fixture(scope="module")
def problems(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run the programs of all selected tests; return the problems of each."""
    chosen = {
        str(item.callspec.params["program"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == Path(__file__)
    }
    results = tmp_path_factory.mktemp("loops") / "results.json"
    command = [
        sys.executable,
        "-m",
        "tests.shim.loops",
        "--exact",
        "--results",
        str(results),
        *sorted(chosen),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1400, check=False)
    if not results.exists():  # no error here: each test would try again, for minutes
        return {program: [done.stdout[-3000:] + done.stderr[-3000:]] for program in chosen}
    found: dict[str, list[str]] = {row["program"]: row["problems"] for row in json.loads(results.read_text())}
    return found


@pytest.mark.parametrize(
    "program", [each if each in EVERY_CHANGE else pytest.param(each, marks=pytest.mark.nightly) for each in PROGRAMS]
)
def test_report_is_the_truth(program: str, problems: dict[str, list[str]]) -> None:
    text = (LOOPS / f"programs/{program}.py").read_text()
    for package in PACKAGES:
        if f"from {package}" in text and find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make frameworks")
    assert problems[program] == []
