"""Words of stacks, and of the memory file in which a rank leaves them; see `protocol.stacks`."""

from __future__ import annotations

STACKS_SIZE = 1 << 20
"""Bytes of the file."""
STACKS_HEADER = b"stallscope-stacks 1 0x%016x\n"
"""First line of the file, with the identifier of the thread that trains."""
STANDSTILL = "Standstill"
"""Line before the stack of a rank that has made no report for too long."""
SAMPLE = "Sample"
"""Line before a stack that was requested."""
LINES = "Lines"
"""Beginning of the line with the result of a requested burst of samples, in JSON."""
DECORATORS = frozenset(("wrapper", "wrapped", "inner", "decorate_context", "_fn"))
"""Names of functions that decorators of libraries put around others: the inner function is the one that was called."""
