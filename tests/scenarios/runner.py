"""Run the bundle's own rule files over rendered cases, many of them together.

Many cases go into one run, distinguished by their `cluster` label. This also proves that the rules keep clusters apart.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from stallscope.lab.replay import rule_engine
from stallscope.lab.replay.rule_engine import Said
from stallscope.lab.replay.series import Series
from tests.rules.needed import needed
from tests.rules.rulebook import GROUPS, ROOT, RULE_FILES, tool

EVALUATION_SECONDS = 30
"""Between two evaluations, and between two scrapes."""
SERVING = ROOT / "prometheus/serving/serving.yml"
SCORED_FILES = (*RULE_FILES, SERVING)
"""The rules that are loaded by default, and those of servers."""
SCORED_GROUPS = (*GROUPS, "stallscope-serving")
WATCHDOG = "StallscopeWatchdog"
"""The alert that always fires: an evaluation without it was not reported at all."""
_RECORDED = (
    "run:verdict:ratio5m",
    "rank:verdict:ratio5m",
    "gpu:verdict:ratio5m",
    "serving_gpu:verdict:ratio5m",
    "run_cause:time_lost:ratio5m",
    "gpu_cause:time_lost:ratio5m",
    "run_rank:straggler_score:ratio5m",
)
EVERYTHING = f'{{__name__=~"{"|".join(_RECORDED)}"}} or ALERTS{{alertstate="firing"}}'
"""All that the figures need of one evaluation."""


def evaluations(seconds: int) -> range:
    """The moments at which the rules are evaluated, the last one included."""
    return range(0, seconds + 1, EVALUATION_SECONDS)


def evaluate(
    series: Sequence[Series],
    expressions: Mapping[str, Sequence[int]],
    *,
    words: Mapping[str, Sequence[int]] = MappingProxyType({}),
    rule_files: Sequence[Path] = SCORED_FILES,
    groups: Sequence[str] = SCORED_GROUPS,
    evaluation_seconds: int = EVALUATION_SECONDS,
) -> Said:
    """Evaluate the rules of the bundle, or of other files, as `rule_engine.evaluate` does: those that are needed."""
    with tempfile.TemporaryDirectory() as folder:
        names = [rule_engine.selector(each.name, each.labels) for each in series]
        found = needed(rule_files, names, expressions, words, Path(folder))
        end = max(second for seconds in (*expressions.values(), *words.values()) for second in seconds)
        constants = [
            Series(each.name, {**each.labels}, [each.value] * (end // EVALUATION_SECONDS + 1))
            for each in found.constants
        ]
        return rule_engine.evaluate(
            [*(each for each, name in zip(series, names, strict=True) if name in found.series), *constants],
            expressions,
            promtool=tool("promtool"),
            rule_files=found.files,
            groups=groups,
            scrape_seconds=EVALUATION_SECONDS,
            evaluation_seconds=evaluation_seconds,
            words=words,
        )
