"""Conversion of series to columns."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from stallscope.model.analysis.tables import Increases, Table, Track, at
from stallscope.model.clients.prometheus import RangeSeries


def counted(*samples: tuple[float, float], **labels: str) -> RangeSeries:
    times, values = zip(*samples, strict=True)
    return RangeSeries(labels, array("d", times), array("d", values))


def rows(track: Track) -> list[tuple[float, float, float]]:
    seconds = np.broadcast_to(track.seconds, len(track.times))
    return list(zip(track.times.tolist(), track.values.tolist(), seconds.tolist(), strict=True))


def test_a_counter_increases_from_sample_to_sample() -> None:
    _, second, third = rows(Increases().of("a", counted((10, 5), (20, 8), (50, 8))))
    assert (second, third) == ((20, 3, 10), (50, 0, 30))


def test_the_increase_at_the_first_sample_is_unknown() -> None:
    ((moment, increase, seconds),) = rows(Increases().of("a", counted((10, 5))))
    assert moment == 10
    assert np.isnan([increase, seconds]).all()


def test_increases_continue_across_windows_for_each_series() -> None:
    increases = Increases()
    increases.of("a", counted((10, 5), device="x"))
    increases.of("a", counted((10, 1), device="y"))
    increases.of("b", counted((10, 2), device="x"))
    assert rows(increases.of("a", counted((40, 6), device="x"))) == [(40, 1, 30)]
    assert rows(increases.of("a", counted((20, 6), device="y"))) == [(20, 5, 10)]


def test_a_reset_counter_has_increased_by_its_value() -> None:
    assert rows(Increases().of("a", counted((10, 500), (20, 7))))[1] == (20, 7, 10)


@pytest.mark.parametrize(("combined", "expected"), [("sum", [1, 12, 20]), ("max", [1, 10, 20])])
def test_several_series_are_combined(combined: str, expected: list[float]) -> None:
    table = Table()
    table.put("disk", "busy", np.array([1.0, 2.0]), np.array([1.0, 2.0]), combined)
    table.put("disk", "busy", np.array([2.0, 3.0]), np.array([10.0, 20.0]), combined)
    ((subject, block),) = table.take()
    assert subject == "disk"
    assert block.times.tolist() == [1, 2, 3]
    assert block.columns["busy"].tolist() == expected


def test_missing_values_of_a_column_are_nan() -> None:
    table = Table()
    table.put("gpu", "busy", np.array([1.0, 2.0]), np.array([0.5, 0.6]))
    table.put("gpu", "state", np.array([2.0]), np.array([3], np.int8))
    table.put("gpu", "absent", np.array([]), np.array([]))
    ((_, block),) = table.take()
    assert block.columns["state"].tolist() == [-1, 3]
    assert "absent" not in block.columns
    assert at(block, "busy", np.array([2.0, 2.5])).tolist() == [0.6, pytest.approx(np.nan, nan_ok=True)]
    assert np.isnan(at(None, "busy", np.array([2.0]))).all()
