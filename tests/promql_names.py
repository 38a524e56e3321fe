"""Find the metric and label names in PromQL, so that rules, alerts and dashboards can be held to the catalogue.

Not a parser: strings, durations and numbers are removed, and words are classified by the next character. Good for
the expressions of this bundle, with Grafana's variables in them.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

_KEYWORDS = frozenset(
    (
        *("and", "or", "unless", "bool", "offset", "atan2", "inf", "nan", "start", "end"),
        *("by", "without", "on", "ignoring", "group_left", "group_right"),
    )
)
_COMMENT = re.compile(r"(?m)#.*$")
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`")
_RANGE = re.compile(r"\[[^\]]*\]")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)", re.IGNORECASE)
_SELECTOR = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)?\s*\{(?P<matchers>[^{}]*)\}")
_MATCHER = re.compile(r"(?P<label>[A-Za-z_]\w*)\s*(?P<operator>=~|!~|!=|=)\s*(?P<string>\d+)§")
_NUMBER = re.compile(r"(?<![\w:$])\d[\w.]*")
_VARIABLE = re.compile(r"\$\{?\w+(?::\w+)?\}?")
_NAME = re.compile(r"(?<![\w:])[A-Za-z_:][\w:]*(?P<call>\s*\()?")


class Matcher(NamedTuple):
    """One condition of a selector."""

    label: str
    operator: str
    value: str


class Selector(NamedTuple):
    """A metric name, empty where only labels select, and its conditions."""

    metric: str
    matchers: tuple[Matcher, ...] = ()


class Names(NamedTuple):
    """Names that an expression reads."""

    selectors: tuple[Selector, ...]
    """In their order; a metric without braces has no matchers."""
    grouping_labels: frozenset[str]
    """Labels in by, without, on, ignoring, group_left and group_right."""

    @property
    def metrics(self) -> frozenset[str]:
        """Every metric name."""
        return frozenset(selector.metric for selector in self.selectors if selector.metric)


@cache
def names_in(expression: str) -> Names:
    """Find the names in one expression."""
    strings: list[str] = []

    def set_aside(match: re.Match[str]) -> str:
        strings.append(match.group()[1:-1])
        return f" {len(strings) - 1}§ "

    selectors: list[tuple[int, Selector]] = []
    labels: set[str] = set()

    def take_grouping(match: re.Match[str]) -> str:
        labels.update(label.strip() for label in match.group(1).split(",") if label.strip())
        return _blank(match)

    def take_selector(match: re.Match[str]) -> str:
        matchers = tuple(
            Matcher(found["label"], found["operator"], strings[int(found["string"])])
            for found in _MATCHER.finditer(match["matchers"])
        )
        by_name = [matcher.value for matcher in matchers if matcher.label == "__name__" and matcher.operator == "="]
        others = tuple(matcher for matcher in matchers if matcher.label != "__name__")
        selectors.append((match.start(), Selector(match["name"] or "".join(by_name), others)))
        return _blank(match)

    # Strings first: a hash in one begins no comment.
    text = _COMMENT.sub("", _STRING.sub(set_aside, expression))
    text = _RANGE.sub(_blank, text)
    text = _GROUPING.sub(take_grouping, text)
    text = _SELECTOR.sub(take_selector, text)
    text = _NUMBER.sub(_blank, _VARIABLE.sub(_blank, text))
    selectors += [
        (match.start(), Selector(match.group()))
        for match in _NAME.finditer(text)
        if not match["call"] and match.group().lower() not in _KEYWORDS
    ]
    return Names(tuple(selector for _position, selector in sorted(selectors)), frozenset(labels))


def _blank(match: re.Match[str]) -> str:
    """Keep positions, so that order survives."""
    return " " * len(match.group())
