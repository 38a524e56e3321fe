"""A recording of this machine's own GPU replays to the page that the exporter made while it recorded."""

from __future__ import annotations

import pytest

from stallscope.node.drivers.nvidia.capture import parse, text
from stallscope.node.drivers.nvidia.identifiers import masked
from stallscope.node.drivers.nvidia.library import PynvmlLibrary
from stallscope.tools.cli.record import RecordError, record, replay

pytestmark = pytest.mark.hardware


def test_five_seconds_of_a_real_gpu_replay_to_the_same_page() -> None:
    try:
        recorded = record(PynvmlLibrary(), duration=5.0)
    except RecordError as problem:
        pytest.skip(str(problem))
    assert not recorded.hung
    assert recorded.capture.header.hardware
    capture = parse(text(recorded.capture).splitlines())
    assert replay(capture) == (recorded.page, [])
    page, unanswered = replay(masked(capture))
    assert not unanswered
    assert page.count("\n") == recorded.page.count("\n")
