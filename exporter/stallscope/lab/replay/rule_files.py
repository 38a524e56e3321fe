"""The bundle's rule files in the order of their layers, in which an engine must evaluate them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stallscope.common.bundle import bundle_folder

LAYERS: Mapping[str, tuple[str, ...]] = {
    "constants": ("thresholds", "causes"),
    "subjects": ("subjects",),
    "signals": ("trends", "signals"),
    "causes": (
        *("limits", "hardware", "xid", "host", "ranks", "input", "device", "goodput", "hours"),
        *("steps", "time", "use", "memory"),
    ),
    "verdicts": ("verdicts",),
    "totals": ("totals",),
}
"""Files by layer. A file reads only files before it, and itself. The adapters for other exporters are left out."""


def rule_files(folder: Path | None = None) -> list[Path]:
    """Return the files of recording rules layer by layer, then those of alerts.

    Args:
        folder: a changed copy of the bundle's folders `prometheus` and `alerts`; None for the bundle's own.
    """
    rules = (folder / "prometheus" if folder else bundle_folder("prometheus")) / "rules"
    alerts = folder / "alerts" if folder else bundle_folder("alerts")
    return [
        *(rules / f"{stem}.yml" for stems in LAYERS.values() for stem in stems),
        *(path for path in sorted(alerts.glob("*.yml")) if path.name != "alertmanager.yml"),
    ]


def group_of(path: Path) -> str:
    """Return the name of the one group in a file of `rule_files`."""
    layer = "" if path.parent.name == "rules" else "alerts-"
    return f"stallscope-{layer}{path.stem.replace('_', '-')}"
