"""Ranks against each other: who they are, who is waited for, and what differs along their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stallscope.analysis.runs import Run
from stallscope.catalogue.metrics import GONE_STATES
from stallscope.clients.expressions import any_of
from stallscope.common.formatting import duration
from stallscope.report.asking import Asker
from stallscope.report.document import Block, Column, Notice, Paragraph, Section, Table, Value
from stallscope.report.subject import GPU_LABELS
from stallscope.report.words import title_of

KEY = "ranks"
_NAMED = 3
_GPU_RECORDS = ("gpu:busy:ratio5m", "gpu:sm_active:ratio5m", "gpu:sm_clock:ratio5m")


class Place(NamedTuple):
    """Where a rank runs."""

    instance: str
    gpus: str
    """Indices."""
    uuids: frozenset[str]
    """Of these GPUs."""


class Straggler(NamedTuple):
    """A rank that the rules found the others to wait for."""

    rank: str
    cause: str
    seconds: float


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run."""

    places: Mapping[str, Place]
    """By the rank's number, the lowest first."""
    worst: tuple[str, ...]
    """Those that say most, as many as are shown: whom others wait for, then those that lose most themselves."""
    stragglers: tuple[Straggler, ...]
    """Whoever was waited for longest comes first."""
    compared: bool
    """Whether the rules could tell at all who waits for whom."""

    def name(self, rank: str) -> str:
        """A rank with where it runs."""
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
        """The rank that stands for the run: it saves, evaluates and logs with the rest."""
        return next(iter(self.places), None)


NOT_TOLD = Ranks({}, (), (), compared=False)
"""What stands for ranks that could not be asked for."""


def ranks(asker: Asker, run: Run) -> Ranks:
    """Ask where the run's ranks were, and who of them says most."""
    which, window = asker.subject.told_by_run, asker.window
    claims = f"group by (instance, gpu, uuid, rank) (last_over_time(rank_gpu:claim:info{{{which}}}[{window}]))"
    found: dict[str, tuple[set[str], set[str], set[str]]] = {}
    for place in run.places:
        found.setdefault(place.rank, (set(), set(), set()))[0].add(place.instance)
    for series in asker.ask(claims):
        place_of_rank = found.setdefault(series.labels.get("rank", ""), (set(), set(), set()))
        for label, values in zip(("instance", "gpu", "uuid"), place_of_rank, strict=True):
            values.add(series.labels.get(label, ""))
    number = asker.options.rows
    score, lost = (
        asker.by("rank", f"topk({number}, sum by (rank) (sum_over_time({record}{{{which}}}[{window}])))")
        for record in ("run_rank:straggler_score:ratio5m", "rank:verdict:ratio5m")
    )
    worst = [*sorted(score, key=lambda rank: -score[rank]), *sorted(lost, key=lambda rank: -lost[rank])]
    waited_for = asker.ask(asker.seconds_there(f"max by (rank, cause) (run_rank_cause:straggler:ratio5m{{{which}}})"))
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


def section(asker: Asker, found: Ranks) -> Section:
    """Tell how they compare."""
    return Section(KEY, "Ranks", tuple(_blocks(asker, found)))


def _blocks(asker: Asker, found: Ranks) -> list[Block]:
    if not found.places:
        return [Notice("warning", "No rank of the run was recorded in this time.")]
    if len(found.places) == 1:
        return [
            Paragraph(f"The run has one rank, {found.name(next(iter(found.places)))}: there is nothing to compare.")
        ]
    blocks: list[Block] = _gone(asker, found)
    blocks += [
        Notice(
            "warning",
            f"The others waited for {found.name(straggler.rank)} for {duration(straggler.seconds)}: "
            f"{title_of(straggler.cause)}.",
        )
        for straggler in found.stragglers[:_NAMED]
    ]
    if not found.compared:
        blocks.append(Notice("warning", "It is not known who waited for whom: no time of ranks could be compared."))
    elif not blocks:
        blocks.append(Paragraph("No rank held the others up."))
    blocks.append(_table(asker, found))
    return blocks


def _gone(asker: Asker, found: Ranks) -> list[Block]:
    """Name the ranks that failed, were terminated or lost at the end, ordered by their last report."""
    told = f"last_over_time(stallscope_training_state{{{asker.subject.told_by_ranks}}}[5m]) == 1"
    heard = f"last_over_time(stallscope_training_last_push_timestamp_seconds{{{asker.subject.told_by_ranks}}}[5m])"
    states: dict[str, set[str]] = {}
    for each in asker.ask(f"group by (rank, state) ({told})"):
        states.setdefault(each.labels.get("rank", ""), set()).add(each.labels.get("state", ""))
    # One that went on elsewhere is still lost where it was.
    gone = {rank: min(of_it) for rank, of_it in states.items() if of_it <= set(GONE_STATES)}
    if not gone or (len(gone) == len(states) and len(set(gone.values())) == 1):  # which the summary says
        return []
    last = asker.by("rank", f"max by (rank) ({heard})")
    said = [
        f"{found.name(rank)} {gone[rank]}{f', last heard of at {asker.moment(last[rank])}' if rank in last else ''}"
        for rank in sorted(gone, key=lambda rank: (last.get(rank, 0.0), numerically(rank)))
    ]
    more = f"; and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    return [Notice("critical", f"Ranks that were gone at the end of this time: {'; '.join(said[:_NAMED])}{more}.")]


def _table(asker: Asker, found: Ranks) -> Table:
    which, window = asker.subject.told_by_run, asker.window
    chosen = found.worst or tuple(found.places)[: asker.options.rows]
    among = f"{which}, rank=~{any_of(chosen)}"
    step_sum, step_count = (
        f"sum by (rank) (increase(stallscope_training_step_seconds_{part}"
        f"{{{asker.subject.told_by_ranks}, rank=~{any_of(chosen)}}}[{window}]))"
        for part in ("sum", "count")
    )
    verdicts: dict[str, tuple[float, str]] = {}
    for each in asker.ask(f"sum by (rank, cause) (count_over_time(rank:verdict:ratio5m{{{among}}}[{window}]))"):
        rank, cause = each.labels.get("rank", ""), each.labels.get("cause", "")
        verdicts[rank] = max(verdicts.get(rank, (0.0, "")), (each.value, cause))
    uuids = any_of(sorted(frozenset().union(*(found.places[rank].uuids for rank in chosen if rank in found.places))))
    figures = [
        asker.by("rank", expression)
        for expression in (
            f"avg by (rank) (avg_over_time(run_rank:straggler_score:ratio5m{{{among}}}[{window}]))",
            f"max by (rank) (max_over_time(run_rank:straggler_score:ratio5m{{{among}}}[{window}]))",
            f"{step_sum} / ({step_count} > 0)",
            f"avg by (rank) (avg_over_time(rank:data_wait:ratio5m{{{among}}}[{window}]))",
            f"avg by (rank) (avg_over_time(run_rank:communication:ratio5m{{{among}}}[{window}]))",
            *(_of_gpus(asker, record, among, uuids) for record in _GPU_RECORDS),
        )
    ]
    rows: list[tuple[Value, ...]] = []
    for rank in chosen:
        place = found.places.get(rank, Place("", "", frozenset()))
        verdict = verdicts[rank][1] if rank in verdicts else None
        rows.append((rank, place.instance, place.gpus or None, verdict, *(figure.get(rank) for figure in figures)))
    left = len(found.places) - len(rows)
    note = "Means over the time shown, while each rank lived."
    if left > 0:
        note += f" The {len(rows)} of {len(found.places)} ranks that others wait for most, or that lose most."
    return Table(
        (
            Column("Rank"),
            Column("Node"),
            Column("GPU"),
            Column("Mostly", "cause", "its verdict for the longest time"),
            Column("Waited for", "share", "of the others' step, mean while it is known"),
            Column("At most", "share", "the same in the worst five minutes"),
            Column("Step", "seconds", "mean length"),
            Column("Data wait", "share", "of the loop's time"),
            Column("Communication", "share", "of the loop's time; the lowest is whom the others wait for"),
            Column("GPU busy", "share", "time with a kernel resident"),
            Column("SMs active", "share"),
            Column("SM clock", "share", "of the highest"),
        ),
        tuple(rows),
        title="Ranks, those first that the others wait for",
        note=note,
    )


def _of_gpus(asker: Asker, record: str, among: str, uuids: str) -> str:
    """A figure of the GPUs that a rank claims, at the moments before which it did for five minutes."""
    claim = f"rank_gpu:claim:info{{{among}, uuid=~{uuids}}}"
    figure = f"max by ({GPU_LABELS}) ({record}{{{asker.subject.told_by_nodes}, uuid=~{uuids}}})"
    joined = f"({claim} and {claim} offset 5m) * on ({GPU_LABELS}) group_left () {figure}"
    return asker.over_time("avg_over_time", f"avg by (rank) ({joined})", resolution=asker.coarse)


def numerically(text: str) -> tuple[int, str]:
    """Sorts numbers by their size, and other texts behind them."""
    return (int(text), "") if text.isdecimal() else (1 << 62, text)
