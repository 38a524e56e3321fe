"""PyTorch: report what a training loop does, with one line in the program.

    from stallscope.integrations import pytorch

    run = pytorch.watch(model, optimizer, loader)

The loop stays as it is. `data_wait` is the time in which it waits for its data loader, the start of workers included,
or draws a batch in another way; `forward` the calls of modules that have parameters; `backward` the computing of
gradients; `optimizer` the optimizer's step; `communication` the host's waiting in collectives that the program calls
itself; `evaluation` what is computed without a backward pass; `checkpoint` and `restore` the writing and reading of
files. A step is an optimizer step, however many batches it accumulates and however many optimizers take part. It
lasts until the loop fetches the next batch; without a `DataLoader`, until the optimizer has stepped. A step that a
gradient scaler skips does not count, and is in the value `amp_skipped_steps`.

Phases are the host's time: where the host waits for the GPU, that is wherever the program first needs a result. Where
CUDA is in use the same phases, and copies to the GPU (`host_copy`), are also timed by the GPU's clock, with events
without a wait; the wait of the backward pass for `DistributedDataParallel` comes from its own reducer. A wait for
data that the GPU's queue hides is `data_wait` of the host while the GPU stays busy.

Results to the bit, random numbers, the graph of gradients, types, attributes, pickles and the graphs of `torch.compile`
are unchanged. How it works, and what is not seen: `shim/README.md`.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterable
from typing import Any, Literal

import torch

from stallscope.training.integrations.pytorch_loop import Loop
from stallscope.training.integrations.pytorch_patches import Patches
from stallscope.training.shim import lifetime
from stallscope.training.shim.run import Run, current, open_run
from stallscope.training.shim.tolerance import tolerate

_COUNTED_STEP = 5
"""The step whose operations are counted: after warm-up and lazy initialisation."""

_patches: Patches | None = None
_loop: Loop | None = None
_beginning = threading.Lock()
"""Held by the thread whose loop begins a run: threads that begin to train at the same time share it."""
_waiting_since: float | None = None
"""Monotonic time since when any new loop is watched; None to watch only explicit ones."""


def watch(
    model: Any = None,
    optimizer: Any = None,
    loader: Any = None,
    *,
    run: Run | str | None = None,
    samples_per_step: float | None = None,
    tokens_per_step: float | None = None,
    flops_per_step: float | Literal["parameters", "counted"] | None = None,
    steps_planned: int | None = None,
) -> Run:
    """Report this process' training loop to a run, from now on.

    One loop is watched at a time, in the thread that calls this; another call ends the watching of the one before.

    Args:
        model: the module that the loop calls, or several; by default the outermost ones that the optimizers update.
        optimizer: the optimizer, or several, whose steps count; by default all.
        loader: the training loader, or several; any other `DataLoader` is then for evaluation. By default those count
            as training that are iterated over with gradients switched on and a model in training mode.
        run: the run or its name; without one the run that is open, else a new one, named as `Run` does.
        samples_per_step: samples of this rank in each step; by default each batch counts with the loader's batch size.
        tokens_per_step: tokens of this rank in each step.
        flops_per_step: floating-point operations of the model for each step of this rank; "parameters": six for each
            parameter and token, as is usual for transformers; "counted": by PyTorch's own counter, once, on the fifth
            step, which that makes slower.
        steps_planned: steps of the whole run.
    """
    global _loop, _patches
    found = run if isinstance(run, Run) else open_run(run) or Run(run)
    try:
        models = _several(model, torch.nn.Module)
        if found.silent:
            return found
        flops = flops_per_step
        if flops == "parameters":
            flops = 6.0 * sum(each.numel() for one in models for each in one.parameters()) * (tokens_per_step or 0.0)
        elif flops == "counted":
            found.on_step(_Counter(found))
            flops = None
        found.plan(samples_per_step, tokens_per_step, flops, steps_planned)
        if _patches is None:
            _patches = Patches(_find)
        if _loop is not None:
            _loop.close()
        _loop = _observed(
            found,
            models,
            _several(optimizer, torch.optim.Optimizer),
            _several(loader, torch.utils.data.DataLoader),
            counts_samples=samples_per_step is None,
        )
    except Exception as error:
        tolerate(error, "watching a loop")
    return found


def unwatch() -> None:
    """Leave PyTorch and the model as they were; the run goes on."""
    global _loop, _patches, _waiting_since
    if _loop is not None:
        _loop.close()
    if _patches is not None:
        _patches.undo()
    _loop = _patches = _waiting_since = None


def watch_any(since: float | None = None) -> None:
    """Watch whichever loop begins in this process, under a run that begins with it.

    Args:
        since: when the process began to prepare for it, by the monotonic clock: that time is initialization.
    """
    global _patches, _waiting_since
    _waiting_since = time.monotonic() if since is None else since
    if _patches is None:
        _patches = Patches(_find)


def misses_steps() -> bool:
    """Return whether this process computed gradients, and no step of a loop was found."""
    if _loop is not None:
        return _loop.misses_steps
    return _patches is not None and _patches.computed_gradients and not lifetime.watched()


def observe_checkpoints(_: float) -> None:
    """Observe the modules that write and read checkpoints or make pipeline stages, of which another was imported."""
    if _patches is not None:
        _patches.observe_checkpoints()


def pass_compiler(_: float) -> None:
    """Let `torch.compile`, which was imported just now, treat the observed calls of modules as it treats others."""
    if _patches is not None:
        _patches.calls.pass_compiler()


def _find(shows: str = "") -> Loop | None:
    global _loop, _waiting_since
    loop = _loop
    if loop is not None and not loop.run.silent:
        return loop if _patches is None else _patches.loop
    if not shows or _waiting_since is None or _is_worker():
        return None
    if shows == "loader" and threading.current_thread() is not threading.main_thread():
        return None  # it may prefetch for the loop, which shows itself by its gradients
    if loop is not None and current() is None:  # the run has ended; only another of the program's follows
        return None
    if not _beginning.acquire(blocking=False):
        return None
    try:
        if _loop is not loop:  # another thread was faster
            return None
        run = _begin(_waiting_since, shows == "backward")
        if run.silent:  # it could not start
            _waiting_since = None
        else:
            _loop = _observed(run)
    except Exception as error:
        _waiting_since = None
        tolerate(error, "observing a loop")
    finally:
        _beginning.release()
    return _loop


def _begin(since: float, in_backward: bool) -> Run:
    run, began = current(), time.monotonic()
    if run is None:
        run = Run(
            head_start=began - since,
            prepare=lambda made: (
                _patches.before.book(made, began if in_backward else None) if _patches is not None else None
            ),
        )
    return run


def _observed(run: Run, *parts: Iterable[Any], counts_samples: bool = True) -> Loop:
    if _patches is None:
        raise RuntimeError("PyTorch is not observed")
    return Loop(
        run,
        *parts,
        calls=_patches.calls,
        reduced=_patches.reduced,
        before=_patches.before,
        direct=_patches.direct,
        gpu_found=_patches.on_gpu,
        has_optimizers=_patches.has_optimizers or _waiting_since is None,
        counts_samples=counts_samples,
    )


def _is_worker() -> bool:
    """Return True for a helper of a training process: it loads data, ends with its parent, or imports its program."""
    if multiprocessing.current_process().daemon or torch.utils.data.get_worker_info() is not None:
        return True
    return lifetime.importing_for_parent()


def _several(given: Any, kind: type) -> list[Any]:
    """One or several of a kind, as a list.

    Raises:
        TypeError: an argument has another type.
    """
    found = [given] if isinstance(given, kind) else [] if given is None else list(given)
    for each in found:
        if not isinstance(each, kind):
            raise TypeError(f"watch() was given a {type(each).__name__} where it expected a {kind.__name__}")
    return found


class _Counter:
    """Counts the floating-point operations of one step, as a listener to boundaries."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._mode: Any = None

    def __call__(self, steps: int) -> bool:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._run.plan(None, None, float(self._mode.get_total_flops()), None)
            return False
        if self._run.timeline.steps >= _COUNTED_STEP - 1:
            from torch.utils.flop_counter import FlopCounterMode

            self._mode = FlopCounterMode(display=False)
            self._mode.__enter__()
        return True
