"""Drawings: small for any amount of data, with gaps, and reproducible."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from stallscope.model.catalogue.causes import CAUSES, REMAINDERS
from stallscope.model.catalogue.metrics import OUTSIDE_PHASES, PHASES
from stallscope.tools.report import html
from stallscope.tools.report.colours import FURTHER, colour_of, contrast
from stallscope.tools.report.document import (
    Areas,
    Bars,
    Document,
    Figure,
    HeatMap,
    Histogram,
    Lines,
    Mark,
    Plot,
    Series,
    Span,
    States,
)
from stallscope.tools.report.plots import NOTHING, Drawing, colours_of, draw
from stallscope.tools.report.thinning import bucketed, extremes, prevailing
from stallscope.tools.report.words import Words
from tests.report import example

WORDS = Words(example.ordinary())
MOST_CHARACTERS = 60_000
PAGE = (Path(html.__file__).parent / "page.html.jinja").read_text(encoding="utf-8")
NAMES = (*CAUSES, *REMAINDERS, *PHASES, *OUTSIDE_PHASES)
MINUTES = tuple(example.START + 60.0 * minute for minute in range(600))


def drawn(plot: Plot, key: str = "it") -> Drawing:
    return draw(plot, key, WORDS)


def texts(drawing: Drawing) -> list[str]:
    """Return the texts of a drawing as parsed by an XML parser."""
    return [each.text or "" for each in ET.fromstring(drawing.svg).iter() if each.tag.endswith("text")]


def figures(document: Document) -> Iterable[Figure]:
    return (block for block in document.blocks if isinstance(block, Figure))


def test_a_drawing_stays_small_however_much_there_is_to_draw() -> None:
    """A week of 512 GPUs, minute by minute."""
    times = tuple(example.START + 60.0 * minute for minute in range(10_080))
    gpus = tuple(f"a-node-with-a-very-long-name-{gpu // 4 + 1}/{gpu % 4}" for gpu in range(512))
    waves = [tuple(0.5 + 0.5 * math.sin(minute * pace) for minute in range(len(times))) for pace in (0.1, 0.2, 0.3)]
    spans = tuple(Span(hour, hour + 3600, NAMES[number % 2]) for number, hour in enumerate(times[:-60:60]))
    plots = (
        HeatMap(gpus, times, tuple(waves[gpu % 3] for gpu in range(len(gpus)))),
        States(gpus, len(gpus) * (spans,), times[0], times[-1]),
        Areas(times, tuple(map(Series, NAMES, waves))),
        Lines(times, tuple(map(Series, NAMES, waves)), "seconds"),
    )
    sizes = {type(plot).__name__: len(drawn(plot).svg) for plot in plots}
    assert max(sizes.values()) <= MOST_CHARACTERS, sizes


def test_the_same_data_give_the_same_drawing_and_drawings_share_no_identifier() -> None:
    plots = [figure.plot for figure in figures(example.ordinary())]
    assert drawn(plots[0]) == drawn(plots[0])
    names = Counter(
        name
        for number, plot in enumerate(plots)
        for name in re.findall(r' id="([^"]*)"', drawn(plot, f"f{number}").svg)
    )
    assert names
    assert max(names.values()) == 1


def test_a_plot_without_values_is_not_drawn() -> None:
    assert [drawn(figure.plot) for figure in figures(example.nothing())] == 6 * [NOTHING]


@pytest.mark.parametrize("known", [1, 2, 600])
def test_few_points_are_as_visible_as_many(known: int) -> None:
    values = tuple(0.5 if moment < known else None for moment in range(600))
    for plot in (
        Areas(MINUTES, (Series("healthy", values),)),
        Lines(MINUTES, (Series("healthy", values),), "share"),
    ):
        assert colour_of("healthy") in drawn(plot).svg


def pieces(drawing: Drawing, colour: str) -> int:
    """Return the number of separate shapes of a colour."""
    return sum(
        colour.lower() in ET.tostring(each, encoding="unicode") for each in ET.fromstring(drawing.svg).iter("path")
    )


def test_a_gap_is_not_bridged() -> None:
    values = tuple(None if 300 <= minute < 320 else 0.5 for minute in range(600))
    colour = colours_of(["loss"])[0]
    whole = Lines(MINUTES, (Series("loss", 600 * (0.5,)),), "number")
    parted = Lines(MINUTES, (Series("loss", values),), "number")
    assert pieces(drawn(parted), colour) == pieces(drawn(whole), colour) + 1


def test_extremes_outlive_thinning() -> None:
    values = np.full(100_000, 0.4)
    values[70_123], values[20_456] = 41.8, 0.01
    x, thinned = extremes(np.arange(100_000.0), values, 240)
    assert len(x) <= 3 * 240
    assert (thinned.max(), thinned.min()) == (41.8, 0.01)
    assert x[thinned.argmax()] == 70_123


def test_a_mean_over_times_omits_missing_values() -> None:
    values = np.array([[1.0, np.nan, 3.0, np.nan, np.nan, 7.0, 5.0]])
    times, means = bucketed(np.arange(7.0), values, 4)
    assert list(times) == [0, 2, 4, 6]
    assert list(means[0]) == [1.0, 3.0, 7.0, 5.0]
    assert np.isnan(bucketed(np.arange(4.0), np.full((1, 4), np.nan), 2)[1]).all()


def test_a_column_of_many_states_has_the_longest() -> None:
    spans = [Span(0, 6, "healthy"), Span(6, 9, "comm_bound"), Span(10, 18, "comm_bound"), Span(18, 20, "healthy")]
    assert prevailing(spans, 0.0, 40.0, 4) == ["healthy", "comm_bound", None, None]


def test_times_are_in_the_documents_zone() -> None:
    said = texts(drawn(Lines(MINUTES, (Series("loss", 600 * (1.0,)),), "number")))
    assert "2023-11-14 to 2023-11-15, Europe/Berlin" in said
    assert "15 Nov" in said, "midnight in Berlin is an hour before midnight in UTC"


@pytest.mark.parametrize("text", example.HOSTILE)
def test_names_are_texts_whatever_they_contain(text: str) -> None:
    drawing = drawn(Bars((text,), (Series(text, (0.5,), text), Series("b", (0.1,)))))
    assert any(each.startswith((text[:6], "\\u202e")) for each in texts(drawing))
    tags = {each.tag.rpartition("}")[2] for each in ET.fromstring(drawing.svg).iter()}
    assert tags <= {"svg", "g", "path", "text", "defs", "clipPath", "rect", "use"}


def test_a_name_that_looks_like_svg_stays_unchanged() -> None:
    text = 'd="M 1.2345" id="x"'
    assert text in texts(drawn(Bars((text,), (Series("lost", (0.5,)),))))


def test_a_cause_has_the_same_colour_in_every_plot() -> None:
    alone = {name: colours_of([name])[0] for name in NAMES}
    for order in (NAMES, NAMES[::-1]):
        assert dict(zip(order, colours_of(["my own phase", *order])[1:], strict=True)) == alone
    lines = (Series("input_few_workers", (0.1, 0.2)), Series("input_bound", (0.2, 0.3)))
    both = drawn(Lines((0.0, 1.0), lines, "share")).legend
    assert [key.colour for key in both] == [alone["input_few_workers"], alone["input_bound"]]
    span = States(("run",), ((Span(0.0, 1.0, "input_few_workers"),),), 0.0, 1.0)
    assert drawn(span).legend[0].colour == alone["input_few_workers"]


def test_causes_and_phases_have_distinct_colours() -> None:
    for names in (set(CAUSES), {*PHASES, *OUTSIDE_PHASES}):
        assert len({colour_of(name) for name in names}) == len(names)


@pytest.mark.parametrize("page", ["#ffffff", "#f6f7f9", "#181e25", "#0f1318"])
def test_every_colour_has_a_contrast_of_3_to_1_to_the_page(page: str) -> None:
    assert page in PAGE or page == "#ffffff"
    colours = [*map(colour_of, NAMES), *FURTHER]
    assert min(contrast(colour, page) for colour in colours) >= 3


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_a_legend_names_each_colour_and_a_single_line_has_none() -> None:
    parts = (Series("input_bound", (0.1,)), Series("healthy", (0.8,), "all is well"))
    assert [key.label for key in drawn(Bars(("run",), parts)).legend] == ["Waiting for data", "all is well"]
    assert not drawn(Lines((0.0, 1.0), (Series("loss", (1.0, 2.0)),), "number", "count")).legend


def test_a_mark_is_labelled_if_there_is_room() -> None:
    marks = (Mark(0.4, "median"), Mark(0.41, "mean"), Mark(0.42, "third of a kind"), Mark(99.0, "far away"))
    said = texts(drawn(Histogram((0.1, 0.5, 1.0), (9.0, 3.0), marks=marks)))
    assert {"median", "mean"} <= set(said)
    assert not {"third of a kind", "far away"} & set(said)


def test_a_long_label_keeps_both_of_its_ends() -> None:
    said = texts(drawn(HeatMap(("a-node-with-a-very-long-name-17/3",), MINUTES[:2], ((0.1, 0.2),))))
    assert any(re.fullmatch("a-node.*….*-17/3", each) for each in said)


@pytest.mark.parametrize("value", [0.0, 1e-9, 1e18, -5.0])
def test_numbers_of_any_size_are_drawn(value: float) -> None:
    for plot in (
        Lines((0.0, 1.0), (Series("a", (value, value)),), "number", "count"),
        HeatMap(("a",), (0.0, 60.0), ((value, value),), "watts", greatest=None),
        Bars(("a",), (Series("a", (value or 1.0,)),), "money"),
    ):
        assert "nan" not in drawn(plot).svg


def test_a_logarithmic_histogram_may_start_at_zero() -> None:
    drawing = drawn(Histogram((0.0, 0.1, 1.0, 10.0), (1.0, 5.0, 2.0), logarithmic=True))
    assert "10 s" in texts(drawing)


def test_an_axis_has_enough_decimals_to_distinguish_its_ticks() -> None:
    said = texts(drawn(Lines((0.0, 1.0), (Series("a", (12.341, 12.349)),), "number", "count", "ranks")))
    numbers = [each for each in said if each.startswith("12.3")]
    assert len(numbers) >= 3
    assert len(set(numbers)) == len(numbers)
    assert [each for each in said if each in ("0", "1")] == ["0", "1"], "expected whole numbers of ranks"
