"""Layers of the rule files, and which file reads which series of which other file.

`python -m tests.rules.layers` (part of `make generate`) draws the layers in `prometheus/README.md`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from stallscope.lab.replay import rule_files
from tests.promql_names import Matcher, Selector, names_in

_PROMETHEUS = Path(__file__).parents[2] / "prometheus"
_FILES = {path.stem: path for path in sorted((_PROMETHEUS / "rules").glob("*.yml"))}
ADAPTERS = tuple(stem for stem in _FILES if stem.startswith("canonical"))
"""Files that record the series of other exporters under Stallscope's names. They read one another."""
LAYERS: Mapping[str, tuple[str, ...]] = {
    "constants": rule_files.LAYERS["constants"],
    "adapters": ADAPTERS,
    **{name: stems for name, stems in rule_files.LAYERS.items() if name != "constants"},
}
"""Files by layer, in the order of evaluation, the adapters included."""
ORDER = tuple(stem for stems in LAYERS.values() for stem in stems)
README = _PROMETHEUS / "README.md"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times as fast where PyYAML comes with libyaml, as its wheels do."""
_BEGIN = "<!-- Layers: generated from the rule files by `make generate`; do not edit. -->\n"
_END = "<!-- End of the layers. -->\n"


class Read(NamedTuple):
    """A series that a file reads."""

    file: str
    recorded_by: str
    series: str


@cache
def groups_of(path: Path) -> list[dict[str, Any]]:
    """Return the groups of a rule file."""
    groups: list[dict[str, Any]] = yaml.load(path.read_text(encoding="utf-8"), LOADER)["groups"]
    return groups


def group(stem: str) -> Mapping[str, Any]:
    """Return the one group of a file."""
    (only,) = groups_of(_FILES[stem])
    return only


@cache
def reads() -> frozenset[Read]:
    """Return every series that a file reads from another file."""
    recorded = defaultdict(list)
    for stem in _FILES:
        for rule in group(stem)["rules"]:
            recorded[rule["record"]].append((stem, rule.get("labels", {})))
    return frozenset(
        Read(stem, other, selector.metric)
        for stem in _FILES
        for rule in group(stem)["rules"]
        for selector in names_in(rule["expr"]).selectors
        for other, labels in recorded[selector.metric]
        if other != stem and selects(selector, labels)
    )


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return False if a matcher rules out the labels that a rule sets."""
    return all(_matches(matcher, labels[matcher.label]) for matcher in selector.matchers if matcher.label in labels)


def _matches(matcher: Matcher, value: str) -> bool:
    if matcher.operator in ("=", "!="):
        return (value == matcher.value) == (matcher.operator == "=")
    return bool(re.fullmatch(matcher.value, value)) == (matcher.operator == "=~")


def picture() -> str:
    """Return the layers as a Mermaid diagram. An arrow has the number of series that a layer reads from another."""
    layer = {stem: name for name, stems in LAYERS.items() for stem in stems}
    series = defaultdict(set)
    for read in reads():
        series[layer[read.recorded_by], layer[read.file]].add(read.series)
    return "\n".join(["```mermaid", *_lines(series), "```", ""])


def _lines(series: Mapping[tuple[str, str], set[str]]) -> Iterator[str]:
    yield "flowchart TB"
    for name, stems in LAYERS.items():
        yield f'  {name}["<b>{name}</b><br/>{", ".join(stems)}"]'
    position = list(LAYERS).index
    for source, reader in sorted(series, key=lambda pair: (position(pair[0]), position(pair[1]))):
        if source not in (reader, "constants"):  # Every layer reads the thresholds.
            yield f"  {source} -->|{len(series[source, reader])}| {reader}"


def readme() -> str:
    """Return `prometheus/README.md` with the current picture."""
    before, begin, rest = README.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert begin, f"{README}: no line {_BEGIN.strip()!r}"
    assert end, f"{README}: no line {_END.strip()!r}"
    return before + begin + picture() + end + after


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")
