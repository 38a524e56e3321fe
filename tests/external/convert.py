"""Write recordings from traces and logs of other programs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.external import kineto, megatron_log, mlperf_storage, operation_trace, step_log
from tests.external.errors import ExternalError
from tests.external.recording import Recording, read, write

Converter = Callable[[Sequence[Path]], Recording]

FORMATS: Mapping[str, tuple[Converter, str]] = {
    "kineto": (kineto.converted, "traces of PyTorch's profiler, one file for each rank, also with gzip"),
    "operations": (operation_trace.converted, "one operation trace of ByteDance-Seed/StragglerAnalysis (Parquet)"),
    "steps": (step_log.converted, "logs with time and data_time of mmcv, mmengine or detectron2, one for each rank"),
    "mlperf-storage": (mlperf_storage.converted, "RANK_output.json of MLPerf Storage (DLIO), one for each rank"),
    "megatron": (megatron_log.converted, "one log of Megatron-LM with --timing-log-option all"),
}


def main(arguments: Sequence[str]) -> int:
    """Convert, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.external convert",
        description="Write a recording from traces or logs.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:15} {text}" for name, (_, text) in FORMATS.items()),
    )
    parser.add_argument("format", choices=sorted(FORMATS), metavar="FORMAT")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--output", "-o", type=Path, required=True, help="the recording to write: NAME.json")
    options = parser.parse_args(arguments)
    try:
        recording = FORMATS[options.format][0](options.files)
        write(recording, options.output)
        read(options.output)
    except ExternalError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as problem:
        print(f"{options.output}: {problem.strerror or problem}; name another file", file=sys.stderr)
        return 1
    count = len(recording.ranks)
    print(f"{options.output}: {count} rank{'s' if count > 1 else ''}, {len(recording.steps)} steps")
    for note in recording.notes:
        print(f"note: {note}")
    return 0
