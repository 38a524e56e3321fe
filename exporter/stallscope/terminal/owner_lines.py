"""Who holds which GPUs, as lines."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.readable import readable, size
from stallscope.terminal.figures import drawn
from stallscope.terminal.lines import Column, Line, Span, line, or_untold, table
from stallscope.terminal.model import Gpu, Node, Owner

OWNERS_SOURCE = "owners"
_COLUMNS = (
    Column("Owner", least=12),
    Column("GPUs", right=True),
    Column("Which", least=6, dispensable=1),
    Column("Activity"),
    Column("Memory", right=True),
)


def owner_name(owner: Owner) -> str:
    """Who somebody is, in short."""
    if owner.pod:
        name = f"{owner.namespace}/{owner.pod}" if owner.namespace else owner.pod
    elif owner.slurm_job:
        name = f"{owner.user}, job {owner.slurm_job}" if owner.user else f"job {owner.slurm_job}"
    elif owner.container:
        name = f"{owner.user}, container {owner.container[:12]}" if owner.user else f"container {owner.container[:12]}"
    else:
        name = owner.user or "somebody unknown"
    return readable(name)


def _owner_row(name: str, held: Sequence[tuple[Gpu, Owner | None]]) -> tuple[Line, ...]:
    told = [gpu.utilization for gpu, _ in held if gpu.utilization is not None]
    memory = [owner.memory for _, owner in held if owner is not None and owner.memory is not None]
    mean = sum(told) / len(told) if told else None
    return (
        line(Span(name, "quiet" if held[0][1] is None else "")),
        line(str(len(held))),
        line(", ".join(readable(gpu.index, 8) + (f" {readable(gpu.mig, 16)}" if gpu.mig else "") for gpu, _ in held)),
        drawn(mean),
        or_untold(size(sum(memory)) if memory else None),
    )


def owner_table(node: Node, width: int) -> list[Line]:
    """A row for each owner, and for what nobody holds; nothing where there is no GPU."""
    split = {gpu.index for gpu in node.gpus if gpu.mig}
    told = any(source.name == OWNERS_SOURCE and source.up for source in node.sources)
    held: dict[str, list[tuple[Gpu, Owner | None]]] = {}
    for gpu in node.gpus:
        if gpu.mig or gpu.index not in split:  # else its instances are held, not it
            for owner in gpu.owners or (None,):
                held.setdefault(owner_name(owner) if owner else "", []).append((gpu, owner))
    if not held:
        return []
    rows = [
        _owner_row(name or ("nobody" if told else "not told"), each)
        for name, each in sorted(held.items(), key=lambda item: (not item[0], item[0]))
    ]
    return table(_COLUMNS, rows, width)
