"""Measure an unchanged training program: started by `stallscope run` and in the Python processes that it starts."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import MutableMapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from stallscope.common.standard_library import standard_library
from stallscope.training.shim import worker_samples
from stallscope.training.shim.stored_reports import summarise_at_exit
from stallscope.training.shim.tolerance import switched_on, tolerate

VARIABLE = "STALLSCOPE_AUTO"
"""Environment variable that makes a Python process started by such a program measure its loop as well."""
AFTER_IMPORT = {
    "torch": "stallscope.training.integrations.pytorch:watch_any",
    "torch._dynamo": "stallscope.training.integrations.pytorch:pass_compiler",
    **dict.fromkeys(
        (
            "torch.distributed.checkpoint",
            "torch.distributed.checkpoint.state_dict",
            "torch.distributed.pipelining.stage",
            "safetensors.torch",
            "accelerate.accelerator",
            "lightning.pytorch.trainer.trainer",
            "transformers.trainer",
            "trl.generation.vllm_generation",
            "trl.trainer.grpo_trainer",
            "trl.trainer.rloo_trainer",
        ),
        "stallscope.training.integrations.pytorch:observe_checkpoints",
    ),
    "keras": "stallscope.training.integrations.keras:watch_fits",
    "multiprocessing.connection": "stallscope.training.shim.worker_samples:follow",
}
"""Functions to call once the program has imported a module: `package.module:function`, by the module's name.

A function is called at most once in a process, inside the import of its module, with the moment when this process
started to prepare for training, by the monotonic clock. Its own module is imported only then.
"""
_STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")


def start() -> None:
    """Measure each training loop that begins in this process. Imports no framework itself."""
    if switched_on("STALLSCOPE_DISABLE") or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    summarise_at_exit(os.environ)
    if not worker_samples.is_spawned():  # a worker first finds the memory of its parent
        worker_samples.prepare()
    finder = _Finder(AFTER_IMPORT, time.monotonic())
    sys.meta_path.insert(0, finder)
    for name in AFTER_IMPORT:
        if sys.modules.get(name) is not None:
            finder.imported(name)


def hand_on(environment: MutableMapping[str, str]) -> None:
    """Measure Python processes that are started in this environment: they run a `sitecustomize` of Stallscope first."""
    environment[VARIABLE] = "1"
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    if _STARTUP not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([_STARTUP, *filter(None, paths)])


class _Finder:
    """Finds some modules as the other finders do, and calls a function once each of them is imported.

    It stays in `sys.meta_path`: removing it while another thread imports would hide a finder from that thread.
    """

    def __init__(self, functions: dict[str, str], since: float) -> None:
        self._functions = dict(functions)
        self._since = since

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._functions:
            return None
        for finder in tuple(sys.meta_path):
            find: Any = None if isinstance(finder, _Finder) else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                self._attach(spec)
                return spec
        return None

    def imported(self, name: str) -> None:
        function = self._functions.pop(name, None)
        if function is None:
            return
        module, _, attribute = function.partition(":")
        try:
            with standard_library():
                __import__(module)
            getattr(sys.modules[module], attribute)(self._since)
        except Exception as error:
            tolerate(error, f"attaching to {name}")

    def _attach(self, spec: ModuleSpec) -> None:
        holder: Any = spec
        while isinstance(holder.loader, importlib.util.LazyLoader):  # loads the module at its first use
            holder = holder.loader
        if hasattr(holder.loader, "exec_module"):  # namespace packages have no loader
            holder.loader = _Loader(holder.loader, spec.name, self)


class _Loader:
    """Loads a module with its own loader, which it also leaves in the module, and reports the import."""

    def __init__(self, loader: Any, name: str, finder: _Finder) -> None:
        self._loader = loader
        self._name = name
        self._finder = finder

    def __getattr__(self, attribute: str) -> Any:
        if attribute in ("_loader", "_name", "_finder"):  # not set yet, in a copy
            raise AttributeError(attribute)
        return getattr(self._loader, attribute)

    def __reduce_ex__(self, _: Any) -> Any:
        return self._loader.__reduce_ex__(1)  # a pickle holds the loader alone; newer protocols check the class

    def exec_module(self, module: ModuleType) -> None:
        for holder, attribute in ((module.__spec__, "loader"), (module, "__loader__")):
            if getattr(holder, attribute, None) is self:
                setattr(holder, attribute, self._loader)
        self._loader.exec_module(module)
        self._finder.imported(self._name)
