"""All commands as one parser, for completion scripts. Command lines are parsed by the commands' own parsers."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from stallscope.common.version import __version__
from stallscope.tools.cli import GROUPS, commands
from stallscope.tools.cli._parser import HelpFormatter

DESCRIPTION = (
    "Stallscope shows where GPU time goes in training, and what to change. An exporter on each node serves metrics of "
    "GPUs, host and training to Prometheus. Prometheus rules find the cause of lost time. The commands set this up, "
    "run training under it, and report what it found."
)
_METAVARS_OF_FILES = ("FILE", "PATH", "SCRIPT", "PROGRAM")
_METAVARS_OF_FOLDERS = ("FOLDER", "DIRECTORY")


class WholeParser(argparse.ArgumentParser):
    """The parser of `stallscope`, and those of its commands."""

    def __init__(self, **settings: Any) -> None:
        """Pass the settings to argparse."""
        super().__init__(**settings)
        self.commands: dict[str, WholeParser] = {}
        """Parsers of the subcommands in the order of the help; empty for a subcommand."""

    @property
    def arguments(self) -> list[argparse.Action]:
        """The parser's own arguments."""
        return self._actions


def whole_parser() -> WholeParser:
    """Return the parser of `stallscope` with each command as a subparser, in the order of the help."""
    whole = WholeParser(
        prog="stallscope",
        usage="stallscope COMMAND [flags]",
        description=DESCRIPTION,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    whole.add_argument("--version", action="version", version=__version__, help="print the version")
    summaries = commands()
    subparsers = whole.add_subparsers(metavar="COMMAND", title="commands")
    for name in (name for names in GROUPS.values() for name in names):
        own: argparse.ArgumentParser = importlib.import_module(f"stallscope.tools.cli.{name}").parser()
        whole.commands[name] = subparsers.add_parser(
            name,
            parents=[own],  # type: ignore[list-item]  # any ArgumentParser works
            add_help=False,
            allow_abbrev=False,
            help=summaries[name],
            usage=own.usage,
            description=own.description,
            epilog=own.epilog,
            formatter_class=own.formatter_class,
        )
    helping = whole.commands["help"] = subparsers.add_parser(
        "help", help="Show a command and its flags.", usage="stallscope help [COMMAND]"
    )
    helping.add_argument("command", nargs="?", choices=list(summaries), metavar="COMMAND", help="the command")
    return whole


def takes_file(action: argparse.Action) -> bool:
    """Return True if the argument's value is the name of a file."""
    return action.metavar in _METAVARS_OF_FILES or (action.type is Path and not takes_folder(action))


def takes_folder(action: argparse.Action) -> bool:
    """Return True if the argument's value is the name of a folder."""
    return action.metavar in _METAVARS_OF_FOLDERS
