"""Write every dashboard as JSON into `grafana/dashboards/`: `python -m grafana`, part of `make generate`."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from grafana.builders import Json
from grafana.builders.dashboard import Dashboard

HERE = Path(__file__).parent
FOLDER = HERE / "dashboards"
_INNERMOST = re.compile(r"\{\n([^{}\[\]]*)\n *\}")
"""A JSON object without nested objects, lists, or braces in its strings. Line breaks occur only between values."""


def dashboards() -> dict[str, Dashboard]:
    """Return every dashboard by the name of its module, for all modules in this folder."""
    names = sorted(found.name for found in iter_modules([str(HERE)]) if not found.ispkg and found.name != "__main__")
    return {name: import_module(f"grafana.{name}").dashboard() for name in names}


def pages() -> dict[str, str]:
    """Return the text of each dashboard file by file name."""
    return {f"{dashboard.uid}.json": _text(dashboard.json()) for dashboard in dashboards().values()}


def _text(page: Json) -> str:
    """Return a dashboard as JSON without indentation, with objects of plain values and closing brackets on one line.

    `kubectl apply` stores the whole ConfigMap, escaped, in an annotation of at most 256 KiB.
    """
    text = json.dumps(page, indent=0, separators=(",", ":"), ensure_ascii=False)
    text = _INNERMOST.sub(lambda found: f"{{{''.join(found[1].splitlines())}}}", text)
    return text.replace("\n}", "}").replace("\n]", "]") + "\n"


def main() -> None:
    """Write the files, and remove files of dashboards that no longer exist."""
    FOLDER.mkdir(exist_ok=True)
    written = pages()
    for path in FOLDER.glob("*.json"):
        if path.name not in written:
            path.unlink()
    for name, page in written.items():
        (FOLDER / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
