"""Classifies the exception that ended a run."""

from __future__ import annotations

from stallscope.training.protocol.vocabulary import MAX_LABEL_LENGTH
from stallscope.training.shim.tolerance import label

_OUT_OF_MEMORY_TYPES = ("OutOfMemoryError", "ResourceExhaustedError")
"""PyTorch's and TensorFlow's."""
_OUT_OF_MEMORY_MESSAGES = ("out of memory", "RESOURCE_EXHAUSTED")
"""Of errors with a type for everything: older PyTorch's RuntimeError, JAX's XlaRuntimeError."""


def failure_of(error: BaseException | None) -> str:
    """Return an exception's type, as in the report; empty for none."""
    return "" if error is None else label(type(error).__name__, MAX_LABEL_LENGTH)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if the GPU's memory was exhausted. Exhausted host memory raises MemoryError instead.

    Types are compared by name, since no framework may be imported for this.
    """
    if error is None:
        return False
    if any(kind.__name__ in _OUT_OF_MEMORY_TYPES for kind in type(error).__mro__):
        return True
    if not isinstance(error, RuntimeError) or not error.args:
        return False
    message = error.args[0]
    return type(message) is str and any(words in message[:1000] for words in _OUT_OF_MEMORY_MESSAGES)
