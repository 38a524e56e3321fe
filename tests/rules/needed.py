"""Leave out the rules and series that a story does not need: promtool takes time for each of them at every step.

A rule is left out if it can't record anything from the story's series, or if nothing that the story expects reads it.
A series is left out if no rule that is left and nothing that the story expects reads it.
Rules that record numbers, such as thresholds, become input series, and an expression that reads one as a scalar has the
number: at every step, promtool writes and parses all expressions, which takes half of its time. Alerts whose text is
not expected have none: promtool would write it at every step, with all its queries.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from stallscope.lab.replay import rule_engine
from tests.promql_names import Selector, names_in
from tests.rules.layers import groups_of, selects

_STARTS = re.compile(r"\b(?:absent|absent_over_time|vector)\s*\(")
"""Matches an expression that may have a value where no series exists."""
_RECORDED = re.compile(r"\w+:\w[\w:]*")
"""Matches the names of recorded series in an alert's texts."""
_PATTERN = re.compile(r'__name__=~"([^"]+)"')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_NUMBER = r"vector\((-?[\d.]+(?:e-?\d+)?)\)"
_CONSTANT = re.compile(_NUMBER)
_LABELLED = re.compile(rf'label_replace\({_NUMBER}, "(\w+)", "(\w+)", "", ""\)')
_SCALAR = re.compile(r'scalar\((\w[\w:]*)\{(\w+)="(\w+)"\}\)')
_ALERTS = ("ALERTS", "ALERTS_FOR_STATE")

Labels = Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule of a file."""

    source: Mapping[str, Any]
    records: Sequence[str]
    """Names of its series."""
    labels: Labels
    """Those that it sets to the same value for all series."""
    reads: Sequence[Selector]
    """Series that it reads by name."""
    reads_matching: str
    """Matches the names of the other series that it reads."""
    in_texts: Sequence[Selector]
    """Series that an alert's texts query. No alert fires because of them."""
    constants: Sequence[Constant]
    """Its series, if it records nothing but numbers."""


class Constant(NamedTuple):
    """A series whose value never changes."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True)
class Needed:
    """Rules, constants and series that a story needs."""

    files: Sequence[Path]
    """Rule files, with the rules that are needed and do not record numbers alone."""
    constants: Sequence[Constant]
    """Series that the other rules record."""
    series: Collection[str]
    """Names and labels of the input that rules, queries and texts read."""


@cache
def rules_of(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a file."""
    return tuple(_rule(source) for group in groups_of(path) for source in group["rules"])


def _rule(source: Mapping[str, Any]) -> Rule:
    alert = source.get("alert")
    labels = {**source.get("labels", {}), **({"alertname": alert} if alert else {})}
    texts = " ".join(source.get("annotations", {}).values())
    return Rule(
        source,
        _ALERTS if alert else (source["record"],),
        {name: value for name, value in labels.items() if "{{" not in value},
        tuple(selector for selector in names_in(source["expr"]).selectors if selector.metric),
        "|".join(_PATTERN.findall(source["expr"])),
        tuple(Selector(name) for name in sorted({*_RECORDED.findall(texts)})),
        () if alert else tuple(_constants_of(source)),
    )


def _constants_of(source: Mapping[str, Any]) -> Iterator[Constant]:
    """Yield the series of a recording rule that records numbers alone; nothing for any other rule."""
    expression, labels = source["expr"].strip(), source.get("labels", {})
    if found := _CONSTANT.fullmatch(expression):
        yield Constant(source["record"], labels, float(found[1]))
    elif not _LABELLED.sub("", expression).replace(" or", "").strip():
        for value, label, text in _LABELLED.findall(expression):
            yield Constant(source["record"], {**labels, label: text}, float(value))


def with_needed_rules(document: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return promtool's test file with the series that its tests need, and copies of its rule files with such rules.

    Args:
        document: the test file.
        folder: where to put the copies.
    """
    tests = document["tests"]
    texts = {check["alertname"] for test in tests for check in test.get("alert_rule_test", ())}
    expressions = [check["expr"] for test in tests for check in test.get("promql_expr_test", ())]
    series = [each["series"] for test in tests for each in test.get("input_series", ())]
    found = needed(list(map(Path, document["rule_files"])), series, expressions, texts, folder)
    tests = [{**test, "input_series": list(_inputs(found, test))} for test in tests]
    return {**document, "rule_files": list(map(str, found.files)), "tests": tests}


def _inputs(found: Needed, test: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    """Yield the input series that are read, and the constants up to the last expectation."""
    yield from (each for each in test.get("input_series", ()) if each["series"] in found.series)
    if not found.constants:
        return
    checks = (*test.get("promql_expr_test", ()), *test.get("alert_rule_test", ()))
    end = max(rule_engine.in_seconds(check["eval_time"]) for check in checks)
    count = end // rule_engine.in_seconds(test["interval"]) + 1
    for name, labels, value in found.constants:
        yield {"series": rule_engine.selector(name, labels), "values": f"{value!r}+0x{count}"}


def needed(
    paths: Sequence[Path], series: Iterable[str], expressions: Iterable[str], texts: Collection[str], folder: Path
) -> Needed:
    """Write copies of rule files that hold only what is needed; return them, and the constants and series they read.

    Args:
        paths: the rule files.
        series: the input, with labels.
        expressions: queries of what the rules record.
        texts: names of the alerts whose labels and annotations are read.
        folder: where to put the copies.
    """
    rules = [rule for path in paths for rule in rules_of(path)]
    expressions = [*expressions, *(f'ALERTS{{alertname="{name}"}}' for name in texts)]
    wanted = {selector for each in expressions for selector in _named(names_in(each).selectors, each, rules)}
    series = list(series)
    read_and_fed = read(fed(rules, series), wanted, texts)
    evaluated = {rule for rule in read_and_fed if not rule.constants}
    constants = [each for rule in read_and_fed for each in rule.constants]
    varying = {name for rule in evaluated for name in rule.records} | {each.partition("{")[0] for each in series}
    fixed = [each for each in constants if each.name not in varying]
    folder.mkdir(exist_ok=True)
    copies = []
    for number, path in enumerate(paths):
        sources = [_copy_of(rule, texts, fixed) for rule in rules_of(path) if rule in evaluated]
        if sources:
            (group,) = groups_of(path)
            copy = folder / f"{number}-{path.name}"
            copy.write_text(json.dumps({"groups": [{**group, "rules": sources}]}), encoding="utf-8")
            copies.append(copy)
    return Needed(copies, constants, _read_series(series, evaluated, expressions, texts))


def _read_series(
    series: Iterable[str], rules: Iterable[Rule], expressions: Iterable[str], texts: Collection[str]
) -> frozenset[str]:
    """Return the series that a rule, an expression or the text of an alert reads."""
    selectors = defaultdict(set)
    patterns, annotations = [], []
    for rule in rules:
        for selector in rule.reads:
            selectors[selector.metric].add(selector)
        patterns.append(rule.reads_matching)
        if rule.source.get("alert") in texts:
            annotations += rule.source.get("annotations", {}).values()
    for expression in expressions:
        for selector in names_in(expression).selectors:
            selectors[selector.metric].add(selector)
            if not selector.metric:
                patterns.append("|".join(_PATTERN.findall(expression)) or ".*")
    pattern = re.compile("|".join(filter(None, patterns)) or r"\Z.")
    text = " ".join(annotations)

    def is_read(name: str, labels: Labels) -> bool:
        by_name = any(selects(selector, labels) for selector in selectors[name])
        return by_name or bool(pattern.fullmatch(name)) or name in text

    found = ((each, *each.partition("{")[::2]) for each in series)
    return frozenset(each for each, name, labels in found if is_read(name, dict(_LABEL.findall(labels))))


def _copy_of(rule: Rule, texts: Collection[str], constants: Sequence[Constant]) -> Mapping[str, Any]:
    """Return what promtool evaluates of a rule: with numbers for scalars, and with the text of an alert if expected."""
    copy = {**rule.source, "expr": _with_numbers(rule.source["expr"], constants)}
    if copy.get("alert") not in texts:
        copy.pop("annotations", None)
    return copy


def _with_numbers(expression: str, constants: Sequence[Constant]) -> str:
    """Return the expression with the number in place of each scalar that selects exactly one constant."""

    def number(match: re.Match[str]) -> str:
        name, label, value = match.groups()
        found = [each.value for each in constants if each.name == name and each.labels.get(label) == value]
        return repr(found[0]) if len(found) == 1 else match[0]

    return _SCALAR.sub(number, expression)


def _named(selectors: Iterable[Selector], expression: str, rules: Sequence[Rule]) -> Iterator[Selector]:
    """Yield the selectors by name; those without a name for each recorded name that may match."""
    patterns = _PATTERN.findall(expression)
    for selector in selectors:
        if selector.metric:
            yield selector
        else:
            names = {name for rule in rules for name in rule.records}
            yield from (Selector(name) for name in names if not patterns or re.fullmatch("|".join(patterns), name))


def fed(rules: Sequence[Rule], series: Iterable[str]) -> list[Rule]:
    """Return the rules that may record something, in their order.

    Those are constants, and what reads a series of the story, directly or through other rules. All others find what
    they find without any series: nothing, which `test_needed.py` proves.
    """
    constants = _constants(rules)
    found = {rule for rule in rules if rule not in constants and _STARTS.search(rule.source["expr"])}
    matching = {rule for rule in rules if rule.reads_matching}
    readers = defaultdict(list)
    for rule in rules:
        for selector in rule.reads:
            readers[selector.metric].append((selector, rule))
    new = {(name, tuple(_LABEL.findall(labels))) for name, _, labels in (each.partition("{") for each in series)}
    new |= {recorded for rule in found for recorded in _recorded(rule)}
    while new:
        name, labels = new.pop()
        more = {rule for selector, rule in readers[name] if rule not in found and selects(selector, dict(labels))}
        more |= {rule for rule in matching - found if re.fullmatch(rule.reads_matching, name)}
        found |= more
        new |= {recorded for rule in more for recorded in _recorded(rule)}
    return [rule for rule in rules if rule in constants or rule in found]


def _recorded(rule: Rule) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    labels = tuple(rule.labels.items())
    return ((name, labels) for name in rule.records)


def _constants(rules: Sequence[Rule]) -> set[Rule]:
    """Return the rules that read nothing but the series of such rules."""
    names: set[str] = set()
    while True:
        found = {rule for rule in rules if not rule.reads_matching and names.issuperset(_metrics(rule))}
        varying = {name for rule in rules if rule not in found for name in rule.records}
        more = {name for rule in found for name in rule.records} - varying
        if more == names:
            return found
        names = more


def _metrics(rule: Rule) -> set[str]:
    return {selector.metric for selector in rule.reads}


def read(rules: Sequence[Rule], selectors: Iterable[Selector], texts: Collection[str]) -> list[Rule]:
    """Return the rules whose series the selectors read, directly or through other rules, in their order.

    Args:
        rules: all of them.
        selectors: what is read.
        texts: names of the alerts whose texts count as well.
    """
    recorders = defaultdict(list)
    for rule in rules:
        for name in rule.records:
            recorders[name].append(rule)
    found: set[Rule] = set()
    new, done = set(selectors), set()
    while new:
        selector = new.pop()
        done.add(selector)
        for rule in recorders[selector.metric]:
            if rule not in found and selects(selector, rule.labels):
                found.add(rule)
                matching = (Selector(name) for name in recorders if re.fullmatch(rule.reads_matching, name))
                in_texts = rule.in_texts if rule.labels.get("alertname") in texts else ()
                new |= {*rule.reads, *in_texts, *matching} - done
    return [rule for rule in rules if rule in found]
