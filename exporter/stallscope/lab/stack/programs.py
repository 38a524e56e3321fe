"""External programs of the stack, found on PATH and where they are often installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from stallscope.lab.stack.errors import StackError

LEAST_VERSION = (2, 42)
"""The oldest Prometheus that reads the bundle's rules."""
_FOLDERS = (
    str(Path(sys.executable).parent),
    "~/.local/bin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/sbin",
    "/opt/prometheus",
    "/opt/alertmanager",
)
"""Folders that are searched after those of PATH: this environment's own, and those of installations by hand."""
_SECONDS = 10.0


class Programs(NamedTuple):
    """Paths of programs; None if one is not installed."""

    prometheus: str | None
    alertmanager: str | None
    promtool: str | None
    amtool: str | None
    grafana: str | None

    @property
    def missing(self) -> tuple[str, ...]:
        """Required programs that are not installed."""
        needed = {"prometheus": self.prometheus, "alertmanager": self.alertmanager}
        return tuple(name for name, path in needed.items() if path is None)


def find_programs(path: str | None = None) -> Programs:
    """Find the programs.

    Args:
        path: folders to search, in the form of `PATH`; None for those of `PATH` and the usual ones.
    """
    if path is None:
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(os.path.expanduser, _FOLDERS)])

    def first(*names: str) -> str | None:
        return next((found for name in names if (found := shutil.which(name, path=path))), None)

    return Programs(
        prometheus=first("prometheus"),
        # Debian and Ubuntu name the program after the package.
        alertmanager=first("alertmanager", "prometheus-alertmanager"),
        promtool=first("promtool"),
        amtool=first("amtool"),
        grafana=first("grafana-server"),
    )


def require_version(prometheus: str) -> None:
    """Check that Prometheus runs and is new enough.

    Raises:
        StackError: it is not.
    """
    try:
        done = subprocess.run([prometheus, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False)
        output = done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        output = str(error)
    least = ".".join(map(str, LEAST_VERSION))
    found = re.search(r"version (\d+)\.(\d+)\S*", output)
    if found is None:
        first = (output.strip().splitlines() or ["no output"])[0]
        raise StackError(
            f"{prometheus}: not a Prometheus server ({first[:100]}); put Prometheus {least} or newer on PATH"
        )
    if (int(found[1]), int(found[2])) < LEAST_VERSION:
        raise StackError(f"{prometheus}: {found[0]} is too old; put Prometheus {least} or newer before it on PATH")
