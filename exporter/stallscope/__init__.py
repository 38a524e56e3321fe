"""Stallscope: where does my GPU time go, and what do I change?

For a training loop, three lines at most:

    import stallscope

    for batch in stallscope.track(loader, run="resnet50"):
        train(batch)

Every step's time and its wait for data are then exposed by the node's exporter. `Run` reports more: phases, loss,
progress. Importing this package loads nothing but the standard library, and starts nothing.
"""

from __future__ import annotations

import sys

from stallscope.common.standard_library import hidden, standard_library
from stallscope.common.version import __version__

TYPE_CHECKING = False  # importing typing would take longer than all of the shim
if TYPE_CHECKING:
    from stallscope.training.integrations.tensorboard import sync_tensorboard
    from stallscope.training.shim.loader import track
    from stallscope.training.shim.run import Run, current
    from stallscope.training.shim.stopping import on_stop
    from stallscope.training.shim.tracing.recording import span
    from stallscope.training.shim.tracing.trace import trace

__all__ = ["Run", "__version__", "current", "on_stop", "span", "sync_tensorboard", "trace", "track"]

_PLACES = {
    "Run": "stallscope.training.shim.run",
    "current": "stallscope.training.shim.run",
    "on_stop": "stallscope.training.shim.stopping",
    "span": "stallscope.training.shim.tracing.recording",
    "sync_tensorboard": "stallscope.training.integrations.tensorboard",
    "trace": "stallscope.training.shim.tracing.trace",
    "track": "stallscope.training.shim.loader",
}


def __getattr__(name: str) -> object:
    # The exporter imports this package too, and has no use for the shim.
    if name not in _PLACES:
        raise AttributeError(f"module 'stallscope' has no attribute {name!r}")
    try:
        found = _imported(name)
    except Exception as error:  # noqa: BLE001 - the training goes on without being measured
        found = _stand_in(name, error)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _imported(name: str) -> object:
    with standard_library():
        __import__(_PLACES[name])
    return getattr(sys.modules[_PLACES[name]], name)


def _stand_in(name: str, error: Exception) -> object:
    from stallscope.common import silence

    return silence.stand_in(name, error)


if hidden():  # the modules of a package are also imported by the modules of an integration, outside of any block
    for _name in ("Run", "current", "on_stop", "span", "trace", "track"):
        __getattr__(_name)
