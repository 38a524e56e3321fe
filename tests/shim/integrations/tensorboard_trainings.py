"""Scalars written by TensorBoard's real writers."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import stallscope
from tests.shim.integrations.trainings import Desk, framework, main


def tensorboardx_writer(desk: Desk) -> None:
    writers: Any = framework("tensorboardX")
    with (
        stallscope.Run("job", sender=desk) as run,
        writers.SummaryWriter(str(desk.path.with_suffix(".events"))) as writer,
    ):
        stallscope.sync_tensorboard(run)
        writer.add_scalar("train/loss", 0.5, 10)
        writer.add_scalar("accuracy", 0.75, global_step=10, display_name="Accuracy")
        writer.add_scalars("score", {"a": 1.0}, 10)


def torch_writer(desk: Desk) -> None:
    torch: Any = framework("torch")
    # TensorBoard then uses its own small part of TensorFlow, which takes ten seconds to import.
    sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")
    writers: Any = framework("torch.utils.tensorboard")
    with (
        stallscope.Run("job", sender=desk) as run,
        writers.SummaryWriter(str(desk.path.with_suffix(".events"))) as writer,
    ):
        stallscope.sync_tensorboard(run)
        writer.add_scalar("Loss/train", 0.5, 10)
        writer.add_scalar("accuracy", 0.75, 10, new_style=True)
        writer.add_scalar("tensor", torch.ones(()), 10)  # only the writer reads this value
        writer.add_scalars("score", {"a": 1.0}, 10)


def tf_summary(desk: Desk) -> None:
    """Run where TensorFlow has been imported for Keras."""
    tensorflow: Any = framework("tensorflow")
    with stallscope.Run("job", sender=desk) as run:
        stallscope.sync_tensorboard(run)
        with tensorflow.summary.create_file_writer(str(desk.path.with_suffix(".events"))).as_default():
            tensorflow.summary.scalar("accuracy", 0.75, step=10)
            tensorflow.summary.scalar("tensor", tensorflow.constant(1.0), step=10)


if __name__ == "__main__":
    main("tensorboard", (tensorboardx_writer, torch_writer))
