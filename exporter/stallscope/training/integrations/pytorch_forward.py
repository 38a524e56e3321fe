"""Observe the outermost calls of PyTorch modules by replacing `torch.nn.Module.__call__`, on the class alone.

Hooks, a compiled call on the instance or another class would all be visible in the module's attributes, copies and
pickles. A replaced method of the base class is in none of them, and costs each call of an inner module one test.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

_USED_BY_CALL = ("_compiled_call_impl", "_call_impl")
"""Attributes that PyTorch's `Module.__call__` uses: it calls the former if it is set, else the latter. The observed
call does the same for inner modules, which saves a frame for each."""


class Listener(Protocol):
    """Observes the outermost calls of modules."""

    def begin_forward(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """A module is about to be called; return whether `end_forward` is to follow."""

    def end_forward(self) -> None:
        """The call returned or raised."""


class ModuleCalls:
    """The replaced `Module.__call__`."""

    def __init__(self) -> None:
        self.listener: Listener | None = None
        """Observes outermost calls."""
        self.ignored = False
        """True while calls pass unobserved: during an observed call, a backward pass and the wait for a batch."""
        self._original = torch.nn.Module.__call__
        self._observed = self._observing(self._original)
        torch.nn.Module.__call__ = self._observed
        if "torch._dynamo.eval_frame" in sys.modules:
            self.pass_compiler()

    def undo(self) -> None:
        """Put the original back, unless another library has replaced the method since."""
        if torch.nn.Module.__call__ is self._observed:
            torch.nn.Module.__call__ = self._original
            self._set_known_to_compiler(self._original)

    def pass_compiler(self) -> None:
        """Let `torch.compile` treat the replacement as it treats the original: it begins with the module's `forward`.

        The compiler compares modules' calls with the method that it saw when it was imported.
        """
        self._set_known_to_compiler(self._observed)
        skip_code = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
        if skip_code is not None:
            skip_code(self._observed.__code__)

    def _set_known_to_compiler(self, call: Callable[..., Any]) -> None:
        for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
            module: Any = sys.modules.get(name)
            if hasattr(module, "unpatched_nn_module_call"):
                module.unpatched_nn_module_call = call

    def _observing(self, original: Callable[..., Any]) -> Any:
        calls = self
        is_known = getattr(getattr(original, "__code__", None), "co_names", ()) == _USED_BY_CALL

        # PyTorch's profiler reads the local variable `self` of this function, and crashes without it.
        @functools.wraps(original)
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            if calls.ignored or (listener := calls.listener) is None:
                if is_known and self._compiled_call_impl is None:
                    return self._call_impl(*arguments, **options)
                return original(self, *arguments, **options)
            if not listener.begin_forward(self, arguments, options):
                return original(self, *arguments, **options)
            try:
                return original(self, *arguments, **options)
            finally:
                listener.end_forward()

        return call
