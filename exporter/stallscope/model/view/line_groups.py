"""Group ranks by their lines of code in each phase: a group has the same line with the largest share of the phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from stallscope.training.protocol.stacks import HotLine, SampledPhase
from stallscope.training.protocol.vocabulary import MAX_CODE_LINES


class LineGroup(NamedTuple):
    """Ranks with the same first line in a phase."""

    ranks: tuple[int, ...]
    share: float
    """Share of the ranks' time that the phase takes, as a mean."""
    shares: tuple[float, ...]
    """The share of each rank."""
    lines: tuple[HotLine, ...]
    """Lines with the largest mean shares of the phase; `workers` is the maximum of the ranks."""


class PhaseLines(NamedTuple):
    """The groups of a phase."""

    phase: str
    groups: tuple[LineGroup, ...]
    """The largest first."""


def grouped_lines(ranks: Mapping[int, Mapping[str, SampledPhase]]) -> tuple[PhaseLines, ...]:
    """Group ranks by their first line in each phase.

    Args:
        ranks: the phases of the burst of each rank.

    Returns:
        The phases with lines, sorted by their time, the longest first.
    """
    seconds: dict[str, float] = {}
    groups: dict[str, dict[str, list[int]]] = {}
    for rank, phases in sorted(ranks.items()):
        for phase, sampled in phases.items():
            if sampled.lines:
                seconds[phase] = seconds.get(phase, 0.0) + sampled.seconds
                groups.setdefault(phase, {}).setdefault(sampled.lines[0].location, []).append(rank)
    return tuple(
        PhaseLines(
            phase,
            tuple(
                _group(phase, members, ranks)
                for members in sorted(groups[phase].values(), key=lambda members: (-len(members), members))
            ),
        )
        for phase in sorted(groups, key=lambda phase: (-seconds[phase], phase))
    )


def _group(phase: str, members: Sequence[int], ranks: Mapping[int, Mapping[str, SampledPhase]]) -> LineGroup:
    totals = [sum(each.seconds for each in ranks[rank].values()) or 1.0 for rank in members]
    shares = [ranks[rank][phase].seconds / total for rank, total in zip(members, totals, strict=True)]
    found: dict[str, list[HotLine]] = {}
    for rank in members:
        for line in ranks[rank][phase].lines:
            found.setdefault(line.location, []).append(line)
    lines = [
        HotLine(
            location,
            max(seen, key=lambda line: line.share).function,
            sum(line.share for line in seen) / len(members),
            max(line.workers for line in seen),
        )
        for location, seen in found.items()
    ]
    lines.sort(key=lambda line: (-line.share, line.location))
    return LineGroup(tuple(members), fmean(shares), tuple(shares), tuple(lines[:MAX_CODE_LINES]))
