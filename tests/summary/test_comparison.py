"""Summaries that are kept and compared, by the document that `stallscope run` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stallscope.tools.cli import compare
from stallscope.tools.summary import comparison, kept
from stallscope.tools.summary.document import document_of
from stallscope.tools.summary.evidence import Evidence
from stallscope.tools.summary.measured import RunTime
from tests.summary.reports import PHASES, rank

NOTHING = Evidence({}, {}, ())


def summary(step: float = 1.0, *, steps: int = 100, program: str = "train.py") -> dict[str, Any]:
    counts = [0] * 20
    counts[10 if step > 1 else 9] = steps
    taken = {"counts": counts, "sum": steps * step, "count": steps}
    run = RunTime("job", (rank({**PHASES, "data_wait": 30 * step}, steps=steps, step_seconds=taken),))
    return document_of(program, [run], NOTHING, ())


def written(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path


def compared(tmp_path: Path, before: dict[str, Any], after: dict[str, Any]) -> tuple[comparison.Difference, str]:
    runs = [comparison.read(written(tmp_path / f"{name}.json", each)) for name, each in (("b", before), ("a", after))]
    found = comparison.difference(*runs)
    assert found is not None
    return found, comparison.text(runs)


def test_a_large_difference_is_certain_and_names_the_phase(tmp_path: Path) -> None:
    found, text = compared(tmp_path, summary(1.0), summary(1.9))
    assert found.ratio == pytest.approx(0.9)
    assert found.is_certain
    assert "90.0 % longer than one of 1" in text
    assert "most of it in data wait" in text


def test_a_small_difference_of_a_short_run_is_not_certain(tmp_path: Path) -> None:
    found, text = compared(tmp_path, summary(1.4, steps=30), summary(1.42, steps=30))
    assert not found.is_certain
    assert "not certain" in text
    assert "longer than" not in text


def test_a_difference_of_unknown_uncertainty_is_not_certain(tmp_path: Path) -> None:
    before = summary()
    del before["runs"][0]["step_uncertainty"]  # as an older version wrote it
    found, _ = compared(tmp_path, before, summary(1.9))
    assert found.uncertainty is None
    assert not found.is_certain


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 1, "runs": []}', '{"version": 99, "runs": []}'])
def test_a_file_that_is_no_summary_is_an_error_in_one_line(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    assert compare.main([str(path), str(written(tmp_path / "a.json", summary()))]) == 1
    problem = capsys.readouterr().err
    assert problem.startswith(f"stallscope compare: {path}: expected a summary")
    assert problem.count("\n") == 1


def test_the_command_compares_files_by_name_in_the_folder_of_summaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path))
    before, _ = kept.keep(summary(1.0))
    after, earlier = kept.keep(summary(1.9, program="other.py"))
    assert earlier is None  # of another program
    assert compare.main([before.name, after.name, "--json"]) == 0
    (against,) = json.loads(capsys.readouterr().out)["against_base"]
    assert against["step_ratio"] == pytest.approx(0.9)
    assert against["certain"] is True


def test_the_previous_summary_of_a_program_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path))
    place = kept.folder()
    assert place is not None
    place.mkdir(parents=True)
    previous = written(place / "train-py.20260101T000000.1.json", summary())
    written(place / "train-py-other.20260202T000000.1.json", summary())
    assert kept.keep(summary())[1] == previous


@pytest.mark.parametrize(("files", "size"), [(3, 1 << 20), (100, 3000)])
def test_the_folder_is_bounded_in_number_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, size: int
) -> None:
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path))
    monkeypatch.setattr(kept, "MOST_FILES", files)
    monkeypatch.setattr(kept, "MOST_BYTES", size)
    place = kept.folder()
    assert place is not None
    place.mkdir(parents=True)
    for number in range(8):
        written(place / f"train-py.2026010{number}T000000.1.json", summary())
    newest, _ = kept.keep(summary())
    left = list(place.glob("*.json"))
    assert newest in left
    assert len(left) <= files
    assert len(left) == 1 or sum(path.stat().st_size for path in left) <= size


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kept.VARIABLE, raising=False)
    monkeypatch.delenv("HOME", raising=False)
    assert kept.folder() is None
    with pytest.raises(OSError, match="no home"):
        kept.keep(summary())
