"""Notifications that Alertmanager sends for alerts over time, calculated from its configuration without a server.

The calculation covers what the bundle's configuration uses: routes, groups with their waits, inhibition and
resolved alerts.
`test_one_notification.py` compares it with a real Alertmanager.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stallscope.lab.replay.rule_engine import in_seconds
from tests.alerting.alertmanager import Configuration, Labels

_MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"(.*)"\s*')
_Key = frozenset[tuple[str, str]]
Story = Sequence[tuple[int, Sequence[Labels]]]
"""Seconds, each with the alerts that fire from then on."""


class Sent(NamedTuple):
    """A message to a receiver."""

    second: int
    receiver: str
    status: str
    """`firing` or `resolved`."""
    group: Mapping[str, str]
    """Labels of the group."""
    firing: frozenset[str]
    """Names of the alerts that fire."""
    resolved: frozenset[str]
    """Names of the alerts that have ended since the last message."""


@dataclass(frozen=True)
class _Route:
    receiver: str
    matchers: tuple[str, ...]
    group_by: tuple[str, ...]
    wait: int
    interval: int
    repeat: int
    goes_on: bool
    children: tuple[_Route, ...]

    def leading(self, labels: Labels) -> Iterator[_Route]:
        """Yield the routes that an alert takes."""
        taken = False
        for child in self.children:
            if _match(child.matchers, labels):
                taken = True
                yield from child.leading(labels)
                if not child.goes_on:
                    break
        if not taken:
            yield self


@dataclass
class _Group:
    route: _Route
    labels: Mapping[str, str]
    due: int
    """Second of the next flush."""
    alerts: dict[_Key, bool] = field(default_factory=dict)
    """True for a firing alert, by its labels."""
    sent_firing: frozenset[_Key] = frozenset()
    sent_resolved: frozenset[_Key] = frozenset()
    sent: int | None = None
    """Second of the last message; None without one."""


def notifications(configuration: Configuration, story: Story, end: int) -> list[Sent]:
    """Return the notifications of a story up to a second, in order."""
    root = _route(configuration["route"], {})
    silent = {each["name"] for each in configuration["receivers"] if len(each) == 1}
    rules = configuration["inhibit_rules"]
    groups: dict[tuple[int, _Key], _Group] = {}
    firing: dict[_Key, Labels] = {}
    sent: list[Sent] = []
    moments = dict(story)
    while moments.keys() | (due := {group.due for group in groups.values()}):
        second = min(moments.keys() | due)
        if second > end:
            break
        if second in moments:
            now = {frozenset(labels.items()): labels for labels in moments.pop(second)}
            for key in firing.keys() ^ now.keys():
                labels = now.get(key) or firing[key]
                for route in root.leading(labels):
                    shared = {name: labels[name] for name in route.group_by if labels.get(name)}
                    place = id(route), frozenset(shared.items())
                    group = groups.setdefault(place, _Group(route, shared, second + route.wait))
                    group.alerts[key] = key in now
            firing = now
        for place, group in list(groups.items()):
            if group.due <= second:
                group.due = second + group.route.interval
                message = _flushed(group, second, rules, list(firing.values()))
                if message and group.route.receiver not in silent:
                    sent.append(message)
                group.alerts = {key: fires for key, fires in group.alerts.items() if fires}
                if not group.alerts:
                    del groups[place]
    return sent


def _flushed(group: _Group, second: int, rules: Sequence[Configuration], firing: Sequence[Labels]) -> Sent | None:
    """Return the message that the group sends now, if any."""
    active = {key: fires for key, fires in group.alerts.items() if not _muted(dict(key), rules, firing)}
    fires, ended = frozenset(key for key in active if active[key]), frozenset(key for key in active if not active[key])
    if not active:
        needed = False
    elif group.sent is None or not fires <= group.sent_firing:
        needed = bool(fires)
    elif not fires:
        needed = bool(group.sent_firing)
    else:
        needed = not ended <= group.sent_resolved or second - group.sent >= group.route.repeat
    if not needed:
        return None
    group.sent_firing, group.sent_resolved, group.sent = fires, ended, second
    return Sent(
        second,
        group.route.receiver,
        "firing" if fires else "resolved",
        group.labels,
        frozenset(dict(key)["alertname"] for key in fires),
        frozenset(dict(key)["alertname"] for key in ended),
    )


def _route(content: Configuration, inherited: Configuration) -> _Route:
    settings = {**inherited, **content}
    passed = {name: settings[name] for name in settings if name not in ("routes", "matchers", "continue")}
    return _Route(
        receiver=settings["receiver"],
        matchers=tuple(content.get("matchers", ())),
        group_by=tuple(settings["group_by"]),
        wait=in_seconds(settings["group_wait"]),
        interval=in_seconds(settings["group_interval"]),
        repeat=in_seconds(settings["repeat_interval"]),
        goes_on=content.get("continue", False),
        children=tuple(_route(child, passed) for child in content.get("routes", ())),
    )


def _match(matchers: Sequence[str], labels: Labels) -> bool:
    for matcher in matchers:
        found = _MATCHER.fullmatch(matcher)
        assert found, matcher
        name, operator, pattern = found.groups()
        value = labels.get(name, "")
        same = re.fullmatch(pattern, value) is not None if "~" in operator else value == pattern
        if same == operator.startswith("!"):
            return False
    return True


def _muted(labels: Labels, rules: Sequence[Configuration], firing: Sequence[Labels]) -> bool:
    for rule in rules:
        if not _match(rule["target_matchers"], labels):
            continue
        both = _match(rule["source_matchers"], labels)
        for source in firing:
            if (
                _match(rule["source_matchers"], source)
                # An alert that matches both sides is not muted by another one that does.
                and not (both and _match(rule["target_matchers"], source))
                and all(source.get(name, "") == labels.get(name, "") for name in rule["equal"])
            ):
                return True
    return False
