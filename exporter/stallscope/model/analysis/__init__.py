"""Read recorded data back from Prometheus: `frames` and `pieces` return a run as pandas data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallscope.model.analysis.data_frames import Frames, frames, pieces

__all__ = ["Frames", "frames", "pieces"]


def __getattr__(name: str) -> Any:
    """Import pandas on first use, so that callers of other modules do without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stallscope.model.analysis import data_frames

    return getattr(data_frames, name)
