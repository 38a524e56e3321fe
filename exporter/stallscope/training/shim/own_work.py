"""How much the rank's own work of a step varies, whether the rest of the step makes up for it, and late batches."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class Phase(Protocol):
        """A phase of the step, as `timeline.Phase`."""

        @property
        def seconds(self) -> float:
            """Seconds so far."""

        @property
        def occurrences(self) -> int:
            """How often it has begun."""


_NEWEST = 32
"""Steps between two reports that are evaluated, so that the cost of fast loops is bounded."""
_FORWARD = 3.0
"""Own work in relation to the forward pass: the backward pass takes twice as long."""
_LATE_POWER = 6
"""Power of the data wait that weights a step. The higher it is, the more of the weight is that of the last batch: with
64 ranks whose waits have an exponential distribution, 8 % of the step are missing with 4, and 4 % with 6."""
_LATE_PART = 0.1
"""Data wait of a step with the weight 1, over the mean step: waits near it have weights that a report can show."""
_LATE_MOST = 30.0
"""Largest data wait that counts, over that one, so that a single wait does not outweigh all that follow."""


class _AbsentPhase:
    """A phase that the program does not have."""

    seconds = 0.0
    occurrences = 0


_ABSENT = _AbsentPhase()


class OwnWork:
    """Compares each step with the one before, when a report is due; the loop only appends.

    Where ranks have uneven work in a step, ranks with less of it wait: the rest of their step is longer as their own
    work is shorter. Where the work of all ranks varies together, or the network does, this is not so. The sums of both
    kinds are apart, so that their difference is a covariance.
    """

    __slots__ = (
        *("_before", "_change", "_counted", "_length", "_steps", "even", "late", "late_rest", "on_device", "phases"),
        *("seconds", "steps", "uneven"),
    )

    def __init__(self) -> None:
        self.steps: deque[tuple[float, ...]] = deque(maxlen=_NEWEST)
        """Of each step: seconds apart from work with a name of its own, 0 if the step is not comparable; and cumulative
        seconds of `phases` at its end."""
        self.phases: tuple[Phase, Phase, Phase] = (_ABSENT, _ABSENT, _ABSENT)
        """`communication`, `forward` and `data_wait`."""
        self.seconds = 0.0
        """Own work."""
        self.uneven = 0.0
        """Half the product of both changes from step to step, where own work and the rest change in opposite ways."""
        self.even = 0.0
        """Half that product where they change in the same way."""
        self.late = 0.0
        """Steps, weighted by their data wait."""
        self.late_rest = 0.0
        """Seconds of the rest of these steps, with the same weights."""
        self.on_device = False
        """True if the GPU's clock measures own work, in place of the host's."""
        self._before: tuple[float, ...] = ()
        self._change: tuple[float, float] | None = None
        self._steps = 0
        self._length = self._counted = 0.0

    def separate(self, phases: Mapping[str, Phase]) -> None:
        """Separate own work by these phases from now on."""
        communication, forward, wait = (phases.get(name, _ABSENT) for name in ("communication", "forward", "data_wait"))
        self.phases = communication, forward, wait

    def excuse(self) -> None:
        """Do not compare the newest step with others."""
        if self.steps:
            self.steps.append((0.0, *self.steps.pop()[1:]))

    def updated_counters(self, steps: int, phases: Mapping[str, Phase]) -> dict[str, float]:
        """Add the steps since the last call; return the counters of the report.

        Args:
            steps: number of all steps so far.
            phases: all phases.
        """
        communicates = self.phases[0].occurrences > 0
        if communicates or phases.get("backward", _ABSENT).occurrences:
            self.evaluate(steps, communicates=communicates)
        return self.counters()

    def evaluate(self, steps: int, *, communicates: bool) -> None:
        """Add the steps since the last call.

        Args:
            steps: number of all steps so far.
            communicates: True if `communication` is measured; else the forward pass shows the own work.
        """
        number, self._steps = steps - self._steps, steps
        fresh, before = self.steps, self._before
        if not fresh or self.on_device:
            return
        scale = 1.0
        if number > len(fresh):  # steps between are left out
            scale, before, self._change = number / len(fresh), (), None
        for step in fresh:
            if before and step[0] > 0.0:
                length, communication, forward, wait = step
                waited = wait - before[3]
                length = max(length - waited, 0.0)  # a wait may be that of more than this step
                if communicates:
                    self.add(min(max(length - communication + before[1], 0.0), length), length, scale, waited)
                else:
                    self.add_forward(max(forward - before[2], 0.0), length, scale, waited)
            else:
                self.interrupt()
            before = step
        self._before = before
        fresh.clear()

    def interrupt(self) -> None:
        """Do not compare the next step with those before."""
        self._change = None

    def add_forward(self, forward: float, length: float, steps: float = 1.0, waited: float = 0.0) -> None:
        """Add a step with the seconds of its forward pass; see `add`."""
        self.add(min(_FORWARD * forward, length), length, steps, waited)

    def add(self, own: float, length: float, steps: float = 1.0, waited: float = 0.0) -> None:
        """Add a step.

        Args:
            own: seconds of own work.
            length: seconds of the step that are not explained otherwise.
            steps: number of steps that this one stands for.
            waited: seconds of data wait in the step, in addition to `length`.
        """
        rest = length - own
        self._length += steps * (length + waited)
        self._counted += steps
        if waited > 0.0:
            weight = steps * min(waited * self._counted / (_LATE_PART * self._length), _LATE_MOST) ** _LATE_POWER
            self.late += weight
            self.late_rest += weight * rest
        last, self._change = self._change, (own, rest)
        self.seconds += steps * own
        if last is not None:
            product = 0.5 * steps * (own - last[0]) * (rest - last[1])
            if product < 0.0:
                self.uneven -= product
            else:
                self.even += product

    def counters(self) -> dict[str, float]:
        """Return the counters of the report; empty where the own work is unknown."""
        if not self.seconds:
            return {}
        return {
            "own_work_seconds": self.seconds,
            "uneven_work_square_seconds": self.uneven,
            "even_work_square_seconds": self.even,
            "late_batch_steps": self.late,
            "late_batch_rest_seconds": self.late_rest,
        }
