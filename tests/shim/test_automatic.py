"""Functions that are called once the program has imported a module."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stallscope.training.shim import automatic

FRAMEWORK = "pretended_framework"
PART = f"{FRAMEWORK}.deep.part"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the modules after whose import the function was called, with whether their code had run."""
    found: list[str] = []
    reported = SimpleNamespace(
        framework=lambda since: found.append(FRAMEWORK if hasattr(sys.modules[FRAMEWORK], "DONE") else "unfinished"),
        part=lambda since: found.append(PART if hasattr(sys.modules[PART], "DONE") else "unfinished"),
    )
    monkeypatch.setitem(sys.modules, "pretended_integration", reported)
    monkeypatch.setattr(
        automatic,
        "AFTER_IMPORT",
        {FRAMEWORK: "pretended_integration:framework", PART: "pretended_integration:part"},
    )
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("STALLSCOPE_DISABLE", raising=False)
    deep = tmp_path / FRAMEWORK / "deep"
    deep.mkdir(parents=True)
    (deep.parent / "__init__.py").write_text("import time\ntime.sleep(0.05)\nDONE = True\n")
    (deep / "__init__.py").write_text("")
    (deep / "part.py").write_text("DONE = True\n")
    yield found
    for name in [name for name in sys.modules if name.partition(".")[0] == FRAMEWORK]:
        del sys.modules[name]
    importlib.invalidate_caches()


def test_a_function_is_called_once_its_module_is_imported(calls: list[str]) -> None:
    automatic.start()
    assert calls == []
    importlib.import_module(FRAMEWORK)
    assert calls == [FRAMEWORK]
    importlib.import_module(PART)
    assert calls == [FRAMEWORK, PART]


def test_a_module_that_was_imported_before_counts_at_once(calls: list[str]) -> None:
    importlib.import_module(PART)
    automatic.start()
    assert calls == [FRAMEWORK, PART]


def test_starting_again_changes_nothing(calls: list[str]) -> None:
    automatic.start()
    automatic.start()
    importlib.import_module(FRAMEWORK)
    assert calls == [FRAMEWORK]


def test_nothing_is_called_where_stallscope_is_disabled(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_DISABLE", "1")
    automatic.start()
    importlib.import_module(FRAMEWORK)
    assert calls == []


def test_an_imported_module_has_its_own_loader(calls: list[str]) -> None:
    automatic.start()
    module = importlib.import_module(FRAMEWORK)
    assert module.__spec__ is not None
    assert type(module.__spec__.loader) is type(module.__loader__) is SourceFileLoader


def test_finding_a_module_does_not_count_as_importing_it(calls: list[str]) -> None:
    automatic.start()
    spec = importlib.util.find_spec(FRAMEWORK)
    assert spec is not None
    loader: Any = spec.loader
    assert "DONE" in loader.get_source(FRAMEWORK)
    assert type(pickle.loads(pickle.dumps(loader))) is SourceFileLoader
    assert calls == []
    importlib.import_module(FRAMEWORK)
    assert calls == [FRAMEWORK]


def test_reloading_a_module_calls_nothing_again(calls: list[str]) -> None:
    automatic.start()
    module = importlib.import_module(FRAMEWORK)
    importlib.reload(module)
    assert calls == [FRAMEWORK]


def test_a_failed_import_is_the_programs_and_the_next_one_counts(calls: list[str], tmp_path: Path) -> None:
    file = tmp_path / FRAMEWORK / "__init__.py"
    source = file.read_text()
    file.write_text("raise ArithmeticError('no')\n# another length, so that it is compiled again\n")
    automatic.start()
    with pytest.raises(ArithmeticError):
        importlib.import_module(FRAMEWORK)
    assert (calls, FRAMEWORK in sys.modules) == ([], False)
    file.write_text(source)
    importlib.import_module(FRAMEWORK)
    assert calls == [FRAMEWORK]


def test_a_module_that_is_missing_stays_missing(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "AFTER_IMPORT", {"no_such_framework": "pretended_integration:framework"})
    automatic.start()
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_framework'"):
        importlib.import_module("no_such_framework")
    assert importlib.util.find_spec("no_such_framework") is None


def test_a_folder_of_the_modules_name_is_no_framework(calls: list[str], tmp_path: Path) -> None:
    (tmp_path / FRAMEWORK / "__init__.py").unlink()
    automatic.start()
    assert importlib.import_module(FRAMEWORK).__file__ is None
    assert calls == []


def test_a_lazily_loaded_module_counts_at_its_first_use(calls: list[str]) -> None:
    class Lazy:
        """As Python's documentation has it: a finder whose modules are executed at their first use."""

        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            if name != FRAMEWORK:
                return None
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            assert spec is not None
            assert spec.loader is not None
            spec.loader = importlib.util.LazyLoader(spec.loader)
            return spec

    sys.meta_path.insert(0, Lazy)
    automatic.start()
    module = importlib.import_module(FRAMEWORK)
    assert calls == []
    assert module.DONE
    assert calls == [FRAMEWORK]


def test_a_program_may_make_a_module_lazy_itself(calls: list[str]) -> None:
    automatic.start()
    spec = importlib.util.find_spec(FRAMEWORK)
    assert spec is not None
    assert spec.loader is not None
    loader = spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules[FRAMEWORK] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    assert calls == []
    assert module.DONE
    assert calls == [FRAMEWORK]


def test_another_tool_that_wraps_loaders_is_called_as_well(calls: list[str]) -> None:
    executed: list[str] = []

    class Other:
        """Looks the module up with all finders, itself apart, as tools that instrument libraries do."""

        def __init__(self) -> None:
            self._searching = False

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            if name != FRAMEWORK or self._searching:
                return None
            self._searching = True
            try:
                spec = importlib.util.find_spec(name)
            finally:
                self._searching = False
            assert spec is not None
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                executed.append(module.__name__)

            loader.exec_module = exec_module
            return spec

    before, after = Other(), Other()
    sys.meta_path.insert(0, after)
    automatic.start()
    sys.meta_path.insert(0, before)
    importlib.import_module(FRAMEWORK)
    assert calls == [FRAMEWORK]
    assert executed.count(FRAMEWORK) == 2


def test_of_imports_in_several_threads_each_is_seen(calls: list[str]) -> None:
    automatic.start()
    threads = [threading.Thread(target=importlib.import_module, args=(name,)) for name in (FRAMEWORK, PART) * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(calls) == [FRAMEWORK, PART]


def test_a_function_that_fails_leaves_the_import_alone(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(since: float) -> None:
        raise ArithmeticError

    monkeypatch.setattr(sys.modules["pretended_integration"], "framework", fails)
    automatic.start()
    assert importlib.import_module(FRAMEWORK).DONE
