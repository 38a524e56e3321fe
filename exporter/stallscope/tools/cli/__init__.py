"""The `stallscope` command. Each public module of this package is one subcommand.

A subcommand has `main(arguments) -> int` and `parser()`. The first line of its docstring is its summary in the help.
Only the module of the requested subcommand is imported, so that `stallscope --help` starts fast.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from stallscope.common.version import __version__

GROUPS = {
    "observe": ("gpus", "top"),
    "train": ("pick", "run", "stacks", "stop", "trace"),
    "understand": ("annotate", "compare", "frames", "replay", "report", "why"),
    "set up": ("completion", "doctor", "exporter", "man", "record", "thresholds", "up"),
}
"""Commands by purpose, in the order of the help."""

_COLUMNS = 80
_FAILED = 1
_USAGE_ERROR = 2
_INTERRUPTED = 130
"""Exit status that shells report after SIGINT."""
_BROKEN_PIPE = 141
"""Exit status that shells report after SIGPIPE."""
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_RUN_COMMAND = "run"
"""The command whose exceptions belong to the user's program."""


def commands() -> dict[str, str]:
    """Return the one-line summary of each command, by name."""
    folder = Path(__file__).parent
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return {name: _summary(folder / f"{name}.py") for name in names}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names.

    Returns:
        The exit status: 0 for success, 1 for a failure, 2 for an invalid command line, 130 after Ctrl-C, 141 when
        the reader of the output has closed it.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == [_RUN_COMMAND]:
        return _run(arguments)
    _open_closed_streams()
    _replace_unknown_characters()
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
        # An error with a file name does not come from standard output.
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
            raise
        _discard_output()
        print(f"stallscope: cannot write the output: {error.strerror}", file=sys.stderr)
        return _FAILED


def _open_closed_streams() -> None:
    """Replace a standard stream that the parent process has closed by /dev/null."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _replace_unknown_characters() -> None:
    r"""Write an escape sequence, such as `\u6f22`, for a character that the terminal or the pipe cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Redirect standard output to /dev/null, so that the interpreter's last flush does not fail."""
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
    module = importlib.import_module(f"stallscope.tools.cli.{first}")
    status: int = module.main(arguments[1:])
    return status


def _summary(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as source:
            return source.readline().strip().strip('"')
    except OSError:
        return ""


def _help() -> str:
    import textwrap  # which a training does not need

    summaries = commands()
    lines = ["usage: stallscope COMMAND [flags]", "", "Where does my GPU time go, and what do I change?"]
    for group, names in GROUPS.items():
        lines += ["", f"{group}:"]
        for name in names:
            lines += textwrap.wrap(
                summaries[name], _COLUMNS, initial_indent=f"  {name:<12}", subsequent_indent=" " * 14
            )
    lines += ["", "`stallscope help COMMAND` shows the flags of a command,", "`stallscope --version` the version."]
    return "\n".join(lines)


def _unknown(name: str) -> str:
    from stallscope.tools.cli._parser import nearest  # imports argparse, which the help does not need

    known = list(commands())
    hint = nearest(name, [*known, "help", "--help", "--version"]) or f"; commands are: {', '.join(known)}"
    return f"stallscope: unknown {'flag' if name.startswith('-') else 'command'} {name!r}{hint}"
