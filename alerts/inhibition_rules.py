"""Generate the inhibition rules in alerts/alertmanager.yml and their table in alerts/README.md, from the causes.

Run by `make generate`; a test fails when a committed file differs from the output. Only the part between two marks is
generated. The rules for alerts without a cause are around it, written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from alerts.alert_rules import between
from stallscope.model.catalogue.causes import (
    CAUSES,
    EVERYTHING,
    PERFORMANCE,
    SLOW_ALERTS,
    Cause,
    Straggler,
    muted_alerts,
)

_ALERTS = Path(__file__).parents[1] / "alerts"
CONFIGURATION = _ALERTS / "alertmanager.yml"
PAGE = _ALERTS / "README.md"
_RULES_BEGIN = "  # -- Generated from `stallscope/model/catalogue/causes.py` by `make generate`; do not edit.\n"
_RULES_END = "  # -- End of the generated rules.\n"
_TABLE_BEGIN = "<!-- Generated from stallscope/model/catalogue/causes.py by make generate; do not edit. -->\n"
_TABLE_END = "<!-- End of the generated rows. -->\n"

_ON_RUN = ("cluster, namespace, run", "run")
_ON_RANK = ("cluster, namespace, run, rank", "run")
_ON_GPU = ("cluster, instance, gpu, uuid", "gpu")
_ON_HOST = ("cluster, instance", "instance")
"""Labels that both alerts share, and the label that the muting alert must have: two missing labels count as equal."""


def _scopes(cause: Cause, target: str) -> Iterator[tuple[str, str]]:
    """Yield the sets of labels on which the alert of a cause must match its target."""
    if cause.subject == "host":
        yield _ON_HOST
    elif cause.subject == "gpu" and target.startswith("Gpu"):
        yield _ON_GPU
        # Other GPUs of the run wait for this one.
        if PERFORMANCE in cause.mutes and target in SLOW_ALERTS:
            yield _ON_RUN
    else:
        # Broken hardware affects all ranks of its run, and a slow GPU its own rank.
        named = {each.alert for each in CAUSES.values() if each.rule and isinstance(each.rule.shape, Straggler)}
        is_of_rank = cause.alert in named or (cause.subject == "gpu" and PERFORMANCE not in cause.mutes)
        yield _ON_RANK if is_of_rank and target in named else _ON_RUN


def _matching(names: set[str]) -> str:
    """Return a matcher of alerts by name."""
    if len(names) == 1:
        return f'alertname = "{names.pop()}"'
    parts = []
    for subject in ("Training", "Gpu", "Host"):
        found = [name.removeprefix(subject) for name in sorted(names) if name.startswith(subject)]
        if found:
            parts.append(f"{subject}({'|'.join(found)})" if len(found) > 1 else subject + found[0])
    return f'alertname =~ "{"|".join(parts)}"'


def rules() -> str:
    """Return the inhibition rules as YAML: one for each muting alert and each set of shared labels.

    Each rule has a single alert as its source. Some versions of Alertmanager keep only one source for each rule and set
    of shared labels (issue 5162 of prometheus/alertmanager): when it resolves, another source that still fires is lost.
    """
    text = ""
    for cause in CAUSES.values():
        scopes: dict[tuple[str, str], set[str]] = {}
        for target in sorted(muted_alerts(cause)):
            for scope in _scopes(cause, target):
                scopes.setdefault(scope, set()).add(target)
        # An alert of severity info mutes nothing, because it notifies no one.
        severity = "critical" if cause.severity == "critical" else "warning"
        for (equal, label), targets in scopes.items():
            text += f"""\
  - source_matchers: ['alertname = "{cause.alert}"', '{label} != ""', 'severity = "{severity}"']
    target_matchers: ['{_matching(targets)}']
    equal: [{equal}]
"""
    return text


def _word(target: str) -> str:
    if target == PERFORMANCE:
        return "*slow progress*"
    if target == EVERYTHING:
        return "everything else of that GPU"
    return f"`{CAUSES[target].alert if target in CAUSES else target}`"


def table() -> str:
    """Return the table of muting alerts as Markdown."""
    sources: dict[tuple[str, ...], list[str]] = {}
    for cause in CAUSES.values():
        if cause.mutes:
            sources.setdefault(cause.mutes, []).append(f"`{cause.alert}`")
    rows = (f"| {', '.join(names)} | {', '.join(map(_word, targets))} |" for targets, names in sources.items())
    slow = ", ".join(f"`{name}`" for name in sorted(filter(None, SLOW_ALERTS)))
    return "| alert | mutes |\n|---|---|\n" + "\n".join(rows) + f"\n\n*Slow progress* is {slow}.\n"


def files() -> Iterator[tuple[Path, str]]:
    """Yield the path and new text of both files."""
    yield CONFIGURATION, between(CONFIGURATION, _RULES_BEGIN, _RULES_END, rules())
    yield PAGE, between(PAGE, _TABLE_BEGIN, _TABLE_END, table())


if __name__ == "__main__":
    for path, page in files():
        path.write_text(page, encoding="utf-8")
