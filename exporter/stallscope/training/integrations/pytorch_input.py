"""Find out how a loop without a data loader draws its batches, and book that time as `data_wait`.

Between the phases that are observed (optimizer, forward, backward) a loop computes losses, logs, calls back, and draws
the next batch. A function that draws a batch is known by what it returns: tensors, or arrays behind tensors, with which
a module is called afterwards. So Python's own profiling hook is set between the phases, notes which calls returned such
values, and is gone before the next phase. Where no function drew the batch, yet the module is called with tensors that
did not exist before, the code of the loop itself may have made them. Evidence is then a call that makes or copies
tensors or arrays, or that reads: the time from that call on counts, until the code calls something else, such as a
pause, a log or a wait for the device. Calls count too whose results the batch depends on, such as a download. What else
precedes the evidence remains `other`. After a checkpoint, what
exceeds the usual `other` of a step is the rest of the checkpoint: an upload, for example.
"""

from __future__ import annotations

import os
import sys
import time
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
from stallscope.training.shim import rebooking
from stallscope.training.shim.run import Run
from stallscope.training.shim.timeline import Phase
from stallscope.training.shim.tolerance import tolerate

_FIRST = 64
"""Intervals that are all observed, to learn what usually happens in them."""
_SHARE = 0.005
"""Share of the loop's time that observing may take."""
_EVENT_COST = 2e-6
"""Seconds that one event of the profiling hook takes, about."""
_SWITCH_COST = 30e-6 if sys.version_info >= (3, 12) else 1e-6
"""Seconds that setting the hook takes, about: from 3.12 on, code has to be instrumented for it."""
_MAX_RETURNED = 32
_DEEPEST_LOOP = 2
"""Calls that lead from the code where an interval begins to the loop whose indexing may make the batch."""
_MOST_EVENTS = 4096
"""Events that are observed of one interval before the loop begins."""
_BEFORE_LOOP = 0.1
"""Seconds that observing may take before the loop begins, besides its share of the time. A program that never trains
calls its modules without end."""
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
_UNUSUAL = 4.0
"""Multiple of the newest observed interval from which a longer one contains something else, such as an upload."""


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


class LoopInput(InputCalls):
    """The intervals of a loop."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._timeline = run.timeline
        self._other = run.timeline.other
        self._wait = run.timeline.phase("data_wait")
        self.own_waits = -1 if self._wait.opened else self._wait.occurrences
        """Waits for data that the loop has booked; all others are the program's own."""
        self._intervals = 0
        self._due = 0
        """Number of the next interval to observe. At a fixed distance, it could always be the same one of a step."""
        self._random = Random(0)  # noqa: S311 - not for secrets; the program's own generator stays as it is
        self._cost = _SWITCH_COST
        """Seconds that observing the newest observed interval took, about."""
        self._forward = run.timeline.phase("forward")
        self._usual: dict[str, tuple[float, float, float]] = {}
        """Seconds of input, of the forward pass, and of all else in the newest observed interval, by what ended it."""
        self._stored: Phase | None = None
        """The checkpoint that the present interval follows."""
        self._stored_at = 0.0
        self._usual_rest = 0.0
        """Seconds of `other` that the step usually has from there on."""

    def follow(self, checkpoint: Phase, *, is_in_step: bool) -> None:
        """Note that a checkpoint has ended: the code up to the next phase may belong to it.

        Args:
            checkpoint: its phase.
            is_in_step: whether the code that each step has may follow.
        """
        timeline, other = self._timeline, self._other
        spent = self._seconds()
        rebooking.snapshot(timeline)
        self._stored, self._stored_at = checkpoint, spent
        self._usual_rest = max(spent / max(timeline.steps, 1) - (spent - other.mark), 0.0) if is_in_step else 0.0
        self.is_open = True

    def end(self, *, computes_gradients: bool = False) -> None:
        """End the interval where a phase begins that is not a call of a module."""
        super().end(computes_gradients=computes_gradients)
        self._extend_checkpoint()

    def end_with_call(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """End the interval where a module is called."""
        super().end_with_call(arguments, options)
        self._extend_checkpoint()

    def forget(self) -> None:
        """Prepare for a report."""
        super().forget()
        checkpoint = self._stored
        self._extend_checkpoint()
        self._stored, self._stored_at = checkpoint, self._seconds()

    def _extend_checkpoint(self) -> None:
        if self._stored is None:
            return
        checkpoint, self._stored = self._stored, None
        spent = self._seconds() - self._stored_at
        usual = min(spent, self._usual_rest)
        self._usual_rest -= usual
        if spent > usual:
            rebooking.extend(self._timeline, checkpoint, spent - usual)

    def _is_due(self) -> bool:
        self._intervals += 1
        if self._is_observed:
            self._cost = _SWITCH_COST + self._events * _EVENT_COST
            timeline = self._timeline
            step = timeline.step_seconds / max(timeline.steps, 1)
            period = max(int(3.0 * self._cost / (_SHARE * step + 1e-9)), 1)
            self._due = self._intervals + period + self._random.randrange(period)
        return self._intervals <= _FIRST or self._intervals >= self._due

    def _seconds(self) -> float:
        timeline, other = self._timeline, self._other
        return other.seconds + (timeline.now() - timeline.mark if timeline.current is other else 0.0)

    def _move(self, seconds: float) -> None:
        moved = self._move_to(self._wait, seconds)
        if moved > 0.0:
            self._moved += moved
            self.own_waits += 1

    def _compute(self, seconds: float) -> None:
        self._move_to(self._forward, seconds)

    def _move_to(self, phase: Phase, seconds: float) -> float:
        """Book seconds of `other` as a phase; return how many `other` had of them."""
        timeline = self._timeline
        timeline.settle()
        timeline.book(timeline.now())
        seconds = min(seconds, self._other.seconds)
        if seconds > 0.0:
            rebooking.move(self._other, phase, seconds)
        return seconds

    def _settle(self, ended_by: str) -> None:
        """Learn from an interval that was observed; estimate what another one held."""
        began, self._began = self._began or 0.0, None
        if self._is_observed:
            if self._stored is None:
                self._usual[ended_by] = (self._moved, self._computed, self._seconds() - began)
            return
        moved, computed, rest = self._usual.get(ended_by, (0.0, 0.0, 0.0))
        if moved + computed > 0.0:
            elapsed, usual = self._seconds() - began, moved + computed + rest
            share = 1.0 if elapsed > _UNUSUAL * usual else elapsed / usual
            self._move(share * moved)
            if computed > 0.0:
                self._compute(share * computed)


class FirstInput(InputCalls):
    """The time before a loop's first call of a module, in which its first batch was drawn.

    Anything may happen then, so the number of observed events is limited.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        """Seconds in which the first batch was drawn, by the end of the newest interval."""
        self._since = time.monotonic()
        self._spent = 0.0

    def begin(self, *, has_batch: bool = False) -> None:
        """Begin to observe, once more."""
        self._stop()
        self.seconds = 0.0
        super().begin(has_batch=has_batch)

    def _is_due(self) -> bool:
        if self._is_observed:
            self._spent += _SWITCH_COST + self._events * _EVENT_COST
        return self._spent < _BEFORE_LOOP + _SHARE * (time.monotonic() - self._since)

    def _seconds(self) -> float:
        return time.monotonic()

    def _move(self, seconds: float) -> None:
        self.seconds = self._moved = seconds

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        super()._profile(frame, event, argument)
        if self._events > _MOST_EVENTS:
            self._stop()
            self._began = None


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
