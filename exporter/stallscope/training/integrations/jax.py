"""JAX: a wrapper of the step function that counts steps, and does not wait for the device.

    from stallscope.integrations.jax import track_step

    train_step = track_step(jax.jit(train_step), "my-run", samples_per_step=256)
    for batch in train_step.batches(loader):
        state, metrics = train_step(state, batch)

A call queues its work and returns: a step runs from the end of one call to the end of the next, so that its length is
the loop's, with whatever the loop does in between. `data_wait` is the wait in `batches`, which also counts the samples
of each batch, unless `samples_per_step` is given. A metric that is fetched
blocks where it is fetched, and is booked there, in `other` or in the phase around it. The first call, which compiles,
is `initialization`; compilations in later ones are counted as `recompilations_total`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import update_wrapper
from importlib.util import find_spec
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from stallscope.training.integrations.fit import Fit, require, samples, tolerant
from stallscope.training.shim.checked_numbers import number
from stallscope.training.shim.loader import Tracked, WrappedLoader, track
from stallscope.training.shim.run import Run

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Batch = TypeVar("Batch")

_COMPILED = "/jax/core/compile/backend_compile_duration"
_MEMORY = {
    "bytes_in_use": "allocator_used_bytes",
    "peak_bytes_in_use": "allocator_peak_bytes",
    "pool_bytes": "allocator_reserved_bytes",
}


class TrackedStep(Generic[Arguments, Result]):
    """A step function that reports each call to its run; it has the attributes of the wrapped function."""

    def __init__(
        self,
        function: Callable[Arguments, Result],
        run: Run | str | None,
        calls_per_step: int,
        device_time_every: int,
        settings: dict[str, Any],
    ) -> None:
        update_wrapper(self, function, updated=())
        self._function = function
        self._fit = Fit(run, "jax", "jax", settings)
        self._calls_per_step = max(calls_per_step, 1)
        self._device_time_every = device_time_every
        self._calls = 0
        self._calling = False
        self._samples = 0
        self._batch_size = 0

    @property
    def run(self) -> Run:
        """The run; it begins at its first use, at the latest with the first call."""
        return self._fit.open_run or self._begin()

    def batches(self, loader: Iterable[Batch]) -> Tracked[Batch]:
        """Iterate over a loader, booking the wait for each batch; every pass is an epoch."""
        run = self.run
        if run.silent or run.batch_size is not None:
            return track(loader, run, batches_per_step=0)
        workers = number(getattr(loader, "num_workers", None))
        if workers is not None:
            run.gauge("dataloader_workers", workers)
        return Tracked(_Counted(loader, self), run, 0)

    @tolerant
    def fetched(self, batch: object) -> None:
        """Take note of the batch that the next call is about."""
        self._samples = samples(batch)
        if self._samples > self._batch_size:
            self._batch_size = self._samples
            self.run.gauge("batch_size", self._samples * self._calls_per_step)

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Call the function, and report the call, unless JAX traces it."""
        if _is_tracing():
            return self._function(*args, **kwargs)
        run = self._fit.run or self.run
        calls = self._calls
        every = self._device_time_every
        self._calling = True
        try:
            if calls == 0:
                with run.phase("initialization"):
                    result = self._function(*args, **kwargs)
            elif every and calls % every == 0:
                result = self._timed(run, args, kwargs)
            else:
                result = self._function(*args, **kwargs)
        finally:
            self._calling = False
        self._calls = calls = calls + 1
        if self._samples:
            run.report(samples=self._samples)
            self._samples = 0
        if calls % self._calls_per_step == 0:
            run.step()
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a step function that is defined in a class, as the function without this wrapper is bound."""
        bind = getattr(self._function, "__get__", None)
        if instance is None or bind is None or getattr(bind(instance, owner), "__self__", None) is not instance:
            return self
        return MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while this object is being copied it has no function yet
            raise AttributeError(name)
        return getattr(self._function, name)

    def _timed(self, run: Run, args: Any, kwargs: Any) -> Result:
        """Call between two waits for the device: what it takes is the step's time there, and not the loop's."""
        wait = sys.modules["jax"].block_until_ready
        wait((args, kwargs))  # results of the step before are among them
        began = time.perf_counter()
        result: Result = self._function(*args, **kwargs)
        wait(result)
        run.report(device_step_seconds=time.perf_counter() - began)
        return result

    def _begin(self) -> Run:
        jax = sys.modules.get("jax")
        run = self._fit.begin(self._read_memory, **_place(jax))
        _steps.add(self)
        _listen(jax)
        return run

    @tolerant
    def _read_memory(self) -> None:
        jax = sys.modules.get("jax")
        run = self._fit.run
        if jax is None or run is None:
            return
        totals: dict[str, float] = {}
        for device in jax.local_devices():
            for name, key in _MEMORY.items():
                value = (device.memory_stats() or {}).get(name)
                if value is not None:
                    totals[key] = totals.get(key, 0.0) + value
        for key, total in totals.items():
            run.gauge(key, total)


class _Counted(WrappedLoader[Batch]):
    """A loader whose batches a step counts."""

    def __init__(self, loader: Iterable[Batch], step: TrackedStep[Any, Any]) -> None:
        super().__init__(loader)
        self._step = step

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            self._step.fetched(batch)
            yield batch


_steps: WeakSet[TrackedStep[Any, Any]] = WeakSet()
_listening = False


def _track_step(
    function: Callable[Arguments, Result],
    run: Run | str | None = None,
    *,
    calls_per_step: int = 1,
    device_time_every: int = 0,
    **settings: Any,
) -> TrackedStep[Arguments, Result]:
    """Wrap a step function.

    Args:
        function: the jitted function, or whatever calls it.
        run: a run, or the name of one that is open or is to be started with the first call.
        calls_per_step: calls that make one step, where gradients are accumulated.
        device_time_every: on every N-th call, wait for the device before and after, and report the time of the call
            there as the value `device_step_seconds`. This slows those steps down; 0 never waits.
        settings: further arguments of `stallscope.Run`.
    """
    return TrackedStep(function, run, calls_per_step, device_time_every, settings)


def _is_tracing() -> bool:
    """Return whether JAX traces a function, as in `jax.eval_shape`: a call then computes nothing."""
    is_clean = getattr(sys.modules.get("jax._src.core"), "trace_state_clean", None)  # no public function has it
    return is_clean is not None and not is_clean()


def _place(jax: Any) -> dict[str, Any]:
    """Rank and world, if JAX knows them already; querying earlier would prevent their initialization."""
    distributed = getattr(jax, "distributed", None)
    initialized = getattr(distributed, "is_initialized", None)
    if initialized is None or not initialized():
        return {}
    return {"rank": jax.process_index(), "world_size": jax.process_count()}


def _listen(jax: Any) -> None:
    """Count compilations, once for each process."""
    global _listening
    monitoring = getattr(jax, "monitoring", None)
    register = getattr(monitoring, "register_event_duration_secs_listener", None)
    if _listening or register is None:
        return
    _listening = True

    def count_compilation(event: str, duration: float, **_: Any) -> None:
        if event != _COMPILED:
            return
        for step in tuple(_steps):
            run = step._fit.run  # noqa: SLF001 - its own file
            if step._calling and step._calls and run is not None:  # noqa: SLF001
                run.add("recompilations", 1)

    register(count_compilation)


def __getattr__(name: str) -> Any:
    if name != "track_step":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("jax") is None:
        require("jax", "jax")
    return _track_step
