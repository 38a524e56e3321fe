"""Measure what observing a PyTorch loop costs in its phases.

A tight loop would show a third of it: between two phases the training replaces what the processor's caches held. So
one phase is played and timed at each report, each kind in its turn, with the caches as the training left them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stallscope.shim.run import Run

if TYPE_CHECKING:
    from stallscope.shim.integrations.pytorch_loop import Loop
    from stallscope.shim.timeline import Timeline

_MEMORY = 8
"""Readings over which a cost is averaged."""


class _Calls:
    """Stands for the observed calls of modules, of which there are none."""

    def __init__(self) -> None:
        self.ignored = False
        self.listener: Any = None


class _Iterator:
    """Stands for a loader's iterator."""


class Costs:
    """Costs of one occurrence of each phase, in seconds, by the phase's name."""

    def __init__(self, make: Callable[..., Loop]) -> None:
        """Prepare a loop that no report contains.

        Args:
            make: the class of loops.
        """
        self.seconds: dict[str, float] = {}
        """Seconds of one occurrence, by phase."""
        run = Run("", clock=time, sender=lambda _: None, gpus=(), interval=1e9, head_start=0.0)
        self._loop = make(run, calls=_Calls())
        self._module = torch.nn.Module()
        self._module.register_parameter("weight", torch.nn.Parameter(torch.zeros(1)))
        self._iterator = _Iterator()
        self._batch = (torch.zeros(1),)
        self._occurrences: dict[str, int] = {}
        self._parts: deque[tuple[str, Callable[[], object]]] = deque(
            [
                ("data_wait", lambda: self._loop.next_batch(self._iterator, self._fetch)),
                ("forward", self._call),
                ("backward", lambda: self._loop.backward(self._fetch, (), {})),
                ("optimizer", self._step),
            ]
        )
        for number in range(3 * len(self._parts)):
            if number == 2 * len(self._parts):  # the first ones took other ways
                self.seconds.clear()
            self._play()

    def add(self, timeline: Timeline) -> float:
        """Measure one kind of phase, and return the seconds that all phases since the last call cost."""
        if torch.is_grad_enabled():
            self._play()
        added = 0.0
        for name, seconds in self.seconds.items():
            occurrences = timeline.phase(name).occurrences
            added += max(occurrences - self._occurrences.get(name, 0), 0) * seconds
            self._occurrences[name] = occurrences
        return added

    def _play(self) -> None:
        """Play and time one phase; those that follow at once would find its memory in the caches."""
        name, part = self._parts[0]
        self._parts.rotate(-1)
        began = time.perf_counter()
        part()
        seconds = time.perf_counter() - began
        before = self.seconds.get(name, seconds)
        self.seconds[name] = before + (seconds - before) / _MEMORY

    def _call(self) -> None:
        self._loop.begin_forward(self._module, self._batch, {})
        self._loop.end_forward()

    def _step(self) -> None:
        self._loop.begin_optimizer(self)
        self._loop.end_optimizer(self)

    def _fetch(self, *_: Any) -> Any:
        return self._batch
