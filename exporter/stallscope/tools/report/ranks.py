"""Comparison of ranks: their places, stragglers, and differences in their measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stallscope.common.formatting import duration, readable
from stallscope.model.analysis.runs import Run
from stallscope.model.catalogue.metrics import GONE_STATES
from stallscope.model.clients.expressions import any_of
from stallscope.tools.report.document import Block, Column, Notice, Paragraph, Table, Value
from stallscope.tools.report.queries import Queries
from stallscope.tools.report.words import LONGEST_TEXT, title_of

KEY = "ranks"
TITLE = "Ranks"
_NAMED = 3
_GPU_RECORDS = ("gpu:busy:ratio5m", "gpu:sm_active:ratio5m", "gpu:sm_clock:ratio5m")


class Place(NamedTuple):
    """The place of a rank."""

    instance: str
    gpus: str
    """Indices of the GPUs."""
    uuids: frozenset[str]
    """UUIDs of the GPUs."""


class Straggler(NamedTuple):
    """A rank that the others waited for, according to the rules."""

    rank: str
    cause: str
    seconds: float


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run."""

    places: Mapping[str, Place]
    """By rank, in ascending order."""
    worst: tuple[str, ...]
    """The most relevant ranks, as many as are shown.

    First those that differ from most ranks at a standstill, then those waited for, then those with the greatest loss.
    """
    stragglers: tuple[Straggler, ...]
    """By the time that others waited for them, the longest first."""
    compared: bool
    """True if the rules could compare ranks at all."""

    def name(self, rank: str) -> str:
        """Return a rank with its place."""
        place = self.places.get(rank)
        if place is None:
            return f"rank {rank}"
        gpu = f"GPU {place.gpus} of " if place.gpus else ""
        return f"rank {rank} ({gpu}{place.instance})"

    @property
    def uuids(self) -> frozenset[str]:
        """All GPUs of the run."""
        return frozenset().union(*(place.uuids for place in self.places.values()))

    @property
    def first(self) -> str | None:
        """The first rank, which represents the run because it also saves, evaluates and logs."""
        return next(iter(self.places), None)


UNKNOWN_RANKS = Ranks({}, (), (), compared=False)
"""Placeholder for ranks whose query failed."""


def ranks(queries: Queries, run: Run) -> Ranks:
    """Query the places of the run's ranks and the most relevant ranks."""
    which, window = queries.subject.run_matchers, queries.window
    claims = f"group by (instance, gpu, uuid, rank) (last_over_time(rank_gpu:claim:info{{{which}}}[{window}]))"
    found: dict[str, tuple[set[str], set[str], set[str]]] = {}
    for place in run.places:
        found.setdefault(place.rank, (set(), set(), set()))[0].add(place.instance)
    for series in queries.instant(claims):
        place_of_rank = found.setdefault(series.labels.get("rank", ""), (set(), set(), set()))
        for label, values in zip(("instance", "gpu", "uuid"), place_of_rank, strict=True):
            values.add(series.labels.get(label, ""))
    number = queries.options.rows
    score, lost = (
        queries.by("rank", f"topk({number}, sum by (rank) (sum_over_time({record}{{{which}}}[{window}])))")
        for record in ("run_rank:straggler_score:ratio5m", "rank:verdict:ratio5m")
    )
    odd = queries.by("rank", f"max by (rank) ({queries.seconds_present(_odd(queries))})")
    worst = [
        *sorted(odd, key=lambda rank: -odd[rank]),
        *sorted(score, key=lambda rank: -score[rank]),
        *sorted(lost, key=lambda rank: -lost[rank]),
    ]
    waited_for = queries.instant(
        queries.seconds_present(f"max by (rank, cause) (run_rank_cause:straggler:ratio5m{{{which}}})")
    )
    stragglers = [
        Straggler(each.labels.get("rank", ""), each.labels.get("cause", ""), each.value) for each in waited_for
    ]
    return Ranks(
        {
            rank: Place(", ".join(sorted(instances)), ", ".join(sorted(gpus, key=numerically)), frozenset(uuids))
            for rank, (instances, gpus, uuids) in sorted(found.items(), key=lambda each: numerically(each[0]))
        },
        tuple(dict.fromkeys(worst))[:number],
        tuple(sorted(stragglers, key=lambda each: -each.seconds)),
        compared=bool(score),
    )


def blocks(queries: Queries, found: Ranks) -> list[Block]:
    """Return the blocks of the section."""
    if not found.places:
        return [Notice("warning", "No rank of the run was recorded in this time.")]
    if len(found.places) == 1:
        return [
            Paragraph(f"The run has one rank, {found.name(next(iter(found.places)))}: there is nothing to compare.")
        ]
    blocks: list[Block] = [*_gone(queries, found), *standstill(queries, found)]
    blocks += [
        Notice(
            "warning",
            f"The other ranks waited {duration(straggler.seconds)} for {found.name(straggler.rank)}: "
            f"{title_of(straggler.cause)}.",
        )
        for straggler in found.stragglers[:_NAMED]
    ]
    if not found.compared:
        blocks.append(Notice("warning", "Stragglers are unknown: the ranks' times could not be compared."))
    elif not blocks:
        blocks.append(Paragraph("No rank delayed the others."))
    blocks.append(_table(queries, found))
    return blocks


def _gone(queries: Queries, found: Ranks) -> list[Block]:
    """Report the ranks that failed, were terminated or were lost, in the order of their last report."""
    current = f"last_over_time(stallscope_training_state{{{queries.subject.rank_matchers}}}[5m]) == 1"
    pushed = f"last_over_time(stallscope_training_last_push_timestamp_seconds{{{queries.subject.rank_matchers}}}[5m])"
    states: dict[str, set[str]] = {}
    for each in queries.instant(f"group by (rank, state) ({current})"):
        states.setdefault(each.labels.get("rank", ""), set()).add(each.labels.get("state", ""))
    # A rank that moved is lost at its old place, but not gone.
    gone = {rank: min(of_it) for rank, of_it in states.items() if of_it <= set(GONE_STATES)}
    if not gone or (len(gone) == len(states) and len(set(gone.values())) == 1):  # the summary reports it
        return []
    last = queries.by("rank", f"max by (rank) ({pushed})")
    said = [
        f"{found.name(rank)} {gone[rank]}{f', last report {queries.moment(last[rank])}' if rank in last else ''}"
        for rank in sorted(gone, key=lambda rank: (last.get(rank, 0.0), numerically(rank)))
    ]
    more = f"; and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    return [Notice("critical", f"Ranks that had ended at the end of this time: {'; '.join(said[:_NAMED])}{more}.")]


def standstill(queries: Queries, found: Ranks) -> list[Block]:
    """Report where ranks were in their code while most others waited at another place."""
    differed = queries.seconds_present(_odd(queries))
    said: list[tuple[float, str]] = []
    for each in queries.instant(f"topk({_NAMED}, max by (rank, location, function, call) ({differed}))"):
        place = f"{each.labels.get('call') or each.labels.get('function', '')} at {each.labels.get('location', '')}"
        rank = found.name(each.labels.get("rank", ""))
        said.append((-each.value, f"{rank} was in {readable(place, LONGEST_TEXT)} for {duration(each.value)}"))
    if not said:
        return []
    places = "; ".join([words for _, words in sorted(said)])
    return [Notice("critical", f"While most ranks waited at another place of the code: {places}.")]


def _odd(queries: Queries) -> str:
    """Return PromQL for the ranks whose place in the code differs from most ranks' at a standstill."""
    return f"rank:odd_stack:info{{{queries.subject.run_matchers}}}"


def _table(queries: Queries, found: Ranks) -> Table:
    which, window = queries.subject.run_matchers, queries.window
    chosen = found.worst or tuple(found.places)[: queries.options.rows]
    among = f"{which}, rank=~{any_of(chosen)}"
    verdicts: dict[str, tuple[float, str]] = {}
    for each in queries.instant(f"sum by (rank, cause) (count_over_time(rank:verdict:ratio5m{{{among}}}[{window}]))"):
        rank, cause = each.labels.get("rank", ""), each.labels.get("cause", "")
        verdicts[rank] = max(verdicts.get(rank, (0.0, "")), (each.value, cause))
    steps = f"rank:step:seconds5m{{{among}}}[{max(1.0, queries.figures.seconds):.0f}s] @ {queries.figures.end:.3f}"
    score = f"run_rank:straggler_score:ratio5m{{{among}}}"
    figures = [
        queries.by("rank", expression)
        for expression in (
            f"avg by (rank) (avg_over_time({score}[{window}]))",
            f"max by (rank) (max_over_time({score}[{window}]))",
            f"avg by (rank) (avg_over_time({steps}))",
            f"avg by (rank) (avg_over_time(rank:data_wait:ratio5m{{{among}}}[{window}]))",
            f"avg by (rank) (avg_over_time(run_rank:communication:ratio5m{{{among}}}[{window}]))",
        )
    ]
    figures += [_of_gpus(queries, record, found, chosen) for record in _GPU_RECORDS]
    rows: list[tuple[Value, ...]] = []
    for rank in chosen:
        place = found.places.get(rank, Place("", "", frozenset()))
        verdict = verdicts[rank][1] if rank in verdicts else None
        rows.append((rank, place.instance, place.gpus or None, verdict, *(figure.get(rank) for figure in figures)))
    left = len(found.places) - len(rows)
    note = "Means over the time shown, while each rank was live."
    if left > 0:
        note += f" The {len(rows)} of {len(found.places)} ranks that others wait for most, or with the greatest loss."
    return Table(
        (
            Column("Rank", key="rank"),
            Column("Node", key="instance"),
            Column("GPU", key="gpus"),
            Column("Main verdict", "cause", "the verdict that held longest", key="main_verdict"),
            Column("Waited for", "share", "of the other ranks' step, mean", key="straggler_ratio"),
            Column("Maximum", "share", "waited for, over five minutes", key="straggler_max_ratio"),
            Column("Step time", "seconds", "mean", key="step_seconds"),
            Column("Data wait", "share", "of the loop's time", key="data_wait_ratio"),
            Column(
                "Communication",
                "share",
                "of the loop's time; lowest on the rank that others wait for",
                key="communication_ratio",
            ),
            Column("GPU busy", "share", "time with a kernel on the GPU", key="gpu_busy_ratio"),
            Column("SM active", "share", key="sm_active_ratio"),
            Column("SM clock", "share", "of the maximum", key="sm_clock_ratio"),
        ),
        tuple(rows),
        title="Ranks, stragglers first",
        note=note,
        key="ranks",
    )


def _of_gpus(queries: Queries, record: str, found: Ranks, chosen: Sequence[str]) -> dict[str, float]:
    """Return the mean of a measurement of each rank's GPUs."""
    uuids = {rank: found.places[rank].uuids for rank in chosen if rank in found.places}
    among = f"uuid=~{any_of(sorted(frozenset().union(*uuids.values())))}"
    means = queries.mean_of_gpus(f"{record}{{{queries.subject.node_matchers}, {among}}}", among)
    known = {rank: [means[uuid] for uuid in own if uuid in means] for rank, own in uuids.items()}
    return {rank: sum(values) / len(values) for rank, values in known.items() if values}


def numerically(text: str) -> tuple[int, str]:
    """Sort numbers by value, and other texts after them."""
    return (int(text), "") if text.isdecimal() else (1 << 62, text)
