"""Parts of PyTorch trainings that take their time, and measure it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.shim.integrations.truth import Truth

FETCH, FORWARD, BACKWARD, OPTIMIZER, EVALUATION, SAVE, LOG = 0.005, 0.01, 0.015, 0.02, 0.02, 0.05, 0.03
EXAMPLES = 22
"""Five batches of four and one of two."""


class Delay(torch.autograd.Function):
    """Passes values and gradients on, gradients late."""

    @staticmethod
    def forward(context: Any, values: Any) -> Any:
        return values.clone()

    @staticmethod
    def backward(context: Any, gradients: Any) -> Any:
        time.sleep(BACKWARD)
        return gradients


@contextmanager
def timed_backward(truth: Truth) -> Iterator[None]:
    """Measure all backward passes in the block."""
    original = torch.Tensor.backward

    def backward(tensor: Any, *arguments: Any, **options: Any) -> None:
        with truth("backward"):
            original(tensor, *arguments, **options)

    torch.Tensor.backward = backward
    try:
        yield
    finally:
        torch.Tensor.backward = original


class Net(torch.nn.Module):
    """Two layers; takes a batch of three values and returns two."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.second = torch.nn.Linear(4, 2)
        self._truth = truth

    def forward(self, inputs: Any) -> Any:
        if not self.training:
            time.sleep(EVALUATION)
            return self.second(self.first(inputs))
        with self._truth("forward"):
            time.sleep(FORWARD)
            return self.second(Delay.apply(self.first(inputs)))


class Examples(torch.utils.data.Dataset[Any]):
    def __init__(self, truth: Truth, trains: bool = True) -> None:
        self._truth, self._trains = truth, trains

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        with self._truth("data_wait" if self._trains else "evaluation"):
            time.sleep(FETCH)
        if self._trains:
            self._truth.samples += 1
        return torch.ones(3) * index, torch.tensor(index % 2)


class SGD(torch.optim.SGD):
    def __init__(self, parameters: Any, truth: Truth) -> None:
        super().__init__(parameters, lr=0.01)
        self._truth = truth

    def step(self, closure: Any = None) -> Any:
        found = None if closure is None else closure()
        with self._truth("optimizer"):
            time.sleep(OPTIMIZER)
            super().step()
        self._truth.steps += 1
        return found

    def __reduce__(self) -> Any:
        raise TypeError("an optimizer is not to be pickled")
