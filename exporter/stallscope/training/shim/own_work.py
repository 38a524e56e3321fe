"""How much the rank's own work of a step varies, and whether the rest of the step makes up for it."""

from __future__ import annotations

from collections import deque

_NEWEST = 32
"""Steps between two reports that are evaluated, so that the cost of fast loops is bounded."""
_FORWARD = 3.0
"""Own work in relation to the forward pass: the backward pass takes twice as long."""


class OwnWork:
    """Compares each step with the one before, when a report is due; the loop only appends.

    Where ranks have uneven work in a step, ranks with less of it wait: the rest of their step is longer as their own
    work is shorter. Where the work of all ranks varies together, or the network does, this is not so. The sums of both
    kinds are apart, so that their difference is a covariance.
    """

    __slots__ = ("_before", "_change", "_steps", "even", "on_device", "seconds", "steps", "uneven")

    def __init__(self) -> None:
        self.steps: deque[tuple[float, ...]] = deque(maxlen=_NEWEST)
        """Of each step: seconds apart from work with a name of its own, 0 if the step is not comparable; and cumulative
        seconds of the phases `communication`, `forward` and `data_wait` at its end."""
        self.seconds = 0.0
        """Own work."""
        self.uneven = 0.0
        """Half the product of both changes from step to step, where own work and the rest change in opposite ways."""
        self.even = 0.0
        """Half that product where they change in the same way."""
        self.on_device = False
        """True if the GPU's clock measures own work, in place of the host's."""
        self._before: tuple[float, ...] = ()
        self._change: tuple[float, float] | None = None
        self._steps = 0

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
                length = max(length - (wait - before[3]), 0.0)  # a wait may be that of more than this step
                if communicates:
                    self.add(min(max(length - communication + before[1], 0.0), length), length, scale)
                else:
                    self.add_forward(max(forward - before[2], 0.0), length, scale)
            else:
                self.interrupt()
            before = step
        self._before = before
        fresh.clear()

    def interrupt(self) -> None:
        """Do not compare the next step with those before."""
        self._change = None

    def add_forward(self, forward: float, length: float, steps: float = 1.0) -> None:
        """Add a step with the seconds of its forward pass; see `add`."""
        self.add(min(_FORWARD * forward, length), length, steps)

    def add(self, own: float, length: float, steps: float = 1.0) -> None:
        """Add a step.

        Args:
            own: seconds of own work.
            length: seconds of the step that are not explained otherwise.
            steps: number of steps that this one stands for.
        """
        rest = length - own
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
        }
