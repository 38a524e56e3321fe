"""Hugging Face Accelerate: a tracker that measures the loop that logs to it.

    from stallscope.integrations.accelerate import StallscopeTracker

    accelerator = Accelerator(log_with=StallscopeTracker("my-run"))
    accelerator.init_trackers("project")

From `init_trackers` on, each process measures its loop as `integrations.pytorch.watch` does: the prepared
loader's waits, however it fetches ahead, and the optimizer's steps, however many batches each accumulates. `checkpoint`
is `save_state`, `save_model` and `save`, `restore` is `load_state`, also under `stallscope run`.
Numbers given to `accelerator.log` are reported, by the names that are usual for them or as values of their own; tensors
are passed over untouched. `end_training` finishes the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from accelerate.tracking import GeneralTracker

from stallscope.training.integrations import pytorch
from stallscope.training.integrations.fit import scalar, tolerant
from stallscope.training.shim.checked_numbers import number
from stallscope.training.shim.run import Run

_USUAL = {
    "loss": ("loss", "train_loss", "train/loss"),
    "learning_rate": ("learning_rate", "lr"),
    "gradient_norm": ("gradient_norm", "grad_norm"),
    "epoch": ("epoch",),
}


class StallscopeTracker(GeneralTracker):
    """Tracker for Accelerate's `log_with`."""

    name = "stallscope"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run: Run | str | None = None, **settings: Any) -> None:
        """Store which run to report to.

        Args:
            run: a run, or the name of one that is open or is to be started; None for any.
            settings: further arguments of `watch`.
        """
        super().__init__()
        self._given = run
        self._settings = settings
        self.run: Run | None = None

    @property
    def tracker(self) -> Run | None:
        """The run, once trackers were initialised."""
        return self.run

    @tolerant
    def start(self) -> None:
        """Watch the loop from now on."""
        self.run = pytorch.watch(run=self._given, **self._settings)

    @tolerant
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Ignore the training's configuration."""

    @tolerant
    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Report numbers."""
        if self.run is None:
            return
        usual = {name: scalar(values, *names) for name, names in _USUAL.items()}
        self.run.report(**usual)  # type: ignore[arg-type]  # none of them is what mypy takes them for
        known = {name for names in _USUAL.values() for name in names}
        for name, value in values.items():
            if name not in known and (found := number(value)) is not None and isfinite(found):
                self.run.value(name, value)

    @tolerant
    def finish(self) -> None:
        """The training is over."""
        if self.run is not None:
            self.run.finish()
