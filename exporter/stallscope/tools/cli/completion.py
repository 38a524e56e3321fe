"""Print a script that completes commands and flags in bash, zsh, fish or tcsh."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from stallscope.tools.cli._extras import missing
from stallscope.tools.cli._parser import Parser

SHELLS = ("bash", "zsh", "fish", "tcsh")
_BASH_AFTER_FLAGS = r"""

# After -- comes the command line of another program.
_stallscope() {
  local place line
  for ((place = 2; place < COMP_CWORD; place++)); do
    [[ ${COMP_WORDS[place]} == -- ]] || continue
    if declare -F _command_offset >/dev/null; then # of bash-completion
      _command_offset $((place + 1))
      return
    fi
    COMPREPLY=()
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
      ((place + 1 == COMP_CWORD)) && compgen -c -- "${COMP_WORDS[COMP_CWORD]}"
      compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
    compopt -o filenames 2>/dev/null
    return 0
  done
  _shtab_stallscope
}

complete -o bashdefault -F _stallscope stallscope"""
"""Appended to shtab's own script, which does not support a command line within a command line."""


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "completion",
        usage="stallscope completion SHELL",
        description="Print a script with which a shell completes stallscope's commands, flags, scenarios and files. "
        "The script does not run stallscope; print it again after an update.",
        examples={
            'eval "$(stallscope completion bash)"': "try it in this bash",
            "stallscope completion bash > ~/.stallscope.bash": "for bash, with source ~/.stallscope.bash in ~/.bashrc",
            "stallscope completion zsh > ~/.zfunc/_stallscope": "for zsh, with fpath+=(~/.zfunc) before compinit",
            "stallscope completion fish > ~/.config/fish/completions/stallscope.fish": "for fish",
            "stallscope completion tcsh > ~/.stallscope.tcsh": "for tcsh, with source ~/.stallscope.tcsh in ~/.tcshrc",
        },
        notes="Exit status: 0 if the script was printed, 1 if a library is missing, 2 for an invalid command line.",
    )
    made.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    return made


def main(arguments: Sequence[str]) -> int:
    """Print the script; return 0, 1 if the library is missing, 2 for an invalid command line."""
    parsed = parser().parse_args(arguments)
    try:
        import shtab
    except ModuleNotFoundError as error:
        return missing("completion", error, "exporter")
    from stallscope.lab.simulation.scenarios import SCENARIOS
    from stallscope.tools.cli import commands
    from stallscope.tools.cli._whole import takes_file, takes_folder, whole_parser
    from stallscope.tools.cli.doctor import PARTS

    if parsed.shell not in shtab.SUPPORTED_SHELLS:
        print(f"stallscope completion: this shtab is too old for {parsed.shell}: pip install -U shtab", file=sys.stderr)
        return 1
    whole = whole_parser()
    for name, summary in commands().items():
        whole.commands[name].description = summary  # shells show it next to the name
    for action in (action for command in whole.commands.values() for action in command.arguments):
        if action.dest in ("scenario", "simulation.scenario"):
            action.choices = tuple(SCENARIOS)
        elif action.dest == "parts":
            action.choices = tuple(PARTS)
        elif takes_folder(action):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # shtab reads this attribute
        elif takes_file(action):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(whole, shell=parsed.shell) + (_BASH_AFTER_FLAGS if parsed.shell == "bash" else ""))
    return 0
