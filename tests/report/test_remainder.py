"""The lost time that no recommendation is about."""

from __future__ import annotations

import pytest

from stallscope.tools.report.lost_time import Loss, LostTime
from stallscope.tools.report.queries import RangeResult
from stallscope.tools.report.recommendations import remainder


def lost(total: float, **shares: float) -> LostTime:
    losses = tuple(Loss(cause, 1000 * share, share, None, None, None) for cause, share in shares.items())
    return LostTime("GPU", 1000.0, 1000.0, 1000.0, 1000 * total, losses, {}, RangeResult((), 60.0, ()))


@pytest.mark.parametrize(
    ("found", "advised", "said"),
    [
        pytest.param(
            lost(0.39, input_bound=0.35, sync_stall=0.03, comm_bound=0.008),
            {"input_bound"},
            "39 % of the GPU time was lost, 35 % to the causes above. The other 4.0 %: Time outside the "
            "measured phases 3.0 %; these led to no verdict or follow from the above.",
            id="another cause",
        ),
        pytest.param(
            lost(0.39, input_bound=0.35, comm_bound=0.008),
            {"input_bound"},
            "39 % of the GPU time was lost, 35 % to the causes above. The other 4.0 %: no cause has 1 % of the time.",
            id="no cause of some size",
        ),
        pytest.param(lost(0.39, input_bound=0.388), {"input_bound"}, "", id="it adds up as displayed"),
        pytest.param(
            lost(0.39, input_bound=0.35, sync_stall=0.04), {"input_bound", "sync_stall"}, "", id="all advised"
        ),
        pytest.param(lost(0.39, input_bound=0.3, sync_stall=0.2), {"input_bound", "sync_stall"}, "", id="overlap"),
        pytest.param(lost(0.39, input_bound=0.39), {"fan_failed"}, "", id="advice without a recorded loss"),
    ],
)
def test_the_lost_time_that_no_recommendation_is_about_is_stated(found: LostTime, advised: set[str], said: str) -> None:
    assert remainder(found, advised) == said
