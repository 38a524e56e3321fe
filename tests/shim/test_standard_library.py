"""Programs whose folders have files with the names of the standard library's modules."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stallscope
from stallscope.common import silence, standard_library
from tests.free_ports import free_port

PACKAGE = Path(standard_library.__file__).parents[1]
NAMES = (
    *("bisect", "contextlib", "copy", "csv", "ctypes", "email", "fcntl", "functools", "hashlib", "hmac", "http"),
    *("inspect", "json", "locale", "logging", "math", "mmap", "pwd", "queue", "random", "re", "select", "selectors"),
    *("signal", "socket", "ssl", "stringprep", "struct", "subprocess", "threading", "token", "traceback", "types"),
    *("typing", "urllib", "warnings", "weakref", "zlib"),
)
PROGRAM = """
import stallscope
for _ in stallscope.track(range(30), run="job"):
    pass
print("done")
"""
WORDS = "executed"


class Project:
    """A folder with a program in `src` and files that hide modules."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self.path = path
        self.names = names
        (path / "src").mkdir()
        (path / "bin").mkdir()
        (path / "bin/stallscope").write_text("import sys\nfrom stallscope.tools.cli import main\nsys.exit(main())\n")
        for folder in (path, path / "src"):
            for name in names:
                (folder / f"{name}.py").write_text(f"import sys\nsys.stderr.write('{WORDS}\\n')\nown = True\n")

    def run(self, program: str, *command: str) -> subprocess.CompletedProcess[str]:
        (self.path / "src/train.py").write_text(program)
        ours = {
            "STALLSCOPE_ADDRESS": "udp://localhost:9",
            "STALLSCOPE_PROMETHEUS_URL": f"http://127.0.0.1:{free_port()}",
            "STALLSCOPE_TOKEN": "0123456789abcdef" * 2,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STALLSCOPE_", "SLURM_"))}
        return subprocess.run(
            [sys.executable, *command, "src/train.py"],
            cwd=self.path,
            env={**kept, **ours},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


FORMS = {
    "plain": (),
    "stallscope run": ("bin/stallscope", "run"),
    "stallscope run python": ("bin/stallscope", "run", sys.executable),
}


@pytest.mark.parametrize("form", FORMS)
def test_no_file_of_the_program_is_executed_for_a_module_of_the_library(form: str, tmp_path: Path) -> None:
    done = Project(tmp_path, NAMES).run(PROGRAM, *FORMS[form])
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert WORDS not in done.stderr
    assert "Traceback" not in done.stderr
    assert form == "plain" or "stallscope run: job finished after " in done.stderr


def test_the_working_folder_of_a_module_is_not_searched(tmp_path: Path) -> None:
    names = ("signal", "json", "locale", "argparse", "subprocess", "pkgutil", "shutil")  # runpy itself imports others
    done = Project(tmp_path, names).run(PROGRAM, "-m", "stallscope", "run", "--summary", "json")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert WORDS not in done.stderr


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", ["before", "after"])
def test_the_program_imports_its_own_files(form: str, order: str, tmp_path: Path) -> None:
    names = ("signal", "json", "queue", "locale", "subprocess")
    own = f"import {', '.join(names)}\nassert all(each.own for each in ({', '.join(names)}))\n"
    program = own + PROGRAM if order == "before" else PROGRAM + own
    done = Project(tmp_path, names).run(program, *FORMS[form])
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr.count(WORDS) == len(names)
    assert form == "plain" or "stallscope run: job finished after " in done.stderr


def test_what_cannot_be_imported_is_replaced_by_what_does_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, types\nsys.modules['atexit'] = types.ModuleType('atexit')\n"
        "sys.modules['stallscope.training.shim.timeline'] = types.ModuleType('stallscope.training.shim.timeline')\n"
        "import stallscope\nrun = stallscope.Run('job')\nwith run.phase('forward'), stallscope.span('part'):\n"
        "    pass\n"
        "run.report(loss=1.0)\nrun.step()\nrun.finish()\nstallscope.trace(run)\nassert stallscope.current() is None\n"
        "print(sum(stallscope.track(range(3))))\n"
    )
    done = Project(tmp_path, ()).run(program)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert "stallscope: Run is not available, and nothing is measured: ImportError" in done.stderr
    assert "Traceback" not in done.stderr


def test_strict_raises_what_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_STRICT", "1")
    with pytest.raises(ImportError, match="no timeline"):
        silence.stand_in("Run", ImportError("no timeline"))


def test_the_public_names_are_listed_before_they_are_loaded() -> None:
    listing = "import stallscope, sys; print(*dir(stallscope)); assert 'stallscope.training.shim' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert set(stallscope.__all__) <= set(done.stdout.split())


def test_only_files_that_python_would_import_hide_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json").mkdir()  # data
    (tmp_path / "signal.txt").touch()
    (tmp_path / "time.py").touch()  # built in
    (tmp_path / "mine.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert standard_library.hidden() & {"json", "signal", "time", "mine"} == set()
    (tmp_path / "json/__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert standard_library.hidden() >= {"json"}


def test_a_module_is_the_library_s_in_a_block_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wave.py").write_text("own = True")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    with standard_library.standard_library():
        import wave
    assert hasattr(wave, "Wave_read")
    import wave as theirs

    assert theirs.own  # type: ignore[attr-defined]
    assert standard_library.loaded("wave") is wave
    with standard_library.standard_library():
        import wave as again
    assert again is wave
    assert sys.modules["wave"] is theirs
    monkeypatch.delitem(sys.modules, "wave")


def imports_outside_of_blocks(path: Path) -> list[str]:
    """Return the imports in functions of a module that are in no block of `standard_library`."""
    found = []

    def search(node: ast.AST, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            in_block = inside
            if isinstance(child, ast.With):
                calls = [each.context_expr for each in child.items]
                in_block = inside or any(ast.unparse(each).startswith("standard_library(") for each in calls)
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                in_block = False
            elif isinstance(child, (ast.Import, ast.ImportFrom)) and not inside and not isinstance(node, ast.Module):
                found.append(f"{path.name}:{child.lineno}: {ast.unparse(child)}")
            search(child, in_block)

    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            search(function, inside=False)
    return sorted(set(found))


def test_the_shim_s_late_imports_are_in_blocks() -> None:
    files = list((PACKAGE / "training/shim").rglob("*.py"))
    assert files
    late = [each for path in files if path.name != "sitecustomize.py" for each in imports_outside_of_blocks(path)]
    assert [each for each in late if "import faulthandler" not in each] == []  # which is built in
