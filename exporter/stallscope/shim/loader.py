"""`track`: time a training loop by what it iterates over."""

from __future__ import annotations

from collections.abc import Iterable, Sized

from stallscope.shim.lifetime import loop_left, open_run
from stallscope.shim.run import Run
from stallscope.shim.tolerance import complain, number, shown, tolerate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeVar

    Batch = TypeVar("Batch")


class WrappedLoader(Iterable["Batch"]):
    """An iterable with the length, the truth and the attributes of what it wraps."""

    def __init__(self, loader: Iterable[Batch]) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a loader without length says so itself

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while this object is being copied it has no loader yet
            raise AttributeError(name)
        return getattr(self._loader, name)


class Tracked(WrappedLoader["Batch"]):
    """An iterable that reports to its run how long each step and each wait for data takes."""

    def __init__(self, loader: Iterable[Batch], run: Run, batches_per_step: int) -> None:
        super().__init__(loader)
        self._run = run
        self._batches_per_step = batches_per_step

    def __iter__(self) -> Iterator[Batch]:
        if self._run.silent:
            return iter(self._loader)
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        timeline = self._run.timeline
        step, wait = timeline.step, timeline.phase("data_wait")
        enter, leave = wait.__enter__, wait.__exit__
        per_step, batches = self._batches_per_step, 0
        waiting = True
        enter()
        try:
            if not wait.hidden:
                self._run.begin_pass()
            for batch in self._loader:
                leave()
                waiting = False
                before = timeline.steps
                # A loop left here, by break or by an exception, has not finished its step: it isn't counted.
                yield batch
                waiting = True
                batches += 1
                if batches == per_step:
                    batches = 0
                    if timeline.steps == before:  # else the loop calls run.step() itself
                        step(wait)
                        continue
                enter()
        except GeneratorExit:
            loop_left(self._run, timeline.mark)
            raise
        finally:
            if waiting:
                leave()


def track(
    loader: Iterable[Batch],
    run: Run | str | None = None,
    *,
    samples_per_step: float | None = None,
    tokens_per_step: float | None = None,
    flops_per_step: float | None = None,
    steps_planned: int | None = None,
    epochs: int | None = None,
    batches_per_step: int = 1,
) -> Tracked[Batch]:
    """Time a training loop by what it iterates over, and change nothing else.

        for epoch in range(90):
            for batch in stallscope.track(loader, run="resnet50"):
                train(batch)

    A step ends when the loop requests the next batch; the time until the batch arrives is the next step's
    `data_wait`. A step that is left by `break` or an exception isn't counted. Iterating again, over the same object or
    over another one tracked under the same run, goes on with the run and counts an epoch if it makes a step. The run
    ends with the process, as failed where an exception or `sys.exit` with a status ended it, or with `Run.finish()`.

    The first two steps of a pass are never counted as slow: there the loader's workers start again, and the wait for
    them counts as `data_wait`. Several optimizers in one iteration change nothing, since batches are counted.

    Validation belongs in `with run.phase("evaluation")`; a loader tracked inside it adds nothing.

    Args:
        loader: any iterable. Of a PyTorch `DataLoader`, batch size and number of workers are reported as well.
        run: the run or its name; without one the run that is open, else a new one, named as `Run` does.
        samples_per_step: samples of this rank in each step; by default the loader's `batch_size`, if it has one.
        tokens_per_step: tokens of this rank in each step.
        flops_per_step: floating-point operations of the model for each step of this rank.
        steps_planned: steps of the whole run.
        epochs: passes over the loader in the whole run, which with its length gives the steps planned.
        batches_per_step: batches that make one step (gradient accumulation); 0 where the loop calls `run.step()`, once
            in each iteration, or `run.optimizer_step(optimizer)` beside each of its optimizers.
    """
    try:
        if run is not None and type(run) is not str and not isinstance(run, Run):
            complain(
                f"track() got the run {shown(run)}; expected a run or its name, the open run is used", "track: run"
            )
            run = None
        found = run if isinstance(run, Run) else open_run(run) or Run(run)
        if type(batches_per_step) is not int or batches_per_step < 0:
            complain(
                f"batches_per_step is {shown(batches_per_step)}; expected a whole number, 1 is taken",
                "batches_per_step",
            )
            batches_per_step = 1
        try:
            if not found.silent:
                size = getattr(loader, "batch_size", None)
                if samples_per_step is None and type(size) is int and found.batch_size is None:
                    samples_per_step = size * max(batches_per_step, 1)
                if steps_planned is None and (passes := number(epochs)) is not None and isinstance(loader, Sized):
                    steps_planned = int(passes * (len(loader) // max(batches_per_step, 1)))
                found.plan(samples_per_step, tokens_per_step, flops_per_step, steps_planned)
                workers = getattr(loader, "num_workers", None)
                if number(workers) is not None:
                    found.gauge("dataloader_workers", workers)
        except Exception as error:
            tolerate(error, "looking at the loader")
        return Tracked(loader, found, batches_per_step)
    except Exception as error:
        tolerate(error, "tracking a loader")
        return loader  # type: ignore[return-value]  # what the caller gave works as well, only untold
