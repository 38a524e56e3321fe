"""Hugging Face Transformers: see `stallscope.shim.integrations.transformers`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from stallscope.shim.integrations import transformers

    return getattr(transformers, name)
