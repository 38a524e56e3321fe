"""Real time made faster: which numbers of an expression are durations."""

from __future__ import annotations

import pytest

from tests.end_to_end.scaled import rescaled_expression


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("rate(a_total[90s]) offset 5m", "rate(a_total[3000ms]) offset 10000ms"),
        ("max_over_time(a[10m:1m])", "max_over_time(a[20000ms:2000ms])"),
        ("first_step <= time() - 75", "first_step <= time() - 2.5"),
        ('clamp_max(time() - timestamp(a{b!=""}), 90)', 'clamp_max(time() - timestamp(a{b!=""}), 3)'),
        (
            'time() - scalar(stallscope:threshold{name="leak_warmup_seconds"}) + 3600',
            'time() - scalar(stallscope:threshold{name="leak_warmup_seconds"}) + 120',
        ),
    ],
)
def test_durations_are_divided(expression: str, expected: str) -> None:
    assert rescaled_expression(expression, 30) == expected


@pytest.mark.parametrize(
    "expression",
    [
        'a{level="90s"} > 10',
        "clamp_max(rank:ratio5m, 90)",
        "100 * (a - 60)",
        "time() - a",
        'scalar(stallscope:threshold{name="idle_busy"}) + 3600',
    ],
)
def test_other_numbers_stay(expression: str) -> None:
    assert rescaled_expression(expression, 30) == expression
