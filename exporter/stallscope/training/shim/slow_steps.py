"""Which steps were slow, against the steps around them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque

TYPE_CHECKING = False  # importing typing takes longer than all of the shim
if TYPE_CHECKING:
    from collections.abc import Sequence

    Step = float | tuple[float, float, float]
    """A duration in seconds; with the tokens and the samples of the step where the client reported them."""

WINDOW = 128
"""Steps that say what is usual."""
FEWEST = 16
"""Fewer steps than this say nothing."""
WARM_UP = 10
"""First steps of a session, never judged: compilation, autotuning, filling caches."""


class SlowSteps:
    """Counts steps over median + 3 MAD, and over 1.1 times the median, of the recent window.

    Where most steps of the window have their tokens (else their samples) reported, and these differ, the seconds for
    each token (or sample) are judged instead. A step that is no longer than the median step is then never slow: short
    batches cost more for each token.

    The loop only appends durations; judging happens when a report is due. A duration comes without the time of host
    work that has a name (checkpoint, logging, the user's own phases), so a step that is long because of it isn't slow.
    """

    __slots__ = ("_planned", "_window", "count", "durations", "excess")

    def __init__(self, durations: deque[Step], tokens: float = 0.0, samples: float = 0.0) -> None:
        """Judge the steps that the loop appends to `durations`; for the other arguments see `plan`."""
        self.durations = durations
        self.count = 0
        self.excess = 0.0
        self._planned = (tokens, samples)
        self._window: deque[Step] = deque(maxlen=WINDOW)

    def plan(self, tokens: float, samples: float) -> None:
        """Set what steps from now on contain unless their own amounts are reported; 0 where it is unknown."""
        if self._planned != (planned := (tokens, samples)):
            self.judge()
            for steps in (self._window, self.durations):
                several = [self._with_work(step) for step in steps]
                steps.clear()
                steps.extend(several)
            self._planned = planned

    def judge(self) -> None:
        """Count the slow ones among the steps since the last call, and add up what they lost against the usual."""
        window = self._window
        if not self.durations or (not window and len(self.durations) < WARM_UP + FEWEST):
            return
        fresh = list(self.durations)
        self.durations.clear()
        if not window:
            del fresh[:WARM_UP]
        window.extend(fresh)
        if any(type(step) is tuple for steps in (window, fresh) for step in steps):
            self._judge_by_work(fresh)
        else:
            self._judge_by_length(fresh, window)  # type: ignore[arg-type]  # all of them are durations

    def _judge_by_length(self, fresh: Sequence[float], window: Sequence[float]) -> None:
        ordered = sorted(window)
        usual = _median(ordered)
        if max(fresh) <= 1.1 * usual:
            return
        for duration in fresh:
            excess = duration - usual
            if excess > 0.1 * usual and _is_outlying(ordered, usual, excess):
                self.count += 1
                self.excess += excess

    def _judge_by_work(self, fresh: Sequence[Step]) -> None:
        window = [self._with_work(step) for step in self._window]
        judged = [self._with_work(step) for step in fresh]
        durations = [step[0] for step in window]
        for measure in (1, 2):
            amounts = [step[measure] for step in window if step[measure] > 0.0]
            if 2 * len(amounts) > len(window):
                break
        else:
            amounts = []
        if not amounts or min(amounts) == max(amounts) or len(amounts) < FEWEST:
            self._judge_by_length([step[0] for step in judged], durations)
            return
        # Steps without an amount cannot be compared with the others, and are not judged.
        usual_length = _median(sorted(durations))
        rates = sorted(step[0] / step[measure] for step in window if step[measure] > 0.0)
        usual = _median(rates)
        for step in judged:
            duration, work = step[0], step[measure]
            if work > 0.0:
                expected = max(usual * work, usual_length)
                if duration > 1.1 * expected and _is_outlying(rates, usual, duration / work - usual):
                    self.count += 1
                    self.excess += duration - expected

    def _with_work(self, step: Step) -> tuple[float, float, float]:
        return step if isinstance(step, tuple) else (step, *self._planned)


def _median(ordered: Sequence[float]) -> float:
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2.0


def _is_outlying(ordered: Sequence[float], usual: float, excess: float) -> bool:
    """Return whether an excess over the median is more than 3 MAD."""
    # The median of deviations is below a third of this one where more than half of them are.
    near = excess / 3.0
    half = (len(ordered) - 1) // 2
    return bisect_left(ordered, usual + near) - bisect_right(ordered, usual - near) > half
