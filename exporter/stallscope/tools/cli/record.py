"""Record the responses of the NVIDIA driver, or with --pages what the exporter measures, in a file."""

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

from stallscope.common.version import __version__
from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.nvidia import NvidiaCollector
from stallscope.node.drivers.nvidia.capture import Call, Capture, Header, text
from stallscope.node.drivers.nvidia.identifiers import masked
from stallscope.node.drivers.nvidia.library import Library, PynvmlLibrary
from stallscope.node.drivers.nvidia.nvml import NvmlDriver
from stallscope.node.drivers.nvidia.record import Pending, RecordingLibrary
from stallscope.node.drivers.nvidia.replay import ReplayLibrary
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.sampler import Sampler
from stallscope.tools.cli import _record_pages as pages
from stallscope.tools.cli._durations import duration
from stallscope.tools.cli._exporter import DEFAULT_EXPORTER, exporter_url
from stallscope.tools.cli._parser import Parser
from stallscope.tools.cli._progress import add_flag, progress

INTERVAL = 1.0
HANG_SECONDS = 10.0
"""Seconds after which a driver call counts as hung."""
_LOOK_SECONDS = 0.2
_LONGEST_SECONDS = 3600.0
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0}
_KERNEL_DRIVER = (Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))
"""Files that exist if the kernel driver is loaded, on Linux and in WSL."""
_OF_THE_PROCESS = re.compile(
    r"(?:# (?:HELP|TYPE|UNIT) )?(?:stallscope_build_info|process_|python_"
    r"|stallscope_exporter_source_(?:cpu|read|reading)_seconds)"
)
"""Lines of a page about the exporter's process, which differ each time."""
_FRACTION = re.compile(r"(?<= )\d+\.\d+(?:e[+-]\d+)?$", re.MULTILINE)
"""A value of the page with a fractional part."""


class RecordError(Exception):
    """Recording failed; the message is the reason."""


@dataclass(frozen=True)
class Recorded:
    """A capture, and the page that the exporter made from the same responses."""

    capture: Capture
    page: str
    hung: str = ""
    """The call that did not return, if any; the capture ends before it."""


class _Rounds:
    """The exporter's own sampler and collector on a given library, one poll at a time.

    The clock is fixed during a poll and set from the recording, so that the same responses give the same page.
    """

    def __init__(self, library: Library, start: float, interval: float) -> None:
        self._clock = ScriptedClock(start)
        self._sampler = Sampler(interval=interval, clock=self._clock)
        self._sampler.add(
            NvidiaCollector(
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
        """The collector's error; empty if there is none."""
        return self._sampler.statuses[0].error

    def page(self) -> str:
        """Return the exporter's page without metrics of the process.

        Values have 13 digits, enough for milliseconds since 1970: Python versions differ in the digits beyond.
        """
        whole = self._sampler.page(openmetrics=False, gzip=False).decode()
        kept = "".join(line for line in whole.splitlines(keepends=True) if not _OF_THE_PROCESS.match(line))
        return _FRACTION.sub(lambda value: f"{float(value[0]):.13g}", kept)

    def close(self) -> None:
        """Release the driver."""
        self._sampler.stop()


def record(
    library: Library,
    *,
    duration: float,
    interval: float = INTERVAL,
    hang_seconds: float = HANG_SECONDS,
    stop: threading.Event | None = None,
    stand_in: bool = False,
    waited: Callable[[float], None] | None = None,
) -> Recorded:
    """Poll a library as the exporter does, and record its responses.

    Args:
        library: the driver's library.
        duration: seconds; at least two polls are made, since some signals are differences.
        interval: seconds between two polls.
        hang_seconds: seconds after which a call counts as hung, and ends the recording.
        stop: ends the recording early.
        stand_in: True if the library is not a real driver.
        waited: called with the seconds since the previous call.

    Raises:
        RecordError: the driver or all its GPUs do not respond.
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
                # Rounded down, so that no call of the poll seems to come before it.
                offsets.append(int((time.monotonic() - recording.origin) * 1000) / 1000)
                rounds.read(offsets[-1])
                if rounds.problem and not _responses(recording.calls, "nvmlDeviceGetName"):
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
        late = [each for each in pending if time.monotonic() - each.since > hang_seconds]
        # Reported only at two checks in a row: after a pause of the whole machine, calls return between them.
        if both := [each for each in late if each in before]:
            hung = both[0].text
            break
    calls = list(recording.calls)
    names = _responses(calls, "nvmlDeviceGetName")
    if not names:
        raise RecordError(f"{hung} did not return" if hung else rounds.problem or "NVIDIA's driver reports no GPU")
    hardware = not stand_in and any(each.exists() for each in _KERNEL_DRIVER)
    header = Header(
        stallscope=__version__,
        date=datetime.fromtimestamp(start, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        start=start,
        driver=_text(next(iter(_responses(calls, "nvmlSystemGetDriverVersion").values()), b"unknown")),
        cuda=_cuda(calls),
        models=[_text(answer) for arguments, answer in names.items() if arguments.startswith("device")],
        pynvml=_binding_version(),
        kernel=platform.release(),
        interval=interval,
        masked=False,
        hardware=hardware,
        note=""
        if hardware
        else "a stand-in for the driver's library responded"
        if stand_in
        else "no kernel driver found",
    )
    return Recorded(Capture(header, tuple(offsets), tuple(calls)), page, hung)


def replay(capture: Capture) -> tuple[str, list[str]]:
    """Return the page that the exporter makes from a capture, and the calls without a recorded response."""
    library = ReplayLibrary(capture)
    rounds = _Rounds(library, capture.header.start, capture.header.interval)
    for offset in capture.rounds:
        rounds.read(offset)
    page = rounds.page()
    rounds.close()
    return page, library.unanswered


def file_name(capture: Capture) -> str:
    """Return the file name of a capture: maker, model, driver, and `mig` if the GPU had MIG instances."""
    header = capture.header
    model = header.models[0] if header.models else "unknown"
    maker = "nvidia" if header.hardware else "stand-in"
    if header.hardware:
        model = model.removeprefix("NVIDIA ")
    mig = ("mig",) if _responses(capture.calls, "nvmlDeviceGetMigDeviceHandleByIndex") else ()
    return "__".join((maker, _slug(model), _slug(header.driver), *mig)) + ".capture.jsonl"


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "record",
        usage="stallscope record [--pages TIME] [flags] [FILE]",
        description="Poll this machine's NVIDIA GPUs as the exporter does, and write every driver call with its "
        "response to a file. Needs no more permissions than nvidia-smi, and changes nothing. The tests replay the "
        "files in tests/captures/.\n\n"
        "With --pages, write the exporter's page once a second instead, with a short capture of the driver and all "
        "versions: `stallscope replay` shows the verdicts on it, on any machine. Without a running exporter, one is "
        "started for the recording. No command lines, tokens or passwords are recorded; names of users, pods and "
        "jobs are, unless --mask-names is given.",
        examples={
            "stallscope record": "30 seconds of this machine's GPUs",
            "stallscope record --duration 2m --output h100.capture.jsonl": "two minutes, to a named file",
            "stallscope record --pages 10m slow.pages.gz": "what the exporter measures for ten minutes",
        },
        notes="A recording of pages ends at 16 MiB, about an hour of eight GPUs.\n\n"
        "Exit status: 0 if a file was written, 1 if that failed or a call hung, 2 for an invalid command "
        "line. Ctrl-C ends the recording early and writes the file.",
    )
    made.add_argument(
        "--duration",
        type=_seconds,
        default=30.0,
        metavar="TIME",
        help="duration, such as 30s or 2m (default: 30s)",
    )
    made.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write (default: nvidia__MODEL__DRIVER.capture.jsonl)"
    )
    made.add_argument(
        "--keep-identifiers",
        action="store_true",
        help="keep UUIDs, serial numbers, bus IDs and process IDs (default: replace them with numbers)",
    )
    made.add_argument("file", nargs="?", type=Path, metavar="FILE", help="as --output")
    made.add_argument("--pages", type=duration("30s", "24h"), metavar="TIME", help="record pages for this duration")
    made.add_argument(
        "--exporter.url",
        dest="exporter",
        type=exporter_url,
        metavar="URL",
        help=f"exporter of --pages (default: {DEFAULT_EXPORTER}, or an own one)",
    )
    made.add_argument(
        "--mask-names",
        action="store_true",
        help="with --pages: replace names of users, pods, jobs and machines by numbers",
    )
    made.add_argument("--force", action="store_true", help="overwrite an existing file")
    made.add_argument("--stand-in", action="store_true", help="mark the file as recorded from a test's driver library")
    add_flag(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Record; return 0 if a capture was written, 1 if that failed or a call hung, 2 for an invalid command line."""
    parsed = parser().parse_args(arguments)
    # The collector's log messages do not concern the recording.
    logging.getLogger("stallscope").addHandler(logging.NullHandler())
    output: Path | None = parsed.output or parsed.file
    if parsed.pages is not None:
        return _record_pages(parsed, output or Path(time.strftime("stallscope-%Y-%m-%dT%H-%M-%S.pages.gz")))
    if output is not None and (problem := _refused(output, force=parsed.force)):
        return _fail(problem)
    stop = threading.Event()
    _stop_at_interrupt(stop)
    _announce(parsed.duration, parsed)
    try:
        with progress("Recording", total=parsed.duration, quiet=parsed.quiet) as advance:
            found = record(
                PynvmlLibrary(), duration=parsed.duration, stop=stop, stand_in=parsed.stand_in, waited=advance
            )
    except RecordError as error:
        advice = (
            ""  # the error of a missing package already says what to install
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
        return _fail(f"{output}: cannot write: {error.strerror}; choose another file with --output")
    print(
        f"{output}: {_counted(capture.header.models)}, driver {capture.header.driver}: {len(capture.rounds)} polls, "
        f"{len(capture.calls)} calls, {len(content) / 1000:.0f} kB",
        file=sys.stderr,
    )
    if found.hung:
        return _fail(f"{found.hung} did not return within {HANG_SECONDS:g} s; the file ends there")
    if replay(found.capture) != (found.page, []):
        print("the replayed page differs from the recorded one: the golden page may differ", file=sys.stderr)
    return 0


def _record_pages(parsed: argparse.Namespace, output: Path) -> int:
    if problem := _refused(output, force=parsed.force):
        return _fail(problem)
    stop = threading.Event()
    _stop_at_interrupt(stop)
    try:
        with pages.exporter(parsed.exporter or "") as client, output.open("wb") as file:
            _announce(parsed.pages, parsed)
            done = pages.write_pages(
                file,
                client,
                pages.header(client, masked=parsed.mask_names, capture=_driver_capture()),
                duration=parsed.pages,
                stop=stop,
                mask=pages.Mask() if parsed.mask_names else None,
                quiet=parsed.quiet,
            )
    except pages.NoPagesError as problem:
        return _fail(str(problem))
    except OSError as error:
        return _fail(f"{output}: cannot write: {error.strerror}; the file ends there, `stallscope replay` reads it")
    early = f"; ended early: {done.ended}" if done.ended else ""
    failed = f", {done.errors} without a page" if done.errors else ""
    size = output.stat().st_size / 1000
    print(f"{output}: {done.pages} pages{failed}, {size:.0f} kB{early}", file=sys.stderr)
    return 0 if done.pages else 1


def _announce(seconds: float, parsed: argparse.Namespace) -> None:
    if not parsed.quiet:
        print(f"recording for {seconds:g} s; Ctrl-C ends it early", file=sys.stderr)


def _driver_capture() -> str:
    """Return a short capture of the driver's responses; empty without a driver."""
    try:
        return text(masked(record(PynvmlLibrary(), duration=INTERVAL).capture))
    except RecordError:
        return ""


def _stop_at_interrupt(stop: threading.Event) -> None:
    """Let the first Ctrl-C end the recording, and the second one the program."""

    def interrupted(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop.set()

    signal.signal(signal.SIGINT, interrupted)


def _refused(output: Path, *, force: bool) -> str:
    if output.exists() and not force:
        return f"{output}: exists already; overwrite it with --force, or name another file with --output"
    if not output.parent.is_dir():
        return f"{output.parent}: not a directory; create it, or name another file with --output"
    return ""


def _responses(calls: Sequence[Call], name: str) -> dict[str, Any]:
    """Return the newest response of a function by its arguments, in the order of the first calls."""
    return {
        ", ".join(str(getattr(each, "token", each)) for each in call.arguments): call.answer
        for call in calls
        if call.name == name and call.failure is None
    }


def _cuda(calls: Sequence[Call]) -> str:
    for name in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"):
        for version in _responses(calls, name).values():
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
        raise argparse.ArgumentTypeError(f"expected a duration of at most 60m, such as 30s or 2m, got {duration!r}")
    return seconds


def _fail(message: str) -> int:
    print(f"stallscope record: {message}", file=sys.stderr)
    return 1
