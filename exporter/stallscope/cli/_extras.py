"""What a command says where a library is not installed that only it needs."""

from __future__ import annotations

import sys


def missing(what: str, error: ModuleNotFoundError, extra: str, *, otherwise: str = "") -> int:
    """Say what to install.

    Args:
        what: needs it, such as `top --once`.
        error: names the library.
        extra: of the package, that brings it.
        otherwise: what does without.

    Returns:
        The exit status.

    Raises:
        ModuleNotFoundError: the same, where the module is one of our own.
    """
    if (error.name or "").startswith("stallscope"):
        raise error
    hint = f"; {otherwise}" if otherwise else ""
    print(f"stallscope {what} needs {error.name}: pip install 'stallscope[{extra}]'{hint}", file=sys.stderr)
    return 1
