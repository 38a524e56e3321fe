"""Which room of the package may know which, and which libraries: what a reader can rely on."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "exporter" / "stallscope"
MAY_IMPORT: Mapping[str, frozenset[str]] = {
    room: frozenset(others.split())
    for room, others in {
        "__init__": "shim version",
        "__main__": "cli",
        "amd": "gpus",
        "analysis": "catalogue causes readable verdict_words version",
        "bundle": "",
        # Of the terminal only the reading of an exporter's page.
        "capacity": "bundle catalogue gpus owners readable terminal",
        "catalogue": "",
        "causes": "",
        "cli": "analysis bundle capacity causes configuration doctor gpus intake logs nvidia readable sampling shim"
        " simulation sources stack terminal trace_request version web",
        "configuration": "logs readable report web",
        # Of the terminal only the reading of an exporter's page.
        "doctor": "analysis bundle catalogue configuration gpu_losses gpus nvidia owners readable report shim sources"
        " terminal version",
        # A source of GPUs is a source; of the other sources they know nothing.
        "gpus": "catalogue sampling sources",
        "integrations": "shim",
        "file_mark": "",
        "file_trust": "",
        "gpu_losses": "",
        "intake": "catalogue file_mark file_trust report sampling signature trace_request",
        "logs": "",
        "nvidia": "gpus",
        "owners": "gpus",
        "phase_shares": "catalogue",
        "readable": "",
        "report": "vocabulary",
        "sampling": "catalogue version",
        "shim": "file_trust report signature trace_request version vocabulary",
        "signature": "",
        "simulation": "gpus report sampling shim",
        "sources": "amd catalogue gpus nvidia owners sampling",
        "stack": "__init__ analysis bundle simulation verdict_words",
        "terminal": "analysis catalogue causes gpu_losses phase_shares readable verdict_words version",
        "trace_request": "",
        "verdict_words": "analysis causes readable",
        "version": "",
        "vocabulary": "",
        "web": "analysis catalogue causes configuration file_mark gpu_losses intake phase_shares readable report"
        " sampling trace_request verdict_words version",
    }.items()
}
LIBRARIES: Mapping[str, frozenset[str]] = {
    "bcrypt": frozenset({"web"}),
    "cheroot": frozenset({"web"}),
    "h2": frozenset({"owners"}),
    "jinja2": frozenset({"analysis"}),
    "matplotlib": frozenset({"analysis"}),
    "numpy": frozenset({"analysis", "stack"}),
    "pandas": frozenset({"analysis"}),
    "psutil": frozenset({"sources", "stack"}),
    "pyarrow": frozenset({"analysis"}),
    "pynvml": frozenset({"nvidia"}),
    "requests": frozenset({"analysis", "doctor", "stack"}),
    "rich": frozenset({"cli", "terminal"}),
    "shtab": frozenset({"cli"}),
    "textual": frozenset({"terminal"}),
    "torch": frozenset({"shim"}),  # where the training process has it, and only once it is needed
    "urllib3": frozenset({"analysis"}),  # beneath requests, with errors that it lets through
    "yaml": frozenset({"configuration", "doctor", "stack", "web"}),
}
"""Rooms that may know a library; what stands here for no room is of the standard library alone."""


@cache
def imports() -> tuple[tuple[str, str, str], ...]:
    """Every import as room, module and file; those of frameworks in `shim/integrations/` aside."""
    return tuple(_imports())


def _imports() -> Iterator[tuple[str, str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        room = place.parts[0] if len(place.parts) > 1 else place.stem
        if place.parts[:2] == ("shim", "integrations"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{place} imports relatively"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                yield room, name, str(place)


def other_room(module: str) -> str | None:
    """The room that a module lies in; None for a library."""
    package, _, rest = module.partition(".")
    if package != "stallscope":
        return None
    first = rest.partition(".")[0]
    return first if first in MAY_IMPORT else "__init__"


def test_every_room_has_its_rule() -> None:
    places = [each for each in PACKAGE.iterdir() if each.suffix == ".py" or (each / "__init__.py").exists()]
    assert {each.stem for each in places} == set(MAY_IMPORT)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_knows_no_more_than_it_may(room: str) -> None:
    strangers = {
        (place, other)
        for mine, module, place in imports()
        if mine == room and (other := other_room(module)) not in (None, room) and other not in MAY_IMPORT[room]
    }
    assert not strangers


def test_gpus_know_no_source_but_what_a_source_is() -> None:
    known = {module for room, module, _ in imports() if room == "gpus" and module.startswith("stallscope.sources")}
    assert known
    assert all(module.startswith("stallscope.sources.base.") for module in known)


def test_each_library_stays_in_its_rooms() -> None:
    strangers = {
        (place, library)
        for room, module, place in imports()
        if (library := module.partition(".")[0]) not in sys.stdlib_module_names | {"stallscope"}
        and room not in LIBRARIES.get(library, frozenset())
    }
    assert not strangers
