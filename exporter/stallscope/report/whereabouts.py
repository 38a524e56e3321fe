"""Where each cause showed, in words: which ranks, which GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from stallscope.catalogue.causes import CAUSES
from stallscope.clients.expressions import any_of, quoted
from stallscope.common.formatting import duration
from stallscope.report.asking import Asker
from stallscope.report.ranks import Ranks
from stallscope.report.words import title_of

_NAMED = 3


def whereabouts(asker: Asker, found: Ranks | None) -> dict[str, str]:
    """By cause that cost a rank time, or a GPU where the subject is no run; of stragglers, who they are.

    Args:
        asker: of the subject.
        found: the run's ranks; None where it is no run.
    """
    subject = asker.subject
    if found is None:
        which = subject.told_by_nodes
        lost = (
            f"sum by (cause, instance, gpu, uuid) (sum_over_time(gpu_cause:share:ratio5m{{{which}}}[{asker.window}]))"
        )
        return _by_cause(asker, lost, "GPUs", _gpu)
    ranks: Ranks = found

    def rank(labels: Mapping[str, str]) -> str:
        return ranks.name(labels.get("rank", ""))

    lost = (
        f"sum by (cause, rank) (sum_over_time(rank_cause:time_lost:ratio5m{{{subject.told_by_run}}}[{asker.window}]))"
    )
    said = _by_cause(asker, lost, "ranks", rank, len(ranks.places))
    # Of those who are held up each loses alike, and says nothing of who holds them up.
    for cause in {straggler.cause for straggler in ranks.stragglers}:
        waited_for = [each for each in ranks.stragglers if each.cause == cause]
        names = listed(f"{ranks.name(each.rank)} for {duration(each.seconds)}" for each in waited_for)
        said[cause] = f"the others waited for {names}{_hardware(asker, waited_for[0].rank)}"
    return said


def verdicts_of_each(asker: Asker) -> set[str]:
    """Causes that were the verdict of some rank, or of some GPU where the subject is no run."""
    subject = asker.subject
    if subject.run is not None:
        verdicts = f"rank:verdict:ratio5m{{{subject.told_by_run}}}"
    else:
        verdicts = f"gpu:verdict:ratio5m{{{subject.told_by_nodes}}}"
    return set(asker.by("cause", f"count by (cause) (last_over_time({verdicts}[{asker.window}]))"))


def listed(names: Iterable[str], most: int = _NAMED) -> str:
    """A few names, and how many more there are."""
    every = [name for name in dict.fromkeys(names) if name]
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def _hardware(asker: Asker, rank: str) -> str:
    """What the rank's own GPU suffers from, where it suffers from anything."""
    hardware = [cause.name for cause in CAUSES.values() if cause.domain == "hardware"]
    which = f"{asker.subject.told_by_run}, rank={quoted(rank)}, cause=~{any_of(hardware)}"
    lost = f"sum by (cause) (sum_over_time(gpu_cause:time_lost:ratio5m{{{which}}}[{asker.window}]))"
    found = asker.ask(f"topk(1, {lost} > 0)")
    return f", whose GPU had trouble of its own: {title_of(found[0].labels.get('cause', ''))}" if found else ""


def _by_cause(
    asker: Asker, lost: str, kind: str, name: Callable[[Mapping[str, str]], str], of: int | None = None
) -> dict[str, str]:
    """Whom each cause cost time, in words; `of` is how many there are."""
    names: dict[str, list[tuple[float, str]]] = {}
    for each in asker.ask(f"{lost} > 0"):
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
    return f"GPU {labels.get('gpu', '')} of {labels.get('instance', '')}"
