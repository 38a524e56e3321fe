"""The programs that the stack runs besides its own, found on PATH."""

from __future__ import annotations

import shutil
from typing import NamedTuple


class Programs(NamedTuple):
    """Paths of programs; None where one is not installed."""

    prometheus: str | None
    alertmanager: str | None
    promtool: str | None
    amtool: str | None
    grafana: str | None

    @property
    def missing(self) -> tuple[str, ...]:
        """Those that the stack can't do without."""
        needed = {"prometheus": self.prometheus, "alertmanager": self.alertmanager}
        return tuple(name for name, path in needed.items() if path is None)


def find_programs(path: str | None = None) -> Programs:
    """Look for the programs.

    Args:
        path: folders to look in, as in `PATH`, which it is by default.
    """

    def first(*names: str) -> str | None:
        return next((found for name in names if (found := shutil.which(name, path=path))), None)

    return Programs(
        prometheus=first("prometheus"),
        # Debian and Ubuntu call it by the package's name.
        alertmanager=first("alertmanager", "prometheus-alertmanager"),
        promtool=first("promtool"),
        amtool=first("amtool"),
        grafana=first("grafana-server"),
    )
