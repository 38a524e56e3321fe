"""The format in which a rank passes its stacks to the exporter.

The training process can't send while native code holds the GIL. So it sends the descriptor of a memory file with its
reports through the UNIX socket, and writes its stacks to the file. The exporter reads the file: it needs no privilege,
no shared folder and no shared PID namespace. The size of the file is fixed and sealed, so that reading never fails.

The file begins with `STACKS_HEADER`, followed by dumps in the format of `faulthandler`. A line precedes each dump:
`Standstill` or `Timeout (…)!` if the rank has sent no report for too long, `Sample` if its stack was requested. If
the lines of a burst were requested, the file has one line `Lines` instead of dumps, with a JSON object:

    Lines {"data_wait": {"seconds": 6.2, "lines": [["data/augment.py:41", "elastic", 0.71, 4]]}}

For each phase it has the seconds of the burst, and up to `MAX_CODE_LINES` lines: location, function, share of the
phase, and number of workers. The remainder of the file is zero. The file contains only file names, line numbers and
function names.

An older exporter drops the descriptor, and an older shim sends none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from stallscope.training.protocol.stack_file import DECORATORS, LINES, SAMPLE, STACKS_HEADER, STACKS_SIZE, STANDSTILL
from stallscope.training.protocol.vocabulary import MAX_CODE_LINES, MAX_LABEL_LENGTH, MAX_PHASES

MAX_FRAMES = 100
"""Maximum number of frames of a stack, as in faulthandler."""
MAX_SAMPLES = 20
"""Maximum number of stacks that are kept for a rank; the newest are kept."""
MAX_TEXT = 500
"""Maximum characters of a file's or function's name, as in faulthandler."""
_MOST_SECONDS = 86400.0
"""Maximum seconds of a phase in a burst."""
_HEADER = STACKS_HEADER.partition(b"0x")[0]
_FILE, _LINE, _FUNCTION = '  File "', '", line ', " in "
_OWN = ("/stallscope/training/shim/stacks.py", "/stallscope/training/shim/stack_memory.py")
"""Files of the code that takes a stack."""

_SHIM = ("/stallscope/training/", "/stallscope/tools/cli/", "/stallscope/__main__.py")
_LIBRARIES = (
    *("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "/torchinductor_"),
    *_SHIM,
)
"""Parts of the paths of code that the user has not written."""
_CELLS = ("/ipykernel_", "<ipython-input-")
"""Parts of the paths of notebook cells. The number of a cell is only known in its process."""


class Frame(NamedTuple):
    """A frame of a stack: the file and line that are executed, and their function."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""The frames of a thread, the most recent call first."""


class Place(NamedTuple):
    """The line of code in which a thread is: the innermost frame that belongs to no library."""

    location: str
    """File with its folder, and line: `data/augment.py:41`."""
    function: str
    """The function that contains this line."""
    call: str
    """The library function that this line calls, if it is written in Python; else empty."""


class HotLine(NamedTuple):
    """A line of the program, and its share of the time of a phase."""

    location: str
    function: str
    share: float
    workers: int
    """Number of worker processes in which the line was sampled; 0 if the training process executes it."""


class SampledPhase(NamedTuple):
    """A phase in a burst of samples: its seconds, and the lines with the largest shares."""

    seconds: float
    lines: tuple[HotLine, ...]


class Capture(NamedTuple):
    """The stacks or lines that a rank has written."""

    standstill: bool
    """True if the newest stack was written because the rank sent no report for too long."""
    stacks: tuple[Stack, ...]
    """Stacks of the training thread, the oldest first; at a standstill only the newest."""
    lines: Mapping[str, SampledPhase] | None = None
    """The lines of a requested burst by phase; None if none was requested, or a standstill followed."""


def parse(data: bytes) -> Capture | None:
    """Parse the content of an untrusted file.

    Returns:
        The stacks or lines; None without lines and without a stack of the training thread.

    Raises:
        ValueError: the format is invalid; the message has the reason.
    """
    text = data[:STACKS_SIZE].partition(b"\0")[0]
    head, newline, body = text.partition(b"\n")
    if not newline or not head.startswith(_HEADER):
        raise ValueError("the header is missing")
    thread = head[len(_HEADER) :].decode("ascii", "replace")
    dumps: list[tuple[bool, list[Frame]]] = []
    lines: Mapping[str, SampledPhase] | None = None
    is_standstill = wanted = False
    for line in body.decode("utf-8", "replace").split("\n"):
        if line.startswith((STANDSTILL, SAMPLE, "Timeout (")):
            is_standstill, wanted = not line.startswith(SAMPLE), False
        elif line.startswith(f"{LINES} "):
            lines = sampled_phases(_decoded(line[len(LINES) :]))
        elif line.startswith(("Thread 0x", "Current thread 0x")):
            wanted = line.partition("hread ")[2].split(" ", 1)[0] == thread
            if wanted:
                dumps.append((is_standstill, []))
        elif wanted and line.startswith(_FILE) and len(dumps[-1][1]) < MAX_FRAMES:
            frame = frame_of(line)
            if frame is not None:
                dumps[-1][1].append(frame)
    found = [(standstill, tuple(frames)) for standstill, frames in dumps if frames]
    if not found:
        return None if lines is None else Capture(False, (), lines)
    if found[-1][0]:
        return Capture(True, (found[-1][1],))
    return Capture(False, tuple([stack for standstill, stack in found if not standstill][-MAX_SAMPLES:]), lines)


def sampled_phases(document: Any) -> dict[str, SampledPhase]:
    """Parse the lines of a burst from decoded JSON, within limits.

    Raises:
        ValueError: the format is invalid.
    """
    try:
        return {
            _label(phase): SampledPhase(
                _number(sampled["seconds"], _MOST_SECONDS),
                tuple(
                    [
                        HotLine(_label(location), _label(function), _number(share, 1.0), int(_number(workers, 1e6)))
                        for location, function, share, workers in sampled["lines"][:MAX_CODE_LINES]
                    ]
                ),
            )
            for phase, sampled in list(document.items())[:MAX_PHASES]
        }
    except (TypeError, KeyError, AttributeError):
        raise ValueError("the lines of the burst have an invalid format") from None


def is_shim(frame: Frame) -> bool:
    """Return whether a frame belongs to Stallscope's part of the training process."""
    return any(part in frame.file for part in _SHIM)


def user_frame(stack: Stack) -> int:
    """Return the index of the innermost frame that belongs to no library; 0 if all frames do."""
    return next((position for position, frame in enumerate(stack) if not _is_library(frame.file)), 0)


def place_of(stack: Stack) -> Place:
    """Return the line of code in which a thread with this stack is. The stack must not be empty."""
    position = user_frame(stack)
    frame = stack[position]
    is_cell = any(part in frame.file for part in _CELLS)
    location = f"{'notebook cell' if is_cell else '/'.join(frame.file.rsplit('/', 2)[-2:])}:{frame.line}"
    called = stack[:position][::-1]
    named = [frame for frame in called if not is_shim(frame) and frame.function not in DECORATORS]
    call = (named or called)[0].function if called else ""
    return Place(location[-MAX_LABEL_LENGTH:], frame.function[:MAX_LABEL_LENGTH], call[:MAX_LABEL_LENGTH])


def _is_library(file: str) -> bool:
    return file.startswith("<frozen ") or any(folder in file for folder in _LIBRARIES)


def frame_of(line: str) -> Frame | None:
    """Return the frame of a line of faulthandler; None if it is truncated, or of the code that takes the stack."""
    # Parsed from the right, because a file's name may contain any text, but a function's name no space.
    rest, separator, function = line[len(_FILE) :].rpartition(_FUNCTION)
    file, quote, number = rest.rpartition(_LINE)
    if not separator or not quote or not (number.isascii() and number.isdecimal() and len(number) < 10):
        return None
    if file.endswith(_OWN):
        return None
    return Frame(_shown(file), int(number), _shown(function))


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _label(text: str) -> str:
    if type(text) is not str:
        raise ValueError("a name in the lines of the burst is not a string")
    return _shown(text)[:MAX_LABEL_LENGTH]


def _number(value: float, highest: float) -> float:
    if type(value) not in (int, float) or not 0.0 <= value <= highest:
        raise ValueError("a number in the lines of the burst is missing or out of range")
    return float(value)


def _shown(text: str) -> str:
    """Return a name as printable text of limited length."""
    return "".join([char if char.isprintable() else "?" for char in text[:MAX_TEXT]])
