"""Labels that a user's Prometheus adds to what it scrapes, such as the rack of a node or the exporter's pod."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cache

from tests.scenarios.case import WELL, Series, render
from tests.scenarios.cases import CASES
from tests.scenarios.life import INSUFFICIENT, PARENTS
from tests.scenarios.runner import EVALUATION_SECONDS, EVERYTHING, evaluate, evaluations

NAMES = frozenset(
    {
        *("input_single_thread_laptop", "late_batches_by_turns_4", "launch_bound_h100"),
        *("mem_bw_bound_node", "power_capped_server", "spin_suspected_node"),
    }
)
CHANGE_SECONDS = 720
"""When the label changes its value, long after the onset."""
END_SECONDS = 840
"""More than a stall's limit later."""
Judgement = tuple[tuple[str, str], ...]


def labelled(series: Series) -> list[Series]:
    """Return the series as two: until the change with one value of a target label, and from then on with another."""
    place = CHANGE_SECONDS // EVALUATION_SECONDS
    before, after = series.values[:place], series.values[place:]
    return [
        Series(series.name, {**series.labels, "pod": "exporter-a"}, [*before, *[math.nan] * len(after)]),
        Series(series.name, {**series.labels, "pod": "exporter-b"}, [*[None] * place, *after]),
    ]


@cache
def judged() -> dict[str, dict[int, dict[Judgement, float]]]:
    """Return the verdicts and alerts of each cluster and moment: a case without the label, and the same with it."""
    series: list[Series] = []
    for case in CASES:
        if case.name in NAMES:
            for each in render(case, 1, noise=False, labels={"cluster": case.name}):
                short = Series(each.name, each.labels, each.values[: END_SECONDS // EVALUATION_SECONDS + 1])
                changed = Series(short.name, {**short.labels, "cluster": f"{case.name} labelled"}, short.values)
                series += [short, *labelled(changed)]
    found = evaluate(series, {EVERYTHING: evaluations(END_SECONDS)}).samples[EVERYTHING]
    clusters: dict[str, dict[int, dict[Judgement, float]]] = defaultdict(lambda: defaultdict(dict))
    for moment, samples in found.items():
        for sample in samples:
            labels = dict(sample.labels)
            if "verdict" in labels["__name__"] or labels["__name__"] == "ALERTS":
                labels.pop("pod", None)
                clusters[labels.pop("cluster", "")][moment][tuple(sorted(labels.items()))] = sample.value
    return clusters


def causes(judgements: dict[Judgement, float]) -> set[tuple[str, str]]:
    """Return the causes of verdicts and alerts."""
    labels = [dict(judgement) for judgement in judgements]
    return {("alert" if "alertname" in each else "verdict", each.get("cause", "")) for each in labels}


def test_a_further_target_label_changes_no_verdict_and_no_alert() -> None:
    for name in NAMES:
        for moment in range(0, CHANGE_SECONDS, EVALUATION_SECONDS):
            plain, with_label = (judged()[cluster][moment] for cluster in (name, f"{name} labelled"))
            assert with_label.keys() == plain.keys(), (name, moment)
            assert all(math.isclose(with_label[key], plain[key], abs_tol=1e-9) for key in plain), (name, moment)


def test_while_a_target_label_changes_no_rule_fails_and_a_verdict_is_the_same_or_more_general() -> None:
    for name in NAMES:
        for moment in range(CHANGE_SECONDS, END_SECONDS + 1, EVALUATION_SECONDS):
            plain, with_label = (causes(judged()[cluster][moment]) for cluster in (name, f"{name} labelled"))
            general = {INSUFFICIENT, *WELL, *[PARENTS[cause] for _, cause in plain if cause in PARENTS]}
            assert with_label <= plain | {("verdict", cause) for cause in general}, (name, moment)
        assert causes(judged()[f"{name} labelled"][CHANGE_SECONDS - EVALUATION_SECONDS]) - {("verdict", INSUFFICIENT)}


def test_two_minutes_after_a_target_label_has_changed_verdicts_and_alerts_are_the_same() -> None:
    for name in NAMES:
        plain, with_label = (causes(judged()[cluster][END_SECONDS]) for cluster in (name, f"{name} labelled"))
        assert with_label == plain, name
