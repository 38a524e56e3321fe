"""Write stallscope.1, the manual page, from the commands' own parsers.

`make generate` runs it, and a test fails if the committed page is out of date. The wheel installs the page for `man`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from stallscope.cli import GROUPS, commands
from stallscope.cli._whole import DESCRIPTION, WholeParser, whole_parser
from stallscope.clients.address import VARIABLE
from stallscope.clients.client_certificate import CERTIFICATE_VARIABLE, KEY_VARIABLE

PAGE = Path(__file__).parents[1] / "stallscope.1"

_EXIT = (
    ("0", "Success."),
    ("1", "The command failed, or found a problem. Its output says what, where, and what to do."),
    ("2", "The command line was invalid."),
    (
        "126, 127",
        "The program for pick or run cannot be executed, or does not exist. Otherwise they return its exit status.",
    ),
    ("130, 141", "Ctrl-C ended the command, or the reader of its output closed the pipe."),
)
_ENVIRONMENT = (
    (VARIABLE, "Prometheus server of the commands, unless --prometheus.url is set."),
    (
        f"{CERTIFICATE_VARIABLE}, {KEY_VARIABLE}",
        "client certificate and key for Prometheus and exporters.",
    ),
    (
        "STALLSCOPE_ADDRESS",
        "address for reports: unix:///PATH, udp://HOST:PORT, http://HOST:PORT or https://HOST:PORT.",
    ),
    ("STALLSCOPE_RUN", "name of the training's run."),
    ("STALLSCOPE_JOB_CLASS", "production or experiment; alerts on an experiment page no one."),
    ("STALLSCOPE_GIT_COMMIT", "version of the training's code, if it cannot be read from its folder."),
    ("STALLSCOPE_TOKEN, STALLSCOPE_TOKEN_FILE", "token with which trainings sign their reports."),
    ("STALLSCOPE_CA_FILE", "certificates that trainings trust when they report over https."),
    ("STALLSCOPE_TRACE_DIR", "folder in which trainings write requested traces."),
    ("STALLSCOPE_DISABLE", "1 disables reports of trainings."),
    ("STALLSCOPE_STRICT", "1 turns warnings about misuse of the shim into errors."),
    ("STALLSCOPE_LOCK_FOLDER", "folder of claims on GPUs, the same for all users (stallscope pick)."),
    (
        "CUDA_VISIBLE_DEVICES",
        "GPUs that stallscope pick may choose. It sets the variable to the chosen GPUs for its command.",
    ),
    ("STALLSCOPE_EXPORTER_*", "settings of the exporter: the flag's name in capitals, with _ for . and -."),
    ("NO_COLOR", "1 disables colours."),
)
_UNTITLED = ("positional arguments", "options")
"""Titles of argparse's default groups."""


def page() -> str:
    """Return the page in roff."""
    os.environ["COLUMNS"] = "80"  # so that the page does not depend on the terminal
    os.environ.pop(VARIABLE, None)
    lines = [
        r".\" Written by `make generate` from the commands' parsers; do not edit.",
        '.TH STALLSCOPE 1 "" stallscope "User commands"',
        ".SH NAME",
        r"stallscope \- show where GPU time goes in training, and what to change",
        ".SH SYNOPSIS",
        r".B stallscope",
        r"\fICOMMAND\fR [\fIflags\fR]",
        ".br",
        r".B stallscope help",
        r"[\fICOMMAND\fR]",
        ".br",
        r".B stallscope \-\-version",
        ".SH DESCRIPTION",
        _text(DESCRIPTION),
    ]
    whole = whole_parser()
    summaries = commands()
    for group, names in GROUPS.items():
        lines.append(f".SS To {group}" if group != "set up" else ".SS To set it up")
        for name in names:
            lines += [".TP", rf"\fBstallscope {name}\fR", _text(summaries[name])]
    for name in summaries:
        lines += [f'.SH "STALLSCOPE {name.upper()}"', *_command(whole.commands[name])]
    for title, entries in (("EXIT STATUS", _EXIT), ("ENVIRONMENT", _ENVIRONMENT)):
        lines.append(f'.SH "{title}"')
        for entry, meaning in entries:
            lines += [".TP", rf"\fB{_text(entry)}\fR", _text(meaning)]
    lines += [".SH SEE ALSO", ".BR prometheus (1),", "https://github.com/stallscope/stallscope"]
    return "\n".join(lines) + "\n"


def _command(command: WholeParser) -> Iterator[str]:
    yield from _literal((command.usage or "").split("\n"))
    yield ".PP"
    yield _text(command.description or "")
    groups: dict[str, list[argparse.Action]] = {title: [] for title in _UNTITLED}
    for action in command.arguments:
        if action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
            groups.setdefault(action.container.title, []).append(action)  # type: ignore[attr-defined]  # its group
    for title, actions in groups.items():
        if title not in _UNTITLED:
            yield f".SS {_text(title[0].upper() + title[1:])}"
        for action in actions:
            yield ".TP"
            yield _invocation(action)
            yield _text(_help(command, action))
    for paragraph in (command.epilog or "").strip("\n").split("\n\n"):
        if paragraph.startswith("examples:"):
            yield ".SS Examples"
            yield from _literal(line.strip() for line in paragraph.split("\n")[1:])
        else:
            yield ".PP"
            yield _text(" ".join(paragraph.split()))


def _invocation(action: argparse.Action) -> str:
    """Return a flag or argument in bold, with its placeholder in italics."""
    if isinstance(action.metavar, str):
        value = action.metavar
    else:
        value = "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
    if not action.option_strings:
        return rf"\fI{_text(value)}\fR"
    if action.nargs == 0:
        value = ""
    elif action.nargs == "?":
        value = f"[{value}]"
    return ", ".join(
        rf"\fB{_text(flag)}\fR" + (rf" \fI{_text(value)}\fR" if value else "") for flag in action.option_strings
    )


def _help(command: WholeParser, action: argparse.Action) -> str:
    """Return the help text with its default filled in, as argparse does."""
    return (action.help or "") % {**vars(action), "prog": command.prog}


def _literal(lines: Iterator[str] | list[str]) -> Iterator[str]:
    """Yield lines without filling."""
    yield ".PP"
    yield ".nf"
    yield ".RS"
    for line in lines:
        yield _text(line.strip())
    yield ".RE"
    yield ".fi"


def _text(text: str) -> str:
    """Escape text for roff, with hyphens that can be copied as ASCII."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    escaped = "".join(each if each.isascii() else rf"\[u{ord(each):04X}]" for each in escaped)
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
