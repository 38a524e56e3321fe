"""JAX: see `stallscope.shim.integrations.jax`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from stallscope.shim.integrations import jax

    return getattr(jax, name)
