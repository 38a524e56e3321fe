"""The `stallscope` command: one file of this folder a subcommand.

A command is a module with `main(arguments) -> int`, and the first line of the file says in its docstring what it does.
Only the module that is asked for is imported, so that `stallscope --help` answers at once.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from stallscope.version import __version__

_USAGE_ERROR = 2


def commands() -> dict[str, str]:
    """Every command with its one-line summary, by name."""
    folder = Path(__file__).parent
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return {name: _summary(folder / f"{name}.py") for name in names}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names.

    Returns:
        The exit status: 0 when it went well, 1 when it failed, 2 when the command line was wrong.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help", "help"):
        print(_help())
        return 0
    if first == "--version":
        print(f"stallscope {__version__}")
        return 0
    if not first:
        print(_help(), file=sys.stderr)
        return _USAGE_ERROR
    if first not in commands():
        print(_unknown(first), file=sys.stderr)
        return _USAGE_ERROR
    module = importlib.import_module(f"stallscope.cli.{first}")
    status: int = module.main(arguments[1:])
    return status


def _summary(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as source:
            return source.readline().strip().strip('"')
    except OSError:
        return ""


def _help() -> str:
    lines = [
        "usage: stallscope COMMAND [flags]",
        "",
        "Where does my GPU time go, and what do I change?",
        "",
        "commands:",
    ]
    lines += [f"  {name:<12}{summary}".rstrip() for name, summary in commands().items()]
    lines += ["", "`stallscope COMMAND --help` tells of a command's flags; `stallscope --version` of the version."]
    return "\n".join(lines)


def _unknown(name: str) -> str:
    import difflib  # only this path needs it

    known = list(commands())
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"commands are: {', '.join(known)}"
    return f"stallscope: unknown command {name!r}; {hint}"
