"""PyTorch: see `stallscope.shim.integrations.pytorch`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from stallscope.shim.integrations import pytorch

    return getattr(pytorch, name)
