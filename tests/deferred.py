"""Libraries that few tests use: importing one takes a second, and every test process collects all tests."""

from __future__ import annotations

import importlib
from typing import Any


class Deferred:
    """A module that is imported at the first use of one of its names.

    Args:
        name: the module's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for marks
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
