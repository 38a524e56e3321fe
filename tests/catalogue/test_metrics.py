"""The catalogue is the contract: complete, well-formed, and never changed under those who use it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stallscope.model.catalogue.metrics import FAMILIES, GPU_FAMILIES, UNITS, Family, MetricType

TESTS = Path(__file__).parents[1]
FROZEN = TESTS / "frozen_names.txt"
REFERENCE = TESTS.parent / "exporter" / "tools" / "metrics_reference.py"

families = pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))


def frozen_line(family: Family) -> str:
    return f"{family.name} {family.type.value} {','.join(family.all_labels)}"


def test_every_name_that_was_ever_published_is_still_there_with_its_type_and_labels() -> None:
    published = FROZEN.read_text(encoding="utf-8").splitlines()
    now = {frozen_line(family) for family in FAMILIES.values()}
    # A label may be appended: it does not change the others.
    missing = [line for line in published if not any(each == line or each.startswith(f"{line},") for each in now)]
    assert not missing, "a published name, type or label was changed; add a new family instead"


def test_new_names_are_entered_in_the_frozen_list() -> None:
    published = set(FROZEN.read_text(encoding="utf-8").splitlines())
    new = [frozen_line(family) for family in FAMILIES.values() if frozen_line(family) not in published]
    assert not new, "append these lines to tests/frozen_names.txt: they can't be taken back afterwards"


@families
def test_names_carry_our_prefix_and_only_plain_characters(family: Family) -> None:
    assert re.fullmatch(r"(stallscope|process)_[a-z][a-z0-9_]*", family.name)


@families
def test_labels_are_plain_words_and_none_is_a_target_label(family: Family) -> None:
    for label in family.all_labels:
        assert re.fullmatch(r"[a-z][a-z_]*", label)
        assert label not in {"job", "instance", "cluster", "region", "zone", "le", "quantile", "pid"}
    assert len(set(family.all_labels)) == len(family.all_labels)


@families
def test_help_is_a_sentence_that_says_something(family: Family) -> None:
    assert family.help.endswith(".")
    assert len(family.help) >= 10
    assert "\n" not in family.help


@families
def test_total_stands_at_the_end_of_counters_and_nowhere_else(family: Family) -> None:
    assert family.name.endswith("_total") == (family.type is MetricType.COUNTER)


@families
def test_info_series_are_gauges_of_one_without_a_unit(family: Family) -> None:
    if family.name.endswith("_info"):
        assert family.type is MetricType.GAUGE
        assert family.unit == ""


@families
def test_closed_label_values_belong_to_a_label_of_the_family(family: Family) -> None:
    for label, values in family.values:
        assert label in family.all_labels
        assert values


@families
def test_histograms_have_rising_bounds_and_others_have_none(family: Family) -> None:
    assert bool(family.buckets) == (family.type is MetricType.HISTOGRAM)
    assert list(family.buckets) == sorted(set(family.buckets))


@families
def test_the_module_named_as_provider_exists(family: Family) -> None:
    assert importlib.util.find_spec(f"stallscope.node.{family.provider}") is not None


def test_units_are_base_units_only() -> None:
    pattern = re.compile(r"_(percent|percentage|mib|gib|kib|mb|gb|kb|ms|milliseconds|us|mhz|ghz|hz|mw|kwh|mj)(_|$)")
    assert not [name for name in FAMILIES if pattern.search(name)]


def test_a_unit_is_recognised_by_its_whole_name() -> None:
    assert FAMILIES["stallscope_host_network_link_bytes_per_second"].unit == "bytes_per_second"
    assert FAMILIES["stallscope_gpu_energy_joules_total"].unit == "joules"
    assert FAMILIES["stallscope_gpu_dips_total"].unit == ""
    assert len(set(UNITS)) == len(UNITS)


def test_every_optional_signal_is_a_gpu_family() -> None:
    signals = [family for family in GPU_FAMILIES if family.optional]
    assert signals
    assert all(signal.name == f"stallscope_gpu_{signal.signal}" for signal in signals)


@pytest.mark.parametrize(("page", "function"), [("METRICS.md", "page"), ("FRAMES.md", "frames_page")])
def test_the_reference_pages_are_what_the_catalogue_says(page: str, function: str) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", f"from exporter.tools.metrics_reference import {function}; print({function}(), end='')"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert REFERENCE.parents[1].joinpath(page).read_text(encoding="utf-8") == printed, "run `make generate`"
