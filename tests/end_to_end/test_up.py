"""`stallscope up` from the outside: data flows, everything is said plainly, and nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.up_process import started
from tests.nvml_library.stand_in import NvmlStandIn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


def value(port: int, expression: str) -> float | None:
    """The most that it was in the last minute: a scrape may go unanswered."""
    query = urllib.parse.urlencode({"query": f"max_over_time(({expression})[1m:1s])"})
    result = get(f"http://127.0.0.1:{port}/api/v1/query?{query}")["data"]["result"]
    return float(result[0]["value"][1]) if result else None


def not_in_order(exporter: int, prometheus: int) -> list[dict[str, str]]:
    """Return the problems that `stallscope doctor` finds in a stack."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "stallscope", "doctor", "exporter", "reports", "prometheus", "cluster", "--json"),
            *("--exporter.url", f"http://127.0.0.1:{exporter}", "--prometheus.url", f"http://127.0.0.1:{prometheus}"),
        ],
        env={**os.environ, "STALLSCOPE_ADDRESS": f"udp://127.0.0.1:{exporter}"},
        stdout=subprocess.PIPE,
        timeout=200,
        check=False,
    )
    print(done.stdout.decode())
    results: list[dict[str, str]] = json.loads(done.stdout)["results"]
    assert {each["part"] for each in results} == {"exporter", "reports", "prometheus", "cluster"}
    return [each for each in results if each["status"] != "ok"]


def test_data_flows_ctrl_c_leaves_no_process_and_a_kept_folder_serves_again(tmp_path: Path) -> None:
    kept = f"--data-dir={tmp_path / 'kept'}"
    for start in ("first", "second"):
        (tmp_path / start).mkdir()
    with started(tmp_path / "first", kept) as up:
        up.wait_for("Data flows.", 200)
        prometheus = up.ports["prometheus"]
        assert value(prometheus, 'up{job="stallscope"}') == 1
        assert value(prometheus, 'count(stallscope_gpu_info{model=~"Simulated.*"})') == 8
        assert (value(prometheus, 'stallscope_training_loss{run="numpy-classifier"}') or 0) > 0
        alerts = get(f"http://127.0.0.1:{up.ports['alertmanager']}/api/v2/alerts")
        assert "StallscopeWatchdog" in {alert["labels"]["alertname"] for alert in alerts}
        up.wait_until(lambda: not not_in_order(up.ports["exporter"], prometheus), "it is not in order", 60)
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 0, up.screen
        assert up.left_over() == []
        assert up.screen.endswith("stopped; no program is left running\n")
    with started(tmp_path / "second", kept, "--once") as again:
        assert again.process.wait(200) == 0, again.screen
        assert again.left_over() == []
    for screen in (up.screen, again.screen):
        assert "real series in Prometheus" in screen
        assert " 8 simulated GPUs in Prometheus" in screen  # without those of an earlier session
        # Also where an earlier session's count was higher.
        assert "real steps of numpy-classifier, and growing" in screen
        assert "alert rules, none fails" in screen
        assert "StallscopeWatchdog" in screen
        assert "no NVIDIA driver responds here" in screen


def test_where_a_driver_answers_nothing_is_simulated(
    tmp_path: Path, nvml_stand_in: NvmlStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, setting in nvml_stand_in.environment.items():
        monkeypatch.setenv(variable, setting)
    with started(tmp_path, "--once", "--no-training-job") as up:
        assert up.process.wait(200) == 0, up.screen
        assert "8 GPUs in Prometheus" in up.screen
        assert "simulated" not in up.screen
        assert list((tmp_path / "temporary files").iterdir()) == []


def test_a_killed_launcher_leaves_no_process(tmp_path: Path) -> None:
    with started(tmp_path) as up:
        up.wait_for("Alertmanager    ready", 200)
        assert len(up.left_over()) >= 5, "launcher, exporter, Prometheus, Alertmanager, training job"
        up.process.send_signal(signal.SIGKILL)
        up.process.wait(60)
        up.wait_until(lambda: not up.left_over(), "processes outlive the launcher", 60, running=False)


def test_a_program_that_ends_is_reported_and_the_rest_stays_up(tmp_path: Path) -> None:
    data = tmp_path / "kept data"
    with started(tmp_path, f"--data-dir={data}", "--no-training-job") as up:
        up.wait_for("Data flows.", 200)
        (exporter,) = [child for child in up.children() if "exporter" in child.cmdline()]
        exporter.kill()
        up.wait_for("the exporter was ended by SIGKILL", 60)
        up.wait_for("The other programs keep running.", 60)
        assert value(up.ports["prometheus"], "count(stallscope:threshold)")
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(60) == 1, "it did not go well"
        assert up.left_over() == []
    assert (data / "logs" / "exporter.log").is_file(), "a folder of the user's own is kept"


def test_a_second_stack_is_refused_by_a_busy_port_before_it_starts_anything(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with started(tmp_path, f"--prometheus.port={port}") as up:
            assert up.process.wait(60) == 1
            assert f"stallscope up: port {port} for Prometheus is in use by process" in up.screen
            assert list((tmp_path / "temporary files").iterdir()) == []


def test_a_stack_whose_data_does_not_flow_says_what_is_missing_and_stops(tmp_path: Path) -> None:
    with started(tmp_path, "--timeout=1", "--no-training-job") as up:
        assert up.process.wait(60) == 1
        assert "no data after 1 s" in up.screen
        assert "The end of " in up.screen
        assert "logs and configuration are kept in" in up.screen
        assert up.left_over() == []


def test_a_data_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with started(tmp_path, f"--data-dir={tmp_path / 'file'}") as up:
        assert up.process.wait(60) == 1
        assert f"stallscope up: cannot write to {tmp_path / 'file'}: File exists" in up.screen
