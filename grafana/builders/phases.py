"""Phases of a step: their shares, and their colours, the same in every panel, so that runs can be compared at sight."""

from __future__ import annotations

PHASE_COLOURS = {
    "data_wait": "#3274D9",
    "host_copy": "#8AB8FF",
    "forward": "#37872D",
    "backward": "#73BF69",
    "communication": "#E0B400",
    "optimizer": "#96D98D",
    "checkpoint": "#FF780A",
    "evaluation": "#FFB357",
    "logging": "#B07D55",
    "other": "#808080",
}


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
