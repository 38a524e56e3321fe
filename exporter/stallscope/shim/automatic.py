"""Watch a program's training loop without a line in it: what `stallscope run` starts, and what its children start."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import MutableMapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from stallscope.shim.tolerance import switched_on, tolerate

VARIABLE = "STALLSCOPE_AUTO"
"""Environment variable that makes a Python started by such a program watch its loop as well."""
_STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")


def start() -> None:
    """Watch whichever PyTorch loop begins in this process, once the program imports torch. Imports nothing itself."""
    if switched_on("STALLSCOPE_DISABLE") or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    since = time.monotonic()
    if "torch" in sys.modules:
        _watch(since)
    else:
        sys.meta_path.insert(0, _Finder(since))


def hand_on(environment: MutableMapping[str, str]) -> None:
    """Let Pythons that are started in this environment do the same: they run a `sitecustomize` of ours first."""
    environment[VARIABLE] = "1"
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    if _STARTUP not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([_STARTUP, *filter(None, paths)])


def _watch(since: float) -> None:
    try:
        from stallscope.shim.integrations.pytorch import watch_any

        watch_any(since)
    except Exception as error:
        tolerate(error, "looking into PyTorch")


class _Finder:
    """Finds torch as the other finders do, and hears when it has been imported."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._asking = False

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != "torch" or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._listen(spec)
        return spec

    def _listen(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _watch(self._since)

        loader.exec_module = exec_module
