"""Which steps were slow, against the steps around them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque

WINDOW = 128
"""Steps that say what is usual."""
FEWEST = 16
"""Fewer steps than this say nothing."""
WARM_UP = 10
"""First steps of a session, never judged: compilation, autotuning, filling caches."""


class SlowSteps:
    """Counts steps over median + 3 MAD, and over 1.1 times the median, of the recent window.

    The loop only appends durations; judging happens when a report is due. A duration comes without the time of host
    work that has a name (checkpoint, logging, the user's own phases), so a step that is long because of it isn't slow.
    """

    __slots__ = ("_window", "count", "durations", "excess")

    def __init__(self) -> None:
        self.durations: deque[float] = deque(maxlen=4096)  # beyond 8000 steps a second, the newest are enough
        self.count = 0
        self.excess = 0.0
        self._window: deque[float] = deque(maxlen=WINDOW)

    def judge(self) -> None:
        """Count the slow ones among the steps since the last call, and add up what they lost against the median."""
        window = self._window
        if not self.durations or (not window and len(self.durations) < WARM_UP + FEWEST):
            return
        fresh = list(self.durations)
        self.durations.clear()
        if not window:
            del fresh[:WARM_UP]
        window.extend(fresh)
        ordered = sorted(window)
        half = (len(ordered) - 1) // 2
        usual = (ordered[half] + ordered[len(ordered) // 2]) / 2.0
        if max(fresh) <= 1.1 * usual:
            return
        for duration in fresh:
            excess = duration - usual
            if excess > 0.1 * usual:
                # The median of deviations is below a third of this one where more than half of them are.
                near = excess / 3.0
                if bisect_left(ordered, usual + near) - bisect_right(ordered, usual - near) > half:
                    self.count += 1
                    self.excess += excess
