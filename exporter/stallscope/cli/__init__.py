"""The `stallscope` command: one file of this folder a subcommand.

A command is a module with `main(arguments) -> int` and `parser()`, and the first line of the file says in its
docstring what it does. Only the module that is asked for is imported, so that `stallscope --help` answers at once.
"""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from stallscope.common.version import __version__

GROUPS = {
    "observe": ("gpus", "top"),
    "train": ("pick", "run", "trace"),
    "understand": ("compare", "frames", "report"),
    "set up": ("completion", "doctor", "exporter", "record", "up"),
}
"""What commands are for, in the order in which help lists them."""

_FAILED = 1
_USAGE_ERROR = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141
"""As a shell tells of a program that SIGINT or SIGPIPE ended."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_PROGRAM_OF_ITS_OWN = "run"
"""The command whose exceptions are those of the program that it runs."""


def commands() -> dict[str, str]:
    """Every command with its one-line summary, by name."""
    folder = Path(__file__).parent
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return {name: _summary(folder / f"{name}.py") for name in names}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names.

    Returns:
        The exit status: 0 when it went well, 1 when it failed, 2 when the command line was wrong, 130 after Ctrl-C,
        141 when what read the output went away.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == [_PROGRAM_OF_ITS_OWN]:
        return _run(arguments)
    _open_what_is_closed()
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return _BROKEN_PIPE
    except OSError as error:
        # Those of a name are no output's.
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        _discard_output()
        print(f"stallscope: the output can't be written: {error.strerror}", file=sys.stderr)
        return _FAILED


def _open_what_is_closed() -> None:
    """Let output that whoever started us has closed go nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _discard_output() -> None:
    """Let what is left to be written go nowhere, so that the interpreter's own last flush says nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str]) -> int:
    first = arguments[0] if arguments else ""
    if first == "help" and len(arguments) > 1:
        first, arguments = arguments[1], [arguments[1], "--help"]
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
    summaries = commands()
    lines = ["usage: stallscope COMMAND [flags]", "", "Where does my GPU time go, and what do I change?"]
    for group, names in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {name:<12}{summaries[name]}" for name in names)]
    lines += ["", "`stallscope help COMMAND` tells of a command's flags, `stallscope --version` of the version."]
    return "\n".join(lines)


def _unknown(name: str) -> str:
    from stallscope.cli._parser import nearest  # which needs argparse, that help does without

    known = list(commands())
    hint = nearest(name, [*known, "help", "--help", "--version"]) or f"; commands are: {', '.join(known)}"
    return f"stallscope: unknown {'flag' if name.startswith('-') else 'command'} {name!r}{hint}"
