"""What there is to show at one moment, of all nodes together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from stallscope.terminal.feed import Seen
from stallscope.view.model import Node, Owner, Run, runs_of
from stallscope.view.verdicts import RunName, Verdicts


@dataclass(frozen=True)
class Screen:
    """What there is to show at one moment."""

    seen: tuple[Seen, ...]
    verdicts: Verdicts | None
    """None where no Prometheus is known."""
    owner: str = ""
    """What is in a name of everybody whose GPUs and ranks are seen; empty where all are."""
    whole: Screen | None = None
    """What there was before it was narrowed to that owner."""

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Of all nodes together."""
        return runs_of(rank for each in self.seen if each.node is not None for rank in each.node.ranks)

    @property
    def now(self) -> float:
        """The newest Unix time on any page: ages are told by the exporters' clocks, whatever ours says."""
        times = (each.node.time for each in self.seen if each.node is not None)
        return max((time for time in times if time is not None), default=0.0)

    @property
    def run_names(self) -> list[RunName]:
        """What Prometheus knows them by."""
        return [run.name for run in self.runs]

    @property
    def gpu_names(self) -> list[str]:
        """UUIDs of all GPUs."""
        return [gpu.uuid for each in self.seen if each.node is not None for gpu in each.node.gpus]

    @property
    def owners(self) -> set[Owner]:
        """Everybody who holds a GPU or trains."""
        nodes = [each.node for each in self.seen if each.node is not None]
        holding = {
            owner._replace(memory=None, busy=None) for node in nodes for gpu in node.gpus for owner in gpu.owners
        }
        return holding | {Owner.of(rank.info) for node in nodes for rank in node.ranks}

    def of(self, owner: str) -> Screen:
        """Only the GPUs and ranks of whoever has this in a name; all for nothing."""
        if not owner:
            return self
        return replace(
            self,
            seen=tuple(
                each if each.node is None else each._replace(node=_of_owner(each.node, owner.casefold()))
                for each in self.seen
            ),
            owner=owner,
            whole=self,
        )

    @cached_property
    def stale_runs(self) -> frozenset[str]:
        """Names of runs that a node tells of whose page is an old one."""
        return frozenset(rank.run for each in self.seen if each.problem and each.node for rank in each.node.ranks)


def _of_owner(node: Node, wanted: str) -> Node:
    def owned(owner: Owner) -> bool:
        return any(wanted in name.casefold() for name in owner.names)

    ranks = tuple(rank for rank in node.ranks if owned(Owner.of(rank.info)))
    # What the exporter does not know of a GPU, a training on it may have told.
    claimed = {gpu for rank in ranks if not rank.ended for gpu in rank.gpus}
    gpus = (
        gpu
        for gpu in node.gpus
        if any(owned(owner) for owner in gpu.owners) or (not gpu.owners and gpu.index in claimed)
    )
    return replace(node, gpus=tuple(gpus), ranks=ranks)
