"""`stallscope thresholds`: the rule file with other values."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from stallscope.common.thresholds import changed, default_thresholds, threshold_file, with_values
from stallscope.tools.cli import thresholds
from tests.rules.rulebook import tool


def loaded(text: str) -> dict[str, str]:
    """Return the expression of each threshold in a rule file."""
    (group,) = yaml.safe_load(text)["groups"]
    return {rule["labels"]["name"]: rule["expr"] for rule in group["rules"]}


def test_all_thresholds_of_the_bundle_are_known() -> None:
    expressions = loaded(threshold_file().read_text())
    assert {name: f"vector({value:g})" for name, value in default_thresholds().items()} == {
        name: f"vector({float(expression[7:-1]):g})" for name, expression in expressions.items()
    }


def test_without_values_the_file_is_the_bundles_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert thresholds.main([]) == 0
    said = capsys.readouterr()
    assert said.out == threshold_file().read_text()
    assert said.err == "stallscope thresholds: no value differs from the defaults\n"


def test_the_values_of_a_file_and_of_flags_are_in_the_rule_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "overrides.yml"
    file.write_text("input_warning: 0.15\nwarmup_seconds: 600\n")
    assert thresholds.main([str(file), "--set", "warmup_seconds=60"]) == 0
    said = capsys.readouterr()
    set_values = {"input_warning": "vector(0.15)", "warmup_seconds": "vector(60.0)"}
    assert loaded(said.out) == {**loaded(threshold_file().read_text()), **set_values}
    assert said.out.count("#") == threshold_file().read_text().count("#"), "comments stay"
    assert said.err.splitlines() == [
        "stallscope thresholds: input_warning 0.15 (default 0.1)",
        "stallscope thresholds: warmup_seconds 60 (default 300)",
    ]
    (tmp_path / "thresholds.yml").write_text(said.out)
    subprocess.run([tool("promtool"), "check", "rules", str(tmp_path / "thresholds.yml")], check=True)


def test_the_list_can_be_used_as_a_file_of_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert thresholds.main(["--list"]) == 0
    (tmp_path / "all.yml").write_text(capsys.readouterr().out)
    assert thresholds.main([str(tmp_path / "all.yml")]) == 0
    assert capsys.readouterr().err == "stallscope thresholds: no value differs from the defaults\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("input_warnings: 0.1", "no threshold named input_warnings; `stallscope thresholds --list` shows all names"),
        (
            "packing_cpu: 0.5",
            "constants now: packing_cpu in gpu:jobs_that_fit:count (hours.yml); remove these names from your values",
        ),
        ("input_warning: much", "input_warning: expected a number, got 'much'"),
        ("input_warning: true", "input_warning: expected a number, got True"),
        ("input_warning: .nan", "input_warning: expected a finite number, got nan"),
        ("", "expected names and values, such as `input_warning: 0.15`"),
        ("- 1", "expected names and values, such as `input_warning: 0.15`"),
        ("a: [", "expected names and values, such as `input_warning: 0.15`"),
    ],
)
def test_a_file_with_a_mistake_is_refused_and_nothing_is_printed(
    tmp_path: Path, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "overrides.yml"
    file.write_text(content)
    assert thresholds.main([str(file)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err


def test_a_missing_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert thresholds.main([str(tmp_path / "none.yml")]) == 1
    assert "none.yml: cannot read: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["input_warning", "input_warning=", "=1", "input_warning=inf"])
def test_a_flag_without_name_or_value_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        thresholds.main(["--set", value])
    assert ended.value.code == 2
    assert "expected NAME=VALUE" in capsys.readouterr().err


def test_only_values_that_differ_are_listed() -> None:
    assert changed(default_thresholds()) == []
    assert changed({**default_thresholds(), "input_high": 0.3, "unknown": 1.0}) == ["input_high 0.3 (default 0.2)"]
    assert with_values({}) == threshold_file().read_text()


def test_a_rule_file_that_a_yaml_library_wrote_is_changed_as_the_bundles_own(tmp_path: Path) -> None:
    file = tmp_path / "thresholds.yml"
    file.write_text(yaml.safe_dump(yaml.safe_load(threshold_file().read_text()), sort_keys=False))
    changed_text = with_values({"input_warning": 0.15}, file)
    assert loaded(changed_text) == {**loaded(file.read_text()), "input_warning": "vector(0.15)"}
    with pytest.raises(ValueError, match="no threshold named nothing"):
        with_values({"nothing": 1.0}, file)
