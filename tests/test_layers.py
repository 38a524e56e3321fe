"""The layers of the package: which house and which unit may import which, and which libraries.

ARCHITECTURE.md has the picture.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "exporter" / "stallscope"
HOUSES: Mapping[str, frozenset[str]] = {
    house: frozenset(others.split())
    for house, others in {
        "training": "common",
        "model": "common protocol",
        "node": "common model protocol",
        "lab": "__init__ common model node training",
        "tools": "common model protocol",
    }.items()
}
"""Which houses and units the units of a house may import, besides those of their own house."""
BEYOND: Mapping[str, frozenset[str]] = {
    unit: frozenset(others.split())
    for unit, others in {
        "capacity": "drivers owners",  # reads the GPUs of this machine
        "cli": "lab node training",  # starts the exporter, the shim and the stack
        "doctor": "collectors configuration drivers owners shim",  # checks them
        "summary": "shim",  # reads what it stored
    }.items()
}
"""Units of `tools` that import more, and what."""
MOST_LINES = 20_000
"""Lines of a house, so that a reader can know it."""
HOUSES_WITHOUT_CIRCLES = ("training",)
"""Houses whose modules are free of circles. In `node`, two pairs of modules import each other."""
PUBLIC = frozenset({"analysis", "integrations"})
"""Names of units that users import, beside the houses: each is the same module as the unit."""
MAY_IMPORT: Mapping[str, frozenset[str]] = {
    unit: frozenset(others.split())
    for unit, others in {
        "__init__": "analysis common integrations shim",
        "__main__": "cli",
        "analysis": "catalogue clients common",
        "capacity": "catalogue clients common drivers owners",
        "catalogue": "",
        "cli": "analysis capacity catalogue clients collectors common configuration doctor drivers hangs intake otlp"
        " protocol replay report sampling shim simulation stack summary terminal view web",
        "clients": "catalogue common",
        "collectors": "catalogue common drivers owners sampling",
        "common": "",
        "configuration": "common protocol",
        "doctor": "catalogue clients collectors common configuration drivers owners protocol shim",
        "drivers": "",
        "intake": "catalogue common protocol sampling",
        "hangs": "common view",
        "integrations": "protocol shim",
        "otlp": "catalogue common configuration sampling",
        "owners": "common drivers",
        "protocol": "",
        "replay": "clients common stack",
        "report": "analysis catalogue clients common view",
        "sampling": "catalogue common",
        "shim": "common protocol",
        "simulation": "drivers protocol sampling shim",
        "stack": "__init__ clients common simulation view",
        "summary": "catalogue clients common protocol shim view",
        "terminal": "catalogue clients common view",
        "view": "catalogue clients common protocol",
        "web": "catalogue common configuration protocol sampling view",
    }.items()
}
WITHIN: Mapping[str, frozenset[str]] = {
    part: frozenset(others.split())
    for part, others in {
        # The interface knows no vendor, and no vendor another.
        "drivers.nvidia": "drivers",
        "drivers.amd": "drivers",
        "drivers": "",
        # Only the two collectors of a vendor's GPUs know the vendor.
        "collectors.gpu": "collectors",
        # The server knows nothing of what it serves.
        "web.http": "",
        "web.status": "web web.http",
    }.items()
}
"""Parts of a unit, and which other parts of it each may import."""
LIBRARIES: Mapping[str, frozenset[str]] = {
    "bcrypt": frozenset({"web"}),
    "h11": frozenset({"web"}),
    "h2": frozenset({"owners"}),
    "jinja2": frozenset({"report"}),
    "matplotlib": frozenset({"report"}),
    "opentelemetry": frozenset({"otlp"}),
    "numpy": frozenset({"analysis", "report", "stack"}),
    "pandas": frozenset({"analysis", "report"}),
    "psutil": frozenset({"collectors", "stack"}),
    "pyarrow": frozenset({"analysis"}),
    "pynvml": frozenset({"drivers"}),
    "requests": frozenset({"clients"}),
    "rich": frozenset({"cli", "terminal"}),
    "shtab": frozenset({"cli"}),
    "textual": frozenset({"terminal"}),
    "torch": frozenset({"shim"}),  # where the training process has it, and only once it is needed
    "urllib3": frozenset({"clients"}),  # beneath requests, with errors that it lets through
    "yaml": frozenset({"cli", "configuration", "doctor", "stack", "web"}),
}
"""Units that may import a library. A unit that is not listed here uses the standard library alone."""


@cache
def imports() -> tuple[tuple[str, str, str], ...]:
    """Every import as importing module, imported module and file."""
    return tuple(_imports())


def _imports() -> Iterator[tuple[str, str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        parts = place.with_suffix("").parts
        module = in_house(".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{place} imports relatively"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                yield module, name, str(place)


def sources(house: str) -> list[tuple[str, Path]]:
    """The modules of a house with their files, packages as such."""
    found = []
    for path in sorted((PACKAGE / house).rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def imported_by(path: Path) -> Iterator[str]:
    """The names that a file imports, anywhere in it; names from a module after the module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str, modules: AbstractSet[str]) -> str | None:
    """The module that an imported name is or belongs to, if it is one of these."""
    return name if name in modules else next(iter({name.rpartition(".")[0]} & modules), None)


def in_house(module: str) -> str:
    """A module's name within its house; `__init__` for the public names."""
    first, _, rest = module.partition(".")
    return rest if first in HOUSES else module if first in {"__main__", "common"} else "__init__"


def unit_of(module: str) -> str:
    """The unit that a module of the package belongs to."""
    return module.partition(".")[0]


def own(module: str) -> str | None:
    """An imported module without the package's name; None for a library."""
    package, _, rest = module.partition(".")
    if package != "stallscope":
        return None
    return in_house(rest)


def part_of(module: str) -> str | None:
    """The part of `WITHIN` that a module belongs to."""
    parts = module.split(".")
    return next((part for n in (2, 1) if (part := ".".join(parts[:n])) in WITHIN), None)


def modules(folder: Path) -> set[str]:
    """The modules and packages of a folder."""
    return {each.stem for each in folder.iterdir() if each.suffix == ".py" or (each / "__init__.py").exists()}


@cache
def houses() -> Mapping[str, str]:
    """The house of each unit; a unit without one is its own."""
    top = {unit: unit for unit in modules(PACKAGE) - set(HOUSES) - PUBLIC}
    return top | {unit: house for house in HOUSES for unit in modules(PACKAGE / house) - {"__init__"}}


def test_every_unit_has_its_rule() -> None:
    assert set(houses()) == set(MAY_IMPORT)


@pytest.mark.parametrize("house", HOUSES)
def test_a_house_imports_only_what_stands_beneath_it(house: str) -> None:
    for unit in modules(PACKAGE / house) - {"__init__"}:
        allowed = {house, *HOUSES[house], *BEYOND.get(unit, ())}
        assert not {other for other in MAY_IMPORT[unit] if not {other, houses()[other]} & allowed}, unit


@pytest.mark.parametrize("house", HOUSES)
def test_a_reader_can_know_a_house(house: str) -> None:
    lines = sum(path.read_text().count("\n") for path in (PACKAGE / house).rglob("*.py"))
    assert 1000 < lines <= MOST_LINES


@pytest.mark.parametrize("name", ["analysis", "integrations.keras", "integrations.pytorch", "integrations.jax"])
def test_a_public_name_is_the_same_module_as_its_unit(name: str) -> None:
    unit = name.partition(".")[0]
    program = (
        f"import sys, stallscope.{name} as public\n"
        f"assert public is sys.modules['stallscope.{houses()[unit]}.{name}'] is sys.modules['stallscope.{name}']"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("unit", MAY_IMPORT)
def test_a_unit_imports_exactly_what_its_rule_names(unit: str) -> None:
    found = {
        unit_of(other) for module, name, _ in imports() if unit_of(module) == unit and (other := own(name)) is not None
    } - {unit}
    assert found == MAY_IMPORT[unit]


def test_the_table_of_units_lists_what_each_imports() -> None:
    table = (
        (ROOT / "ARCHITECTURE.md").read_text().partition("## Houses and units of the package")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| `(\w+)/?` \|.*\|([^|]*)\|$", table, re.MULTILINE)
    assert {unit: frozenset(re.findall(r"`(\w+)`", others)) for unit, others in rows} == MAY_IMPORT


def test_units_import_each_other_in_no_circle() -> None:
    TopologicalSorter(MAY_IMPORT).prepare()


@pytest.mark.parametrize("house", HOUSES_WITHOUT_CIRCLES)
def test_modules_of_a_house_import_each_other_in_no_circle(house: str) -> None:
    """Imports inside of functions and for types count as well: they hide a circle, and do not resolve it."""
    names = {name for name, _ in sources(house)}
    graph = {
        name: {found for imported in imported_by(path) if (found := module_of(imported, names)) not in (None, name)}
        for name, path in sources(house)
    }
    assert sum(map(len, graph.values())) > len(graph)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("part", WITHIN)
def test_a_part_of_a_unit_imports_no_more_than_it_may(part: str) -> None:
    strangers = {
        (place, other)
        for module, name, place in imports()
        if part_of(module) == part
        and (other := own(name)) is not None
        and unit_of(other) == unit_of(part)
        and (part_of(other) or unit_of(other)) not in {part, *WITHIN[part]}
    }
    assert not strangers


def test_each_library_stays_in_its_units() -> None:
    strangers = {
        (place, library)
        for module, name, place in imports()
        if (library := name.partition(".")[0]) not in sys.stdlib_module_names | {"stallscope"}
        # What an integration is for.
        and unit_of(module) != "integrations"
        and unit_of(module) not in LIBRARIES.get(library, frozenset())
    }
    assert not strangers
