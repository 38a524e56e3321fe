"""`stallscope annotate` on a real Prometheus: the values of the report, under names for a tracker."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType

import pytest

from stallscope.lab.replay.series import Series
from stallscope.model.clients import trackers
from stallscope.model.clients.prometheus import Prometheus
from stallscope.tools.cli import annotate, report
from tests.cli.test_report import SCRAPES, reported
from tests.filled_prometheus import write
from tests.prometheus_server import prometheus

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
GPU = {"namespace": "vision", "run": "resnet50", "rank": "0", "instance": "resnet50:19400", "gpu": "3", "uuid": "GPU-3"}


def alerts() -> Iterator[Series]:
    """An Xid and throttling on a run's GPU, and an alert on its input."""
    names = {
        "xid_hw": "GpuXidHw",
        "thermal_throttle": "GpuThermalThrottle",
        "input_disk_bound": "TrainingInputDiskBound",
    }
    for cause, name in names.items():
        labels = {**GPU, "alertname": name, "alertstate": "firing", "severity": "warning", "cause": cause}
        yield Series("ALERTS", labels, [1.0] * SCRAPES)
    unjudged = {"namespace": "vision", "run": "young", "rank": "0", "job": "stallscope", "instance": "young:19400"}
    yield Series("stallscope_training_rank_info", {**unjudged, "world_size": "1"}, [1.0] * SCRAPES)


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[str, float]]:
    with prometheus() as running:
        end = time.time()
        series = [*reported("resnet50", "running"), *reported("resnet18", "finished"), *alerts()]
        write([running.port], series, end - 30 * (SCRAPES - 1), SCRAPES)
        yield running.address, end


@pytest.fixture
def server(filled: tuple[str, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    address, end = filled
    monkeypatch.setattr(Prometheus, "now", lambda _: end)
    monkeypatch.chdir(tmp_path)
    return address


def shown(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines())


def test_a_dry_run_shows_the_numbers_of_the_report_and_writes_nothing(
    server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(trackers, "TRACKERS")
    assert report.main(["--prometheus.url", server, "--run", "resnet50", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    grafana = ["--grafana-url", "https://grafana.example/team/", "--report-url", "https://reports.example/7.html"]
    assert annotate.main(["--prometheus.url", server, "resnet50", "--to", "mlflow", "--dry-run", *grafana]) == 0
    found = shown(capsys.readouterr().out)
    first = datetime.fromtimestamp(document["alerts"][0]["first_timestamp_seconds"], timezone.utc)
    hardware = found.pop("stallscope/hardware")
    assert found.pop("stallscope/dashboard").startswith(
        "https://grafana.example/team/d/stallscope-run?var-run=resnet50&var-namespace=vision&from="
    )
    assert found == {
        "stallscope/verdict": document["main_verdict"],
        "stallscope/change_first": f"Waiting for data: disk. {document['recommendations'][0]['advice']}",
        "stallscope/causes": "input_disk_bound 25 %",
        "stallscope/lost_ratio": str(document["lost_ratio"]),
        "stallscope/gpu_hours": str(document["gpu_hours"]),
        "stallscope/lost_gpu_hours": str(document["lost_gpu_hours"]),
        "stallscope/report": "https://reports.example/7.html",
        "stallscope/run": "vision/resnet50",
    }
    assert document["lost_ratio"] == pytest.approx(0.25)
    subject = f"rank 0, GPU 3 of resnet50:19400, {first:%Y-%m-%d %H:%M} UTC, for "
    events = [f"{title}: {subject}" for title in ("Hardware error (Xid)", "Slowed by heat")]
    assert [event for event in events if event in hardware] == events
    assert hardware.count("; ") == 1


def test_a_run_without_hardware_events_has_no_key_for_them(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert annotate.main(["--prometheus.url", server, "resnet18", "--to", "wandb", "--dry-run"]) == 0
    found = shown(capsys.readouterr().out)
    assert found["stallscope/verdict"] == "input_disk_bound"
    assert not {"stallscope/hardware", "stallscope/report", "stallscope/dashboard"} & found.keys()


def test_the_values_are_written_to_the_tracker_s_run(
    server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def to_mlflow(entries: trackers.Entries, *run: str) -> str:
        written.append((entries["stallscope/verdict"], *run))
        return "MLflow run 1"

    monkeypatch.setitem(trackers.TRACKERS, "mlflow", to_mlflow)
    assert annotate.main(["--prometheus.url", server, "resnet18", "--to", "mlflow", "--experiment", "cats"]) == 0
    assert written == [("input_disk_bound", "", "cats", "resnet18")]
    assert capsys.readouterr().out == "wrote to MLflow run 1\n"


def test_nothing_is_written_if_the_run_or_its_verdict_is_unknown(
    server: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    to = ["--prometheus.url", server, "--to", "tensorboard", "--target", str(tmp_path)]
    assert annotate.main(["resnet5", *to]) == 1
    assert "did you mean resnet50" in capsys.readouterr().err
    assert annotate.main(["young", *to]) == 1
    assert capsys.readouterr().err == (
        "stallscope annotate: run young: neither a verdict nor a hardware event is known; see `stallscope why young`\n"
    )
    assert [*tmp_path.iterdir()] == []


def test_an_error_of_the_tracker_is_one_line(
    server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", ModuleType("tensorboardX"))
    to = ["--prometheus.url", server, "--to", "tensorboard", "--target", "absent"]
    assert annotate.main(["resnet50", *to]) == 1
    reported = capsys.readouterr()
    assert (reported.out, reported.err) == (
        "",
        "stallscope annotate: absent: No such file or directory; name the log folder of the run with --target\n",
    )


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--to", "mlflow"], "--to mlflow: requires --target or --experiment"),
        (["--to", "wandb", "--experiment", "cats"], "--to wandb: requires --target"),
        (["--to", "tensorboard"], "--to tensorboard: requires --target"),
    ],
)
def test_a_tracker_s_run_must_be_named(flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        annotate.main(["resnet50", *flags])
    assert end.value.code == 2
    assert capsys.readouterr().err == f"stallscope annotate: {problem}\n"
