"""PromQL for the phases of a step."""

from __future__ import annotations


def shares(record: str, *labels: str) -> str:
    """Return PromQL for the share of time of each phase.

    Args:
        record: a selector of `run_phase:time:rate5m` or a similar series, which is summed over ranks.
        labels: labels of the shares, in addition to the phase.
    """
    by = ", ".join(labels)
    return (
        f"sum by ({', '.join((*labels, 'phase'))}) ({record}) / on ({by}) group_left () (sum by ({by}) ({record}) > 0)"
    )
