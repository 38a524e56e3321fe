"""The bridge to TensorBoard, with the real writers where they are installed, and OpenTelemetry left alone."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stallscope
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.integrations import tensorboard
from tests.shim.conftest import Desk
from tests.shim.integrations.trainings import held, read


class Tensor:
    """A fake GPU tensor; reading its value would wait for the GPU."""

    def item(self) -> float:
        raise AssertionError("a tensor was touched")

    __float__ = __int__ = __index__ = __bool__ = __array__ = item


class SummaryWriter:
    """A fake with the interface of the real writers; it records its calls."""

    def __init__(self) -> None:
        self.written: list[tuple[Any, ...]] = []

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: Any = None, walltime: Any = None, new_style: bool = False
    ) -> str:
        self.written.append((tag, scalar_value, global_step, walltime, new_style))
        return "written"

    def add_scalars(self, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: Any = None) -> None:
        self.written.append((main_tag, tag_scalar_dict, global_step))


@pytest.fixture(autouse=True)
def no_run_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    # The bridge itself stays: a writer that an earlier test wrapped reports to it.
    monkeypatch.setattr(tensorboard._bridge, "_run", None)


@pytest.fixture
def run(clock: ScriptedClock, desk: Desk) -> Iterator[stallscope.Run]:
    run = SimulatedRun("job", clock=clock, sender=desk)
    yield run
    run.finish()


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> SummaryWriter:
    """A writer of a module that passes for tensorboardX's, already imported."""
    kind = type("SummaryWriter", (SummaryWriter,), {})
    kind.add_scalar = SummaryWriter.add_scalar  # type: ignore[attr-defined]
    kind.add_scalars = SummaryWriter.add_scalars  # type: ignore[attr-defined]
    module = types.ModuleType("tensorboardX.writer")
    module.SummaryWriter = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboardX.writer", module)
    made: SummaryWriter = kind()
    return made


def reported(run: stallscope.Run, desk: Desk) -> Any:
    run.finish()
    return desk.newest


def test_scalars_become_values_and_are_written_as_before(
    run: stallscope.Run, writer: SummaryWriter, desk: Desk
) -> None:
    stallscope.sync_tensorboard(run)
    assert writer.add_scalar("accuracy", 0.5, 7, walltime=1.0, new_style=True) == "written"
    writer.add_scalars("score", {"a": 1, "b": np.float32(2)}, 7)
    assert writer.written == [("accuracy", 0.5, 7, 1.0, True), ("score", {"a": 1, "b": np.float32(2)}, 7)]
    assert reported(run, desk).values == {"accuracy": 0.5, "score/a": 1, "score/b": 2}


@pytest.mark.parametrize(
    ("tag", "gauge"),
    [
        ("loss", "loss"),
        ("Loss/train", "loss"),
        ("train/loss", "loss"),
        ("train_loss", "loss"),
        ("training.loss", "loss"),
        ("train/total_loss", "loss"),
        ("train_loss_step", "loss"),
        ("lr", "learning_rate"),
        ("train/learning_rate", "learning_rate"),
        ("lr-AdamW", "learning_rate"),
        ("Learning Rate", "learning_rate"),
        ("train/grad_norm", "gradient_norm"),
        ("epoch", "epoch"),
    ],
)
def test_conventional_tags_are_known(
    tag: str, gauge: str, run: stallscope.Run, writer: SummaryWriter, desk: Desk
) -> None:
    stallscope.sync_tensorboard(run)
    writer.add_scalar(tag, 0.25)
    assert reported(run, desk).gauges[gauge] == 0.25
    assert desk.newest.values == {}


@pytest.mark.parametrize("tag", ["eval/loss", "Loss/validation", "val_loss", "loss_scale", "lrx", "epochs"])
def test_other_tags_are_values_of_their_name(tag: str, run: stallscope.Run, writer: SummaryWriter, desk: Desk) -> None:
    stallscope.sync_tensorboard(run)
    writer.add_scalar(tag, 0.25)
    assert reported(run, desk).values == {tag: 0.25}
    assert "loss" not in desk.newest.gauges


@pytest.mark.parametrize("tag", ["step", "samples", "steps_planned", "batch_size", "values"])
def test_a_tag_that_report_has_for_something_else_is_a_value(
    tag: str, run: stallscope.Run, writer: SummaryWriter, desk: Desk
) -> None:
    stallscope.sync_tensorboard(run)
    writer.add_scalar(tag, 99)
    assert reported(run, desk).values == {tag: 99}
    assert desk.newest.gauges["step"] == 0
    assert "samples" not in desk.newest.counters


@pytest.mark.parametrize("value", [Tensor(), None, "0.5", [1.0], np.zeros(1)])
def test_only_numbers_are_read(
    value: Any, run: stallscope.Run, writer: SummaryWriter, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    stallscope.sync_tensorboard(run)
    for tag in ("loss", "accuracy"):
        writer.add_scalar(tag, value, 3)
    assert len(writer.written) == 2
    assert reported(run, desk).values == {}
    assert "loss" not in desk.newest.gauges
    assert caplog.text.count("TensorBoard scalar is given a") == 1


def test_a_loss_that_is_not_finite_is_counted(run: stallscope.Run, writer: SummaryWriter, desk: Desk) -> None:
    stallscope.sync_tensorboard(run)
    writer.add_scalar("train/loss", float("nan"))
    writer.add_scalar("accuracy", float("nan"))
    assert reported(run, desk).counters["nonfinite_losses"] == 1
    assert desk.newest.values == {}


def test_a_step_that_is_ahead_is_the_step(run: stallscope.Run, writer: SummaryWriter, desk: Desk) -> None:
    stallscope.sync_tensorboard(run)
    writer.add_scalar("train/loss", 1.0, 5000)
    run.step()
    assert reported(run, desk).gauges["step"] == 5001


def test_an_epoch_written_as_the_step_is_not_the_step(run: stallscope.Run, writer: SummaryWriter, desk: Desk) -> None:
    stallscope.sync_tensorboard(run)
    for _ in range(100):
        run.step()
    writer.add_scalar("Loss/train", 1.0, 3)
    writer.add_scalar("accuracy", 1.0, 10_000)  # of whatever it counts
    assert reported(run, desk).gauges["step"] == 100


def test_at_most_32_tags_become_values(
    run: stallscope.Run, writer: SummaryWriter, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    stallscope.sync_tensorboard(run)
    for number in range(1000):
        writer.add_scalar(f"layer {number}", number)
    assert len(reported(run, desk).values) == 32
    assert caplog.text.count("more than 32 scalars") == 1


@pytest.mark.parametrize("tag", ["x" * 1_000_000, "\0", "", 7, None, b"loss"])
def test_a_tag_may_be_anything(tag: Any, run: stallscope.Run, writer: SummaryWriter, desk: Desk) -> None:
    stallscope.sync_tensorboard(run)
    writer.add_scalar(tag, 1.0)
    assert all(len(name) <= 128 for name in reported(run, desk).values)


def test_a_writer_that_raises_still_does(run: stallscope.Run, writer: SummaryWriter, desk: Desk) -> None:
    stallscope.sync_tensorboard(run)
    with pytest.raises(TypeError):
        writer.add_scalar()  # type: ignore[call-arg]
    assert reported(run, desk).values == {}


def test_values_of_a_writer_imported_later_are_reported(
    clock: ScriptedClock, run: stallscope.Run, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tensorboardX.writer", raising=False)
    stallscope.sync_tensorboard(run)
    module = types.ModuleType("tensorboardX.writer")
    kind = type("Late", (), dict(vars(SummaryWriter)))
    module.SummaryWriter = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboardX.writer", module)
    clock.advance(1.0)
    run.step()
    kind().add_scalar("accuracy", 0.5)
    assert reported(run, desk).values == {"accuracy": 0.5}


def test_a_writer_is_wrapped_once(run: stallscope.Run, writer: SummaryWriter) -> None:
    stallscope.sync_tensorboard(run)
    wrapped = type(writer).add_scalar
    stallscope.sync_tensorboard(run)
    assert type(writer).add_scalar is wrapped
    assert wrapped.__name__ == "add_scalar"


def test_a_finished_run_receives_nothing_and_the_next_does(
    run: stallscope.Run, writer: SummaryWriter, clock: ScriptedClock, desk: Desk
) -> None:
    stallscope.sync_tensorboard(run)
    run.finish()
    writer.add_scalar("accuracy", 0.5)
    second = SimulatedRun("second", clock=clock, sender=desk)
    tensorboard._bridge.serve(second)
    writer.add_scalar("accuracy", 0.75)
    assert reported(second, desk).values == {"accuracy": 0.75}


def test_a_bridge_without_a_run_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    stallscope.sync_tensorboard()
    assert "no open run" in caplog.text


def test_values_of_tf_summary_are_reported(run: stallscope.Run, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Any, ...]] = []
    tensorflow = types.ModuleType("tensorflow")
    tensorflow.summary = types.SimpleNamespace(  # type: ignore[attr-defined]
        scalar=lambda name, data, step=None, description=None: written.append((name, data, step))
    )
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    stallscope.sync_tensorboard(run)
    tensorflow.summary.scalar("loss", 0.5, step=3, description="x")
    tensorflow.summary.scalar("loss", data=Tensor(), step=4)
    assert [entry[2] for entry in written] == [3, 4]
    assert reported(run, desk).gauges["loss"] == 0.5


def test_the_real_tensorboardx(tmp_path: Path) -> None:
    folder = held(("tensorboardX",), "tensorboard_trainings", tmp_path, only=("tensorboardx_writer",))
    newest = read(folder, "tensorboardx_writer").newest
    assert newest.gauges["loss"] == 0.5
    assert newest.values == {"accuracy": 0.75, "score/a": 1.0}
    assert list(tmp_path.glob("*.events/events.*"))


def test_the_real_torch_writer(tmp_path: Path) -> None:
    folder = held(("torch", "tensorboard"), "tensorboard_trainings", tmp_path, only=("torch_writer",))
    newest = read(folder, "torch_writer").newest
    assert newest.gauges["loss"] == 0.5
    assert newest.values == {"accuracy": 0.75, "score/a": 1.0}


@pytest.mark.parametrize(
    "doing", ["import stallscope", "stallscope.Run('job')", "stallscope.sync_tensorboard(stallscope.Run('job'))"]
)
def test_nothing_of_opentelemetry_or_tensorboard_is_imported_or_configured(doing: str) -> None:
    program = (
        "import os, sys; before = dict(os.environ)\n"
        f"import stallscope\n{doing}\n"
        "unwanted = {'opentelemetry', 'tensorboard', 'tensorboardX', 'torch', 'tensorflow'}\n"
        "found = unwanted & {name.split('.')[0] for name in sys.modules}\n"
        "assert not found, found\n"
        "assert dict(os.environ) == before\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
