"""Write stallscope.1, the manual page, from the commands' own parsers.

Run by `make generate`; a test fails when the committed page is not what this prints. The wheel installs it where `man`
looks.
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
    ("0", "It went well."),
    ("1", "It failed, or found something wrong; it has told what, where, and what to do."),
    ("2", "The command line was wrong."),
    (
        "126, 127",
        "What pick or run was to run can't be run, or is not there. Else theirs is the status of what they ran.",
    ),
    ("130, 141", "Ctrl-C ended it, or what read its output went away."),
)
_ENVIRONMENT = (
    (VARIABLE, "Prometheus that commands ask, unless --prometheus.url says otherwise."),
    (
        f"{CERTIFICATE_VARIABLE}, {KEY_VARIABLE}",
        "what commands show to a Prometheus and exporters that want a client's certificate.",
    ),
    (
        "STALLSCOPE_ADDRESS",
        "where trainings report to: unix:///PATH, udp://HOST:PORT, http://HOST:PORT or https://HOST:PORT.",
    ),
    ("STALLSCOPE_RUN", "name of the run that a training reports."),
    ("STALLSCOPE_JOB_CLASS", "production or experiment, of which the latter wakes nobody."),
    ("STALLSCOPE_GIT_COMMIT", "version of the training's code, where it can't be read from its folder."),
    ("STALLSCOPE_TOKEN, STALLSCOPE_TOKEN_FILE", "what trainings sign their reports with."),
    ("STALLSCOPE_CA_FILE", "certificates that trainings trust when they report over https."),
    ("STALLSCOPE_TRACE_DIR", "folder in which trainings write the traces that they are asked for."),
    ("STALLSCOPE_DISABLE", "1 makes trainings report nothing."),
    ("STALLSCOPE_STRICT", "1 makes mistakes in the use of the shim errors instead of warnings."),
    ("STALLSCOPE_LOCK_FOLDER", "where users' claims on GPUs lie; the same for all (stallscope pick)."),
    (
        "CUDA_VISIBLE_DEVICES",
        "GPUs that stallscope pick chooses among, and those that it gave to the command that it runs.",
    ),
    ("STALLSCOPE_EXPORTER_*", "settings of the exporter: the flag's name in capitals, with _ for . and -."),
    ("NO_COLOR", "1 leaves colours out."),
)
_UNTITLED = ("positional arguments", "options")
"""What argparse calls the groups that come by themselves."""


def page() -> str:
    """Return the whole page in man's own language."""
    os.environ["COLUMNS"] = "80"  # whoever writes it
    os.environ.pop(VARIABLE, None)
    lines = [
        r".\" Written by `make generate` from the commands' parsers; do not edit.",
        '.TH STALLSCOPE 1 "" stallscope "User commands"',
        ".SH NAME",
        r"stallscope \- say where GPU time goes in training, and what to change",
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
    """A flag or argument as it is written, in bold but for what the user names."""
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
    """The help text with its default in it, as argparse's own help has it."""
    return (action.help or "") % {**vars(action), "prog": command.prog}


def _literal(lines: Iterator[str] | list[str]) -> Iterator[str]:
    """Lines that stay as they are."""
    yield ".PP"
    yield ".nf"
    yield ".RS"
    for line in lines:
        yield _text(line.strip())
    yield ".RE"
    yield ".fi"


def _text(text: str) -> str:
    """The text for man: nothing in it is a command, and hyphens can be copied as what they are."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    escaped = "".join(each if each.isascii() else rf"\[u{ord(each):04X}]" for each in escaped)
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
