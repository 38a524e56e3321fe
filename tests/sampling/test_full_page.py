"""Series that remain when there are more than a page may have."""

from __future__ import annotations

from stallscope.model.catalogue.metrics import family
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.exposition import Renderer
from stallscope.node.sampling.reading import Sample
from stallscope.node.sampling.sampler import Sampler

STEP = family("stallscope_training_step")


def from_ranks(number: int) -> list[Sample]:
    return [Sample(STEP, ("run", str(rank)), 1) for rank in range(number)]


def test_what_comes_from_outside_pushes_nothing_of_the_exporter_s_own_off_the_page() -> None:
    sampler = Sampler(clock=ScriptedClock(), max_series=20)
    sampler.add_collector("reports", lambda: from_ranks(1000))
    sampler.publish()
    page = sampler.page(openmetrics=False, gzip=False).decode()
    assert "stallscope_build_info{" in page
    assert "stallscope_training_step{" in page
    assert 'stallscope_exporter_series_dropped_total{limit="max_series"} ' in page


def test_series_beyond_the_limit_cost_no_memory() -> None:
    renderer = Renderer()
    groups, series, dropped = renderer.lines(from_ranks(1000), 20)
    assert (series, dropped, len(groups[STEP])) == (20, 980, 20)
    assert len(renderer._prefixes) == 20
