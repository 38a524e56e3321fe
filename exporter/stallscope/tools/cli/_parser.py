"""Parser of every command: errors in one line, suggestions for misspelled flags, help with examples.

    def parser() -> Parser:
        made = Parser(
            "report",
            usage="stallscope report --run NAME [flags]",
            description="One page on …",
            examples={"stallscope report --run resnet50": "the whole job as report.html"},
        )
        made.add_argument("--run", …)
        return made

Arguments after `--` are never parsed as flags, so that a command can pass them on.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from stallscope.common.formatting import without_password

_COLUMNS = 80
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
        notes: str,
    ) -> None:
        """Set the texts of the help; flags are added as with argparse.

        Args:
            command: the command's name.
            usage: the usage line, without "usage:".
            description: what the command does, in a few sentences.
            examples: the purpose of each example, by command line.
            notes: text after the flags, such as exit status and environment.
        """
        shown = "\n".join(f"  # {purpose}\n  {line}" for line, purpose in examples.items())
        super().__init__(
            prog=f"stallscope {command}",
            usage=usage,
            description=description,
            epilog=f"{notes}\n\nexamples:\n{shown}",
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        self.afterwards: list[Callable[[argparse.Namespace], None]] = []
        """Functions that combine several flags after parsing. They reject a combination with ArgumentTypeError."""

    def parse_args(  # type: ignore[override]  # one signature in place of typeshed's three overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parse the command line, or exit with status 2 and a one-line error."""
        arguments = list(sys.argv[1:] if args is None else args)
        # Checked first: argparse would complain about a missing required argument whose flag is only misspelled.
        for word in arguments[: arguments.index("--")] if "--" in arguments else arguments:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in self.flags:
                self.error(f"unknown flag {flag}{nearest(flag, self.flags)}")
        parsed, unknown = self.parse_known_args(arguments, namespace)
        if unknown:
            kind = "unknown flag" if unknown[0].startswith("-") else "unexpected argument"
            self.error(f"{kind} {without_password(unknown[0])}")
        try:
            for each in self.afterwards:
                each(parsed)
        except argparse.ArgumentTypeError as problem:
            self.error(str(problem))
        return parsed

    @property
    def flags(self) -> list[str]:
        """All flags, with all their spellings."""
        return [flag for action in self._actions for flag in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Exit with a one-line error, without argparse's usage text."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")


class HelpFormatter(argparse.HelpFormatter):
    """Wrap paragraphs at 80 columns or fewer, except those with indented lines: examples."""

    def __init__(self, prog: str, columns: int = 0) -> None:
        """Take the width; by default that of the terminal, or 80 columns on a wider one."""
        super().__init__(prog, width=(columns or min(_COLUMNS, shutil.get_terminal_size().columns)) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            textwrap.indent(paragraph, indent)
            if "\n " in paragraph
            else super(HelpFormatter, self)._fill_text(paragraph, width, indent)
            for paragraph in text.split("\n\n")
        )


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` with the most similar known word, or an empty string."""
    import difflib  # only errors need it

    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""
