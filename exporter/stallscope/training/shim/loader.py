"""`track`: time a training loop by what it iterates over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stallscope.common.standard_library import standard_library
from stallscope.training.shim.run import Run, open_run
from stallscope.training.shim.tolerance import complain, shown, tolerate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Batch = TypeVar("Batch")


_FORWARDED = (
    *("__getitem__", "__setitem__", "__delitem__", "__contains__", "__reversed__", "__call__", "__or__", "__add__"),
    *("__enter__", "__exit__", "__aenter__", "__aexit__"),
)
"""Special methods that a wrapper has if its loader has them. Python looks them up in the type only."""
_kinds: dict[tuple[type, tuple[str, ...]], type] = {}
"""Types of wrappers by their base and the special methods of their loaders."""


class WrappedLoader(Iterable["Batch"]):
    """An iterable with the length, the truth, the attributes and the special methods of what it wraps."""

    def __new__(cls, loader: Iterable[Batch], *_: object) -> WrappedLoader[Batch]:
        """Create an object of a subclass that has the special methods of the loader."""
        defined = {name for kind in type(loader).__mro__ for name in vars(kind)}
        names = tuple(name for name in (*_FORWARDED, *cls._OWN) if name in defined)
        found = _kinds.get((cls, names))
        if found is None:
            methods = {name: cls._OWN.get(name) or _forwarded(name) for name in names}
            found = _kinds[cls, names] = type(cls.__name__, (cls,), {**methods, "_BASE": cls})
        made: WrappedLoader[Batch] = object.__new__(found)
        return made

    _BASE: type[WrappedLoader[Any]]
    _OWN: dict[str, Any] = {}  # noqa: RUF012 (set once for each class)
    """Special methods that a subclass defines itself, for loaders that have them."""

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

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (self._BASE, self._loader), self.__dict__


def _copied(base: type[WrappedLoader[Any]], loader: Iterable[Any]) -> WrappedLoader[Any]:
    """Return a wrapper whose attributes are not yet set, for pickle and copy."""
    return WrappedLoader.__new__(base, loader)


def _forwarded(name: str) -> Any:
    def forward(self: WrappedLoader[Any], *arguments: Any, **named: Any) -> Any:
        loader = self._loader
        found = getattr(type(loader), name)(loader, *arguments, **named)
        return self if found is loader else found  # `with loader as data`

    forward.__name__ = name
    return forward


class Tracked(WrappedLoader["Batch"]):
    """An iterable that reports to its run how long each step and each wait for data takes."""

    def __init__(self, loader: Iterable[Batch], run: Run, batches_per_step: int) -> None:
        super().__init__(loader)
        self._run = run
        self._batches_per_step = batches_per_step
        self._pass: Iterator[Batch] | None = None
        """The pass over a loader that is an iterator, and so has only one."""

    def __iter__(self) -> Iterator[Batch]:
        if self._run.silent:
            return iter(self._loader)
        if not hasattr(type(self._loader), "__next__"):
            return _Pass(self, self._batches())
        if self._pass is None:
            self._pass = _Pass(self, self._batches())
        return iter(self._pass)

    def _next(self) -> Batch:
        if self._run.silent:
            return next(iter(self._loader))
        iter(self)
        assert self._pass is not None, "only a loader that is an iterator has this method"
        return next(self._pass)

    def _batches(self) -> Iterator[Batch]:
        run, timeline = self._run, self._run.timeline
        step, wait = timeline.step, timeline.phase("data_wait")
        enter, leave = wait.__enter__, wait.__exit__
        per_step, batches = self._batches_per_step, 0
        waiting = True
        self.enter_loop()
        enter()
        is_loop = not wait.hidden
        try:
            if is_loop:
                run.begin_pass()
            for batch in self._loader:
                leave()
                waiting = False
                before = timeline.steps
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
            if is_loop:
                self.leave_loop(is_step=timeline.steps == before)
            raise
        except BaseException:
            is_loop = False
            raise
        finally:
            if waiting:
                leave()
            if self.is_open:
                run.open_loops.pop(id(self))
                if is_loop:
                    run.loop_over()

    @property
    def is_open(self) -> bool:
        """True while a loop over this object is under way."""
        return id(self) in self._run.open_loops

    def enter_loop(self) -> None:
        """A loop begins, or goes on with a pass that an earlier loop has left."""
        self._run.open_loops[id(self)] = self._batches_per_step

    def leave_loop(self, *, is_step: bool = True) -> None:
        """A loop has left a pass before its end, by `break` or by an exception.

        Args:
            is_step: False if the loop has marked the step of its last batch itself.
        """
        run = self._run
        if run.silent or not self.is_open:
            return
        is_over = not self._is_left_by_exception()
        if is_over and is_step and self._batches_per_step == 1 and not run.is_complete:
            run.timeline.end_left_step()
        run.open_loops.pop(id(self))
        if is_over:
            run.loop_over()

    def _is_left_by_exception(self) -> bool:
        try:
            with standard_library():
                from stallscope.training.shim.program_end import loop_left

            return loop_left(self._run)
        except Exception as error:
            tolerate(error, "finding out how a loop was left")
            return True

    def _aiter(self) -> Any:
        if self._run.silent:
            return type(self._loader).__aiter__(self._loader)  # type: ignore[attr-defined]
        with standard_library():
            from stallscope.training.shim.async_batches import async_batches

        loader: Any = self._loader
        return async_batches(loader, self._run, self._batches_per_step)


Tracked._OWN = {"__next__": Tracked._next, "__aiter__": Tracked._aiter}  # noqa: SLF001


class _Pass(Iterator["Batch"]):
    """One pass over a tracked loader, which a program may keep in a variable."""

    __slots__ = ("_batches", "_tracked")

    def __init__(self, tracked: Tracked[Batch], batches: Iterator[Batch]) -> None:
        self._tracked = tracked
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:  # noqa: PYI034 (not itself: see _Loop)
        return _Loop(self._tracked, self._batches)

    def __next__(self) -> Batch:
        return next(self._batches)


class _Loop(_Pass["Batch"]):
    """A pass as a `for` statement holds it: dropped when the loop is left, also where the program keeps the pass."""

    __slots__ = ("_is_inside",)

    def __init__(self, tracked: Tracked[Batch], batches: Iterator[Batch]) -> None:
        super().__init__(tracked, batches)
        self._is_inside = False
        tracked.enter_loop()

    def __next__(self) -> Batch:
        self._is_inside = False
        batch = next(self._batches)
        self._is_inside = True
        return batch

    def __del__(self) -> None:
        try:
            if self._is_inside:
                self._tracked.leave_loop()
        except Exception as error:
            tolerate(error, "leaving a loop")


def _has_description(loader: object) -> bool:
    return hasattr(loader, "batch_size") or hasattr(loader, "num_workers")


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
    `data_wait`. A step that is left by an exception isn't counted; one that is left by `break` is if its work took at
    least half as long as usual. Iterating again, over the same object or over another one tracked under the same run,
    goes on with the run and counts an epoch if it makes a step. The run ends with the process, as failed where an
    exception or `sys.exit` with a status ended it, with `Run.finish()`, or as finished when its loop is over and
    another run of the process begins.

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
        given = (samples_per_step, tokens_per_step, flops_per_step, steps_planned, epochs)
        try:
            if not found.silent and (any(each is not None for each in given) or _has_description(loader)):
                with standard_library():
                    from stallscope.training.shim.loop_plan import plan

                plan(found, loader, *given, batches_per_step)
        except Exception as error:
            tolerate(error, "looking at the loader")
        return Tracked(loader, found, batches_per_step)
    except Exception as error:
        tolerate(error, "tracking a loader")
        return loader  # type: ignore[return-value]  # what the caller gave works as well, only untold
