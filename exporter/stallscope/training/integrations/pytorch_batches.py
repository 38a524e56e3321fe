"""Passes over PyTorch data loaders: what is known of each, and how many samples its batches hold."""

from __future__ import annotations

import weakref
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from threading import get_ident
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler

from stallscope.training.shim.tolerance import tolerate

if TYPE_CHECKING:
    from stallscope.training.shim.rebooking import Snapshot

unobserved: Callable[[], AbstractContextManager[Any]] = getattr(torch._C, "DisableTorchFunction", nullcontext)  # noqa: SLF001
"""Context in which a look at a tensor calls no `__torch_function__` of its class or of a mode."""
SCALARS = frozenset({bool, bytes, float, int, str, type(None)})
"""Types of values that contain nothing."""
_DEEPEST = 3
"""Levels of lists and mappings that are searched for tensors."""
_WIDEST = 16
"""Items of each level that are looked at."""


class Pass:
    """One pass over a loader.

    A pass trains if gradients are computed from its batches. Until the first backward pass its role is a prediction,
    and its time is kept apart, so that it can be moved to `evaluation`.
    """

    def __init__(
        self,
        loader: Any,
        trains: bool | None,
        predicted: bool,
        gradients: bool,
        *,
        iterator: Any = None,
        is_prefetched: bool = False,
    ) -> None:
        """Begin a pass.

        Args:
            loader: the data loader.
            trains: whether the pass is for training, where that is known.
            predicted: the same as far as it can be predicted.
            gradients: whether gradients were enabled when it began.
            iterator: of a loader that is not known, because its class has an `__iter__` of its own.
            is_prefetched: whether another thread than the loop's iterates the loader.
        """
        self.loader: Callable[[], Any] = _nothing if loader is None else weakref.ref(loader)
        self.gradients = gradients
        self.trains = trains
        self.predicted = predicted
        self.is_prefetched = is_prefetched
        self.is_evaluated = False
        """True if the newest batch is for an evaluation."""
        self.is_proven = False
        """True once gradients were computed from its batches."""
        self.before: Snapshot | None = None
        """When the pass began, while its time can still be moved."""
        self.ended = 0.0
        """When its iterator was made, in seconds of the run's clock."""
        self.fetched = 0
        """Batches."""
        self.in_hand: deque[int] = deque()
        """Samples of each batch that has not been used yet, the oldest first; Accelerate fetches one ahead."""
        self.forwards = 0
        """Calls of modules in the loop when the newest batch was fetched."""
        self.iterator: Callable[[], Any] = _nothing
        if loader is None:
            loader = _described_by(iterator)
        self.nominal = batch_size(loader)
        sampler = getattr(loader, "batch_sampler", None)
        self.length: int | None = None
        """Samples in the whole pass, where the sampler gives whole batches of them and knows."""
        if isinstance(sampler, BatchSampler) and type(sampler) is BatchSampler and hasattr(sampler.sampler, "__len__"):
            self.length = len(sampler.sampler)
        self.knows_samples = bool(self.nominal) and self.length is not None
        """True if the sampler determines the number of samples of each batch."""
        self.dimension: Callable[[Any], int] = _zero if self.knows_samples else leading_dimension
        """Returns a batch's leading dimension, or 0 if that is not needed to count samples."""
        self.workers = getattr(loader, "num_workers", None)

    def samples(self, found: int) -> int:
        """Return the number of samples of the batch that was fetched after `fetched` others, with this dimension."""
        nominal = self.nominal or 0
        if self.length is not None and self.knows_samples:
            return max(min(nominal, self.length - self.fetched * nominal), 0)
        return found if found and (not nominal or found <= nominal) else nominal


class Prefetched:
    """Samples and seconds of the threads that fetch for the loop. Each adds to its own numbers: none is lost."""

    def __init__(self) -> None:
        self._by_thread: dict[int, list[float]] = {}
        self._taken = (0.0, 0.0)

    def add(self, samples: int, seconds: float) -> None:
        """Add samples that this thread has fetched, and seconds for which it waited."""
        own = self._by_thread.setdefault(get_ident(), [0.0, 0.0])
        own[0] += samples
        own[1] += seconds

    def take(self) -> tuple[float, float]:
        """Return the samples and seconds of all threads since the last call."""
        before, found = self._taken, list(self._by_thread.values())
        self._taken = (sum(own[0] for own in found), sum(own[1] for own in found))
        return self._taken[0] - before[0], self._taken[1] - before[1]


def batch_size(loader: Any) -> int | None:
    """Return the samples in each whole batch of this process, or None. Accelerate may split one between processes."""
    size = getattr(loader, "batch_size", None)
    if size is None:
        sampler = getattr(loader, "batch_sampler", None)
        size = getattr(sampler, "batch_size", None)
        if getattr(sampler, "split_batches", False) and type(size) is int:
            size //= getattr(sampler, "num_processes", 1)
    return size if type(size) is int and size > 0 else None


def _described_by(iterator: Any) -> Any:
    """Return what the iterator of a PyTorch loader knows of it, as far as a pass reads it."""
    sampler = getattr(iterator, "_index_sampler", None)
    workers = getattr(iterator, "_num_workers", None)
    return SimpleNamespace(batch_sampler=sampler, num_workers=workers)


def leading_dimension(batch: Any) -> int:
    """Return the first dimension of the first tensor in a batch; 0 without a tensor."""
    try:
        first = batch[0] if batch.__class__ in (list, tuple) and batch else batch
        with unobserved():
            if first.__class__ is torch.Tensor and first.dim():
                return int(first.size(0))
            for tensor in tensors(batch):
                if tensor.dim():
                    return int(tensor.shape[0])
    except Exception as error:
        tolerate(error, "counting samples")
    return 0


def tensors(value: Any, depth: int = _DEEPEST, *, of_any_mapping: bool = True) -> Iterator[Any]:
    """Yield the tensors in nested lists, tuples and mappings, the first few of each.

    Args:
        value: a tensor, or what may contain some.
        depth: levels to search.
        of_any_mapping: whether to call the methods of a mapping that is not a dictionary.
    """
    if issubclass(type(value), torch.Tensor):
        yield value
    elif depth:
        for item in first_items(value, of_any_mapping=of_any_mapping):
            if type(item) is torch.Tensor:
                yield item
            elif type(item) not in SCALARS:
                yield from tensors(item, depth - 1, of_any_mapping=of_any_mapping)


def first_items(value: Any, *, of_any_mapping: bool) -> Iterable[Any]:
    """Return the first few items of a list or a tuple, or values of a mapping; nothing for anything else.

    Methods of the program's own classes are not called: they may fail, or load each value from a disk. A mapping that
    is not a dictionary has no others.
    """
    kind = type(value)  # __class__ may be a method of the program
    if issubclass(kind, tuple):
        return tuple.__getitem__(value, slice(_WIDEST))
    if issubclass(kind, list):
        return list.__getitem__(value, slice(_WIDEST))
    if issubclass(kind, UserDict):
        value = vars(value).get("data")
        kind = type(value)
    with suppress(Exception):  # of such a mapping, or because another thread changes the dictionary
        if issubclass(kind, dict):
            return list(islice(dict.values(value), _WIDEST))
        if of_any_mapping and issubclass(kind, Mapping):
            return list(islice(value.values(), _WIDEST))
    return ()


def _zero(batch: Any) -> int:
    return 0


def _nothing() -> None:
    """Stand for a loader that is not known."""
