"""Colours of causes, remainders and phases: the same in every plot.

Each has a contrast of at least 3 to 1 to the page, light or dark.
"""

from __future__ import annotations

from colorsys import hls_to_rgb
from functools import cache

from stallscope.model.catalogue.causes import CAUSES, Domain

_DOMAINS: dict[Domain, tuple[float, float]] = {
    "hardware": (354, 0.8),
    "time": (25, 0.9),
    "input": (216, 0.75),
    "ranks": (48, 0.9),
    "device": (276, 0.6),
    "memory": (318, 0.6),
    "use": (20, 0.35),
    "host": (188, 0.8),
}
"""Hue in degrees and saturation of the causes of a domain."""
_HUES = 16.0
"""Degrees on both sides of a domain's hue over which its causes are spread."""
_LUMINANCES = (0.21, 0.16, 0.26)
"""Relative luminances: lower ones lack contrast on a dark page, higher ones on a light page."""
_OTHER = {
    "healthy": (115, 0.5, 0.18),
    "insufficient_data": (0, 0.0, 0.21),
    "data_wait": (216, 0.75, 0.21),
    "host_copy": (205, 0.9, 0.26),
    "rollout": (276, 0.6, 0.16),
    "reward": (318, 0.6, 0.26),
    "weight_sync": (292, 0.6, 0.21),
    "forward": (115, 0.5, 0.16),
    "backward": (95, 0.6, 0.26),
    "communication": (48, 0.9, 0.21),
    "optimizer": (158, 0.6, 0.21),
    "checkpoint": (25, 0.9, 0.21),
    "evaluation": (12, 0.75, 0.26),
    "logging": (20, 0.35, 0.16),
    "initialization": (276, 0.6, 0.21),
    "restore": (318, 0.6, 0.21),
    "paused": (0, 0.0, 0.26),
    "other": (0, 0.0, 0.21),
}
"""Hue, saturation and luminance of remainders and phases; a phase is like its causes, and green if it does work."""


@cache
def colour_of(name: str) -> str:
    """Return the colour of a cause, a remainder or a phase; empty for other names."""
    if name in _OTHER:
        return _colour(*_OTHER[name])
    if name not in CAUSES:
        return ""
    domain = CAUSES[name].domain
    alike = [cause.name for cause in CAUSES.values() if cause.domain == domain]
    place = alike.index(name)
    hue, saturation = _DOMAINS[domain]
    spread = 2 * place / max(1, len(alike) - 1) - 1
    return _colour(hue + _HUES * spread, saturation, _LUMINANCES[place % len(_LUMINANCES)])


FURTHER = ("#13809b", "#b55d0b", "#6466e8", "#c83a74", "#55862a", "#8f58e0", "#0c7cbc", "#b34460")
"""Colours for names without a colour of their own."""


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, as the Web Content Accessibility Guidelines define it."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour such as `#1590ae`."""
    red, green, blue = (_linear(int(colour[place : place + 2], 16) / 255) for place in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _colour(hue: float, saturation: float, wanted: float) -> str:
    """Return the colour of a hue and saturation that has the wanted luminance."""
    low, high = 0.0, 1.0
    for _ in range(12):
        lightness = (low + high) / 2
        found = "#" + "".join(f"{round(255 * part):02x}" for part in hls_to_rgb(hue / 360 % 1, lightness, saturation))
        low, high = (lightness, high) if luminance(found) < wanted else (low, lightness)
    return found
