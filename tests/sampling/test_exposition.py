"""The page is valid in both formats, by the judgement of others: the client library's parsers and promtool."""

from __future__ import annotations

import subprocess
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from stallscope.model.catalogue.metrics import FAMILIES, Family, MetricType, family
from stallscope.node.sampling.exposition import Renderer
from stallscope.node.sampling.reading import Distribution, NonsenseReading, Sample, checked

INFO = family("stallscope_gpu_info")
UP = family("stallscope_gpu_up")
BUSY = family("stallscope_gpu_busy_seconds_total")
STEPS = family("stallscope_training_step_seconds")
DIPS = family("stallscope_gpu_dip_interval_seconds")


def page(*samples: Sample, openmetrics: bool = False, max_series: int = 1000) -> str:
    renderer = Renderer()
    groups, _series, _dropped = renderer.lines(samples, max_series)
    return renderer.render(groups, openmetrics=openmetrics).decode()


def example(each: Family) -> Sample:
    """One sample of the family, with a value that its type allows."""
    closed = dict(each.values)
    labels = tuple(closed[label][0] if label in closed else f"some {label}" for label in each.labels)
    if each.type is MetricType.HISTOGRAM:
        counts = tuple(range(len(each.buckets) + 1))
        return Sample(each, labels, Distribution(counts, 12.5, sum(counts)))
    if each.type is MetricType.SUMMARY:
        return Sample(each, labels, Distribution((), 12.5, 3))
    return Sample(each, labels, 1.5)


WHOLE_CATALOGUE = tuple(example(each) for each in FAMILIES.values())


def test_openmetrics_of_the_whole_catalogue_passes_the_client_librarys_parser() -> None:
    parsed = {each.name: each for each in parse_openmetrics(page(*WHOLE_CATALOGUE, openmetrics=True))}
    assert len(parsed) == len(FAMILIES)
    for each in FAMILIES.values():
        found = parsed[each.openmetrics_name]
        assert (found.type, found.unit, found.documentation) == (each.type.value, each.unit, each.help)


def test_text_of_the_whole_catalogue_passes_the_client_librarys_parser() -> None:
    parsed = list(parse_text(page(*WHOLE_CATALOGUE)))
    assert {sample.name for each in parsed for sample in each.samples} == {
        name for each in FAMILIES.values() for name in each.series_names
    }
    assert {each.documentation for each in parsed} == {each.help for each in FAMILIES.values()}


def test_promtool_finds_nothing_to_say_about_the_whole_catalogue() -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page(*WHOLE_CATALOGUE), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_labels_of_a_series_are_those_of_the_catalogue() -> None:
    for each in parse_openmetrics(page(*WHOLE_CATALOGUE, openmetrics=True)):
        name = each.name if each.name in FAMILIES else f"{each.name}_total"
        for sample in each.samples:
            assert set(sample.labels) - {"le"} == set(FAMILIES[name].labels)


def test_an_optional_label_shows_only_where_it_has_a_value() -> None:
    assert page(Sample(UP, ("0", "GPU-a", "1g.10gb"), 1), Sample(UP, ("1", "GPU-b", ""), 1)).splitlines()[2:] == [
        'stallscope_gpu_up{gpu="0",uuid="GPU-a",mig="1g.10gb"} 1',
        'stallscope_gpu_up{gpu="1",uuid="GPU-b"} 1',
    ]


def test_buckets_are_cumulative_and_end_in_infinity() -> None:
    counts = (2, 0, 1) + (0,) * (len(STEPS.buckets) - 2)
    lines = page(Sample(STEPS, ("run", "0"), Distribution(counts, 0.011, 3))).splitlines()
    assert lines[2] == 'stallscope_training_step_seconds_bucket{run="run",rank="0",le="0.001"} 2'
    assert lines[4] == 'stallscope_training_step_seconds_bucket{run="run",rank="0",le="0.005"} 3'
    assert lines[-3:] == [
        'stallscope_training_step_seconds_bucket{run="run",rank="0",le="+Inf"} 3',
        'stallscope_training_step_seconds_sum{run="run",rank="0"} 0.011',
        'stallscope_training_step_seconds_count{run="run",rank="0"} 3',
    ]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_label_text_comes_back_as_it_went_in(text: str) -> None:
    sample = Sample(family("stallscope_exporter_source_up"), (text,), 1)
    (found,) = parse_openmetrics(page(sample, openmetrics=True))
    assert found.samples[0].labels == {"source": text}


def test_families_are_never_interleaved() -> None:
    samples = [Sample(each, (str(gpu), "u"), 1.0) for gpu in range(3) for each in (BUSY, UP)]
    names = [line.split("{")[0] for line in page(*samples).splitlines() if not line.startswith("#")]
    assert names == ["stallscope_gpu_up"] * 3 + ["stallscope_gpu_busy_seconds_total"] * 3


def test_of_two_samples_of_one_series_the_first_stays() -> None:
    assert page(Sample(UP, ("0", "u"), 1), Sample(UP, ("0", "u"), 0)).endswith(
        'stallscope_gpu_up{gpu="0",uuid="u"} 1\n'
    )


def test_series_over_the_limit_are_left_out_and_counted() -> None:
    samples = [Sample(UP, (str(gpu), "u"), 1) for gpu in range(10)]
    groups, series, dropped = Renderer().lines(samples, 7)
    assert (series, dropped, len(groups[UP])) == (7, 3, 7)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1", -1.0])
def test_a_counter_that_is_no_finite_positive_number_is_refused(value: float) -> None:
    with pytest.raises(NonsenseReading, match="stallscope_gpu_busy_seconds_total"):
        checked([Sample(BUSY, ("0", "u"), value)])


@pytest.mark.parametrize(
    "sample",
    [
        Sample(UP, ("0",), 1),
        Sample(UP, ("0", "u", "mig", "more"), 1),
        Sample(STEPS, ("run", "0"), Distribution((1, 2), 1.0, 3)),
        Sample(STEPS, ("run", "0"), Distribution((-1,) * 20, 1.0, 3)),
        Sample(DIPS, ("0", "u"), Distribution((), float("nan"), 3)),
        Sample(UP, ("0", None), 1),  # type: ignore[arg-type]
        Sample(UP, (0, "u"), 1),  # type: ignore[arg-type]
        Sample(UP, ("0", "u"), True),
    ],
)
def test_a_sample_that_does_not_fit_its_family_is_refused(sample: Sample) -> None:
    with pytest.raises(NonsenseReading, match=sample.family.name):
        checked([sample])


def test_a_label_that_is_no_text_for_utf_8_costs_its_odd_characters_and_not_the_page() -> None:
    renderer = Renderer()
    page = renderer.render(renderer.lines([Sample(UP, ("0", "eth\udcff"), 1)], 10)[0], openmetrics=False)
    assert b'uuid="eth?"} 1\n' in page


def test_what_has_left_the_page_is_not_kept() -> None:
    renderer = Renderer()
    tracemalloc.start()
    try:
        for run in range(30):
            if run == 10:
                before = tracemalloc.get_traced_memory()[0]
            renderer.lines([Sample(UP, (str(gpu), f"run {run}"), 1) for gpu in range(1000)], 2000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 1_000_000  # twenty pages of names would be eight million


def test_a_negative_gauge_is_fine() -> None:
    samples = [Sample(family("stallscope_training_loss"), ("run", "0"), -3.5)]
    assert checked(samples) == tuple(samples)
