"""Attribute the calls of modules in a PyTorch loop to `forward` or to an evaluation."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.loss import _Loss

from stallscope.training.integrations.pytorch_batches import unobserved
from stallscope.training.integrations.pytorch_callers import Callers
from stallscope.training.integrations.pytorch_cycle import IN_STEP
from stallscope.training.integrations.pytorch_evaluation import EVALUATING, SUSPECTED, TRAINING
from stallscope.training.integrations.pytorch_state import LoopPart, LoopState
from stallscope.training.shim.tolerance import tolerate

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_device import Span
    from stallscope.training.shim.run import Run

_USUAL = 2
"""Steps in a row without calls that compute no gradients, after which such a call evaluates: else it is a part of each
step, as the choice of an action is in reinforcement learning."""
_MOST_MODULES = 4096
_PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Module:
    """State of a module that was called."""

    __slots__ = ("compared_with", "is_loss", "is_observed", "is_part", "module", "trains")

    def __init__(self, module: Any, belongs: bool) -> None:
        self.module = weakref.ref(module)
        self.is_observed = belongs and next(iter(torch.nn.Module.parameters(module)), None) is not None
        """True if the module has parameters, and is one of the named models if there are any."""
        self.is_loss = isinstance(module, _Loss)
        self.trains = False
        """True if gradients were computed after it was called with them."""
        self.is_part = False
        """True if it is a part of a module that is trained."""
        self.compared_with = 0
        """Trained modules that were known when `is_part` was set."""


class Modules(LoopPart):
    """The modules that a loop calls. It holds them weakly."""

    def __init__(self, state: LoopState, models: Iterable[Any]) -> None:
        """Begin without calls.

        Args:
            state: the loop's state.
            models: modules whose calls are `forward`; none: the outermost modules that have parameters.
        """
        super().__init__(state)
        self._forward = state.run.phase("forward")
        self._models = weakref.WeakSet(models)
        self._observes_all = not self._models
        self.known: dict[int, Module] = {}
        """Modules that were called, by their ids."""
        self.unproven: list[Module] = []
        """Modules that were called with gradients, and of which no backward pass is known."""
        self._is_forward = False
        """True if the current call is a part of the loop's steps."""
        self._span: Span | None = None
        self._called_between = 0
        """Steps at the newest call without gradients between two of them."""
        self._callers = Callers()
        self._is_precision_known = bool(getattr(state.run, "_precision", ()))

    def begin_forward(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Begin `forward`, unless the call belongs to something else; return whether `end_forward` is to follow."""
        try:
            known = self.known.get(id(module))
            if known is None or known.module() is not module:
                known = self._know(module)
            if not known.is_observed or get_ident() != self._thread.ident or self._run.silent:
                if known.is_loss and self._evaluations.state is SUSPECTED and not torch.is_grad_enabled():
                    self._evaluate_loss()
                return False
            self._calls.ignored = True
            is_usual = known.trains and self._evaluations.state is TRAINING and torch.is_grad_enabled()
            self._is_forward = is_usual or self._admits(module, known)
            if not self._is_forward:
                return True
            if self._input.is_open:
                self._input.end_with_call(arguments, options)
            self.open_forward()
        except Exception as error:
            self._calls.ignored = False
            tolerate(error, "observing a module")
            return False
        return True

    def open_forward(self, _: None = None) -> None:
        """Begin `forward`."""
        self._is_forward = True
        self._cycle.forwards += 1
        self._timeline.held = True
        self._span = self._state.enter(self._forward)

    def end_forward(self) -> None:
        """End `forward`."""
        try:
            self._calls.ignored = False
            if self._is_forward:
                self.close_forward()
        except Exception as error:
            tolerate(error, "observing a module")

    def close_forward(self, _: None = None) -> None:
        """End `forward`."""
        self._state.leave(self._forward, self._span)
        if self._evaluations.called:
            self._evaluations.note_call()
        if not self._cycle.batches:
            self._state.begin_input()

    def prove(self) -> None:
        """Note that a backward pass followed the calls so far."""
        for known in self.unproven:
            known.trains = True
        self.unproven.clear()

    def predict_training(self) -> bool:
        """Return whether what is trained is in training mode; before the first backward pass, the named models."""
        trained = _alive(self._trained()) or list(self._models)
        return not trained or any(model.training for model in trained)

    def _admits(self, module: Any, known: Module) -> bool:
        """Return whether a call is a part of the loop's steps, as far as can be said before a backward pass."""
        gradients = torch.is_grad_enabled()
        if self._timeline.current.is_rollout or self._evaluations.goes_on(gradients=gradients):
            return False
        if not gradients:
            if not self._timeline.looping or self._run.claimed_by:
                return False
            if self._is_evaluation(module, known):
                self._state.begin_evaluation()
                return False
            self._cycle.drop_next_forward()
        else:
            if not known.trains:
                self.unproven.append(known)
            if not module.training and self._evaluations.state is SUSPECTED and not self._cycle.batches:
                self._evaluations.called = True
            else:
                self._evaluations.forget()
        self._input.has_modules = True
        if not self._is_precision_known:
            self._is_precision_known = True
            _describe_precision(module, self._run)
        return True

    def _evaluate_loss(self) -> None:
        """A loss that is computed without gradients evaluates, and so did the calls of modules before it."""
        is_known = self._evaluations.state is EVALUATING
        if self._is_between() and self._timeline.looping and not self._thread.is_elsewhere() and not is_known:
            self._state.begin_evaluation()

    def _know(self, module: Any) -> Module:
        if len(self.known) >= _MOST_MODULES:  # most are gone
            self.known.clear()
        belongs = self._observes_all or module in self._models or getattr(module, "_orig_mod", None) in self._models
        known = self.known[id(module)] = Module(module, belongs)
        return known

    def _is_evaluation(self, module: Any, known: Module) -> bool:
        """Return whether a call without gradients evaluates what is trained, rather than being a part of the step."""
        if not self._is_between():
            return False
        original = self.known.get(id(getattr(module, "_orig_mod", None)))
        is_trained = known.trains or (original is not None and original.trains)
        if not (is_trained or self._is_part(module, known)):
            return self._evaluations.in_mode  # else it may be a teacher
        if is_trained and not module.training:
            return True
        steps = self._timeline.steps
        before, self._called_between = self._called_between, steps
        if self._callers.is_rare(steps):
            self._evaluations.in_mode = True  # the time up to the next such call is evaluation too
            return True
        return steps - before > _USUAL

    def _is_between(self) -> bool:
        """Return whether the loop is between two steps, or has updated the parameters of the current one."""
        return not self._cycle.has_called and self._cycle.state is not IN_STEP

    def _is_part(self, module: Any, known: Module) -> bool:
        """Return whether a module is a part of one that is trained."""
        trained = self._trained()
        if known.compared_with != len(trained):
            known.compared_with = len(trained)
            known.is_part = any(part is module for model in _alive(trained) for part in model.modules())
        return known.is_part

    def _trained(self) -> list[Module]:
        return [known for known in self.known.values() if known.trains]


def _alive(known: list[Module]) -> list[Any]:
    """Return those modules that the program has not dropped."""
    return [module for each in known if (module := each.module()) is not None]


def _describe_precision(model: Any, run: Run) -> None:
    try:
        parameter = next(iter(model.parameters()), None)
        if parameter is None or not hasattr(torch, "get_autocast_dtype"):  # PyTorch 2.3 does not say for sure
            return
        with unobserved():
            kind = parameter.device.type
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else parameter.dtype
        found = _PRECISIONS.get(dtype)
        if found == "fp32" and kind == "cuda" and torch.get_float32_matmul_precision() != "highest":
            found = "tf32"
        if found is not None:
            run.describe(precision=found)
    except Exception as error:
        tolerate(error, "reading a model's precision")
