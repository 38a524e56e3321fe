"""Accelerate: see `stallscope.shim.integrations.accelerate`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from stallscope.shim.integrations import accelerate

    return getattr(accelerate, name)
