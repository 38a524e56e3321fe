"""Read back from Prometheus what it recorded: `frames` and `pieces` give a run as pandas data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallscope.analysis.data_frames import Frames, frames, pieces

__all__ = ["Frames", "frames", "pieces"]


def __getattr__(name: str) -> Any:
    """Import pandas when a data frame is wanted: the exporter, which asks for verdicts alone, must not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stallscope.analysis import data_frames

    return getattr(data_frames, name)
