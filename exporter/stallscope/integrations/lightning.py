"""PyTorch Lightning: see `stallscope.shim.integrations.lightning`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from stallscope.shim.integrations import lightning

    return getattr(lightning, name)
