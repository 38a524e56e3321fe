"""Scalars that a program writes for TensorBoard anyway, reported as well.

    run = stallscope.Run("resnet50")
    stallscope.sync_tensorboard(run)
    writer.add_scalar("Loss/train", loss.item(), step)   # as before

Observed are `SummaryWriter.add_scalar` and `add_scalars` of torch.utils.tensorboard and tensorboardX, and
`tf.summary.scalar`, once the program has imported them. Only Python and NumPy numbers are taken: a tensor that a writer
is given is not read, since that would wait for the GPU a second time.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from math import isfinite
from typing import Any

from stallscope.training.protocol.vocabulary import MAX_LABEL_LENGTH, MAX_VALUES
from stallscope.training.shim.checked_numbers import number
from stallscope.training.shim.run import Run, current
from stallscope.training.shim.tolerance import complain, label, tolerate, warn

_TRAINING = r"(?:train(?:ing)?[/_. -])?"
_KNOWN = {
    "loss": re.compile(rf"{_TRAINING}(?:total_)?loss(?:[/_](?:train(?:ing)?|step|batch|total))?"),
    "learning_rate": re.compile(rf"{_TRAINING}(?:lr|learning[_ ]?rate)(?:-[\w/]+|/\w+)?"),
    "gradient_norm": re.compile(rf"{_TRAINING}grad(?:ient)?[_ ]?norm"),
    "epoch": re.compile(rf"{_TRAINING}epoch"),
}
"""The tags that frameworks and tutorials write these values under, in lower case."""
_WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


class _Bridge:
    """Observes writers, and reports their scalars to the run."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._names: set[str] = set()

    def serve(self, run: Run) -> None:
        """Report to this run from now on, and look for writers that are imported later at each report."""
        if self._run is not run:
            self._run = run
            self._names = set()
            run.watch(self.wrap)
        self.wrap()

    def wrap(self) -> None:
        for module in _WRITERS:
            writer = getattr(sys.modules.get(module), "SummaryWriter", None)
            if writer is not None:
                _wrap(writer, "add_scalar", self.scalar)
                _wrap(writer, "add_scalars", self.scalars)
        tensorflow = sys.modules.get("tensorflow")
        # Only existing attributes: querying TensorFlow for one may import it.
        summary = vars(tensorflow).get("summary") if tensorflow is not None else None
        if hasattr(summary, "scalar"):
            _wrap(summary, "scalar", self.summary)

    def scalar(self, _writer: object, tag: str, scalar_value: object, global_step: object = None, *_: object) -> None:
        """`SummaryWriter.add_scalar`."""
        self.report_value(tag, scalar_value, global_step)

    def scalars(
        self,
        _writer: object,
        main_tag: str,
        tag_scalar_dict: Mapping[str, object],
        global_step: object = None,
        *_: object,
    ) -> None:
        """`SummaryWriter.add_scalars`."""
        for tag, value in tag_scalar_dict.items():
            self.report_value(f"{main_tag}/{tag}", value, global_step)

    def summary(self, name: str, data: object, step: object = None, *_: object) -> None:
        """`tf.summary.scalar`."""
        self.report_value(name, data, step)

    def report_value(self, tag: object, value: object, step: object) -> None:
        run = self._run
        if run is None or run.silent or not isinstance(tag, str):
            return
        found = number(value)
        if found is None:
            warn(
                f"a TensorBoard scalar is given a {type(value).__name__}, which is not read since that could wait for"
                " the GPU; give its .item() to see it in metrics too",
                "tensorboard: type",
            )
            return
        name = label(tag, MAX_LABEL_LENGTH)
        known = next((key for key, tags in _KNOWN.items() if tags.fullmatch(name.lower())), None)
        if known == "loss":
            self._report_step(run, step)
            run.report(loss=found)
        elif isfinite(found):
            if known == "epoch":
                run.report(epoch=found)
            elif known is not None:
                run.gauge(known, found)
            elif name and self._has_room(name):
                run.value(name, found)
            run.report()  # which sends what is due

    def _report_step(self, run: Run, step: object) -> None:
        """Take the writer's step where it is ahead, as after a checkpoint; epochs, or what lags, are behind."""
        given = number(step)
        if given is not None and isfinite(given) and given > run.steps_done:
            run.report(step=int(given))

    def _has_room(self, name: str) -> bool:
        if name in self._names:
            return True
        if len(self._names) >= MAX_VALUES:
            warn(f"TensorBoard has more than {MAX_VALUES} scalars; metrics have the first", "tensorboard: values")
            return False
        self._names.add(name)
        return True


_bridge = _Bridge()


def sync_tensorboard(run: Run | None = None) -> None:
    """Report the scalars that the program writes for TensorBoard, as values of the run.

    `Loss/train`, `train_loss` and their like are the loss, `lr` and `learning_rate` the learning rate, `grad_norm` the
    gradients' norm, `epoch` the epoch; every other tag is a value of its name, at most 32. A step written with the loss
    that is ahead of the steps counted is taken as the step. What TensorBoard gets is not changed.

    Args:
        run: else the one that is open.
    """
    try:
        found = current() if run is None else run
        if found is None:
            complain("sync_tensorboard() found no open run; call it after track() or Run()")
        elif not found.silent:
            _bridge.serve(found)
    except Exception as error:
        tolerate(error, "listening to TensorBoard")


def _wrap(owner: Any, name: str, observe: Callable[..., None]) -> None:
    original = getattr(owner, name)
    if getattr(original, "observed_by_stallscope", False):
        return

    @wraps(original)
    def observed(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        try:
            observe(*arguments, **{key: value for key, value in named.items() if key in _OBSERVED})
        except Exception as error:
            tolerate(error, "listening to TensorBoard")
        return result

    observed.observed_by_stallscope = True  # type: ignore[attr-defined]
    setattr(owner, name, observed)


_OBSERVED = ("tag", "scalar_value", "global_step", "main_tag", "tag_scalar_dict", "name", "data", "step")
"""Keywords that the methods above have; a writer's further ones concern it alone."""
