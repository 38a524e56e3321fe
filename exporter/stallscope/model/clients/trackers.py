"""Experiment trackers: key-value pairs written to an existing run, through the tracker's public Python library.

A library is imported on use. It reads its server and its credentials from its own environment variables and files.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Entries = Mapping[str, float | str]
_TEXT_LIMIT = 4000
"""Maximum length of a text. MLflow permits 5000 characters in the value of a tag, some servers fewer bytes."""
_LISTED = 5
_REASON_LIMIT = 500
_EVENT_FILES = "events.out.tfevents.*"
_FOLDER = "stallscope"
_MLFLOW_RETRIES = ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")


class TrackerError(Exception):
    """The entries were not written; the message is one line."""


def write(tracker: str, entries: Entries, target: str, *, experiment: str = "", name: str = "") -> str:
    """Write entries to a tracker's run, in place of earlier values of the same keys.

    Args:
        tracker: one of `TRACKERS`.
        entries: numbers and texts by key.
        target: MLflow: id of the run. TensorBoard: log folder of the run. W&B: ENTITY/PROJECT/ID.
        experiment: MLflow's experiment, in which `name` is searched if there is no target.
        name: name of the run in MLflow.

    Returns:
        A description of the run.

    Raises:
        TrackerError: the library is missing, the run is unknown, or the tracker refused the entries.
    """
    limited = {key: value[:_TEXT_LIMIT] if isinstance(value, str) else value for key, value in entries.items()}
    return TRACKERS[tracker](limited, target, experiment, name)


def _to_mlflow(entries: Entries, target: str, experiment: str, name: str) -> str:
    # By default, the library retries for minutes before it reports that a server refuses the connection.
    os.environ.setdefault(*_MLFLOW_RETRIES)
    mlflow, entities = _library("mlflow"), _library("mlflow.entities")
    server = mlflow.get_tracking_uri()
    with _one_line_errors(server, mlflow.exceptions.MlflowException, "check MLFLOW_TRACKING_URI and the run's id"):
        client = mlflow.MlflowClient()
        run = client.get_run(target or _mlflow_run(client, server, experiment, name))
        # A metric keeps all its values: write only those that changed.
        changed = {key: value for key, value in entries.items() if run.data.metrics.get(key) != value}
        now = int(time.time() * 1000)
        client.log_batch(
            run.info.run_id,
            metrics=[entities.Metric(key, each, now, 0) for key, each in changed.items() if isinstance(each, float)],
            tags=[entities.RunTag(key, each) for key, each in changed.items() if isinstance(each, str)],
        )
    return f"MLflow run {run.info.run_id}"


def _mlflow_run(client: Any, server: str, experiment: str, name: str) -> str:
    """Return the id of the only run with a name in an experiment."""
    found = client.get_experiment_by_name(experiment)
    if found is None:
        raise TrackerError(f"{server}: no experiment {experiment!r}; check --experiment and MLFLOW_TRACKING_URI")
    quote = '"' if "'" in name else "'"  # the filter language has no escape sequences
    runs = client.search_runs([found.experiment_id], f"attributes.run_name = {quote}{name}{quote}")
    ids = [each.info.run_id for each in runs]
    if not ids:
        raise TrackerError(f"{server}: experiment {experiment!r} has no run {name!r}; choose one with --target RUN_ID")
    if len(ids) > 1:
        listed = ", ".join(ids[:_LISTED]) + (" …" if len(ids) > _LISTED else "")
        raise TrackerError(f"{server}: several runs are named {name!r}; choose one with --target: {listed}")
    return str(ids[0])


def _to_tensorboard(entries: Entries, target: str, _experiment: str, _name: str) -> str:
    writers = _library("tensorboardX", "torch.utils.tensorboard")
    folder = Path(target)
    # TensorBoard follows only the newest event file of a folder, so that the training's files need one of their own.
    own = folder / _FOLDER
    with _one_line_errors(target, OSError, "name the log folder of the run with --target"):
        next(folder.iterdir(), None)  # an unknown folder must not be created
        for path in own.glob(_EVENT_FILES):
            path.unlink()
        with writers.SummaryWriter(str(own)) as writer:
            for key, value in entries.items():
                (writer.add_text if isinstance(value, str) else writer.add_scalar)(key, value, 0)
    return f"TensorBoard run {own}"


def _to_wandb(entries: Entries, target: str, _experiment: str, _name: str) -> str:
    wandb = _library("wandb")
    errors = (wandb.errors.Error, ValueError, OSError)
    with _one_line_errors(target, errors, "check --target ENTITY/PROJECT/ID, WANDB_BASE_URL and `wandb login`"):
        wandb.Api().run(target).summary.update(dict(entries))
    return f"W&B run {target}"


TRACKERS: Mapping[str, Callable[[Entries, str, str, str], str]] = {
    "mlflow": _to_mlflow,
    "tensorboard": _to_tensorboard,
    "wandb": _to_wandb,
}
"""The function that writes to each tracker."""


def _library(*names: str) -> Any:
    """Import the first of several libraries that is installed."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise TrackerError(f"{names[0]}: not installed; run `pip install {names[0]}`")


@contextlib.contextmanager
def _one_line_errors(what: str, errors: Any, advice: str) -> Iterator[None]:
    try:
        yield
    except errors as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise TrackerError(f"{what}: {reason[:_REASON_LIMIT].rstrip('. ')}; {advice}") from None
