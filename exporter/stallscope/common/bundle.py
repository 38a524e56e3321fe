"""Where the bundle's folders are: rules and scrape configuration, alerts and runbooks, dashboards.

The wheel has them as `stallscope/bundle/<folder>`, a checkout at its top level.
"""

from __future__ import annotations

from pathlib import Path

RUNBOOKS = "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks"
"""Address of the runbooks: one page for each alert, `NAME.md`. `make runbooks` changes it everywhere."""
FOLDERS = ("prometheus", "alerts", "grafana")

_PACKAGE = Path(__file__).parents[1]


def bundle_folder(name: str, package: Path = _PACKAGE) -> Path:
    """Find one of `FOLDERS`.

    Args:
        name: the folder's name.
        package: the folder of the package `stallscope`.

    Raises:
        ValueError: the bundle has no folder of that name.
        FileNotFoundError: neither the package nor a checkout around it has the folder.
    """
    if name not in FOLDERS:
        raise ValueError(f"the bundle has no folder {name!r} (there are {', '.join(FOLDERS)})")
    installed = package / "bundle" / name
    # exporter/stallscope/ is two levels below a checkout's top; pyproject.toml distinguishes it from other folders.
    checkout = package.parent.parent
    if installed.is_dir():
        return installed
    if (checkout / "pyproject.toml").is_file() and (checkout / name).is_dir():
        return checkout / name
    raise FileNotFoundError(f"the bundle's folder {name}/ is missing from {package}; install stallscope again")
