"""Record what this machine's NVIDIA driver answers to the exporter, to a file that the tests replay."""

from __future__ import annotations

import argparse
import logging
import os
import platform
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stallscope.cli._parser import Parser
from stallscope.cli._progress import progress
from stallscope.collectors.base import Environment
from stallscope.collectors.nvidia import NvidiaSource
from stallscope.common.version import __version__
from stallscope.drivers.nvidia.capture import Call, Capture, Header, text
from stallscope.drivers.nvidia.identifiers import masked
from stallscope.drivers.nvidia.library import Library, PynvmlLibrary
from stallscope.drivers.nvidia.nvml import NvmlDriver
from stallscope.drivers.nvidia.record import Pending, RecordingLibrary
from stallscope.drivers.nvidia.replay import ReplayLibrary
from stallscope.sampling.clock import ScriptedClock
from stallscope.sampling.sampler import Sampler

INTERVAL = 1.0
_HANG_SECONDS = 10.0
"""A call that takes longer is not waited for."""
_LOOK_SECONDS = 0.2
_LONGEST_SECONDS = 3600.0
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0}
_KERNEL_DRIVER = (Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))
"""What a loaded kernel driver shows, on Linux and in WSL."""
_OF_THE_PROCESS = re.compile(
    r"(?:# (?:HELP|TYPE|UNIT) )?(?:stallscope_build_info|process_|python_"
    r"|stallscope_exporter_source_(?:cpu|read|reading)_seconds)"
)
"""Lines of a page that tell of the process, and are never twice the same."""
_FRACTION = re.compile(r"(?<= )\d+\.\d+(?:e[+-]\d+)?$", re.MULTILINE)
"""A value of the page that is no whole number."""


class RecordError(Exception):
    """Nothing was recorded, and why."""


@dataclass(frozen=True)
class Recorded:
    """A capture, and the page that the exporter made of the very same answers."""

    capture: Capture
    page: str
    hung: str = ""
    """The call that did not come back, if any; the capture ends before it."""


class _Rounds:
    """The exporter's own sampler and source on some library, a round at a time.

    Time stands still within a round and is the recorded one, so that the same answers give the same page.
    """

    def __init__(self, library: Library, start: float, interval: float) -> None:
        self._clock = ScriptedClock(start)
        self._sampler = Sampler(interval=interval, clock=self._clock)
        self._sampler.add(
            NvidiaSource(
                Environment(
                    root=Path(os.devnull),
                    interval=interval,
                    clock=self._clock,
                    driver=lambda: NvmlDriver(library, self._clock.monotonic, self._clock.time),
                )
            )
        )

    def read(self, offset: float) -> None:
        """Read every GPU; `offset` is in seconds since the start."""
        self._clock.advance(offset - self._clock.monotonic())
        self._sampler.run_round()

    @property
    def problem(self) -> str:
        """Why nothing could be read; empty where all is well."""
        return self._sampler.statuses[0].error

    def page(self) -> str:
        """What the exporter would serve, without what tells of the process.

        Values to 13 digits, enough for milliseconds since 1970: Python's versions add up differently beyond.
        """
        whole = self._sampler.page(openmetrics=False, gzip=False).decode()
        kept = "".join(line for line in whole.splitlines(keepends=True) if not _OF_THE_PROCESS.match(line))
        return _FRACTION.sub(lambda value: f"{float(value[0]):.13g}", kept)

    def close(self) -> None:
        """Let the driver go."""
        self._sampler.stop()


def record(
    library: Library,
    *,
    duration: float,
    interval: float = INTERVAL,
    stop: threading.Event | None = None,
    stand_in: bool = False,
    waited: Callable[[float], None] | None = None,
) -> Recorded:
    """Run the exporter's rounds on a library for so many seconds, and keep what it answers.

    Args:
        library: the driver's.
        duration: seconds; at least two rounds are made, since some signals are differences.
        interval: seconds between two rounds.
        stop: ends the recording early.
        stand_in: no real driver is behind the library.
        waited: called with the seconds that passed since it was called last.

    Raises:
        RecordError: no driver answers, or none of its GPUs.
    """
    stop = stop or threading.Event()
    recording = RecordingLibrary(library)
    start = round(time.time(), 3)
    rounds = _Rounds(recording, start, interval)
    offsets: list[float] = []
    ended = threading.Event()
    page = ""

    def run() -> None:
        nonlocal page
        try:
            for number in range(max(2, round(duration / interval) + 1)):
                if stop.wait(max(0.0, recording.origin + number * interval - time.monotonic())) and offsets:
                    break
                # Rounded down, so that no call of the round seems to come before it.
                offsets.append(int((time.monotonic() - recording.origin) * 1000) / 1000)
                rounds.read(offsets[-1])
                if rounds.problem and not _said(recording.calls, "nvmlDeviceGetName"):
                    return
            page = rounds.page()
            rounds.close()
        finally:
            ended.set()

    threading.Thread(target=run, name="record", daemon=True).start()
    hung = ""
    late: list[Pending] = []
    while not ended.wait(_LOOK_SECONDS):
        if waited is not None:
            waited(_LOOK_SECONDS)
        before, pending = late, recording.pending
        late = [each for each in pending if time.monotonic() - each.since > _HANG_SECONDS]
        # Where the whole machine stood still, calls come back between two looks.
        if both := [each for each in late if each in before]:
            hung = both[0].text
            break
    calls = list(recording.calls)
    names = _said(calls, "nvmlDeviceGetName")
    if not names:
        raise RecordError(f"{hung} did not come back" if hung else rounds.problem or "the NVIDIA driver shows no GPU")
    hardware = not stand_in and any(each.exists() for each in _KERNEL_DRIVER)
    header = Header(
        stallscope=__version__,
        date=datetime.fromtimestamp(start, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        start=start,
        driver=_text(next(iter(_said(calls, "nvmlSystemGetDriverVersion").values()), b"unknown")),
        cuda=_cuda(calls),
        models=[_text(answer) for arguments, answer in names.items() if arguments.startswith("device")],
        pynvml=_binding_version(),
        kernel=platform.release(),
        interval=interval,
        masked=False,
        hardware=hardware,
        note=""
        if hardware
        else "a stand-in for the driver's library answered"
        if stand_in
        else "no kernel driver seen",
    )
    return Recorded(Capture(header, tuple(offsets), tuple(calls)), page, hung)


def replay(capture: Capture) -> tuple[str, list[str]]:
    """The page that the exporter makes of a capture, and the calls that the capture has no answer to."""
    library = ReplayLibrary(capture)
    rounds = _Rounds(library, capture.header.start, capture.header.interval)
    for offset in capture.rounds:
        rounds.read(offset)
    page = rounds.page()
    rounds.close()
    return page, library.unanswered


def file_name(capture: Capture) -> str:
    """What a capture is called: whose it is, model, driver, and whether the GPU was cut in MIG instances."""
    header = capture.header
    model = header.models[0] if header.models else "unknown"
    maker = "nvidia" if header.hardware else "stand-in"
    if header.hardware:
        model = model.removeprefix("NVIDIA ")
    mig = ("mig",) if _said(capture.calls, "nvmlDeviceGetMigDeviceHandleByIndex") else ()
    return "__".join((maker, _slug(model), _slug(header.driver), *mig)) + ".capture.jsonl"


def parser() -> Parser:
    """The command line."""
    made = Parser(
        "record",
        usage="stallscope record [flags]",
        description="Run the exporter's own readings of this machine's NVIDIA GPUs for a while and write down every "
        "driver call with its answer. Needs no rights beyond those of nvidia-smi, and changes nothing. Committed under "
        "tests/captures/, the file is replayed by the tests.",
        examples={
            "stallscope record": "half a minute of this machine's GPUs",
            "stallscope record --duration 2m --output h100.capture.jsonl": "longer, to a file of that name",
        },
        notes="Exit status: 0 when a capture was written, 1 where that failed or a call hung, 2 for a wrong command "
        "line. Ctrl-C ends the recording early and writes what there is.",
    )
    made.add_argument(
        "--duration",
        type=_seconds,
        default=30.0,
        metavar="TIME",
        help="how long, such as 30s or 2m (default: 30s)",
    )
    made.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write (default: nvidia__MODEL__DRIVER.capture.jsonl)"
    )
    made.add_argument(
        "--keep-identifiers",
        action="store_true",
        help="keep UUIDs, serials, bus ids and process ids, which are replaced by numbers otherwise",
    )
    made.add_argument("--force", action="store_true", help="replace a file that is there")
    made.add_argument(
        "--stand-in", action="store_true", help="say in the file that what answers is no real driver, but a test's"
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Record; return 0 when a capture was written, 1 where that failed or a call hung, 2 for a wrong command line."""
    parsed = parser().parse_args(arguments)
    # What the source has to say of the GPUs is no news of the recording.
    logging.getLogger("stallscope").addHandler(logging.NullHandler())
    output: Path | None = parsed.output
    if output is not None and (problem := _refused(output, force=parsed.force)):
        return _fail(problem)
    stop = threading.Event()
    _stop_at_interrupt(stop)
    print(f"recording for {parsed.duration:g} s; Ctrl-C ends it early", file=sys.stderr)
    try:
        with progress("Recording", total=parsed.duration) as advance:
            found = record(
                PynvmlLibrary(), duration=parsed.duration, stop=stop, stand_in=parsed.stand_in, waited=advance
            )
    except RecordError as error:
        advice = (
            ""  # a missing package is told with its remedy
            if "pip install" in str(error)
            else "; `nvidia-smi` must work first: install or load NVIDIA's driver, and start containers with their "
            "GPUs (docker run --gpus all)"
        )
        return _fail(f"{error}{advice}")
    capture = found.capture if parsed.keep_identifiers else masked(found.capture)
    output = output or Path(file_name(capture))
    if problem := _refused(output, force=parsed.force):
        return _fail(problem)
    content = text(capture)
    try:
        output.write_text(content, encoding="ascii")
    except OSError as error:
        return _fail(f"{output} can't be written: {error.strerror}; choose another with --output")
    print(
        f"{output}: {_counted(capture.header.models)}, driver {capture.header.driver}: {len(capture.rounds)} rounds, "
        f"{len(capture.calls)} calls, {len(content) / 1000:.0f} kB",
        file=sys.stderr,
    )
    if found.hung:
        return _fail(f"{found.hung} did not come back within {_HANG_SECONDS:g} s; the file ends there")
    if replay(found.capture) != (found.page, []):
        print(
            "the capture does not replay to the page it was recorded with: its golden page may differ", file=sys.stderr
        )
    return 0


def _stop_at_interrupt(stop: threading.Event) -> None:
    """Let the first Ctrl-C end the recording, and only a second one the program."""

    def interrupted(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop.set()

    signal.signal(signal.SIGINT, interrupted)


def _refused(output: Path, *, force: bool) -> str:
    if output.exists() and not force:
        return f"{output} is there already: --force replaces it, --output names another"
    return "" if output.parent.is_dir() else f"{output.parent} is no folder: make it, or name another with --output"


def _said(calls: Sequence[Call], name: str) -> dict[str, Any]:
    """The newest answer of a function by its arguments, in the order of the first."""
    return {
        ", ".join(str(getattr(each, "token", each)) for each in call.arguments): call.answer
        for call in calls
        if call.name == name and call.failure is None
    }


def _cuda(calls: Sequence[Call]) -> str:
    for name in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"):
        for version in _said(calls, name).values():
            return f"{version // 1000}.{version % 1000 // 10}"
    return "unknown"


def _binding_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("nvidia-ml-py")
    except PackageNotFoundError:
        return "unknown"


def _text(answer: bytes | str) -> str:
    return answer if isinstance(answer, str) else answer.decode("utf-8", "replace")


def _counted(models: Sequence[str]) -> str:
    return ", ".join(f"{number} x {model}" for model, number in Counter(models).items())


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "unknown"


def _seconds(duration: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([sm]?)", duration)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{duration!r} is no time such as 30s or 2m, at most 60m")
    return seconds


def _fail(message: str) -> int:
    print(f"stallscope record: {message}", file=sys.stderr)
    return 1
