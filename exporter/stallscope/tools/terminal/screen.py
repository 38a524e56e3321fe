"""The content of the screen at one moment, for all nodes together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from stallscope.model.view.model import Node, Owner, Run, runs_of
from stallscope.model.view.verdicts import RunName, Verdicts
from stallscope.tools.terminal.feed import ExporterState


@dataclass(frozen=True)
class Screen:
    """The content of the screen at one moment."""

    exporters: tuple[ExporterState, ...]
    verdicts: Verdicts | None
    """None if no Prometheus is configured."""
    owner: str = ""
    """Filter: part of an owner's name; empty for all owners."""
    unfiltered: Screen | None = None
    """The content before the filter."""

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Runs of all nodes together."""
        return runs_of(rank for each in self.exporters if each.node is not None for rank in each.node.ranks)

    @property
    def now(self) -> float:
        """The latest Unix time of any page: ages use the exporters' clocks, not this machine's."""
        times = (each.node.time for each in self.exporters if each.node is not None)
        return max((time for time in times if time is not None), default=0.0)

    @property
    def run_names(self) -> list[RunName]:
        """Names of the runs as Prometheus knows them."""
        return [run.name for run in self.runs]

    @property
    def gpu_names(self) -> list[str]:
        """UUIDs of all GPUs."""
        return [gpu.uuid for each in self.exporters if each.node is not None for gpu in each.node.gpus]

    @property
    def owners(self) -> set[Owner]:
        """All owners of GPUs or runs."""
        nodes = [each.node for each in self.exporters if each.node is not None]
        holding = {
            owner._replace(memory=None, busy=None) for node in nodes for gpu in node.gpus for owner in gpu.owners
        }
        return holding | {Owner.of(rank.info) for node in nodes for rank in node.ranks}

    def of(self, owner: str) -> Screen:
        """Return only the GPUs and ranks of owners whose name contains a text; everything for an empty text."""
        if not owner:
            return self
        return replace(
            self,
            exporters=tuple(
                each if each.node is None else each._replace(node=_of_owner(each.node, owner.casefold()))
                for each in self.exporters
            ),
            owner=owner,
            unfiltered=self,
        )

    @cached_property
    def stale_runs(self) -> frozenset[str]:
        """Names of runs with ranks on a node whose page is outdated."""
        return frozenset(rank.run for each in self.exporters if each.problem and each.node for rank in each.node.ranks)


def _of_owner(node: Node, wanted: str) -> Node:
    def owned(owner: Owner) -> bool:
        return any(wanted in name.casefold() for name in owner.names)

    ranks = tuple(rank for rank in node.ranks if owned(Owner.of(rank.info)))
    # A rank may name the owner of a GPU that the exporter does not know.
    claimed = {gpu for rank in ranks if not rank.ended for gpu in rank.gpus}
    gpus = (
        gpu
        for gpu in node.gpus
        if any(owned(owner) for owner in gpu.owners) or (not gpu.owners and gpu.index in claimed)
    )
    return replace(node, gpus=tuple(gpus), ranks=ranks)
