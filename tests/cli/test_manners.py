"""Help, error messages, exit codes and completion: the same for every command."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from stallscope.tools.cli import GROUPS, commands, main
from stallscope.tools.cli._progress import progress
from stallscope.tools.cli.completion import SHELLS

EXPORTER = Path(__file__).parents[2] / "exporter"
COMMANDS = tuple(commands())
SERVER = "exporter"
"""Takes over the process' signals, so that it is tried in one of its own."""
EXTRAS = (
    *("bcrypt", "h11", "h2", "jinja2", "matplotlib", "numpy", "pandas", "prometheus_client", "psutil", "pyarrow"),
    *("pynvml", "requests", "rich", "shtab", "textual", "urllib3", "yaml"),
)


def ended(arguments: Sequence[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_every_command_is_listed_once_with_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == list(COMMANDS)
    assert main(["--help"]) == 0
    reported = " ".join(capsys.readouterr().out.split())
    assert [name for name, summary in commands().items() if f" {name} {summary} " not in reported] == []
    assert all(summary.endswith(".") for summary in commands().values())


@pytest.mark.parametrize("columns", ["60", "80", "200"])
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_at_most_eighty_columns_wide(
    name: str, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    if name:
        shown = importlib.import_module(f"stallscope.tools.cli.{name}").parser().format_help()
    else:
        assert main(["--help"]) == 0
        shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_help_of_all_commands_loads_no_library_and_no_command() -> None:
    shown = python("import sys; from stallscope.tools.cli import main; main(['--help']); print(*sys.modules)")
    loaded = set(shown.stdout.split())
    assert "stallscope.tools.cli" in loaded
    assert not loaded & {"argparse", "json", "logging", *EXTRAS, *(f"stallscope.tools.cli.{name}" for name in COMMANDS)}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_usage_examples_and_exit_statuses(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    if name != SERVER:
        assert ended([name, "--help"]) == ended(["help", name]) == 0
        first, _, second = capsys.readouterr().out.partition("usage: ")[2].partition("usage: ")
        assert first == second
    reported = importlib.import_module(f"stallscope.tools.cli.{name}").parser().format_help()
    assert reported.startswith(f"usage: stallscope {name}")
    assert "\nExit status:" in reported
    assert "\nexamples:\n  # " in reported
    assert f"stallscope {name}" in reported.partition("\nexamples:\n")[2]
    prose = reported.partition("\nexamples:\n")[0].partition("\n\n")[2]
    assert max(map(len, prose.splitlines())) <= 80
    assert name == SERVER or reported.count("\n") <= 90


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != SERVER])
def test_an_unknown_flag_is_refused_in_one_line_with_the_nearest(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended([name, "--hlep"]) == 2
    reported = capsys.readouterr()
    assert (reported.out, reported.err) == ("", f"stallscope {name}: unknown flag --hlep; did you mean --help?\n")


def test_every_parser_is_there_without_any_extra() -> None:
    made = python(
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({EXTRAS}))\n"
        "from stallscope.tools.cli import commands\n"
        "for name in commands():\n"
        "    print(importlib.import_module(f'stallscope.tools.cli.{name}').parser().prog)\n"
    )
    assert made.stdout.splitlines() == [f"stallscope {name}" for name in COMMANDS], made.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"run"}))
def test_a_name_that_the_output_cannot_encode_is_escaped(
    name: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = "résumé 漢字 \udc80"

    def prints(_: Sequence[str]) -> int:
        print(shown)
        print(shown, file=sys.stderr)
        return 0

    monkeypatch.setattr(f"stallscope.tools.cli.{name}.main", prints)
    ends = [io.TextIOWrapper(io.BytesIO(), encoding, errors="strict") for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", ends[0])
    monkeypatch.setattr(sys, "stderr", ends[1])
    assert main([name]) == 0
    for end in ends:
        end.flush()
        assert end.buffer.getvalue() == f"{shown}\n".encode(encoding, "backslashreplace")


def test_the_program_of_the_run_command_keeps_its_own_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = io.TextIOWrapper(io.BytesIO(), "ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", end)
    monkeypatch.setattr("stallscope.tools.cli.run.main", lambda _: print("é"))
    with pytest.raises(UnicodeEncodeError):
        main(["run", "train.py"])
    assert end.errors == "strict"


def test_ctrl_c_ends_with_130_and_no_word(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Sequence[str]) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("stallscope.tools.cli.gpus.main", interrupted)
    assert main(["gpus"]) == 130
    assert capsys.readouterr() == ("", "")
    # What it runs is a program of its own, whose traceback is shown.
    monkeypatch.setattr("stallscope.tools.cli.run.main", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(["run", "train.py"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hlep"], "unknown flag '--hlep'; did you mean --help?"),
        (["hepl"], "unknown command 'hepl'; did you mean help?"),
        (["help", "dokter"], "unknown command 'dokter'; did you mean doctor?"),
    ],
)
def test_an_unknown_command_is_refused_with_the_nearest(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"stallscope: {words}\n"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the completion script of each shell."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        with (folder / shell).open("w") as script, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", script)
            assert main(["completion", shell]) == 0
    return folder


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_is_one_that_its_shell_understands(shell: str, scripts: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", scripts / shell], check=True, timeout=120)


def test_shells_that_describe_commands_show_their_summaries(scripts: Path) -> None:
    for shell in ("zsh", "fish"):
        assert "Check the installation" in (scripts / shell).read_text()
        assert "Check an installation part by part" not in (scripts / shell).read_text()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("stallscope comp", ["compare", "completion"]),
        ("stallscope doctor --prom", ["--prometheus.url", "--prometheus.timeout"]),
        ("stallscope doctor clu", ["cluster"]),
        ("stallscope up --scenario thermal", ["thermal_throttle"]),
        ("stallscope exporter --collector.nv", ["--collector.nvidia"]),
        ("stallscope help rec", ["record"]),
        (f"stallscope exporter --config.file {EXPORTER}/METR", [f"{EXPORTER}/METRICS.md"]),
        (f"stallscope pick -n 2 -- python {EXPORTER}/METR", [f"{EXPORTER}/METRICS.md"]),
        ("stallscope run --name a -- mapfil", ["mapfile"]),
    ],
)
def test_bash_completes_what_is_begun(line: str, offered: list[str], scripts: Path) -> None:
    words = line.split()
    script = (
        f"source {scripts / 'bash'}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        'compopt() { :; }; _stallscope; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    reported = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert (sorted(reported.stdout.split()), reported.stderr) == (sorted(offered), "")


class Terminal(io.StringIO):
    """A stream that pretends to be a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        self.is_written.set()
        return written


class TestProgress:
    def test_progress_is_not_shown_without_a_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        with progress("Reading", total=2) as advance:
            advance()
            advance(1)
        assert capsys.readouterr() == ("", "")

    def test_without_the_library_for_bars_a_terminal_shows_what_is_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr("stallscope.tools.cli._progress.SECONDS", 0.0)
        for name in ("rich.console", "rich.progress"):
            monkeypatch.setitem(sys.modules, name, None)
        with progress("Reading resnet50"):
            assert terminal.is_written.wait(60)
        assert terminal.getvalue().startswith("Reading resnet50 …")

    @pytest.mark.parametrize(
        "name", ["compare", "doctor", "frames", "pick", "record", "replay", "report", "stacks", "why"]
    )
    def test_a_command_with_progress_can_be_quiet(self, name: str) -> None:
        assert "--quiet" in importlib.import_module(f"stallscope.tools.cli.{name}").parser().format_help()

    def test_with_quiet_a_terminal_shows_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress("Reading", total=1, quiet=True) as advance:
            advance()
        assert not terminal.getvalue()

    def test_a_bar_is_shown_on_a_terminal_and_only_on_standard_error(self) -> None:
        pytest.importorskip("rich")
        main_end, terminal = os.openpty()
        code = "with progress('Reading', total=1) as advance: advance()\nprint('read')"
        done = subprocess.run(
            [sys.executable, "-c", f"from stallscope.tools.cli._progress import progress\n{code}"],
            stdout=subprocess.PIPE,
            stderr=terminal,
            timeout=120,
            check=True,
        )
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(main_end, 65_536):
                shown += piece
        os.close(main_end)
        assert done.stdout == b"read\n"
        assert b"Reading" in shown
