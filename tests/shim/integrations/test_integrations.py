"""Behaviour common to all integrations; no framework is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

NAMES = {
    "transformers": "StallscopeCallback",
    "lightning": "StallscopeCallback",
    "keras": "StallscopeCallback",
    "jax": "track_step",
}
WITHOUT_FRAMEWORKS = """
import sys
sys.modules.update(dict.fromkeys(["transformers", "lightning", "pytorch_lightning", "keras", "jax"]))
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("framework", NAMES)
def test_importing_an_integration_imports_no_framework(framework: str) -> None:
    code = f"import sys, stallscope.training.integrations.{framework}, stallscope.training.integrations.{framework}\n"
    done = python(code + f"assert {framework!r} not in sys.modules")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("framework", "name"), NAMES.items())
def test_without_the_framework_it_says_what_to_install(framework: str, name: str) -> None:
    done = python(f"{WITHOUT_FRAMEWORKS}\nfrom stallscope.training.integrations.{framework} import {name}")
    assert done.returncode == 1
    assert "ImportError: stallscope's integration needs" in done.stderr
    assert "pip install" in done.stderr


@pytest.mark.parametrize("framework", NAMES)
def test_any_other_name_is_an_ordinary_mistake(framework: str) -> None:
    done = python(f"import stallscope.training.integrations.{framework} as it\nassert not hasattr(it, 'Callback')")
    assert done.returncode == 0, done.stderr
