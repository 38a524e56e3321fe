"""Batches, calls of modules and optimizers of a PyTorch loop since the newest boundary of a step.

| state | meaning | it is left by |
|---|---|---|
| `BETWEEN_STEPS` | no batch was fetched, and no optimizer has stepped | `fetched`, `use_again` |
| `IN_STEP` | a batch was fetched | `stepped`, `end` |
| `STEPPED` | an optimizer has stepped; the step lasts until the loop requests the next batch | `end` |

In each state the loop may wait for a batch, or have received the last one: see `is_waiting`. In each, modules may have
been called for gradients that are not computed yet: see `has_called`.
"""

from __future__ import annotations

BETWEEN_STEPS = "between steps"
IN_STEP = "in a step"
STEPPED = "stepped"
BY_HAND = 0
"""Stands for an optimizer where the program updates its parameters itself."""
_OF_ONE_BATCH = 16
"""Steps for one batch after which the step of another optimizer is a step of its own: the program trains one layer
after another. After fewer steps it belongs to the last of them, as a generator's step after several of its critic."""


class StepCycle:
    """The batches and the optimizers of the current step."""

    __slots__ = (
        "_closing",
        "_forwards_before",
        "_newest",
        "_of_one_batch",
        "backwards",
        "batches",
        "forwards",
        "is_waiting",
        "optimizers",
    )

    def __init__(self) -> None:
        self.batches = 0
        """Batches that were fetched since the boundary."""
        self.optimizers: set[int] = set()
        """Optimizers that have stepped since the boundary, while there was a batch."""
        self.is_waiting = False
        """True from the request of a batch to its arrival, and after the last batch of a pass."""
        self.forwards = 0
        """Calls of modules so far."""
        self._forwards_before = 0
        """Calls until the newest backward pass, and calls that are not followed by one."""
        self.backwards = 0
        """Backward passes since an optimizer has stepped."""
        self._of_one_batch = 0
        """Boundaries since the newest batch."""
        self._newest = BY_HAND
        """The newest optimizer that has stepped."""
        self._closing = BY_HAND
        """The optimizer that was the last one before the newest boundary."""

    @property
    def state(self) -> str:
        """One of the three states."""
        if self.optimizers:
            return STEPPED
        return IN_STEP if self.batches else BETWEEN_STEPS

    @property
    def has_called(self) -> bool:
        """True if modules were called and no backward pass followed."""
        return self.forwards != self._forwards_before

    def drop_forward(self) -> None:
        """No backward pass follows the calls of modules so far: they were an evaluation."""
        self._forwards_before = self.forwards

    def drop_next_forward(self) -> None:
        """No backward pass follows the next call of a module, unless it follows calls before that."""
        if not self.has_called:
            self._forwards_before += 1

    def begin_backward(self) -> None:
        """Add a backward pass."""
        self.backwards += 1
        self._forwards_before = self.forwards

    def fetched(self) -> None:
        """Add a batch."""
        self.is_waiting = False
        self.batches += 1
        self._of_one_batch = 0

    def unfetched(self, batches: int) -> None:
        """Remove batches that were found to be those of an evaluation."""
        self.batches = max(self.batches - batches, 0)

    def stepped(self, optimizer: int) -> bool:
        """Add the step of an optimizer.

        Returns:
            True if the step is complete: the loop has requested the next batch before, because its loader fetches
            ahead. Without a batch, False: each step of an optimizer may be one then.
        """
        self._newest = optimizer
        self.backwards = 0
        if not self.batches:
            return False
        self.optimizers.add(optimizer)
        return self.is_waiting and self._closing in (BY_HAND, optimizer)

    def step_by_hand(self) -> None:
        """Add an update of the parameters by the program itself, without an optimizer."""
        self._newest = BY_HAND

    def begins_with(self, optimizer: int) -> bool:
        """Return whether the step of an optimizer begins another step, although no batch was requested."""
        return optimizer in self.optimizers or (bool(self.optimizers) and self._of_one_batch >= _OF_ONE_BATCH)

    def end(self) -> None:
        """The step is over."""
        self.optimizers.clear()
        self.batches = 0
        self._closing = self._newest

    def use_again(self, batches: int) -> None:
        """The step that begins uses the batch of the one before.

        Args:
            batches: 1, or 0 where there was no batch.
        """
        self.batches = batches
        self._of_one_batch += 1
