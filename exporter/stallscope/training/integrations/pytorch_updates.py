"""Find the steps of programs that apply gradients themselves, without an optimizer of PyTorch."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from stallscope.training.integrations.pytorch_batches import unobserved

_LONGEST = 10_000
"""Nodes of the graph that are looked at."""


class Updates:
    """Recognises, from one parameter, whether gradients were applied since the last backward pass.

    A program that accumulates gradients leaves them in place. One that has made a step clears them before it computes
    the next, by `None` or by zeros written over them; both show without reading a tensor, and so does a parameter that
    was changed in place. Where the program has no optimizer and nothing shows, each backward pass makes a step.
    """

    def __init__(self, patience: int) -> None:
        """Know nothing yet.

        Args:
            patience: how many updates show that the program applies gradients itself.
        """
        self._patience = patience
        self._is_certain = patience == 0
        """True if only the program itself can apply gradients."""
        self._is_returned = False
        """True if the current pass returns gradients instead of storing them."""
        self._shows = False
        """True if an update was seen at the parameter or its gradient."""
        self.is_by_hand = False
        """True if gradients were found to be applied by the program."""
        self.is_pending = False
        """True if gradients were computed and, as far as known, not applied yet."""
        self._parameter: weakref.ref[Any] | None = None
        self._gradient = (0, 0)
        self._version = 0

    def expect(self, arguments: tuple[Any, ...]) -> None:
        """Choose the parameter to look at, before a backward pass."""
        if self._parameter is None or self._parameter() is None:
            with unobserved():
                found = _leaf(arguments[0] if arguments else None)
            self._parameter = None if found is None else weakref.ref(found)

    def are_made_by(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Return whether `torch.autograd.grad` computes the gradients of what is trained, as far as its call shows."""
        self._is_returned = self._is_certain and computes_update(arguments, options)
        return self._is_returned

    def note(self) -> None:
        """Remember the parameter and its gradient, after a backward pass."""
        if self._is_returned:
            self.is_pending, self._is_returned, self._parameter = True, False, None
            return
        parameter = None if self._parameter is None else self._parameter()
        if parameter is None:
            return
        with unobserved():
            if parameter.grad is not None:
                self._gradient = _state(parameter.grad)
                self._version = parameter._version  # noqa: SLF001 - PyTorch's own mark of changes in place
                self.is_pending = True

    def release(self) -> None:
        """Drop the reference to the parameter."""
        self._parameter = None

    def is_applied(self) -> bool:
        """Return whether gradients were applied since then; true once for each time."""
        parameter = None if self._parameter is None else self._parameter()
        if not self.is_pending or (parameter is None and not self._is_certain):
            return False
        with unobserved():
            gradient = None if parameter is None else parameter.grad
            applied = parameter is not None and (
                gradient is None or _state(gradient) != self._gradient or parameter._version != self._version  # noqa: SLF001
            )
        self._shows = self._shows or applied
        if applied or (self._is_certain and not self._shows):  # through `.data`, updates leave no mark
            applied = True
            self.is_pending = False
            self._patience -= 1
            self.is_by_hand = self._patience < 0
        return applied and self.is_by_hand


def with_readable_inputs(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `torch.autograd.grad` with a tuple in place of an iterator, which can be read only once.

    `model.parameters()` is one.
    """
    if len(arguments) > 1 and isinstance(arguments[1], Iterator):
        arguments = (arguments[0], tuple(arguments[1]), *arguments[2:])
    elif isinstance(options.get("inputs"), Iterator):
        options = {**options, "inputs": tuple(options["inputs"])}
    return arguments, options


def computes_update(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Return whether `torch.autograd.grad` is called for parameters, and not for forces or equations.

    If it is called for tensors that are not parameters, several of them count as weights. `torch.func` always keeps the
    graph; its outermost gradients may be an update.
    """
    inputs = arguments[1] if len(arguments) > 1 else options.get("inputs", ())
    several = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    if options.get("create_graph") and not all(_is_outermost(each) for each in several):
        return False
    return len(several) > 1 or any(isinstance(each, torch.nn.Parameter) for each in several)


def _is_outermost(tensor: Any) -> bool:
    """Return whether a tensor is an input of the outermost `torch.func.grad`."""
    functions: Any = getattr(torch._C, "_functorch", None)  # noqa: SLF001
    if not hasattr(functions, "is_gradtrackingtensor"):
        return False
    return bool(functions.is_gradtrackingtensor(tensor) and functions.maybe_get_level(tensor) == 1)


def _state(gradient: Any) -> tuple[int, int]:
    """Return where a gradient is stored and how often it was changed."""
    return gradient.data_ptr(), gradient._version  # noqa: SLF001


def _leaf(loss: Any) -> Any:
    """Return a tensor that a loss is computed from and that keeps its gradient, a parameter if possible; else None."""
    if isinstance(loss, (list, tuple)):
        loss = loss[0] if loss else None
    node = getattr(loss, "grad_fn", None)
    waiting = [] if node is None else [node]
    found = None
    for _ in range(_LONGEST):
        if not waiting:
            break
        node = waiting.pop()
        if node.name().endswith("AccumulateGrad"):
            found = node.variable
            if isinstance(found, torch.nn.Parameter):
                break
        waiting += [following for following, _ in node.next_functions if following is not None]
    return found
