"""Colours of causes can be distinguished on both themes, also with red-green blindness."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from grafana.builders.verdicts import VERDICTS
from stallscope.model.catalogue.causes import PHASE_COLOURS, SHADES, Domain, colour_of
from tests.grafana.lint import PAGE_COLOURS, contrast, linear

Matrix = tuple[tuple[float, ...], ...]
VISIONS: dict[str, Matrix] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    # Machado, Oliveira and Fernandes, 2009, severity 1.0.
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
}
_XYZ: Matrix = ((0.412456, 0.357576, 0.180438), (0.212673, 0.715152, 0.072175), (0.019334, 0.119192, 0.950304))
_WHITE = (0.95047, 1.0, 1.08883)
ALONE: tuple[Domain, ...] = ("hardware", "time", "input", "ranks", "device", "use")
"""Kinds of causes that share a chart."""


def _times(matrix: Matrix, values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sum(a * b for a, b in zip(row, values, strict=True)) for row in matrix)


def lab(colour: str, vision: str) -> tuple[float, float, float]:
    """Return a colour as it appears to a kind of vision, in CIELAB."""
    seen = tuple(min(1.0, max(0.0, part)) for part in _times(VISIONS[vision], linear(colour)))
    x, y, z = (
        ratio ** (1 / 3) if ratio > 0.008856 else 7.787 * ratio + 16 / 116
        for ratio in (part / white for part, white in zip(_times(_XYZ, seen), _WHITE, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(one: str, other: str) -> float:
    """Return the smallest difference of two colours in any kind of vision; 2 is just noticeable."""
    return min(math.dist(lab(one, vision), lab(other, vision)) for vision in VISIONS)


@pytest.mark.parametrize("page", PAGE_COLOURS)
def test_every_colour_contrasts_with_the_page(page: str) -> None:
    used = {colour_of(cause) for cause in VERDICTS} | set(PHASE_COLOURS.values())
    used |= {shade for shades in SHADES.values() for shade in shades}
    assert {colour: contrast(colour, page) for colour in used if contrast(colour, page) < 3} == {}


def test_kinds_of_causes_differ_in_every_vision() -> None:
    close = [(a, b) for a, b in combinations(ALONE, 2) if difference(SHADES[a][0], SHADES[b][0]) < 15]
    assert close == []


@pytest.mark.parametrize("kind", ALONE)
def test_shades_of_one_kind_differ_in_every_vision(kind: Domain) -> None:
    close = [(a, b) for a, b in combinations(SHADES[kind], 2) if difference(a, b) < 10]
    assert close == []


def test_no_two_shades_look_the_same() -> None:
    shades = [shade for kind in ALONE for shade in SHADES[kind]]
    assert [(a, b) for a, b in combinations(shades, 2) if difference(a, b) < 8] == []


def test_red_and_green_of_equal_lightness_are_too_close() -> None:
    assert difference("#C4162A", "#6B6B10") < 15 < math.dist(lab("#C4162A", "normal"), lab("#6B6B10", "normal"))


def test_the_general_cause_of_a_kind_shares_its_shade_with_no_other() -> None:
    assert [cause for cause in VERDICTS if colour_of(cause) == colour_of("input_bound")] == ["input_bound"]
