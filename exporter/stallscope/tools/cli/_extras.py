"""Error message of a command whose optional library is not installed."""

from __future__ import annotations

import sys


def missing(command: str, error: ModuleNotFoundError, extra: str, *, alternative: str = "") -> int:
    """Print which extra to install.

    Args:
        command: the command that needs the library, such as `top --once`.
        error: the import error, with the name of the library.
        extra: the package's extra that installs the library.
        alternative: what works without the library.

    Returns:
        The exit status.

    Raises:
        ModuleNotFoundError: the missing module belongs to Stallscope itself.
    """
    if (error.name or "").startswith("stallscope"):
        raise error
    from stallscope.common.installation import install_command  # only this error needs it

    hint = f"; {alternative}" if alternative else ""
    print(f"stallscope {command} needs {error.name}: {install_command(extra)}{hint}", file=sys.stderr)
    return 1
