"""Find the indexing and the calls in the code of a loop whose results became a batch, and how long they took.

Indexing is an operator: Python's profiling hook is not called for it. The hook is called at the calls before and after
it, where the position in the code is known. So the code between two calls counts if it has a subscript in a statement
that the model's input depends on. A call counts if it returned an object, such as bytes that were received, and such a
statement contains it.
"""

from __future__ import annotations

import dis
import re
import sys
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

_MAX_PIECES = 512
_MAX_FRAMES = 32
_RETURNED = -1
"""Stands for the end of a piece that is a call."""
_MUTATES = frozenset({"append", "extend", "insert"})
"""Methods of lists after which a list depends on what the statement reads."""
_CACHES = frozenset({"CACHE", "NOP", "PRECALL", "PUSH_NULL", "RESUME"})
_IN_EXPRESSIONS = ("BINARY", "BUILD", "CALL", "LOAD")
_ACCESS = re.compile("LOAD|STORE")


class Statement(NamedTuple):
    """The names that a statement reads and assigns; those of attributes begin with a dot."""

    reads: set[str]
    assigns: set[str]


class _Code(NamedTuple):
    statements: dict[int, Statement]
    """By the offset of each instruction and of its caches: the position during a call of Python code may be a cache."""
    subscripts: list[int]
    """Offsets of the instructions that index."""
    loops: list[tuple[int, int]]
    """First and last offset of each loop."""


class Indexing:
    """The pieces of code that ran between two calls, in one interval."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[CodeType, int, int], float] = {}
        self._calls: dict[tuple[CodeType, int], float] = {}
        self._called: dict[tuple[CodeType, int], CodeType] = {}
        self.receivers: set[CodeType] = set()
        """Functions whose results became batches."""
        self._position: tuple[CodeType, int] | None = None

    def begin(self) -> None:
        """Begin an interval."""
        self._seconds.clear()
        self._calls.clear()
        self._called.clear()
        self._position = None

    def add_call(self, frame: FrameType, seconds: float) -> None:
        """Note a call that returned an object to the code that called it."""
        caller = frame.f_back
        if caller is not None and len(self._calls) < _MAX_PIECES:
            place = caller.f_code, caller.f_lasti
            self._calls[place] = self._calls.get(place, 0.0) + seconds
            self._called[place] = frame.f_code

    def reach(self, frame: FrameType | None, seconds: float) -> None:
        """Note the position of a call, and the seconds since the newest event."""
        before = self._position
        self.go_on(frame)
        if before is not None and self._position is not None and before[0] is self._position[0]:
            piece = (*before, self._position[1])
            if len(self._seconds) >= _MAX_PIECES:  # before the loop begins
                self._seconds.clear()
            self._seconds[piece] = self._seconds.get(piece, 0.0) + seconds

    def go_on(self, frame: FrameType | None) -> None:
        """Note the position where the code continues after a call."""
        self._position = None if frame is None else (frame.f_code, frame.f_lasti)

    def seconds_of(self, inputs: list[Any], *, is_made: bool) -> float:
        """Return the seconds in which the code on the stack indexed or received what the call under way is given.

        Args:
            inputs: tensors without a gradient, which a module is called with.
            is_made: whether a call made or copied tensors or arrays since the interval began. Else indexing made the
                inputs only if they are no views, and the indexed object is itself a tensor or an array.
        """
        pieces: dict[CodeType, list[tuple[int, int, float]]] = {}
        for (source, begin, end), seconds in self._seconds.items():
            pieces.setdefault(source, []).append((begin, end, seconds))
        for (source, place), seconds in self._calls.items() if is_made else ():
            pieces.setdefault(source, []).append((place, _RETURNED, seconds))
        if not pieces or not (is_made or any(not tensor._is_view() for tensor in inputs)):  # noqa: SLF001
            return 0.0
        found = 0.0
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the only way to the calling functions
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if frame.f_code in pieces:
                code = _code(frame.f_code)
                needed = _needed(code, frame.f_lasti)
                offsets = [
                    offset
                    for offset in code.subscripts
                    if (statement := code.statements[offset]) in needed
                    and (is_made or _has_array(frame, statement, inputs))
                ]
                for begin, end, seconds in pieces.pop(frame.f_code):
                    if end == _RETURNED:
                        if code.statements.get(begin) in needed:
                            found += seconds
                            self.receivers.add(self._called[frame.f_code, begin])
                    elif any(_contains(code, begin, end, offset) for offset in offsets):
                        found += seconds
            frame = frame.f_back
        return found


def _needed(code: _Code, call: int) -> list[Statement]:
    """Return the statement of a call, and those that assign what it reads, directly or by others."""
    first = code.statements.get(call)
    needed = [] if first is None else [first]
    statements = {id(each): each for each in code.statements.values()}.values()  # each has several offsets
    for statement in needed:  # which becomes longer
        for other in statements:
            if other not in needed and other.assigns & statement.reads:
                needed.append(other)
    return needed


def _contains(code: _Code, begin: int, end: int, offset: int) -> bool:
    """Return whether an instruction may be executed between two calls, or in the statement of one call."""
    if begin == end:
        return code.statements.get(begin) is code.statements[offset]
    if begin < end:
        return begin < offset < end
    loop = next(((first, last) for first, last in code.loops if first <= end and begin <= last), None)
    return loop is not None and (begin < offset <= loop[1] or loop[0] <= offset < end)


def _has_array(frame: FrameType, statement: Statement, inputs: list[Any]) -> bool:
    """Return whether a statement reads a tensor or an array that the smallest input may be a part of."""
    names = [name for name in statement.reads if not name.startswith(".")]
    values = [frame.f_locals.get(name, frame.f_globals.get(name)) for name in names]
    for value in tuple(values):
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict:
            values += [
                attributes[name[1:]] for name in statement.reads if name.startswith(".") and name[1:] in attributes
            ]
    smallest = min(int(tensor.numel()) for tensor in inputs)
    numpy = sys.modules.get("numpy")
    for value in values:
        if isinstance(value, torch.Tensor):
            size = value.numel()
        elif numpy is not None and isinstance(value, numpy.ndarray):
            size = value.size
        else:
            continue
        if size >= smallest:
            return True
    return False


@lru_cache(maxsize=16)
def _code(source: CodeType) -> _Code:
    """Divide code into statements, by the lines of their instructions."""
    instructions = list(dis.get_instructions(source))
    lines = _lines(source, instructions)
    statements: dict[int, Statement] = {}
    subscripts, loops = [], []
    named: dict[int, Statement] = {}
    last: list[str] = []
    """Names that the newest instructions read, the newest one last; empty strings for the others."""
    for instruction in instructions:
        statement = named.setdefault(lines[instruction.offset], Statement(set(), set()))
        statements[instruction.offset] = statement
        name, value = instruction.opname, instruction.argval
        names = value if type(value) is tuple else (value,)
        is_attribute = name in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")
        accesses = zip(_ACCESS.findall(name), names, strict=False)
        for access, each in accesses:
            if not isinstance(each, str) or "CONST" in name:
                continue
            (statement.reads if access == "LOAD" else statement.assigns).add("." + each if is_attribute else each)
            if is_attribute and access == "LOAD" and each in _MUTATES and last:
                statement.assigns.add(last[-1])
        if name == "STORE_SUBSCR" and len(last) > 1:  # the object is read before the key
            statement.assigns.add(last[-2])
        if name in ("BINARY_SUBSCR", "BINARY_SLICE") or (name == "BINARY_OP" and instruction.argrepr == "[]"):
            subscripts.append(instruction.offset)
        if "JUMP" in name and isinstance(value, int) and value < instruction.offset:
            loops.append((value, instruction.offset))
        if name not in _CACHES:
            read = [each for each in names if isinstance(each, str)] if name.startswith("LOAD") else []
            last.append(("." if is_attribute else "") + read[-1] if read and "CONST" not in name else "")
    for offset in range(2, len(source.co_code), 2):
        statements.setdefault(offset, statements[offset - 2])
    return _Code(statements, subscripts, sorted(loops, key=lambda loop: loop[1] - loop[0]))


def _lines(source: CodeType, instructions: list[dis.Instruction]) -> dict[int, int]:
    """Return for each offset the first line of its statement, which may have several lines."""
    spans: dict[int, tuple[int, int]] = {}
    line = source.co_firstlineno
    starts = dict(dis.findlinestarts(source))
    positions = list(source.co_positions()) if hasattr(source, "co_positions") else []  # from Python 3.11 on
    compound = set()
    for instruction in instructions:
        offset, name = instruction.offset, instruction.opname
        line = starts.get(offset) or line
        first, last = positions[offset // 2][:2] if positions else (line, line)
        spans[offset] = span = first or line, last or first or line
        if name == "LOAD_CONST":  # also what leaves a `with`, at the position of the whole statement
            compound.add(span)
        if not name.startswith(_IN_EXPRESSIONS):  # such as the jump at the end of a loop, at that of the loop
            spans[offset] = span[0], span[0]
    merged: list[tuple[int, int]] = []
    for first, last in sorted(set(spans.values())):
        if (first, last) in compound:
            last = first
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    heads = {number: first for first, last in merged for number in range(first, last + 1)}
    return {offset: heads[span[0]] for offset, span in spans.items()}
