"""Choose GPUs that have room now, wait until there are some, and run a command on them."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallscope.cli._become import become
from stallscope.cli._parser import Parser

if TYPE_CHECKING:
    from stallscope.capacity.choice import Judged, Wanted
    from stallscope.capacity.claims import Claims
    from stallscope.capacity.gpu import GpuNow
    from stallscope.capacity.host import Host
    from stallscope.gpus.driver import Driver
    from stallscope.terminal.exposition import Page

_COLUMNS = 80
_DEFAULT_EXPORTER = "http://localhost:19400"
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(?:([KMGT])(iB|B)?)", re.IGNORECASE)
_POWERS = "KMGT"
_MOST_BYTES = 1 << 60
_MOST_GPUS = 1024
_MOST_RESERVED = 3600.0
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127
_POLL_SECONDS = 10.0
"""Between two looks while waiting; one takes the driver some milliseconds a GPU."""
_NO_DRIVER = (
    "pick chooses among GPUs of NVIDIA's driver: `nvidia-smi` must work first (install or load the driver, and start "
    "containers with their GPUs: docker run --gpus all)"
)


class _Failed(Exception):
    """Nothing can be chosen at all; the message is for people."""


@dataclass(frozen=True)
class _Look:
    """What one look showed, and what came of it."""

    judged: Sequence[Judged]
    host: Host
    lacking: Sequence[str]
    """What the host lacks."""
    chosen: Sequence[GpuNow]
    complaints: Sequence[str]
    descriptors: Sequence[int]
    """Those that hold the claims."""


def parser() -> Parser:
    """How the command line reads."""
    made = Parser(
        "pick",
        usage="stallscope pick [-n COUNT] [--memory SIZE] [flags] [-- COMMAND ...]",
        description="Choose GPUs that have room now, print them as CUDA_VISIBLE_DEVICES has them, or run a command on "
        "them. Without --memory, a GPU must be free: nobody computes on it. With --memory it may be shared, while so "
        "much memory is free and it is not too busy. Several users who pick at once are told apart: a GPU that was "
        "picked is left alone for a minute, and the memory asked for stays claimed as long as the command runs.",
        examples={
            "stallscope pick -- python train.py": "a free GPU, for as long as the program runs",
            "stallscope pick -n 2 --memory 20GiB --wait -- accelerate launch train.py": "two with room, as soon as "
            "there are",
            "CUDA_VISIBLE_DEVICES=$(stallscope pick --memory 8GiB) python train.py": "the same by hand",
            "stallscope pick --memory 20GiB --explain --reserve 0s": "does another experiment fit? Nothing is claimed",
        },
        notes="Exit status: 0 when GPUs were found, 1 when there are none now, 2 for a wrong command line, and the "
        "command's own where one is run: it takes this process' place. A CUDA_VISIBLE_DEVICES that is set restricts "
        "the choice. Claims are files in /run/lock, or /tmp where users may not write there; containers see each "
        "other's only where they share that folder.",
    )
    made.add_argument("misplaced", nargs="*", help=argparse.SUPPRESS)  # to say where it belongs
    made.add_argument("-n", "--count", type=_count, default=1, metavar="COUNT", help="GPUs to pick (default: 1)")
    made.add_argument(
        "--memory", type=_bytes, metavar="SIZE", help="memory to be free on each, such as 20GiB; the GPU may be shared"
    )
    made.add_argument("--exclusive", action="store_true", help="only GPUs that nobody computes on, with --memory too")
    made.add_argument(
        "--max-utilization",
        type=_ratio,
        default=0.5,
        metavar="SHARE",
        help="how busy a GPU may have been lately, such as 30%% or 0.3 (default: 50%%)",
    )
    made.add_argument(
        "--cpus", type=_cores, default=0.0, metavar="NUMBER", help="idle cores that the host has for each (default: 0)"
    )
    made.add_argument(
        "--host-memory",
        type=_bytes,
        default=0,
        metavar="SIZE",
        help="free memory that the host has for each (default: any)",
    )
    made.add_argument("--spread", action="store_true", help="take the emptiest GPU, and not the one that fits best")
    made.add_argument("--wait", action="store_true", help="wait until there is room")
    made.add_argument(
        "--timeout", type=_duration, metavar="DURATION", help="wait no longer, such as 2h (default: for ever)"
    )
    made.add_argument(
        "--explain", action="store_true", help="tell of every GPU on standard error why it was taken or not"
    )
    made.add_argument("--json", action="store_true", help="print one JSON document of all that")
    made.add_argument(
        "--format",
        choices=("uuids", "indices", "env"),
        default="uuids",
        help="what to print: UUIDs, the driver's indices, or CUDA_VISIBLE_DEVICES=UUIDs (default: uuids)",
    )
    made.add_argument(
        "--over",
        type=_look,
        default=2.0,
        metavar="DURATION",
        help="how long to look at the GPUs, 1s to 60s (default: 2s)",
    )
    made.add_argument(
        "--reserve",
        type=_reservation,
        default=60.0,
        metavar="DURATION",
        help="how long a pick without a command stays claimed, at most 1h; 0s claims nothing (default: 1m)",
    )
    made.add_argument(
        "--lock-folder",
        type=Path,
        metavar="FOLDER",
        help="where claims lie, the same for all users (default: STALLSCOPE_LOCK_FOLDER, or /run/lock, or /tmp)",
    )
    made.add_argument(
        "--exporter.url",
        dest="exporter",
        metavar="URL",
        help=f"the node's exporter, which knows of past errors and runs (default: {_DEFAULT_EXPORTER}, if it answers)",
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Pick; see the exit status in `parser`."""
    from stallscope.capacity.claims import ClaimsFailed

    words = list(arguments)
    split = words.index("--") if "--" in words else len(words)
    flags, command = words[:split], words[split + 1 :]
    command_line = parser()
    parsed = command_line.parse_args(flags)
    if problem := _contradiction(parsed, command, ended_flags=split < len(words)):
        command_line.error(problem)
    if command and shutil.which(command[0]) is None:
        return _fail(f"{command[0]}: command not found, or not executable", _NOT_FOUND)
    try:
        picker = _Picker(parsed, command)
        look = picker.until_found(parsed.timeout) if parsed.wait else picker.look()
    except ValueError as error:
        command_line.error(str(error))
    except (ClaimsFailed, _Failed) as error:
        return _fail(str(error))
    if parsed.explain:
        print(_table(look), file=sys.stderr)
    for complaint in look.complaints:
        print(f"stallscope pick: {complaint}", file=sys.stderr)
    if parsed.json:
        print(json.dumps(_document(look, picker.wanted), indent=2))
    if not look.chosen:
        return _fail(_refusal(look, picker.wanted, brief=parsed.explain))
    if command:
        return _become(command, look)
    if not parsed.json:
        print(_named(look.chosen, parsed.format))
    return 0


class _Picker:
    """Looks for what the command line asks for."""

    def __init__(
        self, parsed: argparse.Namespace, command: Sequence[str], pause: Callable[[float], None] = time.sleep
    ) -> None:
        from stallscope.capacity.choice import Wanted
        from stallscope.capacity.claims import Claims, shared_folder
        from stallscope.terminal.exporter_client import ExporterClient

        self.wanted = Wanted(
            count=parsed.count,
            memory=parsed.memory or 0,
            exclusive=parsed.exclusive or parsed.memory is None,
            max_utilization=parsed.max_utilization,
            cores=parsed.cpus,
            host_memory=parsed.host_memory,
            spread=parsed.spread,
        )
        self._indices = parsed.format == "indices"
        self._over: float = parsed.over
        self._seconds: float | None = None if command else parsed.reserve
        told = os.environ.get("STALLSCOPE_LOCK_FOLDER")
        self._claims: Claims = Claims(parsed.lock_folder or (Path(told) if told else shared_folder()))
        self._client = ExporterClient(parsed.exporter or _DEFAULT_EXPORTER, timeout=2.0)
        self._must_answer = parsed.exporter is not None
        self._pause = pause

    def until_found(self, timeout: float | None, clock: Callable[[], float] = time.monotonic) -> _Look:
        """Look again and again, until there is room or the time is over."""
        began = clock()
        said = ""
        while True:
            look = self.look()
            left = None if timeout is None else began + timeout - clock()
            if look.chosen or (left is not None and left <= 0):
                return look
            reasons = _refusal(look, self.wanted)
            # Figures change all the time; what stands in the way does not.
            if (gist := re.sub(r"[\d.]+", "", reasons)) != said:
                print(f"stallscope pick: waiting: {reasons}", file=sys.stderr, flush=True)
                said = gist
            self._pause(_POLL_SECONDS if left is None else min(_POLL_SECONDS, left))

    def look(self) -> _Look:
        """Look once, and claim what is chosen.

        Raises:
            _Failed: there is no driver that answers.
            ClaimsFailed: claims can't be made.
            ValueError: the environment contradicts itself.
        """
        from stallscope.capacity.choice import choose, host_against, judge
        from stallscope.capacity.host import host, processor_time
        from stallscope.capacity.visible import visible

        before = processor_time()
        gpus = self._gpus()
        machine = host(before, processor_time())
        allowed = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), gpus, os.environ.get("CUDA_DEVICE_ORDER"))
        lacking = host_against(machine, self.wanted)
        with self._claims.choosing():
            claims, complaints = self._claims.standing()
            judged = judge(gpus, self.wanted, claims, allowed)
            chosen = () if lacking else choose(judged, self.wanted)
            if self._indices and any(gpu.identity.mig for gpu in chosen):
                raise ValueError("a MIG instance has no index: use --format uuids")
            descriptors = [] if self._seconds == 0 else [self._claim(gpu) for gpu in chosen]
        return _Look(judged, machine, lacking, chosen, complaints, descriptors)

    def _claim(self, gpu: GpuNow) -> int:
        return self._claims.make(
            gpu.identity.uuid, memory=self.wanted.memory, exclusive=self.wanted.exclusive, seconds=self._seconds
        )

    def _gpus(self) -> list[GpuNow]:
        from stallscope.capacity.exporter import with_exporter
        from stallscope.capacity.reading import read
        from stallscope.gpus.driver import DriverError

        earlier = self._page()
        try:
            gpus = read(_driver(), look=self._over, pause=self._pause)
        except DriverError as error:
            # A missing package is told with its remedy.
            raise _Failed(str(error) if error.reason.startswith("binding_") else f"{error}; {_NO_DRIVER}") from None
        if not gpus:
            raise _Failed(f"the NVIDIA driver shows no GPU; {_NO_DRIVER}")
        later = self._page() if earlier is not None else None
        return gpus if earlier is None or later is None else with_exporter(gpus, earlier, later, time.time())

    def _page(self) -> Page | None:
        from stallscope.capacity.exporter import WANTED
        from stallscope.terminal.exporter_client import ExporterError
        from stallscope.terminal.exposition import Page

        try:
            return Page(self._client.read(), WANTED)
        except ExporterError as error:
            if self._must_answer:
                print(f"stallscope pick: {self._client.name}: {error}; going on without", file=sys.stderr)
                self._must_answer = False  # it was said
            return None


def _driver() -> Driver:
    from stallscope.nvidia.nvml import NvmlDriver

    return NvmlDriver()


def _contradiction(parsed: argparse.Namespace, command: Sequence[str], *, ended_flags: bool) -> str:
    """What does not go together on the command line; empty where all does."""
    if parsed.misplaced:
        return f"a command comes after --: stallscope pick [flags] -- {' '.join(parsed.misplaced)} ..."
    if ended_flags and not command:
        return "what is to be run? A command comes after --"
    if command and (parsed.json or parsed.format != "uuids"):
        return "--json and --format are for a pick without a command, whose output is its own"
    if parsed.timeout is not None and not parsed.wait:
        return "--timeout says how long to --wait"
    return ""


def _become(command: Sequence[str], look: _Look) -> int:
    """Let the command take this process' place: signals, exit status and claims are its own then."""
    os.environ["CUDA_VISIBLE_DEVICES"] = _named(look.chosen, "uuids")
    for descriptor in look.descriptors:
        os.set_inheritable(descriptor, True)
    sys.stderr.flush()
    try:
        become(command)
    except OSError as error:
        return _fail(f"{command[0]}: {error.strerror}", _NOT_EXECUTABLE)


def _named(gpus: Sequence[GpuNow], form: str) -> str:
    if form == "indices":
        return ",".join(str(gpu.identity.index) for gpu in gpus)
    uuids = ",".join(gpu.identity.uuid for gpu in gpus)
    return f"CUDA_VISIBLE_DEVICES={uuids}" if form == "env" else uuids


def _refusal(look: _Look, wanted: Wanted, *, brief: bool = False) -> str:
    """What is missing, and on which GPU; brief where a table has told the latter."""
    from stallscope.readable import percent, size

    what = [
        "free" if wanted.exclusive else "",
        f"with {size(wanted.memory)} free" if wanted.memory else "",
        "" if wanted.exclusive else f"at most {percent(wanted.max_utilization)} busy",
    ]
    count = "GPU" if wanted.count == 1 else f"{wanted.count} GPUs"
    fitting = sum(not each.against for each in look.judged)
    lines = [
        f"no {count} {', '.join(part for part in what if part)} now" + (f" ({fitting} will do)" if fitting else "")
    ]
    lines += [f"the host: {reason}" for reason in look.lacking]
    if not brief:
        lines += [f"{each.gpu.name}: {'; '.join(each.against) or 'will do'}" for each in look.judged]
    return "\n".join([lines[0], *(_wrapped(line, "  ", "    ") for line in lines[1:])])


def _table(look: _Look) -> str:
    """Every GPU with what it has, and why it was taken or not."""
    from stallscope.readable import percent, size

    def share(ratio: float | None) -> str:
        return "-" if ratio is None else percent(ratio).replace(" ", "")

    rows = [("", "total", "room", "busy", "SMs", "")]
    for each in look.judged:
        gpu = each.gpu
        total, room = ("-" if amount is None else size(amount) for amount in (gpu.memory_total, each.room))
        rows.append((gpu.name, total, room, share(gpu.busy), share(gpu.sm_active), _decision(each, look)))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for name, *figures, decision in rows:
        cells = [
            name.ljust(widths[0]),
            *(figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True)),
        ]
        lines.append(_wrapped(decision, "  ".join(cells) + "  ", "      ") if decision else "  ".join(cells))
    lines.append("")
    machine = look.host
    idle = "" if machine.idle_cores is None else f", {machine.idle_cores:.1f} idle"
    memory = "" if machine.memory_available is None else f"; {size(machine.memory_available)} of memory free"
    lines.append(
        _wrapped(f"host: {machine.cores:g} cores{idle}{memory}{_share_of_host(machine, look.judged)}", "", "  ")
    )
    lines += [_wrapped(reason, "  ", "    ") for reason in look.lacking]
    return "\n".join(lines)


def _decision(each: Judged, look: _Look) -> str:
    if each.against:
        return f"no: {'; '.join(each.against)}"
    if each.gpu in look.chosen:
        return "taken"
    return "would do, but others fit better" if look.chosen else "would do"


def _share_of_host(machine: Host, judged: Sequence[Judged]) -> str:
    """What falls to each GPU when all are used."""
    from stallscope.readable import size

    count = sum(not each.gpu.cut for each in judged)
    if not count or machine.memory_total is None:
        return ""
    return f"; for each of {count} GPUs: {machine.cores / count:.3g} cores and {size(machine.memory_total / count)}"


def _document(look: _Look, wanted: Wanted) -> dict[str, Any]:
    return {
        "cuda_visible_devices": _named(look.chosen, "uuids") or None,
        "wanted": {
            "count": wanted.count,
            "memory_bytes": wanted.memory,
            "exclusive": wanted.exclusive,
            "max_utilization": wanted.max_utilization,
            "cpus": wanted.cores,
            "host_memory_bytes": wanted.host_memory,
        },
        "gpus": [
            {
                "index": each.gpu.identity.index,
                "uuid": each.gpu.identity.uuid,
                "mig": each.gpu.identity.mig or None,
                "model": each.gpu.identity.model,
                "taken": each.gpu in look.chosen,
                "against": list(each.against),
                "memory_total_bytes": each.gpu.memory_total,
                "memory_free_bytes": each.gpu.memory_free,
                "room_bytes": each.room,
                "busy": each.gpu.busy,
                "busy_seconds": each.gpu.busy_seconds,
                "busy_now": each.gpu.busy_now,
                "sm_active": each.gpu.sm_active,
                "processes": [
                    {"pid": holder.pid, "user": holder.user, "command": holder.command, "memory_bytes": holder.memory}
                    for holder in each.gpu.holders
                ],
                "runs": list(each.gpu.runs),
                "claims": [
                    {
                        "user": claim.user,
                        "pid": claim.pid,
                        "memory_bytes": claim.memory,
                        "exclusive": claim.exclusive,
                        "age_seconds": claim.age,
                        "held": claim.held,
                    }
                    for claim in each.claims
                ],
            }
            for each in look.judged
        ],
        "host": {
            "cores": look.host.cores,
            "idle_cores": look.host.idle_cores,
            "memory_total_bytes": look.host.memory_total,
            "memory_available_bytes": look.host.memory_available,
            "against": list(look.lacking),
        },
    }


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _MOST_GPUS):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs from 1")
    return int(text)


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text)
    number = 0
    if match:
        base = 1000 if (match[3] or "").upper() == "B" else 1024
        number = round(float(match[1]) * base ** (_POWERS.index(match[2].upper()) + 1))
    if not 0 < number < _MOST_BYTES:
        hint = f"; did you mean {text}GiB?" if re.fullmatch(r"\d+(\.\d+)?", text) else ""
        raise argparse.ArgumentTypeError(f"{text!r} is no size with its unit, such as 20GiB or 500MB{hint}")
    return number


def _ratio(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text)
    ratio = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= ratio <= 1:
        hint = f"; did you mean {text}%?" if match and not match[2] and ratio <= 100 else ""
        raise argparse.ArgumentTypeError(f"{text!r} is no share, such as 30% or 0.3{hint}")
    return ratio


def _cores(text: str) -> float:
    if not re.fullmatch(r"\d{1,5}(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of cores")
    return float(text)


def _duration(text: str) -> float:
    from stallscope.configuration import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None


def _look(text: str) -> float:
    seconds = _duration(text)
    if not 1 <= seconds <= 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1s and 60s")
    return seconds


def _reservation(text: str) -> float:
    seconds = _duration(text)
    if seconds > _MOST_RESERVED:
        raise argparse.ArgumentTypeError(f"{text!r} is more than 1h; a claim lasts as long as a command after --")
    return seconds


def _wrapped(text: str, first: str, others: str) -> str:
    return textwrap.fill(text, _COLUMNS, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def _fail(message: str, status: int = 1) -> int:
    print(f"stallscope pick: {message}", file=sys.stderr)
    return status
