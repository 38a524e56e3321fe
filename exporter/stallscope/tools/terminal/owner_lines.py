"""Owners and their GPUs as lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stallscope.common.formatting import readable, size
from stallscope.model.view.model import Gpu, Node, Owner
from stallscope.tools.terminal.lines import Column, Line, Span, line, or_dash, share_bar, table

_RUN = 32
"""Displayed characters of a run's name."""
_COLUMNS = (
    Column("Owner", least=12),
    Column("GPUs", right=True),
    Column("Indices", least=6, dispensable=1),
    Column("Activity"),
    Column("Memory", right=True),
    Column("Runs", least=12, dispensable=2),
)


def owner_name(owner: Owner) -> str:
    """Return the short name of an owner."""
    return readable(owner.title)


def _owner_row(name: str, held: Sequence[tuple[Gpu, Owner | None]], runs: Iterable[str]) -> tuple[Line, ...]:
    shares = [share for gpu, owner in held if (share := _activity(gpu, owner)) is not None]
    memory = [owner.memory for _, owner in held if owner is not None and owner.memory is not None]
    mean = sum(shares) / len(shares) if shares else None
    return (
        line(Span(name, "quiet" if held[0][1] is None else "")),
        line(str(len(held))),
        line(", ".join(readable(gpu.index, 8) + (f" {readable(gpu.mig, 16)}" if gpu.mig else "") for gpu, _ in held)),
        share_bar(mean),
        or_dash(size(sum(memory)) if memory else None),
        or_dash(", ".join(readable(run, _RUN) for run in runs) or None),
    )


def _activity(gpu: Gpu, owner: Owner | None) -> float | None:
    """Return the owner's own activity if it is known, else the activity of the whole GPU."""
    return gpu.utilization if owner is None or owner.busy is None else owner.busy


def _runs_by_owner(node: Node) -> dict[str, list[str]]:
    """Return the names of live runs by owner: the owner that a rank names, else the only owner of its GPUs.

    Runs on GPUs without a known owner are listed under an empty name.
    """
    holders: dict[str, set[str]] = {}
    for gpu in node.gpus:
        holders.setdefault(gpu.index, set()).update(map(owner_name, gpu.owners))
    known = set().union(*holders.values())
    runs: dict[str, list[str]] = {}
    for rank in node.ranks:
        own = Owner.of(rank.info)
        named = owner_name(own) if any(own.names) else ""
        places = [holders.get(gpu, set()) for gpu in rank.gpus]
        alone = set().union(*(each or {""} for each in places if len(each) < 2))
        for name in {named} if named in known else alone:
            if not rank.ended and rank.run not in runs.setdefault(name, []):
                runs[name].append(rank.run)
    return runs


def owner_table(node: Node, width: int) -> list[Line]:
    """Return a table row for each owner, and one for free GPUs; nothing without GPUs."""
    split = {gpu.index for gpu in node.gpus if gpu.mig}
    held: dict[str, list[tuple[Gpu, Owner | None]]] = {}
    for gpu in node.gpus:
        if gpu.mig or gpu.index not in split:  # a split GPU itself has no owner
            for owner in gpu.owners or (None,):
                held.setdefault(owner_name(owner) if owner else "", []).append((gpu, owner))
    if not held:
        return []
    runs = _runs_by_owner(node)
    rows = [
        _owner_row(name or ("nobody" if node.owners_known else "unknown"), each, runs.get(name, ()))
        for name, each in sorted(held.items(), key=lambda item: (not item[0], item[0]))
    ]
    return table(_COLUMNS, rows, width)
