"""The rank and GPU that each verdict of a run names, with the root cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stallscope.common.formatting import capitalised, duration, readable
from stallscope.model.analysis.over_time import RUN_LABELS
from stallscope.model.view.verdict_words import phrase_of, remedy_of
from stallscope.model.view.verdicts import CodeLine, Culprit, OddRank, code_line_of, culprit_of, odd_rank_of
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.words import LONGEST_TEXT


class Blamed(NamedTuple):
    """A culprit, and how long the run's verdict named it."""

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
        """The phrase with the duration."""
        return f"{self.phrase}, for {duration(self.seconds)}"


def culprits(queries: Queries) -> dict[str, Blamed]:
    """Return the culprit of a run by verdict; of several, the culprit that was named longest.

    Empty if the server has no `run:culprit:info`, as with older rules.
    """
    which = queries.subject.run_matchers
    verdict = f'label_replace(run:verdict:ratio5m{{{which}}} >= bool 0, "verdict", "$1", "cause", "(.*)")'
    judged = f"run:culprit:info{{{which}}} * 0 + on ({RUN_LABELS}) group_left (verdict) {verdict}"
    by = "rank, instance, gpu, mig, cause, verdict"
    found: dict[str, Blamed] = {}
    for each in queries.instant(f"max by ({by}) ({queries.seconds_present(judged)})"):
        cause, blamed = each.labels.get("verdict", ""), Blamed(culprit_of(each.labels), each.value)
        if cause not in found or blamed.seconds > found[cause].seconds:
            found[cause] = blamed
    return found


def odd_ranks(queries: Queries) -> dict[str, tuple[OddRank, ...]]:
    """Return the ranks whose place in the code differed from most ranks' by verdict, those that differed longest first.

    Empty if the server has no `rank:odd_stack:info`, as with older rules.
    """
    which = queries.subject.run_matchers
    verdict = f'label_replace(run:verdict:ratio5m{{{which}}} >= bool 0, "verdict", "$1", "cause", "(.*)")'
    judged = f"rank:odd_stack:info{{{which}}} * 0 + on ({RUN_LABELS}) group_left (verdict) {verdict}"
    by = "rank, location, function, call, verdict"
    found: dict[str, dict[OddRank, float]] = {}
    for each in queries.instant(f"max by ({by}) ({queries.seconds_present(judged)})"):
        found.setdefault(each.labels.get("verdict", ""), {})[odd_rank_of(each.labels)] = each.value
    return {cause: tuple(sorted(ranks, key=lambda each: (-ranks[each], each))) for cause, ranks in found.items()}


def code_lines(queries: Queries) -> dict[str, CodeLine]:
    """Return the line of code of a run by verdict; of several, the line that lost most.

    Empty if the server has no `run:code:ratio2m`, as with older rules.
    """
    which, window = queries.subject.run_matchers, queries.window
    by = "cause, phase, location, function"
    most: dict[str, tuple[float, Mapping[str, str]]] = {}
    for each in queries.instant(f"sum by ({by}) (sum_over_time(run:code:ratio2m{{{which}}}[{window}]))"):
        cause = each.labels.get("cause", "")
        if cause not in most or each.value > most[cause][0]:
            most[cause] = each.value, each.labels
    if not most:
        return {}
    shares = {
        frozenset(each.labels.items()): each.value
        for each in queries.instant(f"max by ({by}) (avg_over_time(run:code:ratio2m{{{which}}}[{window}]))")
    }
    # Of the time in which the line was found: the number of workers may have been changed before or after.
    workers = f"max(stallscope_training_dataloader_workers{{{queries.subject.rank_matchers}}})"
    meanwhile = f"max by (cause) (run:code:ratio2m{{{which}}}) * 0 + on () group_left () {workers}"
    loaders = queries.by("cause", queries.over_time("last_over_time", meanwhile))
    return {
        cause: code_line_of(labels, shares.get(frozenset(labels.items()), 0.0), int(loaders.get(cause, 0)))
        for cause, (_, labels) in most.items()
    }


def run_of(labels: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the cluster, namespace and name of a series' run."""
    return labels.get("cluster", ""), labels.get("namespace", ""), labels.get("run", "")


def culprits_of_runs(queries: Queries, runs: str) -> Mapping[tuple[str, str, str], str]:
    """Return the phrase of the culprit that was named longest, by cluster, namespace and run.

    Args:
        queries: queries for the subject.
        runs: matchers of the runs.
    """
    count = f"count_over_time(run:culprit:info{{{runs}}}[{queries.window}])"
    by = f"{RUN_LABELS}, rank, instance, gpu, mig, cause"
    longest: dict[tuple[str, str, str], tuple[float, str]] = {}
    for each in queries.instant(f"sum by ({by}) ({count})"):
        labels = each.labels
        run = run_of(labels)
        candidate = each.value, phrase_of(culprit_of(labels))
        longest[run] = max(longest.get(run, candidate), candidate)
    return {run: phrase for run, (_, phrase) in longest.items()}
