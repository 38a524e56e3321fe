"""External programs of the stack, found on PATH."""

from __future__ import annotations

import shutil
from typing import NamedTuple


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
        path: folders to search, in the form of `PATH`; None for `PATH` itself.
    """

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
