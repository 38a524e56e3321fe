"""Evaluate rule files over series of the past, in Prometheus' own engine.

The engine is the one in promtool's unit tests: the only way to evaluate chains of rules over past hours at speed. A
test that expects no samples makes promtool print those that it got: that report is read here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from stallscope.lab.replay.series import Series

_LONGEST_SECONDS = 3600


class EngineError(RuntimeError):
    """promtool did not run the rules, or its report can't be read."""


class Sample(NamedTuple):
    """A series at one moment; `labels` has its name under `__name__`."""

    labels: Mapping[str, str]
    value: float

    @property
    def name(self) -> str:
        """Name of the series; empty for the result of an expression."""
        return self.labels.get("__name__", "")


@dataclass(frozen=True)
class Alert:
    """An alert's words, as a person gets them."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


Answers = dict[int, list[Sample]]
"""Samples by second since the start."""


@dataclass(frozen=True)
class Said:
    """The requested series."""

    samples: Mapping[str, Answers]
    """By expression."""
    words: Mapping[str, Mapping[int, Sequence[Alert]]]
    """Alerts that fire, by name and second."""


def evaluate(
    series: Sequence[Series],
    expressions: Mapping[str, Sequence[int]],
    *,
    promtool: str,
    rule_files: Sequence[Path],
    groups: Sequence[str],
    scrape_seconds: int,
    evaluation_seconds: int,
    words: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> Said:
    """Evaluate all rules from the series' start to the last requested moment.

    Args:
        series: What was scraped.
        expressions: PromQL, each with the seconds at which its value is wanted.
        promtool: Path of the program.
        rule_files: The files whose rules are evaluated.
        groups: The order in which the groups of one moment are evaluated.
        scrape_seconds: Time between two scrapes.
        evaluation_seconds: Time between two evaluations.
        words: Names of alerts, each with the seconds at which its text is wanted.

    Raises:
        EngineError: A rule file, a series or an expression was refused, or promtool was killed.
    """
    document = {
        "rule_files": [str(path) for path in rule_files],
        "evaluation_interval": f"{evaluation_seconds}s",
        "group_eval_order": list(groups),
        "tests": [
            {
                "interval": f"{scrape_seconds}s",
                "input_series": [
                    {"series": selector(each.name, each.labels), "values": notation(each.values)} for each in series
                ],
                "promql_expr_test": [
                    {"expr": expression, "eval_time": f"{second}s", "exp_samples": []}
                    for expression, seconds in expressions.items()
                    for second in seconds
                ],
                # An impossible alert is expected: promtool prints nothing for a met expectation, here for no alerts.
                "alert_rule_test": [
                    {
                        "alertname": name,
                        "eval_time": f"{second}s",
                        "exp_alerts": [{"exp_labels": {"unexpected": "yes"}}],
                    }
                    for name, seconds in words.items()
                    for second in seconds
                ],
            }
        ],
    }
    report = _report(promtool, document)
    samples: dict[str, Answers] = {
        expression: {second: [] for second in seconds} for expression, seconds in expressions.items()
    }
    for expression, second, found in parse_samples(report):
        samples[expression][second] = found
    alerts: dict[str, dict[int, Sequence[Alert]]] = {
        name: dict.fromkeys(seconds, ()) for name, seconds in words.items()
    }
    for name, second, firing in parse_alerts(report):
        alerts[name][second] = firing
    return Said(samples, alerts)


def _report(promtool: str, document: object) -> str:
    """Parse promtool's report on a test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.test.yml"
        path.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML, and a hundred times faster to write
        done = subprocess.run(
            [promtool, "test", "rules", str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST_SECONDS,
            env={**os.environ, "GOGC": "400"},  # a quarter less time for some memory
        )
    report = done.stdout + done.stderr
    refused = re.search(r"^.*\berr: .*$", report, re.MULTILINE)
    if done.returncode < 0:
        raise EngineError(f"signal {-done.returncode} ended it; if memory ran out, judge a shorter recording")
    if refused or (done.returncode and not re.search(r"^ +got:", report, re.MULTILINE)):
        raise EngineError(refused.group() if refused else report[:2000])
    return report


def selector(name: str, labels: Mapping[str, str]) -> str:
    """A series as promtool and PromQL write it; labels without a value are left out, as the exposition does."""
    return f"{name}{{{','.join(f'{label}={json.dumps(value)}' for label, value in labels.items() if value)}}}"


def notation(values: Sequence[float | None]) -> str:
    """Values in promtool's notation: runs of equal values, and of whole numbers at equal steps, in one word each.

    None is a series that the scrape does not have: at first Prometheus marks it as ended, then there is nothing.
    Not a number is a scrape that Prometheus did not make: there is nothing, and no mark.
    """
    words: list[str] = []
    position, count = 0, len(values)
    while position < count:
        value, end = values[position], position + 1
        if value is None:
            while end < count and values[end] is None:
                end += 1
            missing = end - position
            if position:
                words.append("stale")
                missing -= 1
            if missing:
                words.append(f"_x{missing}")
        elif value != value:
            words.append("_")
        else:
            following = values[end] if end < count else None
            value, step = float(value), 0.0 if following is None else float(following) - value
            # promtool adds the step again and again: exact for whole numbers only.
            if step == 0 or (value.is_integer() and step.is_integer() and abs(value) < 2**50):
                while end < count and values[end] == value + step * (end - position):
                    end += 1
            if end - position > 2:
                words.append(f"{value!r}{'+' if step >= 0 else '-'}{abs(step)!r}x{end - position - 1}")
            else:
                end = position + 1
                words.append(repr(value))
        position = end
    return " ".join(words)


_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LABEL = re.compile(rf'("?)([^\s",={{}}]+)\1=({_QUOTED})')
_SAMPLE = re.compile(
    rf'([a-zA-Z_:][\w:]*)?(\{{(?:{_QUOTED}|[^"{{}}])*\}}) ([-+]?(?:Inf|[\d.]+(?:[eE][-+]?\d+)?)|NaN)(?=, |$)'
)
_GOT = re.compile(rf"expr: ({_QUOTED}), time: ([^,\s]+),\s+exp: ?(?:nil|)\s+got: (.*)")
_ALERTS = re.compile(
    r"alertname: (\S+), time: ([^,\s]+),\s+exp:\[.*?\n\s+got:\[(.*?)(?=\n\s+alertname: |\n\s+expr: |\Z)", re.DOTALL
)
_WORDS = re.compile(rf'Labels:(\{{(?:{_QUOTED}|[^"{{}}])*\}})\s+Annotations:(\{{(?:{_QUOTED}|[^"{{}}])*\}})')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|.)")
_CONTROL = {"\\a": r"\u0007", "\\v": r"\u000b"}
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_samples(report: str) -> Iterator[tuple[str, int, list[Sample]]]:
    """Each expression's samples in a report of mismatches: expression, second, samples.

    Raises:
        EngineError: A sample can't be read.
    """
    for expression, moment, got in _GOT.findall(report):
        yield json.loads(expression), in_seconds(moment), list(_samples(got.strip()))


def parse_alerts(report: str) -> Iterator[tuple[str, int, list[Alert]]]:
    """Each alert's instances in a report of mismatches: name, second, alerts."""
    for name, moment, got in _ALERTS.findall(report):
        alerts = [Alert(_labels("", labels), _labels("", words)) for labels, words in _WORDS.findall(got)]
        yield name, in_seconds(moment), alerts


def _samples(text: str) -> Iterator[Sample]:
    if text == "nil":
        return
    position = 0
    while position < len(text):
        match = _SAMPLE.match(text, position)
        if match is None:
            raise EngineError(f"a sample in promtool's report can't be read: {text[position : position + 200]}")
        name, labels, value = match.groups()
        yield Sample(_labels(name or "", labels), float(value))
        position = match.end() + len(", ")


@lru_cache(maxsize=65536)
def _labels(name: str, text: str) -> Mapping[str, str]:
    """Cached, since a series has the same labels at every moment."""
    labels = {label: _unquote(value) for _, label, value in _LABEL.findall(text)}
    return {"__name__": name, **labels} if name else labels


def _unquote(text: str) -> str:
    """Undo Go's quoting, which is JSON's except for bytes and two control characters."""
    as_json = _ESCAPE.sub(lambda found: rf"\u00{found[1]}" if found[1] else _CONTROL.get(found[0], found[0]), text)
    return str(json.loads(as_json))


def in_seconds(duration: str) -> int:
    """A duration in Prometheus's notation: `1h1m30s`."""
    return round(sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)(ms|[smhdw])", duration)))
