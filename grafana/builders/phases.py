"""Colours of the phases of a step: the same in every panel, so that runs can be compared at sight."""

from __future__ import annotations

PHASE_COLOURS = {
    "data_wait": "#3274D9",
    "host_copy": "#8AB8FF",
    "forward": "#37872D",
    "backward": "#73BF69",
    "communication": "#E0B400",
    "optimizer": "#96D98D",
    "checkpoint": "#FF780A",
    "evaluation": "#FFB357",
    "logging": "#B07D55",
    "other": "#808080",
}
