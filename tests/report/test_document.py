"""The document of a report: inconsistent blocks are rejected, and missing values stay missing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from stallscope.tools.report import json as json_format
from stallscope.tools.report.document import (
    Areas,
    Bars,
    Column,
    Fact,
    HeatMap,
    Histogram,
    InconsistentBlock,
    Lines,
    Series,
    States,
    Table,
    without_nan,
)
from stallscope.tools.report.words import UnknownZone, Words
from tests.report import example

TWO = Series("lost", (0.1, 0.2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Table((Column("Cause"), Column("Lost", "gpu_hours")), (("comm_bound",),), title="Causes"),
        lambda: Table((Column("Cause"),), (("comm_bound",),), total=("all", 1.0)),
        lambda: Bars(("rank 0",), (TWO,)),
        lambda: Areas((0.0,), (TWO,)),
        lambda: Lines((0.0, 1.0, 2.0), (TWO,), "share"),
        lambda: States(("GPU 0",), (), 0.0, 1.0),
        lambda: HeatMap(("GPU 0",), (0.0, 1.0), ((0.5,),)),
        lambda: Histogram((0.0, 1.0), (1.0, 2.0)),
        lambda: Histogram((1.0, 0.5), (1.0,)),
        lambda: Histogram((1.0, math.inf), (1.0,)),
        lambda: replace(example.nothing(), sections=2 * example.nothing().sections),
    ],
)
def test_inconsistent_blocks_are_rejected(make: Callable[[], object]) -> None:
    with pytest.raises(InconsistentBlock):
        make()


def test_nan_and_infinity_become_gaps() -> None:
    assert without_nan([1, math.nan, None, math.inf, 0.0]) == (1.0, None, None, None, 0.0)


def test_the_first_recommendation_is_the_one_of_the_first_rank() -> None:
    document = example.ordinary()
    assert document.first_recommendation is not None
    assert document.first_recommendation.cause == "input_disk_bound"
    assert example.nothing().first_recommendation is None


def test_json_has_every_number_and_the_type_of_its_block() -> None:
    found = json.loads(json_format.write(example.ordinary()))
    causes, figure, *_ = found["sections"][1]["blocks"]
    assert causes["type"] == "Table"
    assert causes["columns"][2] == {"name": "Lost", "kind": "gpu_hours", "note": "", "key": ""}
    assert causes["rows"][1][:4] == ["checkpoint_stall", 0.06, 11.4, None]
    assert (figure["type"], figure["plot"]["type"]) == ("Figure", "Areas")
    assert None in figure["plot"]["parts"][0]["values"]


def test_json_has_null_for_nan() -> None:
    document = replace(example.nothing(), highlights=(Fact("Loss", math.nan, "number"),))
    assert json.loads(json_format.write(document))["highlights"][0]["value"] is None


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (None, "gpu_hours", "unknown"),
        (0, "count", "0"),
        (218_400, "count", "218,400"),
        (0.0, "share", "0 %"),
        (0.0001, "share", "under 0.1 %"),
        (0.0214, "share", "2.1 %"),
        (0.9996, "share", "over 99.9 %"),
        (1, "share", "100 %"),
        (40.71, "gpu_hours", "40.7 h"),
        (9.1 * 3.6e6, "joules", "9.1 kWh"),
        (12.0, "joules", "12 J"),
        (61 * 2**30, "bytes", "61 GiB"),
        (512.0, "watts", "512 W"),
        (0.388, "seconds", "388 ms"),
        (-0.388, "seconds", "-388 ms"),
        (1.29, "times", "1.29 times"),
        (482.5, "money", "482.50 EUR"),
        (1_700_000_000, "time", "2023-11-14 23:13:20"),
        ("input_disk_bound", "cause", "Waiting for data: disk"),
        ("healthy", "cause", "Healthy"),
        ("data_wait", "cause", "Data wait"),
        ("a\u202eb", "text", "a\\u202eb"),
    ],
)
def test_values_are_formatted_for_people(value: str | float | None, kind: str, words: str) -> None:
    assert Words(example.ordinary()).of(value, kind) == words  # type: ignore[arg-type]  # mypy takes it for any text


def test_an_unknown_time_zone_is_rejected() -> None:
    with pytest.raises(UnknownZone, match="'Mars/Olympus' is not known here"):
        Words(replace(example.nothing(), zone="Mars/Olympus"))
