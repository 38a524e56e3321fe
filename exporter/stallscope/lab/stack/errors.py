"""Errors of the stack."""


class StackError(Exception):
    """The stack cannot start or continue. The message says what is wrong, where, and what to do."""
