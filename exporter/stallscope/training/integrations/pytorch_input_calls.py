"""Find the calls in which a program draws its batches, where no data loader does.

Between the phases that are observed (optimizer, forward, backward) a loop computes losses, logs, calls back, and draws
the next batch. A function that draws a batch is known by what it returns: tensors, or arrays behind tensors, with which
a module is called afterwards. So Python's own profiling hook is set between the phases, notes which calls returned such
values, and is gone before the next phase. Where no function drew the batch, yet the module is called with tensors that
did not exist before, the code of the loop itself may have made them. Evidence is then a call that makes or copies
tensors or arrays, or that reads: the time from that call on counts, until the code calls something else, such as a
pause, a log or a wait for the device. Calls count too whose results the batch depends on, such as a download. What else
precedes the evidence remains `other`.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from types import CodeType, FrameType
from typing import Any

import torch

from stallscope.training.integrations.pytorch_batches import SCALARS, first_items, tensors, unobserved
from stallscope.training.integrations.pytorch_indexing import Indexing
from stallscope.training.shim.tolerance import tolerate

_MAX_RETURNED = 32
_DEEPEST_LOOP = 2
"""Calls that lead from the code where an interval begins to the loop whose indexing may make the batch."""
_DEVICE_WAITS = frozenset({"cpu", "item", "numpy", "print", "synchronize", "tolist", "write"})
"""Built-in calls of the loop itself that wait for the device or write logs."""
_READS = frozenset({"load", "loads", "read", "readinto", "readline", "readlines", "recv", "recv_into"})
_MAKES = frozenset(
    {"arange", "array", "as_tensor", "asarray", "astype", "bernoulli", "cat", "choice", "concatenate", "cuda"}
    | {"frombuffer", "from_numpy", "full", "full_like", "gather", "index_select", "integers", "linspace", "multinomial"}
    | {"normal", "normal_", "ones", "ones_like", "permutation", "pin_memory", "rand", "rand_like", "randint"}
    | {"randint_like", "randn", "randn_like", "random", "random_", "random_sample", "randperm", "stack"}
    | {"standard_normal", "take", "tensor", "to", "uniform", "uniform_", "zeros", "zeros_like"}
)
_SOURCES = _READS | _MAKES
"""Built-in calls of the loop itself that read, or that make or copy tensors and arrays."""


@dataclass(slots=True)
class _Call:
    """A Python call that is open."""

    code: CodeType
    began: float
    makes: bool
    inline: float
    computed: float
    """Values of `InputCalls` when it began."""


class _Returned:
    """A call that returned tensors or arrays."""

    __slots__ = ("code", "depth", "is_copied", "is_own", "seconds", "sizes", "values")

    def __init__(self, frame: FrameType, depth: int, seconds: float, values: list[Any]) -> None:
        self.code = frame.f_code
        self.depth = depth
        self.seconds = seconds
        self.values = [weakref.ref(value) for value in values]
        self.sizes = _sizes(values)
        self.is_copied = False
        """True if the code that called it has made or copied tensors or arrays since, perhaps from these."""
        self.is_own = str(frame.f_globals.get("__name__", "")).partition(".")[0] != "torch"
        """Return True for the program's own function, or another library's than PyTorch."""


class InputCalls:
    """Observes the intervals between phases, and finds the calls that draw batches."""

    def __init__(self) -> None:
        self._hook = self._profile
        self.functions: set[CodeType] = set()
        """Functions that draw batches."""
        self.sampled: set[CodeType] = set()
        """These, and functions whose results became batches: their lines of code are of the wait for data."""
        self._returned: list[_Returned] = []
        self._newest: weakref.ref[Any] | None = None
        """The first input of the newest call of a module."""
        self.has_modules = False
        # The present interval:
        self.is_open = False
        self._began: float | None = None
        self._is_observed = False
        self._open: list[_Call] = []
        self._moved = 0.0
        self._events = 0
        self._mark = 0.0
        self._makes = False
        """True once the code of the loop itself has begun to make a batch."""
        self._inline = 0.0
        """Seconds in which that code made a batch."""
        self._indexing = Indexing()
        self._has_batch = False
        self._graph: int | None = None
        """The number of the next node of PyTorch's graph when the interval began, in a program without modules."""
        self._computing_since: float | None = None
        self._computed = 0.0
        """Seconds of the forward pass, in such a program."""

    @property
    def drawing(self) -> bool:
        """True while a function that draws batches is being called."""
        return any(call.code in self.functions for call in self._open)

    def begin(self, *, has_batch: bool = False) -> None:
        """Begin an interval, at the end of a phase.

        Args:
            has_batch: whether a data loader has returned the batch.
        """
        self._began = self._mark = self._seconds()
        self._has_batch = has_batch
        self._graph = self._computing_since = None
        self._computed = 0.0
        self.is_open = True
        self._makes = False
        self._inline = self._moved = 0.0
        self._open.clear()
        self._is_observed = self._is_due() and sys.getprofile() is None and sys.gettrace() is None
        if self._is_observed:
            self._events = 0
            self._indexing.begin()
            if not self.has_modules:
                self._graph = _next_node()
            sys.setprofile(self._hook)

    def end(self, *, computes_gradients: bool = False) -> None:
        """End it where a phase begins that is not a call of a module.

        Args:
            computes_gradients: whether it is a backward pass: in a program without modules, it is all that shows.
        """
        self._stop()
        self.is_open = False
        if self._began is None:
            return
        if not computes_gradients or self.has_modules:
            self._settle("end")
            return
        if self._graph is not None:
            self._advance(self._seconds() - self._mark)
        for returned in self._returned if not self._has_batch else ():
            if returned.is_own:
                self.functions.add(returned.code)
                self.sampled.add(returned.code)
                self._move(returned.seconds)
        self._returned.clear()
        self._compute(self._computed)
        self._settle("gradients")

    def end_with_call(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """End it where a module is called, and find out where the input came from."""
        self._stop()
        self.has_modules = True
        self.is_open = False
        if self._began is None:
            return
        first = arguments[0] if arguments else None
        with unobserved():
            if self._is_observed or type(first) is not torch.Tensor or _is_computed(first):
                inputs = [tensor for tensor in tensors([arguments, options]) if not _is_computed(tensor)]
            else:
                inputs = [first]
        if inputs and (self._newest is None or self._newest() is not inputs[0]):
            self._newest = weakref.ref(inputs[0])
            if self._is_observed and not self._moved:
                self._find(inputs)
            self._settle("call")
        self._began = None
        self._returned.clear()

    def forget(self) -> None:
        """Keep the calls, but not their time: it can no longer be moved, since a report contained it."""
        for returned in self._returned:
            returned.seconds = 0.0

    def release(self) -> None:
        """Drop all references to tensors."""
        self._returned.clear()
        self._newest = None

    def _stop(self) -> None:
        if self._is_observed and self._began is not None and sys.getprofile() == self._hook:
            sys.setprofile(None)

    def _is_due(self) -> bool:
        """Return whether the next interval is to be observed."""
        return True

    def _seconds(self) -> float:
        """Return the seconds that passed outside of phases."""
        raise NotImplementedError

    def _move(self, seconds: float) -> None:
        """Book seconds as the wait for input."""
        raise NotImplementedError

    def _compute(self, seconds: float) -> None:
        """Book seconds as the forward pass."""

    def _settle(self, ended_by: str) -> None:
        self._began = None

    def _advance(self, seconds: float) -> None:
        """Add the seconds since the newest event to the forward pass, if it has begun: if PyTorch's graph has grown."""
        if self._computing_since is None and _next_node() != self._graph:
            self._computing_since = self._mark - seconds
        if self._computing_since is not None:
            self._computed += seconds

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        try:
            self._events += 1
            now = self._seconds()
            seconds = now - self._mark
            self._mark = now
            is_built_in = event == "c_return" or event == "c_exception"
            if self._graph is not None and not (is_built_in and _waits(argument)):
                self._advance(seconds)
            if is_built_in:
                if len(self._open) <= _DEEPEST_LOOP:
                    if self._makes or _library(argument) in sys.stdlib_module_names:
                        self._indexing.go_on(frame)
                    else:
                        self._indexing.reach(frame, seconds)
                if self._makes:
                    self._end_built_in(argument, seconds)
                return
            if self._makes:
                self._inline += seconds
            if event == "return":
                if self._open:
                    self._close_call(self._open.pop(), frame, argument, now)
                if len(self._open) <= _DEEPEST_LOOP:
                    self._indexing.go_on(frame.f_back)
                return
            if len(self._open) <= _DEEPEST_LOOP:
                self._indexing.reach(frame.f_back if event == "call" else frame, 0.0 if self._makes else seconds)
            if event == "call":
                self._open.append(_Call(frame.f_code, now, self._makes, self._inline, self._computed))
                self._indexing.go_on(frame)
            elif argument.__name__ in _SOURCES and not isinstance(argument.__self__, Random):
                self._makes = True
                for returned in self._returned:
                    returned.is_copied = returned.is_copied or returned.depth == len(self._open)
        except Exception as error:  # of a class of the program: it would end the call that is observed
            self._stop()
            self._began = None
            tolerate(error, "observing a call")

    def _end_built_in(self, function: Any, seconds: float) -> None:
        """End a built-in call after the code began to make a batch: the call may be a part of that, or end it."""
        if function.__name__ in _DEVICE_WAITS:
            self._makes = False
        elif function.__name__ in _SOURCES or (library := _library(function)) not in sys.stdlib_module_names:
            self._inline += seconds
        elif library != "builtins":  # `len`, or the method of a list: the code goes on as before
            self._makes = False

    def _close_call(self, call: _Call, frame: FrameType, result: Any, now: float) -> None:
        seconds = now - call.began
        self._makes, self._inline = call.makes, call.inline
        if call.code in self.functions:
            self._drop_inner()  # their time is a part of this call's
            self._move(seconds)
            self._mark = self._seconds()
            return
        values = None if result is None else _values(result)
        if values is None:  # it may have kept what it drew
            if len(self._open) <= _DEEPEST_LOOP and result is not None and type(result) not in SCALARS:
                self._indexing.add_call(frame, seconds)
            return
        if not values and self._computing_since is not None:  # all of it computed, waits included
            self._computed = call.computed + now - max(call.began, self._computing_since)
        self._drop_inner()
        if values and len(self._returned) < _MAX_RETURNED:
            self._returned.append(_Returned(frame, len(self._open), seconds, values))

    def _drop_inner(self) -> None:
        """Drop the calls that the call that ends has made."""
        while self._returned and self._returned[-1].depth > len(self._open):
            self._returned.pop()

    def _find_behind(self, inputs: list[Any]) -> bool:
        """Find the calls that returned these inputs, or what they are views of."""
        found = [
            call
            for call in self._returned
            if any(_is_behind(value(), tensor) for value in call.values for tensor in inputs)
        ]
        if found:
            # They may have copied what another function returned, to the device or to another type.
            sizes = set().union(*(call.sizes for call in found))
            found += [call for call in self._returned if call.is_own and call.sizes & sizes and call not in found]
            self.functions.update(call.code for call in found)
            self.sampled |= self.functions
            self._move(sum(call.seconds for call in found))
        return bool(found)

    def _find(self, inputs: list[Any]) -> None:
        """Find the call that drew these inputs, else take the time in which the code of the loop itself made them."""
        if self._find_behind(inputs) or self.functions:
            return
        if self._makes:
            self._inline += self._seconds() - self._mark
        indexing = self._indexing.seconds_of(inputs, is_made=self._makes or self._inline > 0.0)
        self.sampled |= self._indexing.receivers
        # What a function returned may have been copied since, to the device or to another type.
        sizes = _sizes(inputs)
        copied = [returned for returned in self._returned if returned.is_copied or returned.sizes & sizes]
        inline = self._inline + sum(returned.seconds for returned in copied if returned.depth == 0)
        longest = max((returned.seconds for returned in copied if returned.is_own), default=0.0)
        self._move(indexing + (longest if longest > inline / 2.0 else inline))


def _unhook_in_child() -> None:
    """Remove the hook from a process that was forked while an interval is observed: there it would stay for ever."""
    if isinstance(getattr(sys.getprofile(), "__self__", None), InputCalls):
        sys.setprofile(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unhook_in_child)


_next_node: Callable[[], int] = getattr(torch._C._autograd, "_get_sequence_nr", int)  # noqa: SLF001
"""Return the number that the next node of this thread's graph receives; always 0 in versions that do not have it."""


def _waits(function: Any) -> bool:
    """Return whether a built-in function waits for the device, or is neither of Python's language nor of a library."""
    return function.__name__ in _DEVICE_WAITS or (
        (library := _library(function)) in sys.stdlib_module_names and library != "builtins"
    )


def _library(function: Any) -> str:
    """Return the name of the top-level module that defines a built-in function or method."""
    module = function.__module__ or type(function.__self__).__module__
    return str(module).partition(".")[0]


def _sizes(values: list[Any]) -> set[int]:
    """Return the numbers of elements of tensors or arrays, except for single ones, which many functions return."""
    found = set()
    with unobserved(), suppress(Exception):  # of a class of the program
        for value in values:
            found.add(int(value.numel() if hasattr(value, "numel") else value.size))
    return found - {0, 1}


def _values(result: Any) -> list[Any] | None:
    """Return the tensors and arrays in a call's result; None without any.

    The list is empty where a tensor has a gradient: such a call computes, and draws no batch.
    """
    if type(result) in SCALARS:
        return None
    found = list(tensors(result, of_any_mapping=False))
    if found:
        with unobserved():
            if any(_is_computed(tensor) for tensor in found):
                return []
            found = [tensor for tensor in found if not tensor.requires_grad]  # else it is a parameter
    numpy = sys.modules.get("numpy")
    if numpy is not None and not found:
        several = (result, *first_items(result, of_any_mapping=False))
        found = [value for value in several if issubclass(type(value), numpy.ndarray)]
    return found or None


def _is_computed(tensor: Any) -> bool:
    """Return whether a tensor has a gradient, or is a view whose base has changed, of which PyTorch refuses to say."""
    try:
        return tensor.grad_fn is not None
    except RuntimeError:
        return True


def _is_behind(value: Any, tensor: Any) -> bool:
    """Return whether a tensor is this value, or a view of the same memory."""
    if value is None:
        return False
    if value is tensor:
        return True
    try:
        address = value.data_ptr() if hasattr(value, "data_ptr") else value.__array_interface__["data"][0]
        return bool(address) and address == tensor.data_ptr()
    except Exception:  # a tensor without memory of its own
        return False
