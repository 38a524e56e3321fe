"""When a PyTorch model is called and returns, seen from just outside it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

import torch


class Listener(Protocol):
    """Who is told."""

    def begin_forward(self, model: Any) -> None:
        """A model is called."""

    def end_forward(self) -> None:
        """It returned, or raised."""


class Hook:
    """A hook on a model, which leaves graphs, copies and pickles of the model as they would be without it.

    While `torch.compile` traces through it, it is empty. A copy of the model, or a pickle that may be read where
    stallscope isn't installed, carries in its place a function of the standard library that does nothing.
    """

    def __init__(self, listener: Listener, *, begins: bool) -> None:
        self._listener = listener
        self._begins = begins

    def __call__(self, model: Any, *_: Any) -> None:
        """Tell."""
        if torch.compiler.is_compiling():
            return
        if self._begins:
            self._listener.begin_forward(model)
        else:
            self._listener.end_forward()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (nullcontext(), "__exit__")


class Forward:
    """Tells of one model's calls."""

    def __init__(self, listener: Listener, model: Any) -> None:
        self._listener = listener
        self._model = weakref.ref(model)
        self._handles: tuple[Any, ...] = ()
        self._inner: Callable[..., Any] | None = None
        self._outer: Callable[..., Any] | None = None

    def attach(self) -> None:
        """Look at the model; again where it was compiled in place since, which leaves its hooks inside."""
        model = self._model()
        if model is None:
            return
        if not self._handles:
            self._handles = (
                model.register_forward_pre_hook(Hook(self._listener, begins=True), prepend=True),
                model.register_forward_hook(Hook(self._listener, begins=False), always_call=True),
            )
        inner = model._compiled_call_impl  # noqa: SLF001 - what a call comes to, and left out of pickles by PyTorch
        if inner is not None and inner is not self._outer:
            self._inner, self._outer = inner, _told(inner, self._listener, self._model)
            model._compiled_call_impl = self._outer  # noqa: SLF001

    def remove(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = ()
        model = self._model()
        if model is not None and self._outer is not None and model._compiled_call_impl is self._outer:  # noqa: SLF001
            model._compiled_call_impl = self._inner  # noqa: SLF001


def _told(inner: Callable[..., Any], listener: Listener, model: weakref.ref[Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return inner(*arguments, **options)
        listener.begin_forward(model())
        try:
            return inner(*arguments, **options)
        finally:
            listener.end_forward()

    return call
