"""Checks of an exporter from its own metrics page."""

from __future__ import annotations

import time

import pytest

from stallscope.common.version import __version__
from stallscope.tools.doctor.exporter import PART
from tests.doctor.conftest import MakeSubject
from tests.doctor.web_servers import Served, findings, statuses

pytestmark = pytest.mark.usefixtures("no_time_passes")
CHECKS = ("version", "ready", "sources", "gpus", "readings", "clock", "receivers", "reports", "series")


def page(now: float) -> str:
    return f"""\
stallscope_build_info{{version="{__version__}",python="3.11"}} 1
stallscope_exporter_source_up{{source="cpu"}} 1
stallscope_exporter_source_up{{source="nvidia"}} 1
stallscope_exporter_source_last_success_timestamp_seconds{{source="cpu"}} {now}
stallscope_exporter_source_last_success_timestamp_seconds{{source="nvidia"}} {now}
stallscope_gpu_up{{gpu="0",uuid="GPU-0"}} 1
stallscope_exporter_receiver_up{{transport="udp"}} 1
stallscope_exporter_receiver_up{{transport="unix"}} 1
stallscope_exporter_reports_total{{transport="unix"}} 7
stallscope_exporter_reports_rejected_total{{reason="unsigned"}} 0
stallscope_exporter_series_dropped_total{{limit="series"}} 0
"""


def test_an_exporter_in_order_is_ok_in_every_check(served: Served, make_subject: MakeSubject) -> None:
    served.texts = {"/metrics": page(time.time()), "/-/ready": "ready"}
    found = findings(PART, make_subject(exporter_url=served.url))
    assert statuses(found) == {check: {"ok"} for check in CHECKS}


@pytest.mark.parametrize(
    ("check", "status", "line", "instead", "words"),
    [
        ("version", "warning", f'"{__version__}"', '"0.0.1"', "version 0.0.1"),
        ("sources", "failed", 'source_up{source="cpu"} 1', 'source_up{source="cpu"} 0', "collector cpu fails"),
        (
            "sources",
            "failed",
            'source_up{source="nvidia"} 1',
            'source_up{source="nvidia"} 0\nstallscope_exporter_source_stuck_threads{source="nvidia"} 2',
            "collector nvidia hangs: 2 of its threads",
        ),
        (
            "gpus",
            "failed",
            'gpu_up{gpu="0",uuid="GPU-0"} 1',
            'gpu_up{gpu="0",uuid="GPU-0"} 0\nstallscope_gpu_lost_info{gpu="0",uuid="GPU-0",reason="gpu_lost"} 1',
            "GPU 0 (GPU-0) cannot be read: gpu_lost",
        ),
        (
            "gpus",
            "warning",  # because a user requested it
            'gpu_up{gpu="0",uuid="GPU-0"} 1',
            'gpu_up{gpu="0",uuid="GPU-0"} 0\nstallscope_gpu_lost_info{gpu="0",uuid="GPU-0",reason="released"} 1',
            "GPU 0 (GPU-0) cannot be read: released",
        ),
        ("gpus", "warning", 'stallscope_gpu_up{gpu="0",uuid="GPU-0"} 1\n', "", "no GPU"),
        ("readings", "failed", 'seconds{source="nvidia"} 1', 'seconds{source="nvidia"} 0', "collector nvidia"),
        (
            "receivers",
            "failed",
            'receiver_up{transport="udp"} 1',
            'receiver_up{transport="udp"} 0',
            "the udp receiver of training reports is not open",
        ),
        ("reports", "warning", 'reason="unsigned"} 0', 'reason="unsigned"} 3', "3 training reports were rejected"),
        ("series", "warning", 'limit="series"} 0', 'limit="series"} 4', "4 series"),
    ],
)
def test_what_is_wrong_is_found_by_its_own_check(
    check: str, status: str, line: str, instead: str, words: str, served: Served, make_subject: MakeSubject
) -> None:
    whole = page(time.time())
    assert line in whole
    served.texts = {"/metrics": whole.replace(line, instead), "/-/ready": "ready"}
    found = findings(PART, make_subject(exporter_url=served.url))
    assert statuses(found) == {each: {status if each == check else "ok"} for each in CHECKS}
    assert words in found[check][0].message
    assert found[check][0].remedy


@pytest.mark.parametrize(("seconds", "words"), [(100, "100 s ahead"), (-100, "100 s old")])
def test_clocks_that_disagree_are_reported(
    seconds: float, words: str, served: Served, make_subject: MakeSubject
) -> None:
    served.texts = {"/metrics": page(time.time() + seconds), "/-/ready": "ready"}
    found = findings(PART, make_subject(exporter_url=served.url))
    assert statuses(found)["clock"] == {"failed"}
    assert words in found["clock"][0].message


def test_an_exporter_that_is_not_ready_says_so(served: Served, make_subject: MakeSubject) -> None:
    served.texts = {"/metrics": page(time.time())}
    found = findings(PART, make_subject(exporter_url=served.url))
    assert statuses(found)["ready"] == {"failed"}


def test_a_missing_exporter_and_another_web_server_are_distinguished(served: Served, make_subject: MakeSubject) -> None:
    assert "Connection refused" in findings(PART, make_subject())["reachable"][0].message
    served.texts = {"/metrics": "up 1\n"}
    stranger = findings(PART, make_subject(exporter_url=served.url))["reachable"][0]
    assert (stranger.status, "not a Stallscope exporter" in stranger.message) == ("failed", True)
