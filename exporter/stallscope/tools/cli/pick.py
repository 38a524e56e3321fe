"""Choose GPUs that are free now, or wait for them, and run a command on them."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from stallscope.tools.cli import _client_certificate
from stallscope.tools.cli._become import become
from stallscope.tools.cli._durations import duration
from stallscope.tools.cli._exporter import DEFAULT_EXPORTER, exporter_url
from stallscope.tools.cli._parser import Parser
from stallscope.tools.cli._progress import add_flag

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT])(iB|B)?", re.IGNORECASE)
_POWERS = "KMGT"
_MOST_BYTES = 1 << 60
_MOST_GPUS = 1024
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "pick",
        usage="stallscope pick [-n COUNT] [--memory SIZE] [flags] [-- COMMAND ...]",
        description="Choose NVIDIA GPUs that are free now. Print them in the form of CUDA_VISIBLE_DEVICES, or run a "
        "command on them. Without --memory, a GPU must be unused. With --memory, it may be shared if it has that much "
        "free memory and is not too busy. Concurrent picks do not collide: a picked GPU stays claimed for a minute, "
        "and the requested memory stays claimed while the command runs.",
        examples={
            "stallscope pick -- python train.py": "a free GPU, for as long as the program runs",
            "stallscope pick -n 2 --memory 20GiB --wait -- accelerate launch train.py": "wait for two GPUs with 20 GiB",
            "CUDA_VISIBLE_DEVICES=$(stallscope pick --memory 8GiB) python train.py": "set the variable yourself",
            "stallscope pick --memory 20GiB --explain --reserve 0s": "only show which GPUs would fit; claim nothing",
        },
        notes="Exit status: 0 if GPUs were found, 1 if not, 2 for an invalid command line. The command replaces this "
        "process, so its exit status is returned; 126 if it cannot be executed, 127 if it does not exist. "
        "CUDA_VISIBLE_DEVICES, if set, restricts the choice. Claims are files in /run/lock, or in /tmp if users may "
        "not write to /run/lock. Containers see each other's claims only if they share that folder.",
    )
    made.add_argument("misplaced", nargs="*", help=argparse.SUPPRESS)  # parsed for a helpful error
    made.add_argument("-n", "--count", type=_count, default=1, metavar="COUNT", help="GPUs to pick (default: 1)")
    made.add_argument(
        "--memory", type=_bytes, metavar="SIZE", help="free memory on each GPU, such as 20GiB; the GPU may be shared"
    )
    made.add_argument("--exclusive", action="store_true", help="only unused GPUs, also with --memory")
    made.add_argument(
        "--max-utilization",
        type=_ratio,
        default=0.5,
        metavar="SHARE",
        help="maximum utilization of a shared GPU, such as 30%% or 0.3 (default: 50%%)",
    )
    made.add_argument(
        "--cpus", type=_cores, default=0.0, metavar="NUMBER", help="idle CPU cores on the host per GPU (default: 0)"
    )
    made.add_argument(
        "--host-memory",
        type=_bytes,
        default=0,
        metavar="SIZE",
        help="free host memory per GPU (default: any)",
    )
    made.add_argument(
        "--spread", action="store_true", help="prefer the GPU with most free memory over the tightest fit"
    )
    made.add_argument("--wait", action="store_true", help="wait until GPUs are free")
    made.add_argument(
        "--timeout", type=duration(), metavar="DURATION", help="maximum time to wait, such as 2h (default: no limit)"
    )
    made.add_argument("--explain", action="store_true", help="print on standard error why each GPU was taken or not")
    made.add_argument("--json", action="store_true", help="print one JSON document with all GPUs and the host")
    made.add_argument(
        "--format",
        choices=("uuids", "indices", "env"),
        default="uuids",
        help="output format: UUIDs; the driver's indices, for programs that do not accept UUIDs (CUDA numbers GPUs "
        "the same way with CUDA_DEVICE_ORDER=PCI_BUS_ID, which is set for the command); or CUDA_VISIBLE_DEVICES=UUIDs "
        "(default: uuids)",
    )
    made.add_argument(
        "--over",
        type=duration("1s", "60s"),
        default=2.0,
        metavar="DURATION",
        help="how long to measure utilization, 1s to 60s (default: 2s)",
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
        help="folder of claims, the same for all users (default: STALLSCOPE_LOCK_FOLDER, or /run/lock, or /tmp)",
    )
    made.add_argument(
        "--exporter.url",
        dest="exporter",
        type=exporter_url,
        metavar="URL",
        help=f"the node's exporter, for past errors and runs (default: {DEFAULT_EXPORTER}, if it responds)",
    )
    add_flag(made)
    _client_certificate.add_flags(made, "an exporter")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status that `parser` describes."""
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
    from stallscope.tools.capacity.claims import ClaimsFailed
    from stallscope.tools.cli._picked import document, named, refusal, table
    from stallscope.tools.cli._picker import Picker, PickFailed

    try:
        picker = Picker(parsed, running=bool(command))
        picked = picker.until_found(parsed.timeout) if parsed.wait else picker.measure()
    except ValueError as error:
        command_line.error(str(error))
    except (ClaimsFailed, PickFailed) as error:
        return _fail(str(error))
    if parsed.explain:
        print(table(picked), file=sys.stderr)
    for warning in picked.warnings:
        print(f"stallscope pick: {warning}", file=sys.stderr)
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
    """Return the error of flags that cannot be combined; empty if the command line is valid."""
    if parsed.misplaced:
        return f"a command comes after --: stallscope pick [flags] -- {' '.join(parsed.misplaced)} ..."
    if ended_flags and not command:
        return "--: expected a command after it"
    if command and (parsed.json or parsed.format == "env"):
        return "--json, --format env: cannot be combined with a command; the output is the command's own"
    if parsed.timeout is not None and not parsed.wait:
        return "--timeout: requires --wait"
    return ""


def _become(command: Sequence[str], gpus: str, claims: Sequence[int]) -> int:
    """Replace this process by the command, which inherits the descriptors that hold the claims."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    if gpus[:1].isdecimal():
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order of the driver's indices
    for descriptor in claims:
        os.set_inheritable(descriptor, True)
    sys.stderr.flush()
    try:
        become(command)
    except OSError as error:
        return _fail(f"{command[0]}: {error.strerror}", _NOT_EXECUTABLE)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _MOST_GPUS):
        raise argparse.ArgumentTypeError(f"expected an integer from 1 to {_MOST_GPUS}, got {text!r}")
    return int(text)


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text)
    number = 0
    if match:
        base = 1000 if (match[3] or "").upper() == "B" else 1024
        number = round(float(match[1]) * base ** (_POWERS.index(match[2].upper()) + 1))
    if not 0 < number < _MOST_BYTES:
        hint = f"; did you mean {text}GiB?" if re.fullmatch(r"\d+(\.\d+)?", text) else ""
        raise argparse.ArgumentTypeError(f"expected a size with a unit, such as 20GiB or 500MB, got {text!r}{hint}")
    return number


def _ratio(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text)
    ratio = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= ratio <= 1:
        hint = f"; did you mean {text}%?" if match and not match[2] and ratio <= 100 else ""
        raise argparse.ArgumentTypeError(f"expected a share such as 30% or 0.3, got {text!r}{hint}")
    return ratio


def _cores(text: str) -> float:
    if not re.fullmatch(r"\d{1,5}(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"expected a number of cores, got {text!r}")
    return float(text)


def _fail(message: str, status: int = 1) -> int:
    print(f"stallscope pick: {message}", file=sys.stderr)
    return status
