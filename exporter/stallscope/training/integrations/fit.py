"""The run of a trainer's callback: attached and claimed when training begins, released when it ends."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any, TypeVar

from stallscope.training.integrations.pytorch_device import report_allocator
from stallscope.training.shim.checked_numbers import number
from stallscope.training.shim.run import Run, open_run
from stallscope.training.shim.timeline import Phase
from stallscope.training.shim.tolerance import tolerate

Method = TypeVar("Method", bound=Callable[..., Any])

ROLLOUTS = {
    "_generate_and_score_completions": "rollout",
    "_calculate_rewards": "reward",
    "_move_model_to_vllm": "weight_sync",
}
"""Methods of TRL's trainers that are phases; methods that a version lacks are passed over."""


class Fit:
    """State that callbacks share: the run, one open phase at a time, and the end.

    A run that was given, or that is open already, is used and left open: between two fits it is `paused`. Otherwise
    each fit has a run of its own, which ends with it; several of them in one process are sessions of one run.
    """

    def __init__(self, run: Run | str | None, integration: str, framework: str, settings: Mapping[str, Any]) -> None:
        """Store the program's settings.

        Args:
            run: a run, or the name of one that is open or is to be started; None for any.
            integration: claims the run under this name.
            framework: as `rank_info` names it.
            settings: further arguments of `Run`; they take precedence over the trainer's values.
        """
        self._given_run = run
        self.integration = integration
        self.framework = framework
        self._settings = dict(settings)
        self._owned = False
        self._phase: Phase | None = None
        self._refreshed: tuple[Run | None, Callable[[], object] | None] = (None, None)
        self.run: Run | None = None
        self.active = False
        """True during a fit."""
        self.counts_samples = True
        """True unless the program has set how many samples a step has."""

    def __reduce__(self) -> tuple[type[Fit], tuple[Run | str | None, str, str, dict[str, Any]]]:
        # In another process it starts again; a given run is silent there.
        return Fit, (self._given_run, self.integration, self.framework, self._settings)

    @property
    def open_run(self) -> Run | None:
        """The run; None before it begins and after it ends."""
        return None if self.run is None or self.run.silent else self.run

    def begin(self, refresh: Callable[[], object] | None = None, /, **found: Any) -> Run:
        """Attach to the run, or start one.

        Args:
            refresh: called just before each report of the run.
            found: arguments of `Run` that the trainer provides.
        """
        self.leave()
        self.active = True
        settings = {**found, **self._settings}
        run = self.open_run
        if run is None:
            given = self._given_run
            run = given if isinstance(given, Run) else open_run(given)
            self._owned = run is None
            if run is None:
                run = Run(given if isinstance(given, str) else None, **settings)
            self.run = run
        run.claimed_by = self.integration
        run.describe(framework=self.framework, precision=settings.get("precision") or None)
        if not self._owned:
            self.plan(**settings)
        if (run, refresh) != self._refreshed:
            self._refreshed = run, refresh
            self.counts_samples = run.batch_size is None
            run.watch(self._report_allocator)
            if refresh is not None:
                run.watch(refresh)
        return run

    def plan(
        self,
        samples_per_step: float | None = None,
        tokens_per_step: float | None = None,
        flops_per_step: float | None = None,
        steps_planned: float | None = None,
        **_: Any,
    ) -> None:
        """Set what a step is worth and how many are planned, unless the program has set them."""
        given = self._settings
        if self.run is not None:
            self.run.plan(
                given.get("samples_per_step", samples_per_step),
                given.get("tokens_per_step", tokens_per_step),
                given.get("flops_per_step", flops_per_step),
                given.get("steps_planned", steps_planned),
            )

    def begin_loop(self) -> None:
        """End initialization, where no phase of a step does."""
        timeline = None if self.run is None else self.run.timeline
        if timeline is not None and not timeline.looping and timeline.current is timeline.initialization:
            timeline.begin_loop(timeline.now())

    def enter(self, name: str) -> None:
        """Leave the phase that is open and open this one."""
        self.leave()
        if self.run is not None:
            self._phase = self.run.phase(name)
            self._phase.__enter__()

    @contextmanager
    def booked(self, name: str) -> Iterator[None]:
        """Book the block to a phase, also between two fits; framework calls in it are not a loop of their own."""
        run = self.open_run
        if run is None:
            yield
            return
        paused = self.phase == "paused"
        claimed_by, run.claimed_by = run.claimed_by, self.integration
        if paused:
            self.leave()
        try:
            with run.phase(name):
                yield
        finally:
            run.claimed_by = claimed_by
            if paused:
                self.enter("paused")

    def leave(self) -> None:
        """Leave the phase that is open, if one is."""
        if self._phase is not None:
            self._phase.__exit__()
            self._phase = None

    @property
    def phase(self) -> str:
        """The phase that is open, empty where none is."""
        return "" if self._phase is None else self._phase.name

    def report_if_due(self) -> None:
        """Send a report that is due, after a batch of an evaluation: it may take long."""
        if self.run is not None:
            self.run.timeline.report_if_due()

    def end(self) -> None:
        """The fit is over."""
        self.leave()
        self.active = False
        if self.run is None:
            return
        self.run.claimed_by = ""
        if self._owned:
            self.run.finish()
        else:
            self.enter("paused")

    def fail(self, error: BaseException) -> None:
        """The fit ended with an exception."""
        if self.run is None or not self.active:
            return
        self.leave()
        self.active = False
        self.run.claimed_by = ""
        if self._owned:
            self.run.fail(error)

    def _report_allocator(self) -> None:
        torch = sys.modules.get("torch")
        if self.run is not None and torch is not None and torch.cuda.is_initialized():
            report_allocator(torch.cuda, self.run)


def tolerant(method: Method) -> Method:
    """Log an error of a callback once, in place of ending the training."""

    @wraps(method)
    def safe(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            tolerate(error, f"calling {method.__name__}")
            return None

    return safe  # type: ignore[return-value]  # the same arguments


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of a class or module, unless a version lacks it or it is replaced already."""
    original = getattr(owner, name, None)
    if original is None or getattr(vars(owner).get(name), "_by_stallscope", False):
        return
    replacement = wraps(original)(make(original))
    replacement._by_stallscope = True  # type: ignore[attr-defined]  # noqa: SLF001
    setattr(owner, name, replacement)


def require(module: str, package: str) -> ModuleType:
    """Import a framework's module.

    Raises:
        ImportError: it isn't installed; the message says what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name not in (module, module.partition(".")[0]):
            raise  # it is there, and lacks something itself
        raise ImportError(f"stallscope's integration needs {module}: pip install {package} ({error})") from error


def place(rank: int, local_rank: int, world_size: int) -> dict[str, int]:
    """Return a trainer's ranks as arguments of `Run`; none for a single rank, which the launcher may know better."""
    return {"rank": rank, "local_rank": local_rank, "world_size": world_size} if world_size > 1 else {}


def scalar(values: Mapping[str, Any], *names: str) -> float | None:
    """The first of these names that holds a Python or NumPy number; tensors are passed over untouched."""
    for name in names:
        if (found := number(values.get(name))) is not None:
            return found
    return None


def samples(batch: Any) -> int:
    """Return the length of a batch's first tensor or array; 0 where it has none."""
    while not hasattr(batch, "shape"):
        values = batch.values() if hasattr(batch, "values") else batch if isinstance(batch, (list, tuple)) else ()
        batch = next((value for value in values if value is not None), None)
        if batch is None:
            return 0
    try:
        return int(batch.shape[0]) if batch.shape else 0
    except (TypeError, ValueError):  # not known before the step runs
        return 0
