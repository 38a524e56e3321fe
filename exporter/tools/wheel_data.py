"""Add the manual page and the shells' completions to the wheel: a hook that hatchling runs.

An installer copies them into the environment's `share/`, where `man` and the shells find them. The completion files
load the script from the installed command at the first Tab, so that they never differ from it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MANUAL = "share/man/man1/stallscope.1"
COMPLETIONS = {
    "share/bash-completion/completions/stallscope": 'eval "$(stallscope completion bash 2>/dev/null)"\n',
    "share/zsh/site-functions/_stallscope": "#compdef stallscope\n"
    'eval "$(stallscope completion zsh 2>/dev/null)" && _shtab_stallscope "$@"\n',
    "share/fish/vendor_completions.d/stallscope.fish": "stallscope completion fish 2>/dev/null | source\n",
}


class WheelData(BuildHookInterface[Any]):
    """Write the files into a temporary folder, which lasts until the wheel is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to a wheel, except to an editable one."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        for name, text in {MANUAL: _manual(Path(self.root)), **COMPLETIONS}.items():
            path = Path(self._folder.name, name.replace("/", "-"))
            path.write_text(text, encoding="utf-8")
            build_data["shared_data"][str(path)] = name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the folder."""
        if version != "editable":
            self._folder.cleanup()


def _manual(root: Path) -> str:
    """Return the manual page; it needs only the standard library."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STALLSCOPE"))}
    environment = {**kept, "PYTHONPATH": str(root / "exporter"), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-B", "-m", "stallscope", "man"]
    return subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=True).stdout
