"""The error that every reader of this folder raises."""

from __future__ import annotations


class ExternalError(Exception):
    """A file can't be used; the message is one line: `<what>: <problem>; <what to do>`."""
