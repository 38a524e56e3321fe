"""Phases of a step: their shares of the time."""

from __future__ import annotations


def shares(record: str, *labels: str) -> str:
    """PromQL for the share of the time that each phase takes.

    Args:
        record: a selector of `run_phase:time:rate5m` or its like, which is summed over ranks.
        labels: what the shares are told apart by, beside the phase.
    """
    by = ", ".join(labels)
    return (
        f"sum by ({', '.join((*labels, 'phase'))}) ({record}) / on ({by}) group_left () (sum by ({by}) ({record}) > 0)"
    )
