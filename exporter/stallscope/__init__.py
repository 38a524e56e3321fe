"""Stallscope: where does my GPU time go, and what do I change?

For a training loop, three lines at most:

    import stallscope

    for batch in stallscope.track(loader, run="resnet50"):
        train(batch)

Every step's time and its wait for data then stand in the node's exporter. `Run` tells more: phases, loss, progress.
Importing this package loads nothing but the standard library, and starts nothing.
"""

from __future__ import annotations

from stallscope.shim.loader import track
from stallscope.shim.run import Run
from stallscope.version import __version__

__all__ = ["Run", "__version__", "track"]
