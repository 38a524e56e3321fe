"""The notice of a signal that ends a process: a datagram from an address with its sessions."""

from __future__ import annotations

TERMINATION_ADDRESS = b"\0stallscope-terminated:"
"""Beginning of the abstract socket address from which a process sends when SIGTERM or SIGHUP ends it.

Its sessions follow, up to five of `SESSION_LENGTH` characters. The content of the datagram has no meaning.
"""
SESSION_LENGTH = 16
"""Characters of a session identifier, as the shim writes it."""
