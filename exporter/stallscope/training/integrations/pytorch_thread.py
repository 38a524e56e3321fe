"""Find the thread that a PyTorch loop belongs to.

| state | the loop's thread | it is left by |
|---|---|---|
| predicted | the thread that created the loop | `take`, in any thread |
| certain | the first thread that computed gradients or stepped an optimizer | nothing |
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import Thread, current_thread, get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stallscope.training.shim.run import Run


class LoopThread:
    """The thread of one loop, and the threads that train models of their own."""

    __slots__ = ("_moved", "_others", "_run", "ident", "is_certain")

    def __init__(self, run: Run, moved: Callable[[], None]) -> None:
        """Predict that the loop runs in the calling thread.

        Args:
            run: the loop's run; a silent run has no loop in any thread.
            moved: called when another thread turns out to be the loop's.
        """
        self._run = run
        self._moved = moved
        self._others: weakref.WeakSet[Thread] = weakref.WeakSet()
        self.ident = get_ident()
        """The thread's identifier."""
        self.is_certain = False
        """True if gradients were computed in the thread."""

    def is_elsewhere(self) -> bool:
        """Return whether the calling thread is another one."""
        return self._run.silent or get_ident() != self.ident

    def take(self) -> bool:
        """Let the calling thread be the loop's, unless another one is certain; return whether it is."""
        if self._run.silent:
            return False
        if get_ident() != self.ident:
            if self.is_certain:
                return False
            self.ident = get_ident()
            self._moved()
        self.is_certain = True
        return True

    def exclude(self) -> None:
        """Note that the calling thread trains a model of its own: it prefetches nothing for the loop."""
        self._others.add(current_thread())

    def is_excluded(self) -> bool:
        """Return whether the calling thread trains a model of its own."""
        return current_thread() in self._others
