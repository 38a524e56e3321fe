"""Which functions of the program call modules without gradients between steps, and how often."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_MOST_CALLERS = 64
_MOST_FRAMES = 32


class Callers:
    """The steps at which each chain of functions has called a module without gradients."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: dict[tuple[int, ...], tuple[int, int]] = {}
        """By the functions around such calls: the newest step, and how often."""

    def is_rare(self, steps: int) -> bool:
        """Add a call; return whether the program makes it between fewer steps than another call without gradients.

        An agent that chooses its actions is called between most steps. A test of the agent calls it from another
        function, and less often.

        Args:
            steps: steps so far.
        """
        path: list[int] = []
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the only way to the calling functions
        while frame is not None and len(path) < _MOST_FRAMES:
            if not str(frame.f_globals.get("__name__", "")).startswith("stallscope."):
                path.append(id(frame.f_code))
            frame = frame.f_back
        if len(self._steps) >= _MOST_CALLERS:
            self._steps.clear()
        newest, times = self._steps.get(caller := tuple(path), (-1, 0))
        self._steps[caller] = steps, (times := times + (newest != steps))
        return 2 * times < max(most for _, most in self._steps.values())
