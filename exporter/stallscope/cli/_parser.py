"""How every command reads its command line: complaints in one line, the nearest flag offered, help with examples.

    def parser() -> Parser:
        made = Parser(
            "report",
            usage="stallscope report --run NAME [flags]",
            description="One page on …",
            examples={"stallscope report --run resnet50": "the whole job as report.html"},
        )
        made.add_argument("--run", …)
        return made

What comes after `--` is never taken for a flag, so that a command may hand it on.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from stallscope.common.formatting import without_password

USAGE_ERROR = 2
"""Exit status after a wrong command line."""


class Parser(argparse.ArgumentParser):
    """The parser of one command."""

    def __init__(
        self,
        command: str,
        *,
        usage: str,
        description: str,
        examples: Mapping[str, str],
        notes: str = "",
    ) -> None:
        """Take what help says; flags are added as with argparse.

        Args:
            command: the command's name.
            usage: the whole line, without "usage:".
            description: what the command does, in a few sentences.
            examples: command lines, each with what it is for.
            notes: what else there is to know, after the flags: exit status, environment.
        """
        shown = "\n".join(f"  # {purpose}\n  {line}" for line, purpose in examples.items())
        super().__init__(
            prog=f"stallscope {command}",
            usage=usage,
            description=description,
            epilog=(f"{notes}\n\n" if notes else "") + f"examples:\n{shown}",
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        self.afterwards: list[Callable[[argparse.Namespace], None]] = []
        """What is made of several flags together; whatever raises ArgumentTypeError is refused."""

    def parse_args(  # type: ignore[override]  # one signature for what typeshed tells in three
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Read the command line, or end with exit status 2 and one line about what is wrong."""
        told = list(sys.argv[1:] if args is None else args)
        # Before argparse, which would miss a required argument first, as often as not because a flag was misspelt.
        for word in told[: told.index("--")] if "--" in told else told:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in self.flags:
                self.error(f"unknown flag {flag}{nearest(flag, self.flags)}")
        parsed, rest = self.parse_known_args(told, namespace)
        if rest:
            kind = "unknown flag" if rest[0].startswith("-") else "unexpected argument"
            self.error(f"{kind} {without_password(rest[0])}")
        try:
            for each in self.afterwards:
                each(parsed)
        except argparse.ArgumentTypeError as problem:
            self.error(str(problem))
        return parsed

    @property
    def flags(self) -> list[str]:
        """Every flag, in each of its spellings."""
        return [flag for action in self._actions for flag in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Refuse in one line, without argparse's usage before it."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs, and leaves alone those whose lines are indented: examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            textwrap.indent(paragraph, indent)
            if "\n " in paragraph
            else super(HelpFormatter, self)._fill_text(paragraph, width, indent)
            for paragraph in text.split("\n\n")
        )


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?` with the most similar of those known, or nothing."""
    import difflib  # only complaints need it

    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""
