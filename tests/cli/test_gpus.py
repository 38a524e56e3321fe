"""`stallscope gpus` on the stand-in library, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stallscope.node.drivers.peak_flops import TABLE_DATE
from stallscope.tools.cli import gpus as command
from tests.nvml_library.stand_in import DriverState, GpuState, Group, NvmlStandIn


class Said(NamedTuple):
    """The command's output on one node, as text and as JSON."""

    text: subprocess.CompletedProcess[str]
    document: dict[str, Any]


@pytest.fixture
def node(tmp_path: Path) -> NvmlStandIn:
    return NvmlStandIn(tmp_path, gpus=2)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Output for a node with one healthy GPU and others with one peculiarity each; run once for all tests."""
    node = NvmlStandIn(tmp_path_factory.mktemp("node"), gpus=4)
    well, poor, forgetful, cut = node.gpu
    well.power_milliwatts = 123_456
    poor.lack(Group.BAR1)
    forgetful.persistence = 0
    cut.cut(("1g.10gb", 10 << 30))
    with ThreadPoolExecutor() as both:
        text, found = both.map(lambda flags: run(node, *flags), ((), ("--json",)))
    return Said(text, json.loads(found.stdout))


@pytest.fixture
def document(said: Said) -> dict[str, Any]:
    return said.document


def run(node: NvmlStandIn | None, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stallscope", "gpus", *flags],
        env=os.environ | (node.environment if node is not None else {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_each_gpu_has_its_table_within_eighty_columns(said: Said) -> None:
    shown = said.text.stdout
    assert said.text.returncode == 0, said.text.stderr
    assert max(len(line) for line in shown.splitlines()) <= 80
    for index in range(4):
        assert f"GPU {index}: NVIDIA H100 80GB HBM3\n  {NvmlStandIn.uuid(index)}\n" in shown
    assert "nvmlDeviceGetPowerUsage" in shown
    assert shown.isascii()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_model_that_the_output_cannot_encode_is_escaped(node: NvmlStandIn, encoding: str) -> None:
    node.gpu[0].name = "NVIDIA H100 漢字".encode()
    done = subprocess.run(
        [sys.executable, "-m", "stallscope", "gpus"],
        env=os.environ | node.environment | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        encoding=encoding,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"GPU 0: NVIDIA H100 \u6f22\u5b57" in done.stdout


def test_the_columns_of_a_table_are_aligned_whatever_they_hold(said: Said) -> None:
    lines = said.text.stdout.splitlines()
    head = next(line for line in lines if line.endswith("served by"))
    table = lines[lines.index(head) : lines.index("", lines.index(head))]
    assert len(table) > 30
    column = head.index("served by")
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in table)


def test_what_is_known_of_a_model_names_the_table_and_its_date(document: dict[str, Any]) -> None:
    peak = document["gpus"][0]["signals"]["peak_flops"]
    assert peak["call"] == f"table of {TABLE_DATE}"
    assert {each["precision"] for each in peak["values"]} >= {"bf16", "fp32"}


def test_what_a_gpu_lacks_is_listed_as_such_and_has_no_value(document: dict[str, Any]) -> None:
    well, poor, *_ = document["gpus"]
    assert well["signals"]["bar1_total_bytes"]["supported"] is True
    assert poor["signals"]["bar1_total_bytes"] == {"supported": False, "call": None, "values": []}


def test_signals_name_the_call_that_serves_them_and_their_value(document: dict[str, Any]) -> None:
    power = document["gpus"][0]["signals"]["power_watts"]
    assert power["supported"] is True
    assert power["call"].startswith("nvml")
    assert power["values"] == [{"value": 123.456}]


def test_activity_is_found_since_two_readings_are_compared(document: dict[str, Any]) -> None:
    signals = document["gpus"][0]["signals"]
    assert signals["sm_active_seconds_total"]["supported"] is True
    assert signals["sm_active_seconds_total"]["call"].startswith("GPM")


def test_calls_are_listed_with_their_cost(document: dict[str, Any]) -> None:
    calls = {each["call"]: each for each in document["calls"]}
    power = calls["nvmlDeviceGetPowerUsage"]
    assert power["count"] >= 2 * 3
    assert 0 <= power["mean_seconds"] <= power["max_seconds"]


def test_obstacles_are_warned_of_by_gpu(document: dict[str, Any]) -> None:
    # Except slow calls: on a busy machine, any call can be slow.
    persistence, mig = (warning for warning in document["warnings"] if "ms per call" not in warning)
    assert persistence.startswith("GPU 2: persistence mode is off")
    assert mig.startswith("GPU 3: MIG is on")
    assert [gpu.get("mig") for gpu in document["gpus"]] == [None, None, None, None, "1g.10gb"]
    assert document["gpus"][4]["parent_uuid"] == NvmlStandIn.uuid(3)


def test_xids_are_the_whole_gpus_and_not_missed_at_its_instances(document: dict[str, Any]) -> None:
    *_, whole, instance = (set(gpu["signals"]) for gpu in document["gpus"])
    assert whole - instance == {"xid_events_total", "xid_last_timestamp_seconds"}


def test_a_lost_gpu_and_slow_calls_are_reported_while_the_other_gpu_is_read(node: NvmlStandIn) -> None:
    node.gpu[1].state = GpuState.LOST
    node.set_delay(6000)
    finished = run(node)
    assert finished.returncode == 1
    assert NvmlStandIn.uuid(0) in finished.stdout
    assert "lost" in finished.stdout.lower()
    assert "ms per call" in finished.stdout


def test_without_a_driver_it_says_why_and_what_to_do(node: NvmlStandIn) -> None:
    node.set_driver(DriverState.NOT_LOADED)
    for machine in (node, None):
        finished = run(machine)
        assert finished.returncode == 1
        assert "does not answer" in " ".join(finished.stdout.split())
        assert "nvidia-smi" in finished.stderr
        assert "Traceback" not in finished.stderr


def test_without_a_driver_json_is_still_json(node: NvmlStandIn) -> None:
    node.set_driver(DriverState.NOT_LOADED)
    finished = run(node, "--json")
    assert json.loads(finished.stdout)["gpus"] == []
    assert finished.returncode == 1


def test_simulated_gpus_are_shown_as_such() -> None:
    finished = run(None, "--simulation.scenario", "healthy")
    assert finished.returncode == 0, finished.stderr
    assert "no value here was measured" in finished.stdout
    assert "GPU 7: Simulated" in finished.stdout


def test_an_unknown_scenario_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(["--simulation.scenario", "nonesuch"])
    assert refused.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
