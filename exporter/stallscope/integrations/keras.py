"""Keras: see `stallscope.shim.integrations.keras`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from stallscope.shim.integrations import keras

    return getattr(keras, name)
