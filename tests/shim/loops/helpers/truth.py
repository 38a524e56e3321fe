"""Record of what a training program really does, kept by the program itself and independent of Stallscope.

    from truth import truth

    with truth("forward"):
        loss = model(batch)
    truth.samples(len(batch))
    truth.step()

Phases nest as in a report: time in an inner phase is taken out of the outer phase, except that `evaluation` and
`restore` keep the time of all step phases inside. The first wait for data, forward, backward or optimizer begins the
loop; time before it is `initialization`, and time of the loop in no phase is `other`. Where two phases are equally
right, name both: `truth("data_wait or other")`. Only the thread and the process
that imported this module (or called `truth.rank`) are recorded. The clock moves only while the program sleeps.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import multiprocessing.process
import multiprocessing.util
import os
import pickle
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

OUTSIDE = ("evaluation", "restore")
OPENING = ("data_wait", "forward", "backward", "optimizer")


class Truth:
    """One process' record."""

    def __init__(self) -> None:
        self._models: dict[str, Any] = {}
        self._attributes: dict[str, Any] = {}
        self._begin(0)
        atexit.register(self.finish)

    def _begin(self, rank: int) -> None:
        self._rank = rank
        self._process = os.getpid()
        self._thread = threading.get_ident()
        self._mark = time.perf_counter()
        self._loop: float | None = None
        self._open: list[str] = []
        self._seconds: dict[str, float] = {}
        self._steps = 0
        self._step_seconds = 0.0
        self._samples: int | None = None
        self._finished = False

    def rank(self, rank: int) -> None:
        """Begin the record of one rank, in a process that the program started for it."""
        self._begin(rank)
        if multiprocessing.process.parent_process() is not None:  # such a process ends without atexit
            multiprocessing.util.Finalize(None, self.finish, exitpriority=200)

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Record the time of a block, or of a decorated function."""
        if (
            self._finished
            or os.getpid() != self._process
            or threading.get_ident() != self._thread
            or self._hides(phase)
        ):
            yield
            return
        self._book()
        if self._loop is None and not self._open and phase.partition(" ")[0] in OPENING:
            self._loop = self._mark
        self._open.append(phase)
        try:
            yield
        finally:
            self._book()
            self._open.remove(phase)

    def _hides(self, phase: str) -> bool:
        return phase in self._open or (phase not in OUTSIDE and any(outer in OUTSIDE for outer in self._open))

    def _book(self) -> None:
        now = time.perf_counter()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._mark
        elif self._loop is not None:
            self._seconds["other"] = self._seconds.get("other", 0.0) + now - self._mark
        else:
            self._seconds["initialization"] = self._seconds.get("initialization", 0.0) + now - self._mark
        self._mark = now

    def step(self) -> None:
        """Count a step: the optimizer updated the model."""
        self._book()
        self._steps += 1
        outside = ("initialization", *OUTSIDE)
        self._step_seconds = sum(spent for phase, spent in self._seconds.items() if phase not in outside)

    def samples(self, number: int) -> None:
        """Count samples of a training batch."""
        self._samples = (self._samples or 0) + number

    def inspect(self, model: Any, name: str = "model") -> None:
        """Record a module's attributes now, and its pickle when the program ends."""
        self._models[name] = model
        self._attributes[name] = {
            path or ".": {
                "type": f"{type(part).__module__}.{type(part).__qualname__}",
                "attributes": sorted(key for key in vars(part) if not key.startswith("__")),
                "hooks": {key: len(value) for key, value in vars(part).items() if key.endswith("_hooks") and value},
                "forward": "forward" in vars(part),
            }
            for path, part in model.named_modules()
        }

    def finish(self) -> None:
        """Write the record."""
        folder = os.environ.get("TRUTH_FOLDER")
        if self._finished or folder is None or os.getpid() != self._process:
            return
        self._book()
        self._finished = True
        if self._loop is None:  # a process that only started the ranks
            return
        record = {
            "rank": self._rank,
            "steps": self._steps,
            "samples": self._samples,
            "seconds": self._seconds,
            "step_seconds": self._step_seconds,
            "attributes": self._attributes,
        }
        Path(folder, f"truth-{self._rank}.json").write_text(json.dumps(record))

    def write_pickles(self) -> None:
        """Write a digest of each inspected module's pickle; called when the reports are complete."""
        pickles = {}
        for name, model in self._models.items():
            buffer = io.BytesIO()
            try:
                _Pickler(buffer).dump(model)
                pickles[name] = sha256(buffer.getvalue()).hexdigest()
            except Exception as error:
                pickles[name] = f"{type(error).__name__}: {error}"
        Path(os.environ["TRUTH_FOLDER"], f"pickles-{self._rank}.json").write_text(json.dumps(pickles))


class _Pickler(pickle.Pickler):
    """Pickles tensors by their content: PyTorch would store their addresses."""

    def persistent_id(self, value: Any) -> Any:
        import torch

        if not isinstance(value, torch.Tensor):
            return None
        content = repr(value.detach().tolist())
        return type(value).__name__, str(value.dtype), tuple(value.shape), value.requires_grad, content


truth = Truth()
