"""The manual page."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from stallscope.tools.cli import commands, main
from stallscope.tools.cli.man import page
from stallscope.tools.cli.report import parser


def test_the_page_has_every_command_with_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man"]) == 0
    shown = capsys.readouterr().out
    assert shown == page()
    assert [name for name in commands() if f'.SS "stallscope {name}"' not in shown] == []
    flags = [flag.replace("-", r"\-") for flag in parser().flags if flag.startswith("--")]
    assert [flag for flag in flags if flag not in shown] == []


def test_lines_of_the_help_are_no_requests_of_roff() -> None:
    requests = {line.split(" ")[0] for line in page().splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".B", ".PP", ".nf", ".fi", ".in"}


def test_the_page_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    wide = page()
    monkeypatch.setenv("COLUMNS", "40")
    assert page() == wide


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_formats_the_page_without_a_warning() -> None:
    command = ["groff", "-man", "-ww", "-Tutf8", "-K", "utf-8"]
    done = subprocess.run(command, input=page().encode(), capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
