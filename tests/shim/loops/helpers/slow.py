"""Parts of training programs that take a known time: they sleep, and the clock moves only then."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import Dataset
from truth import truth  # type: ignore[import-not-found]  # the harness adds this folder to the path


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Any, forward: float, backward: float) -> Any:
        time.sleep(forward)
        context.seconds = backward
        return tensor.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        time.sleep(context.seconds)
        return gradients[0], None, None


def through(tensor: Any, forward: float = 0.015, backward: float = 0.025) -> Any:
    """Return the tensor after `forward` seconds; its gradient takes `backward` seconds."""
    return _Through.apply(tensor, forward, backward)


class Net(torch.nn.Module):
    """Two layers that take 15 ms forward and 25 ms backward."""

    def __init__(
        self, inputs: int = 8, outputs: int = 4, hidden: int = 16, forward: float = 0.015, backward: float = 0.025
    ) -> None:
        super().__init__()
        self.first = torch.nn.Linear(inputs, hidden)
        self.second = torch.nn.Linear(hidden, outputs)
        self.seconds = (forward, backward)

    def forward(self, inputs: Any) -> Any:
        return through(self.second(torch.relu(self.first(inputs))), *self.seconds)


def slow_down(owner: Any, name: str, seconds: float) -> None:
    """Let a function of a library take this time."""
    original = getattr(owner, name)

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return original(*arguments, **options)

    setattr(owner, name, slow)


class Samples(Dataset[Any]):
    """Features and classes; each sample takes `seconds`."""

    def __init__(self, length: int = 20, seconds: float = 0.008, features: int = 8, classes: int = 4) -> None:
        generator = torch.Generator().manual_seed(1)
        self.features = torch.randn(length, features, generator=generator)
        self.classes = torch.randint(classes, (length,), generator=generator)
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> Any:
        with truth("data_wait"):
            time.sleep(self.seconds)
            return self.features[index], self.classes[index]


class SGD(torch.optim.SGD):
    """An optimizer whose step takes `seconds`."""

    seconds = 0.01

    def step(self, closure: Any = None) -> Any:
        time.sleep(self.seconds)
        return super().step(closure)


class AdamW(torch.optim.AdamW):
    """An optimizer whose step takes `seconds`."""

    seconds = 0.01

    def step(self, closure: Any = None) -> Any:
        time.sleep(self.seconds)
        return super().step(closure)
