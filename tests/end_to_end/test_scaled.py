"""Shortening every duration of the bundle, and nothing else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from stallscope.common.bundle import bundle_folder
from tests.end_to_end.scaled import rescaled_expression, scaled, shortened


@pytest.mark.parametrize(
    ("expression", "shorter"),
    [
        ("rate(x[5m])", "rate(x[20000ms])"),
        ("max_over_time(x[1h:1m])", "max_over_time(x[240000ms:4000ms])"),
        ("max_over_time(x[2h:])", "max_over_time(x[480000ms:])"),
        ("x offset 5m", "x offset 20000ms"),
        ("x[1h30m] offset -1d", "x[360000ms] offset -5760000ms"),
        ("x[ 5m ]", "x[ 20000ms ]"),
        ("y:ratio5m > 0.5", "y:ratio5m > 0.5"),
        ("x > 300 + 5", "x > 300 + 5"),
        ('x{window="[5m]", name=~"[0-9]m"}', 'x{window="[5m]", name=~"[0-9]m"}'),
        ("x # [5m] of it\n+ y[5m]", "x # [5m] of it\n+ y[20000ms]"),
        ('histogram_quantile(0.95, x{le="0.7"})', 'histogram_quantile(0.95, x{le="0.7"})'),
    ],
)
def test_only_durations_of_an_expression_are_shortened(expression: str, shorter: str) -> None:
    assert rescaled_expression(expression, 15) == shorter


def test_no_duration_falls_to_nothing() -> None:
    assert shortened("1ms", 100) == "1ms"


def rules(folder: Path) -> list[dict[str, Any]]:
    files = [*sorted((folder / "prometheus/rules").glob("*.yml")), *sorted((folder / "alerts").glob("*.yml"))]
    contents = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    return [rule for content in contents for group in content.get("groups", []) for rule in group["rules"]]


def named(all_rules: list[dict[str, Any]]) -> dict[str, str]:
    """Thresholds by name."""
    return {rule["labels"]["name"]: rule["expr"] for rule in all_rules if rule.get("record") == "stallscope:threshold"}


def test_the_whole_bundle_is_the_same_but_for_its_durations(tmp_path: Path) -> None:
    scaled(tmp_path, 10)
    before, after = rules(bundle_folder("prometheus").parent), rules(tmp_path)
    assert len(before) == len(after) > 50
    for old, new in zip(before, after, strict=True):
        assert old.keys() == new.keys()
        assert {key: old[key] for key in old if key not in ("expr", "for", "keep_firing_for")} == {
            key: new[key] for key in new if key not in ("expr", "for", "keep_firing_for")
        }
        for key in ("for", "keep_firing_for"):
            assert key not in old or new[key] == shortened(old[key], 10)
    thresholds = named(after)
    assert thresholds["warmup_seconds"] == "vector(30)"
    assert thresholds["warmup_steps"] == "vector(20)"
    assert thresholds["input_warning"] == "vector(0.10)"
    left = [rule["expr"] for rule in after if re.search(r"\[\d+(?!ms)[smhd]", rule["expr"])]
    assert left == []


def test_a_threshold_of_the_jobs_own_time_can_be_kept(tmp_path: Path) -> None:
    scaled(tmp_path, 10, unscaled=frozenset({"warmup_seconds"}))
    kept = named(rules(tmp_path))
    assert kept["warmup_seconds"] == "vector(300)"


def test_prometheus_and_alertmanager_take_the_faster_bundle(tmp_path: Path) -> None:
    scaled(tmp_path, 30)
    for command in ("promtool check config prometheus/prometheus.yml", "amtool check-config alerts/alertmanager.yml"):
        done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
