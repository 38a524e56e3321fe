"""Write every dashboard as JSON into `grafana/dashboards/`: `python -m grafana`, part of `make generate`."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from grafana.builders.dashboard import Dashboard

HERE = Path(__file__).parent
FOLDER = HERE / "dashboards"


def dashboards() -> dict[str, Dashboard]:
    """Every dashboard, by the name of its module: whichever lies beside this one."""
    names = sorted(found.name for found in iter_modules([str(HERE)]) if not found.ispkg and found.name != "__main__")
    return {name: import_module(f"grafana.{name}").dashboard() for name in names}


def pages() -> dict[str, str]:
    """What the files hold, by file name."""
    return {
        f"{dashboard.uid}.json": json.dumps(dashboard.json(), indent=1, ensure_ascii=False) + "\n"
        for dashboard in dashboards().values()
    }


def main() -> None:
    """Write the files, and remove those of dashboards that are no more."""
    FOLDER.mkdir(exist_ok=True)
    written = pages()
    for path in FOLDER.glob("*.json"):
        if path.name not in written:
            path.unlink()
    for name, page in written.items():
        (FOLDER / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
