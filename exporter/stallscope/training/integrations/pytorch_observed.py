"""The loop as its stand-ins know it: `SteadyLoop`, which notes its events, and `TimedLoop`, which times them.

They replace the loop for a while and hand on to it. `Observers` creates both, so neither imports the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_batches import Pass
    from stallscope.training.integrations.pytorch_device import Span
    from stallscope.training.integrations.pytorch_modules import Module
    from stallscope.training.integrations.pytorch_state import LoopState
    from stallscope.training.shim.run import Run


class Observing(Protocol):
    """Observes the calls of a training loop: the loop itself, or what stands in for it."""

    @property
    def optimizer_steps(self) -> int:
        """Steps of optimizers."""

    def next_batch(self, iterator: Any, following: Callable[[Any], Any]) -> Any:
        """Let a loader's iterator return its next batch."""

    def backward(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Let gradients be computed."""

    def begin_forward(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Begin `forward`; return whether `end_forward` is to follow."""

    def end_forward(self) -> None:
        """End `forward`."""

    def begin_optimizer(self, optimizer: Any) -> None:
        """Begin the step of an optimizer."""

    def end_optimizer(self, optimizer: Any) -> None:
        """End it."""


class Observed(Observing, Protocol):
    """The loop, which processes each event; `Loop` describes its methods."""

    run: Run
    state: LoopState
    modules: dict[int, Module]
    counts_all_optimizers: bool

    @property
    def processing_seconds(self) -> float:
        """Seconds that the processing of noted events has taken so far."""

    def skip_step(self) -> None:
        """Take note that the step of an optimizer was left out."""

    def counts(self, optimizer: Any) -> bool:
        """Return whether the steps of this optimizer are observed."""

    def begin_fetch(self, found: Pass) -> None:
        """Begin the wait for a batch."""

    def end_fetch(self, found: Pass, dimension: int) -> None:
        """End the wait with a batch."""

    def fail_fetch(self, found: Pass, iterator: Any, error: BaseException) -> None:
        """End the wait without a batch."""

    def open_forward(self, _: None = None) -> None:
        """Begin `forward`."""

    def close_forward(self, _: None = None) -> None:
        """End `forward`."""

    def open_backward(self, arguments: tuple[Any, ...]) -> Span | None:
        """Begin `backward`."""

    def close_backward(self, span: Span | None = None) -> None:
        """End `backward`."""

    def open_optimizer(self, key: int) -> None:
        """Begin `optimizer`."""

    def close_optimizer(self, key: int) -> None:
        """End `optimizer`."""

    def begin_copy(self, _: None = None) -> Span | None:
        """Begin `host_copy`."""

    def end_copy(self, span: Span | None) -> None:
        """End `host_copy`."""

    def gradients_switched(self, off: bool | None = None) -> None:
        """Take note that gradients were switched off, or on again."""

    def mode_switched(self, trains: bool) -> None:
        """Take note that a module was switched to training or to evaluation mode."""
