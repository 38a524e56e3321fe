"""A new GPU signal takes four edits, and no other file enumerates signals."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from stallscope.model.catalogue.metrics import family
from stallscope.node.drivers.nvidia.signals import SOURCES, rows
from stallscope.node.drivers.signals import QUERIES, SIGNALS, Signal

ROOT = Path(__file__).parents[3]
FOLDERS = ("alerts", "deploy", "exporter", "grafana", "prometheus", "tests")
TEXT = {".c", ".h", ".json", ".md", ".prom", ".py", ".txt", ".yaml", ".yml"}
CATALOGUE = "exporter/stallscope/model/catalogue/metrics.py"
ROWS = "exporter/stallscope/node/drivers/signals.py"
NVIDIA = "exporter/stallscope/node/drivers/nvidia/signals.py"
FROZEN = "tests/frozen_names.txt"
ENDS = {CATALOGUE: ")\n\nHOST_FAMILIES", ROWS: ")\n\n\ndef _by_query", NVIDIA: '}\n"""By query and signal;', FROZEN: ""}
"""The text that an edit goes in front of; empty for the end of the file."""
OTHERS = {"exporter/stallscope/lab/simulation/driver.py", "tests/scenarios/page_gpu.py"}
"""Files that name most signals, to which a new one may be added."""
GENERATED = ("exporter/METRICS.md", "grafana/dashboards/*.json", "tests/captures/*.golden.txt")
MOST = 0.8
"""Share of the signals that a file must name to count as a list of them."""


def test_no_other_file_lists_the_signals() -> None:
    names = {signal.name for signal in SIGNALS}
    lists = set()
    for path in (each for folder in FOLDERS for each in (ROOT / folder).rglob("*")):
        place = path.relative_to(ROOT)
        if path.suffix not in TEXT or not path.is_file() or any(place.match(pattern) for pattern in GENERATED):
            continue
        words = set(re.findall(r"\w+", path.read_text(encoding="utf-8", errors="replace")))
        if sum(name in words or f"stallscope_gpu_{name}" in words for name in names) >= MOST * len(names):
            lists.add(place.as_posix())
    assert lists == {*ENDS, *OTHERS}, "a new signal would take an edit there too"


@pytest.mark.parametrize("query", QUERIES)
def test_signals_of_a_query_are_polled_at_one_interval(query: str) -> None:
    assert len({signal.every for signal in QUERIES[query].values()}) == 1


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: f"{signal.query} {signal.name}")
def test_a_limit_that_is_a_signal_comes_before_it(signal: Signal) -> None:
    names = list(QUERIES[signal.query])
    assert not isinstance(signal.most, str) or signal.most in names[: names.index(signal.name)]


@pytest.mark.parametrize("query", SOURCES)
def test_a_source_of_nvidia_serves_a_signal_of_the_query_and_labels_of_its_family(query: str) -> None:
    for name, sources in SOURCES[query].items():
        assert name in QUERIES[query]
        values = {value for _, each in family(f"stallscope_gpu_{name}").values for value in each}
        assert not isinstance(sources, Mapping) or sources.keys() <= values


@pytest.mark.parametrize("query", SOURCES)
def test_the_binding_has_every_constant_that_a_source_names(query: str) -> None:
    wanted = sum(
        len(each) if isinstance(each, tuple) else 1
        for sources in SOURCES[query].values()
        for each in (sources.values() if isinstance(sources, Mapping) else (sources,))
    )
    assert sum(len(row.origins) for row in rows(query)) == wanted


def edits() -> dict[str, str]:
    """Return the text of the recipe by the file that it belongs in."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = page.split("### A GPU signal")[1].split("\n### ")[0]
    steps = re.findall(r"^\d\. \*\*.+?`([\w/]+/[\w/.]+)`:\n\n```\w*\n(.*?)^```\n", recipe, re.DOTALL | re.MULTILINE)
    return dict(steps)


_CHECK = """
from stallscope.tools.cli.record import replay
from stallscope.node.drivers.nvidia.capture import read
from tests.drivers.nvidia.faulty import H100, Node

CALL, NAME = "nvmlDeviceGetMarginTemperature", "temperature_margin_celsius"
for answer, shown in ((31, [31.0, 31.0]), (999, [])):
    node = Node()
    node.library.answers[CALL] = answer
    page = node.after(3)
    values = [value for name, value in page.items() if name.startswith(NAME + "{")]
    assert values == shown, values
    support = [value for name, value in page.items() if name.startswith("signal_supported") and NAME in name]
    assert support == [1.0] * len(shown), support
    assert all(bool(gpu.rejected.get("out_of_range")) is not bool(shown) for gpu in node.source.gpus.values())
_, unanswered = replay(read(H100))
assert unanswered, "the new call is not recorded yet"
assert all(CALL in call for call in unanswered), unanswered
"""
"""Polls the signal of the recipe on a recorded GPU, and finds no other call that the capture lacks."""


def test_the_recipe_adds_a_signal_with_four_edits(tmp_path: Path) -> None:
    for folder in ("exporter", "tests/catalogue", "tests/drivers", "tests/captures"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", FROZEN):
        shutil.copy(ROOT / name, tmp_path / name)
    found = edits()
    assert found.keys() == ENDS.keys()
    for path, text in found.items():
        old = (tmp_path / path).read_text(encoding="utf-8")
        if path != FROZEN:
            text = textwrap.indent(text.rstrip(), " " * 4) + ",\n"
        place = old.index(ENDS[path]) if ENDS[path] else len(old)
        (tmp_path / path).write_text(old[:place] + text + old[place:], encoding="utf-8")

    def run(*arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'exporter'}{os.pathsep}{tmp_path}"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    run("exporter/tools/metrics_reference.py")
    assert "`stallscope_gpu_temperature_margin_celsius`" in (tmp_path / "exporter/METRICS.md").read_text()
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/catalogue/test_metrics.py")
    run("-c", _CHECK)
