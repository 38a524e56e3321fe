"""CUDA graphs of a PyTorch loop, and which of its phases each of them contains."""

from __future__ import annotations

import weakref
from typing import Any


class Captures:
    """The graphs that were captured in a loop. A captured call is done only when its graph is replayed."""

    __slots__ = ("_contents", "current")

    def __init__(self) -> None:
        self._contents: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
        self.current: set[str] | None = None
        """`backward` and `optimizer` as far as they are in the graph that is being captured; None without one."""

    def begin(self, graph: Any) -> None:
        """Begin to capture a graph."""
        self.current = self._contents[graph] = set()

    def contents(self, graph: Any) -> set[str] | None:
        """Return the phases that a graph contains besides `forward`; None if it was not captured in the loop."""
        return self._contents.get(graph)
