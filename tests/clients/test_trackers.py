"""Entries in MLflow, TensorBoard and W&B: with the real libraries where they are installed."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stallscope.model.clients.trackers import TRACKERS, TrackerError, write
from tests.handled import handled, reply

ENTRIES: dict[str, float | str] = {"stallscope/lost_ratio": 0.25, "stallscope/verdict": "input_disk_bound"}
UNKNOWN = "a" * 32


class MlflowException(Exception):
    """As MLflow's."""


class MlflowStandIn:
    """MLflow with three finished runs in one experiment. A metric keeps all its values, as in the real one."""

    def __init__(self) -> None:
        self.metrics: dict[str, list[tuple[str, float]]] = {"1": [("loss", 0.5)], "2": [], "3": []}
        self.tags: dict[str, dict[str, str]] = {"1": {}, "2": {}, "3": {}}
        self.names = {"1": "resnet50", "2": "twin", "3": "twin"}

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="7") if name == "vision" else None

    def search_runs(self, experiments: list[str], filter_string: str) -> list[Any]:
        assert experiments == ["7"]
        return [
            self.get_run(run) for run, name in self.names.items() if f"attributes.run_name = '{name}'" == filter_string
        ]

    def get_run(self, run: str) -> Any:
        if run not in self.names:
            raise MlflowException(f"Run with id={run}\nnot found.")
        return SimpleNamespace(info=SimpleNamespace(run_id=run), data=SimpleNamespace(metrics=dict(self.metrics[run])))

    def log_batch(self, run: str, metrics: list[Any], tags: list[Any]) -> None:
        self.metrics[run] += [(each.key, each.value) for each in metrics]
        self.tags[run] |= {each.key: each.value for each in tags}


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> MlflowStandIn:
    store = MlflowStandIn()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # which is set otherwise
    entities = SimpleNamespace(
        Metric=lambda key, value, _time, _step: SimpleNamespace(key=key, value=value),
        RunTag=lambda key, value: SimpleNamespace(key=key, value=value),
    )
    module = ModuleType("mlflow")
    module.__dict__.update(
        get_tracking_uri=lambda: "http://mlflow:5000",
        MlflowClient=lambda: store,
        exceptions=SimpleNamespace(MlflowException=MlflowException),
    )
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return store


def test_mlflow_a_run_gets_numbers_as_metrics_and_texts_as_tags(mlflow: MlflowStandIn) -> None:
    assert write("mlflow", ENTRIES, "", experiment="vision", name="resnet50") == "MLflow run 1"
    assert mlflow.metrics["1"] == [("loss", 0.5), ("stallscope/lost_ratio", 0.25)]
    assert mlflow.tags["1"] == {"stallscope/verdict": "input_disk_bound"}
    assert (mlflow.metrics["2"], mlflow.tags["2"]) == ([], {})


def test_mlflow_a_second_call_adds_only_the_values_that_changed(mlflow: MlflowStandIn) -> None:
    for lost in (0.25, 0.25, 0.2):
        write("mlflow", {**ENTRIES, "stallscope/lost_ratio": lost}, "2")
    assert mlflow.metrics["2"] == [("stallscope/lost_ratio", 0.25), ("stallscope/lost_ratio", 0.2)]
    assert mlflow.tags["2"] == {"stallscope/verdict": "input_disk_bound"}


@pytest.mark.parametrize(
    ("target", "experiment", "name", "message"),
    [
        (UNKNOWN, "", "", f"http://mlflow:5000: Run with id={UNKNOWN} not found; check MLFLOW_TRACKING_URI and"),
        ("", "audio", "resnet50", "http://mlflow:5000: no experiment 'audio'; check --experiment"),
        ("", "vision", "vit", "http://mlflow:5000: experiment 'vision' has no run 'vit'; choose one with --target"),
        ("", "vision", "it's", "http://mlflow:5000: experiment 'vision' has no run \"it's\"; choose one"),
        ("", "vision", "twin", "http://mlflow:5000: several runs are named 'twin'; choose one with --target: 2, 3"),
    ],
)
def test_mlflow_a_run_that_is_unknown_or_ambiguous_is_reported_and_nothing_is_written(
    mlflow: MlflowStandIn, target: str, experiment: str, name: str, message: str
) -> None:
    with pytest.raises(TrackerError) as refused:
        write("mlflow", ENTRIES, target, experiment=experiment, name=name)
    assert str(refused.value).startswith(message)
    assert [*mlflow.tags.values()] == [{}, {}, {}]


def test_mlflow_a_text_is_limited_to_the_length_of_a_tag(mlflow: MlflowStandIn) -> None:
    write("mlflow", {"stallscope/hardware": "x" * 9000}, "1")
    assert len(mlflow.tags["1"]["stallscope/hardware"]) == 4000


@pytest.mark.filterwarnings("ignore")
def test_real_mlflow_keeps_the_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    client = real.MlflowClient()
    run = client.create_run(client.create_experiment("vision"), run_name="it's").info.run_id
    for _ in range(2):
        assert write("mlflow", ENTRIES, "", experiment="vision", name="it's") == f"MLflow run {run}"
    kept = client.get_run(run).data
    assert kept.metrics == {"stallscope/lost_ratio": 0.25}
    assert kept.tags["stallscope/verdict"] == "input_disk_bound"
    assert len(client.get_metric_history(run, "stallscope/lost_ratio")) == 1
    with pytest.raises(TrackerError, match="not found; check"):
        write("mlflow", ENTRIES, UNKNOWN)


READ_BACK = """
import json, sys
from types import ModuleType
sys.modules["torch"] = None  # both libraries work without the frameworks, which take seconds to import
sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")
from pathlib import Path
from stallscope.model.clients.trackers import write
for lost in (0.5, 0.25):
    write("tensorboard", {"stallscope/lost_ratio": lost, "stallscope/verdict": "input_disk_bound"}, sys.argv[1])
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
(written,) = Path(sys.argv[1], "stallscope").iterdir()
found = EventAccumulator(str(written)).Reload()
(text,) = found.Tensors("stallscope/verdict/text_summary")
values = [each.value for each in found.Scalars("stallscope/lost_ratio")]
print(json.dumps([values, [each.decode() for each in text.tensor_proto.string_val]]))
"""


@pytest.mark.skipif(not all(map(find_spec, ("tensorboard", "tensorboardX"))), reason="TensorBoard is not installed")
def test_tensorboard_reads_the_entries_once_and_the_training_keeps_its_files(tmp_path: Path) -> None:
    training = tmp_path / "events.out.tfevents.1.node"
    training.touch()
    command = [sys.executable, "-c", READ_BACK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[0.25], ["input_disk_bound"]]
    assert [each for each in tmp_path.iterdir() if each.is_file()] == [training]


def test_tensorboard_an_unknown_folder_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", ModuleType("tensorboardX"))
    with pytest.raises(TrackerError) as refused:
        write("tensorboard", ENTRIES, f"{tmp_path}/absent")
    assert str(refused.value) == (
        f"{tmp_path}/absent: No such file or directory; name the log folder of the run with --target"
    )
    assert [*tmp_path.iterdir()] == []


class WandbServer(BaseHTTPRequestHandler):
    """The part of W&B's GraphQL interface that its library uses for a summary."""

    summary: dict[str, Any]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        try:
            request = json.loads(body)
        except ValueError:  # the library's own telemetry
            reply(self, b"{}")
            return
        query, variables = request["query"], request.get("variables") or {}
        data: dict[str, Any] = {}
        if "viewer {" in query:
            data = {"viewer": {"id": "1", "entity": "team", "username": "ada", "email": "", "flags": "{}"}}
            data["viewer"]["teams"] = {"edges": []}
        elif "mutation UpsertBucket" in query:
            WandbServer.summary = json.loads(variables["summaryMetrics"])
            data = {"upsertBucket": {"bucket": {"id": "1"}}}
        elif "run(name: $name)" in query and variables["name"] == "1a2b":
            run: dict[str, Any] = {
                "id": "1",
                "name": "1a2b",
                "displayName": "r",
                "state": "finished",
                "config": "{}",
                "tags": [],
            }
            run |= {"systemMetrics": "{}", "summaryMetrics": json.dumps(self.summary), "projectId": 1}
            run |= {"user": {"name": "ada", "username": "ada"}, "createdAt": "2026-01-01T00:00:00"}
            data = {"project": {"run": run}}
        elif "run(name: $name)" in query:
            data = {"project": {"run": None}}
        reply(self, json.dumps({"data": data}).encode(), headers={"Content-Type": "application/json"})


def test_real_wandb_adds_the_entries_to_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb.apis.public")
    WandbServer.summary = {"loss": 0.5}
    with handled(WandbServer) as address:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://{address}")
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        monkeypatch.setenv("HOME", str(tmp_path))
        for _ in range(2):
            assert write("wandb", ENTRIES, "team/vision/1a2b") == "W&B run team/vision/1a2b"
        assert WandbServer.summary == {"loss": 0.5, **ENTRIES}
        with pytest.raises(TrackerError, match=r"^team/vision/none: Could not find run .*; check --target"):
            write("wandb", ENTRIES, "team/vision/none")


@pytest.fixture
def wandb_summary(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """W&B's library, with one run."""
    summary: dict[str, Any] = {"loss": 0.5}

    class CommError(Exception):
        pass

    def run(path: str) -> Any:
        if path != "team/vision/1a2b":
            raise CommError(f"Could not find run {path}")
        return SimpleNamespace(summary=summary)

    module = ModuleType("wandb")
    module.__dict__.update(errors=SimpleNamespace(Error=CommError), Api=lambda: SimpleNamespace(run=run))
    monkeypatch.setitem(sys.modules, "wandb", module)
    return summary


def test_wandb_the_summary_keeps_what_the_training_wrote(wandb_summary: dict[str, Any]) -> None:
    for _ in range(2):
        write("wandb", ENTRIES, "team/vision/1a2b")
    assert wandb_summary == {"loss": 0.5, **ENTRIES}
    with pytest.raises(TrackerError, match=r"^x: Could not find run x; check --target ENTITY/PROJECT/ID"):
        write("wandb", ENTRIES, "x")


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_missing_library_is_reported_with_the_command_that_installs_it(
    tracker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("mlflow", "tensorboardX", "torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TrackerError, match=r"^(\w+): not installed; run `pip install \1`$"):
        write(tracker, ENTRIES, str(tmp_path))
