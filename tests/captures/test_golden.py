"""Every committed capture replays to its golden page, and says truly where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.node.drivers.nvidia.capture import read, text
from stallscope.tools.cli.record import file_name, replay
from tests.captures.golden import CAPTURES, captures, golden

_STAND_IN_MARKS = ("stand-in", "57a1d000")
"""In its captures' header and names, and in the UUIDs of its GPUs."""
_LARGEST_BYTES = 1_000_000

every_capture = pytest.mark.parametrize("capture", captures(), ids=lambda capture: str(capture.name))


@every_capture
def test_a_capture_replays_to_its_golden_page(capture: Path) -> None:
    page, unanswered = replay(read(capture))
    assert not unanswered, "the exporter asks what was not recorded: record it again"
    assert page == golden(capture).read_text(encoding="utf-8"), "run `make generate` and look at the difference"


@every_capture
def test_a_capture_is_named_by_where_it_comes_from(capture: Path) -> None:
    assert capture.name == file_name(read(capture))


@every_capture
def test_no_capture_of_the_stand_in_passes_for_hardware(capture: Path) -> None:
    marked = any(mark in capture.name + capture.read_text(encoding="ascii") for mark in _STAND_IN_MARKS)
    assert read(capture).header.hardware is not marked


@every_capture
def test_a_capture_of_hardware_tells_nobody_which_machine_it_was(capture: Path) -> None:
    header = read(capture).header
    assert header.masked or not header.hardware


@every_capture
def test_a_capture_is_written_as_this_version_writes_it_and_small(capture: Path) -> None:
    content = capture.read_text(encoding="ascii")
    assert text(read(capture)) == content
    assert len(content) < _LARGEST_BYTES


@every_capture
def test_a_capture_holds_more_than_one_round_and_a_gpu_that_is_up(capture: Path) -> None:
    assert len(read(capture).rounds) > 1
    assert "\nstallscope_gpu_up{" in golden(capture).read_text(encoding="utf-8")


def test_there_are_captures_and_no_golden_page_without_one() -> None:
    assert captures()
    assert {each.name for each in CAPTURES.glob("*.golden.txt")} == {golden(each).name for each in captures()}
