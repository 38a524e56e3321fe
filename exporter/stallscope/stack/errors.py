"""What a person has to mend before, or while, the stack runs."""


class StackError(Exception):
    """The stack can't start or go on. The message says what is wrong, where, and what to do."""
