"""The ranks or GPUs affected by each cause, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from stallscope.common.formatting import duration, gpu_name
from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.clients.expressions import any_of, quoted
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.ranks import Ranks
from stallscope.tools.report.words import title_of

_NAMED = 3


def affected(queries: Queries, found: Ranks | None) -> dict[str, str]:
    """Return the affected ranks by cause, or GPUs if the subject is not a run; for stragglers, their names.

    Args:
        queries: queries for the subject.
        found: the run's ranks; None if the subject is not a run.
    """
    subject = queries.subject
    if found is None:
        which = subject.node_matchers
        lost = (
            f"sum by (cause, instance, gpu, uuid) (sum_over_time(gpu_cause:share:ratio5m{{{which}}}[{queries.window}]))"
        )
        return _by_cause(queries, lost, "GPUs", _gpu)
    ranks: Ranks = found

    def rank(labels: Mapping[str, str]) -> str:
        return ranks.name(labels.get("rank", ""))

    which = subject.run_matchers
    lost = f"sum by (cause, rank) (sum_over_time(rank_cause:time_lost:ratio5m{{{which}}}[{queries.window}]))"
    said = _by_cause(queries, lost, "ranks", rank, len(ranks.places))
    # Every delayed rank loses the same time, so name the rank that delays them instead.
    for cause in {straggler.cause for straggler in ranks.stragglers}:
        waited_for = [each for each in ranks.stragglers if each.cause == cause]
        names = listed(f"{ranks.name(each.rank)} for {duration(each.seconds)}" for each in waited_for)
        said[cause] = f"the other ranks waited for {names}{_hardware(queries, waited_for[0].rank)}"
    return said


def verdict_causes(queries: Queries) -> set[str]:
    """Return the causes that were the verdict of any rank, or of any GPU if the subject is not a run."""
    subject = queries.subject
    if subject.run is not None:
        verdicts = f"rank:verdict:ratio5m{{{subject.run_matchers}}}"
    else:
        verdicts = f"gpu:verdict:ratio5m{{{subject.node_matchers}}}"
    return set(queries.by("cause", f"count by (cause) (last_over_time({verdicts}[{queries.window}]))"))


def listed(names: Iterable[str], most: int = _NAMED) -> str:
    """Return the first names, and the number of others."""
    every = [name for name in dict.fromkeys(names) if name]
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def _hardware(queries: Queries, rank: str) -> str:
    """Describe the hardware problem of the rank's own GPU, if any."""
    hardware = [cause.name for cause in CAUSES.values() if cause.domain == "hardware"]
    which = f"{queries.subject.run_matchers}, rank={quoted(rank)}, cause=~{any_of(hardware)}"
    lost = f"sum by (cause) (sum_over_time(gpu_cause:time_lost:ratio5m{{{which}}}[{queries.window}]))"
    found = queries.instant(f"topk(1, {lost} > 0)")
    return f"; its GPU had a problem: {title_of(found[0].labels.get('cause', ''))}" if found else ""


def _by_cause(
    queries: Queries, lost: str, kind: str, name: Callable[[Mapping[str, str]], str], of: int | None = None
) -> dict[str, str]:
    """Describe the affected subjects of each cause; `of` is their total number."""
    names: dict[str, list[tuple[float, str]]] = {}
    for each in queries.instant(f"{lost} > 0"):
        names.setdefault(each.labels.get("cause", ""), []).append((each.value, name(each.labels)))
    said = {}
    for cause, found in names.items():
        number = len(found)
        worst = ", ".join(each for _, each in sorted(found, key=lambda pair: (-pair[0], pair[1]))[:_NAMED])
        if number == of:
            said[cause] = f"on all {number} {kind}"
        elif number <= _NAMED:
            said[cause] = f"on {worst}"
        else:
            total = f" of {of}" if of is not None else ""
            said[cause] = f"on {number}{total} {kind}, most on {worst}"
    return said


def _gpu(labels: Mapping[str, str]) -> str:
    return f"{gpu_name(labels.get('gpu', ''), labels.get('mig', ''))} of {labels.get('instance', '')}"
