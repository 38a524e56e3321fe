"""Scaling, with measurements of an article: 3500 images per second on one GPU, 6100 on two."""

from __future__ import annotations

import pytest

from stallscope.model.analysis.scaling import scaling


def test_the_articles_two_gpus_scale_at_87_percent() -> None:
    found = scaling(gpus=2, rate=6100, base_gpus=1, base_rate=3500)
    assert found.efficiency == pytest.approx(0.871, abs=0.001)
    assert found.speed_up == pytest.approx(1.743, abs=0.001)
    assert found.gpus_lost == pytest.approx(0.257, abs=0.001)


def test_efficiency_is_relative_to_the_base_for_any_number_of_gpus() -> None:
    assert scaling(gpus=16, rate=1500, base_gpus=8, base_rate=800).efficiency == pytest.approx(0.9375)


def test_a_run_on_as_many_gpus_is_compared_by_its_rate_alone() -> None:
    assert scaling(gpus=2, rate=4300, base_gpus=2, base_rate=6100).efficiency == pytest.approx(0.705, abs=0.001)
