"""Choose GPUs that have room now, wait until there are some, and run a command on them."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from stallscope.cli import _client_certificate
from stallscope.cli._become import become
from stallscope.cli._durations import duration
from stallscope.cli._exporter import DEFAULT_EXPORTER, exporter_url
from stallscope.cli._parser import Parser

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT])(iB|B)?", re.IGNORECASE)
_POWERS = "KMGT"
_MOST_BYTES = 1 << 60
_MOST_GPUS = 1024
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127


def parser() -> Parser:
    """How the command line reads."""
    made = Parser(
        "pick",
        usage="stallscope pick [-n COUNT] [--memory SIZE] [flags] [-- COMMAND ...]",
        description="Choose NVIDIA GPUs that have room now, print them as CUDA_VISIBLE_DEVICES has them, or run a "
        "command on them. Without --memory, a GPU must be free: nobody computes on it. With --memory it may be "
        "shared, while so much memory is free and it is not too busy. Several users who pick at once are told "
        "apart: a GPU that was picked is left alone for a minute, and the memory asked for stays claimed as long as "
        "the command runs.",
        examples={
            "stallscope pick -- python train.py": "a free GPU, for as long as the program runs",
            "stallscope pick -n 2 --memory 20GiB --wait -- accelerate launch train.py": "two with room, as soon as "
            "there are",
            "CUDA_VISIBLE_DEVICES=$(stallscope pick --memory 8GiB) python train.py": "the same by hand",
            "stallscope pick --memory 20GiB --explain --reserve 0s": "does another experiment fit? Nothing is claimed",
        },
        notes="Exit status: 0 when GPUs were found, 1 when there are none now, 2 for a wrong command line, and the "
        "command's own where one is run: it takes this process' place; 126 and 127 where it can't be run or is not "
        "there. A CUDA_VISIBLE_DEVICES that is set restricts "
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
        "--timeout", type=duration(), metavar="DURATION", help="wait no longer, such as 2h (default: for ever)"
    )
    made.add_argument(
        "--explain", action="store_true", help="tell of every GPU on standard error why it was taken or not"
    )
    made.add_argument("--json", action="store_true", help="print one JSON document of all that")
    made.add_argument(
        "--format",
        choices=("uuids", "indices", "env"),
        default="uuids",
        help="how GPUs are named: UUIDs; the driver's indices, for programs that can't read UUIDs (CUDA counts alike "
        "with CUDA_DEVICE_ORDER=PCI_BUS_ID, which a command is given); or CUDA_VISIBLE_DEVICES=UUIDs (default: uuids)",
    )
    made.add_argument(
        "--over",
        type=duration("1s", "60s"),
        default=2.0,
        metavar="DURATION",
        help="how long to look at the GPUs, 1s to 60s (default: 2s)",
    )
    made.add_argument(
        "--reserve",
        type=duration("0s", "1h"),
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
        type=exporter_url,
        metavar="URL",
        help=f"the node's exporter, which knows of past errors and runs (default: {DEFAULT_EXPORTER}, if it answers)",
    )
    _client_certificate.add_flags(made, "an exporter")
    return made


def main(arguments: Sequence[str]) -> int:
    """Pick; see the exit status in `parser`."""
    words = list(arguments)
    split = words.index("--") if "--" in words else len(words)
    flags, command = words[:split], words[split + 1 :]
    command_line = parser()
    parsed = command_line.parse_args(flags)
    if problem := _contradiction(parsed, command, ended_flags=split < len(words)):
        command_line.error(problem)
    if command and shutil.which(command[0]) is None:
        if "/" in command[0] and Path(command[0]).exists():
            return _fail(f"{command[0]}: not executable", _NOT_EXECUTABLE)
        return _fail(f"{command[0]}: command not found", _NOT_FOUND)
    from stallscope.capacity.claims import ClaimsFailed
    from stallscope.cli._picked import document, named, refusal, table
    from stallscope.cli._picker import Picker, PickFailed

    try:
        picker = Picker(parsed, running=bool(command))
        picked = picker.until_found(parsed.timeout) if parsed.wait else picker.look()
    except ValueError as error:
        command_line.error(str(error))
    except (ClaimsFailed, PickFailed) as error:
        return _fail(str(error))
    if parsed.explain:
        print(table(picked), file=sys.stderr)
    for complaint in picked.complaints:
        print(f"stallscope pick: {complaint}", file=sys.stderr)
    if parsed.json:
        print(json.dumps(document(picked, picker.wanted), indent=2))
    if not picked.chosen:
        return _fail(refusal(picked, picker.wanted, brief=parsed.explain))
    if command:
        return _become(command, named(picked.chosen, parsed.format), picked.descriptors)
    if not parsed.json:
        print(named(picked.chosen, parsed.format))
    return 0


def _contradiction(parsed: argparse.Namespace, command: Sequence[str], *, ended_flags: bool) -> str:
    """What does not go together on the command line; empty where all does."""
    if parsed.misplaced:
        return f"a command comes after --: stallscope pick [flags] -- {' '.join(parsed.misplaced)} ..."
    if ended_flags and not command:
        return "what is to be run? A command comes after --"
    if command and (parsed.json or parsed.format == "env"):
        return "--json and --format env are for a pick without a command, whose output is its own"
    if parsed.timeout is not None and not parsed.wait:
        return "--timeout says how long to --wait"
    return ""


def _become(command: Sequence[str], gpus: str, claims: Sequence[int]) -> int:
    """Let the command take this process' place: signals, exit status and the descriptors of claims are its own then."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    if gpus[:1].isdecimal():
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # which the driver counts by, and CUDA else only may
    for descriptor in claims:
        os.set_inheritable(descriptor, True)
    sys.stderr.flush()
    try:
        become(command)
    except OSError as error:
        return _fail(f"{command[0]}: {error.strerror}", _NOT_EXECUTABLE)


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


def _fail(message: str, status: int = 1) -> int:
    print(f"stallscope pick: {message}", file=sys.stderr)
    return status
