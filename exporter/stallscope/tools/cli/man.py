"""Print the manual page: every command with its flags, environment variables and exit statuses."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from functools import partial

from stallscope.common.version import __version__
from stallscope.tools.cli import GROUPS, commands
from stallscope.tools.cli._parser import Parser
from stallscope.tools.cli._whole import DESCRIPTION

_COLUMNS = 78


def parser() -> Parser:
    """Return the parser of this command."""
    return Parser(
        "man",
        usage="stallscope man",
        description="Print the manual page of stallscope in the format of man(1), from the commands' own help.",
        examples={
            "stallscope man | man -l -": "read it",
            "stallscope man > ~/.local/share/man/man1/stallscope.1": "for man stallscope",
        },
        notes="Exit status: 0 if the page was printed, 2 for an invalid command line.",
    )


def main(arguments: Sequence[str]) -> int:
    """Print the page; return the exit status."""
    parser().parse_args(arguments)
    print(page(), end="")
    return 0


def page() -> str:
    """Return the manual page as roff."""
    summaries = commands()
    lines = [
        f'.TH STALLSCOPE 1 "" "stallscope {__version__}" "User Commands"',
        ".SH NAME",
        _escaped("stallscope - where GPU time goes in training, and what to change"),
        ".SH SYNOPSIS",
        r".B stallscope",
        r"\fICOMMAND\fR [\fIflags\fR]",
        ".SH DESCRIPTION",
        _escaped(DESCRIPTION),
    ]
    for group, names in GROUPS.items():
        lines.append(f'.SH "COMMANDS: {group.upper()}"')
        for name in names:
            lines += [f'.SS "stallscope {name}"', _escaped(summaries[name]), ".PP", ".nf", ".in 0"]
            lines += [*map(_escaped, _help(name).splitlines()), ".in", ".fi"]
    return "\n".join(lines) + "\n"


def _help(name: str) -> str:
    made: argparse.ArgumentParser = importlib.import_module(f"stallscope.tools.cli.{name}").parser()
    made.formatter_class = partial(made.formatter_class, columns=_COLUMNS)  # type: ignore[call-arg]
    return made.format_help()


def _escaped(text: str) -> str:
    """Return a line of text without requests and escape sequences of roff."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("…", "...")
    return rf"\&{text}" if text.startswith((".", "'")) else text
