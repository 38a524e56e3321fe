"""Trainings with Accelerate and its tracker."""

from __future__ import annotations

import tempfile
from pathlib import Path

import stallscope
from stallscope.training.integrations.accelerate import StallscopeTracker
from tests.shim.integrations import accelerate_program, slow_torch
from tests.shim.integrations.trainings import Desk, main


def measured(desk: Desk) -> None:
    """The program that `stallscope run` is tested with, here with the tracker."""
    run = stallscope.Run("measured", sender=desk, interval=0.0)
    with tempfile.TemporaryDirectory() as folder, slow_torch.timed_backward(accelerate_program.truth):
        accelerate_program.main(Path(folder), log_with=StallscopeTracker(run)).end_training()
    accelerate_program.truth.write(desk.path.with_suffix(".truth"))


if __name__ == "__main__":
    main("accelerate", (measured,))
