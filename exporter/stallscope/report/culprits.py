"""The rank and GPU that each verdict of a run was about, and the root cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stallscope.common.formatting import capitalised, duration, readable
from stallscope.report.asking import Asker
from stallscope.report.subject import RUN_LABELS
from stallscope.report.words import LONGEST_TEXT
from stallscope.view.verdict_words import phrase_of, remedy_of
from stallscope.view.verdicts import Culprit, culprit_of


class Blamed(NamedTuple):
    """A culprit, and for how long the run's verdict was about it."""

    culprit: Culprit
    seconds: float

    @property
    def sentence(self) -> str:
        """Rank, GPU, node, root cause and remedy."""
        return f"{capitalised(self.phrase)}. {remedy_of(self.culprit)}".rstrip()

    @property
    def phrase(self) -> str:
        """Rank, GPU, node and root cause."""
        return readable(phrase_of(self.culprit), LONGEST_TEXT)

    @property
    def evidence(self) -> str:
        """The phrase with the time."""
        return f"{self.phrase}, for {duration(self.seconds)}"


def culprits(asker: Asker) -> dict[str, Blamed]:
    """Return the culprit of a run by the cause that was its verdict, each the one that held longest.

    Empty where the server has no `run:culprit:info`, as in data that older rules recorded.
    """
    which = asker.subject.told_by_run
    verdict = f'label_replace(run:verdict:ratio5m{{{which}}} >= bool 0, "verdict", "$1", "cause", "(.*)")'
    judged = f"run:culprit:info{{{which}}} * 0 + on ({RUN_LABELS}) group_left (verdict) {verdict}"
    by = "rank, instance, gpu, mig, cause, verdict"
    found: dict[str, Blamed] = {}
    for each in asker.ask(f"max by ({by}) ({asker.seconds_there(judged)})"):
        cause, blamed = each.labels.get("verdict", ""), Blamed(culprit_of(each.labels), each.value)
        if cause not in found or blamed.seconds > found[cause].seconds:
            found[cause] = blamed
    return found


def culprits_of_runs(asker: Asker, runs: str) -> Mapping[tuple[str, str, str], str]:
    """Return the phrase of the culprit that held longest, by cluster, namespace and run.

    Args:
        asker: of the subject.
        runs: matchers of the runs.
    """
    held = f"count_over_time(run:culprit:info{{{runs}}}[{asker.window}])"
    by = f"{RUN_LABELS}, rank, instance, gpu, mig, cause"
    longest: dict[tuple[str, str, str], tuple[float, str]] = {}
    for each in asker.ask(f"sum by ({by}) ({held})"):
        labels = each.labels
        run = labels.get("cluster", ""), labels.get("namespace", ""), labels.get("run", "")
        candidate = each.value, phrase_of(culprit_of(labels))
        longest[run] = max(longest.get(run, candidate), candidate)
    return {run: phrase for run, (_, phrase) in longest.items()}
