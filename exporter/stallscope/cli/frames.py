"""Write a run's measurements to files: steps, phases, GPUs and hosts, as Parquet or CSV."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallscope.cli import _prometheus, _times
from stallscope.cli._durations import duration
from stallscope.cli._extras import missing
from stallscope.cli._parser import Parser
from stallscope.cli._progress import progress
from stallscope.common.formatting import readable

if TYPE_CHECKING:
    from stallscope.analysis.export import Export


class _FailedError(Exception):
    """Nothing was written; the message is one line."""


def parser() -> Parser:
    """The command line."""
    made = Parser(
        "frames",
        usage="stallscope frames --run NAME [--out DIRECTORY] [flags]",
        description="Write what Prometheus holds of a run to five files: steps, phases, gpu, host and values (what the "
        "training reported besides). A row is one scrape of one rank, phase, GPU or machine, with the number of the "
        "training step that the rank had reached; figures are those of the interval since the scrape before. A run may "
        "be as long as it likes. In a program: stallscope.analysis.frames.",
        examples={
            "stallscope frames --run resnet50": "the last day, as steps.parquet, gpu.parquet ... in this directory",
            "stallscope frames --run resnet50 --since 30d --step 5m --out month": "a month, one row in five minutes",
            "stallscope frames --run resnet50 --format csv --json": "for a spreadsheet, and a summary for a program",
        },
        notes="Exit status: 0 where all files were written, 1 where that failed, and then none was, 2 for a wrong "
        "command line.",
    )
    made.add_argument(
        "--run", required=True, metavar="NAME", help="the run's name, or CLUSTER/NAMESPACE/NAME where several have it"
    )
    made.add_argument(
        "--out", type=Path, default=Path(), metavar="DIRECTORY", help="where to write (default: this directory)"
    )
    made.add_argument("--format", choices=("parquet", "csv"), default="parquet", help="of the files (default: parquet)")
    made.add_argument(
        "--step",
        type=duration("1s"),
        metavar="DURATION",
        help="one row in so much time, of means that the server makes (default: one row a scrape)",
    )
    made.add_argument("--cluster", help="whose run, where several clusters have one of that name")
    made.add_argument("--namespace", help="likewise")
    made.add_argument("--json", action="store_true", help="print what was written as one JSON document")
    _times.add_flags(made)
    _prometheus.add_flags(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command.

    Returns:
        0 when all files were written, 1 when that failed, 2 for a wrong command line.
    """
    reader = parser()
    told = reader.parse_args(arguments)
    if not told.run:
        reader.error("--run names no run")  # as an unset variable of a shell
    if told.out.is_file():
        reader.error(f"{told.out} is a file; name a folder")
    try:
        written = _write(told)
    except _FailedError as failed:
        print(f"stallscope frames: {failed}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        return missing("frames", error, "analysis")
    if told.json:
        print(json.dumps(_document(written), indent=2))
    else:
        print(_text(written), end="")
    return 0


def _write(told: Any) -> Export:
    from stallscope.analysis.data_frames import pieces
    from stallscope.analysis.export import export
    from stallscope.analysis.runs import RunError, find_run
    from stallscope.clients.prometheus import PrometheusError
    from stallscope.common.whole_files import reason

    try:
        with closing(_prometheus.client(told)) as server:
            start, end = _times.span(told, server.now())
            run = find_run(server, told.run, start, end, cluster=told.cluster, namespace=told.namespace)
            with progress(f"Reading {readable(run.name)}", total=1.0) as advance:
                read = pieces(run, prometheus=server, start=start, end=end, step=told.step, advance=advance)
                return export(read, told.out, told.format)
    except (RunError, PrometheusError, _times.EmptySpanError) as problem:
        raise _FailedError(_prometheus.reason(problem)) from None
    except OSError as problem:
        raise _FailedError(reason(problem, told.out)) from None


def _text(written: Export) -> str:
    run = written.run
    when = f"{_moment(written.start)} to {_moment(written.end)}"
    ranks = "1 rank" if len(run.ranks) == 1 else f"{len(run.ranks)} ranks"
    lines = [f"{readable(run.name)}: {when}, {ranks}, a row is {written.resolution:g} s"]
    width = max(len(str(each.path)) for each in written.files)
    lines += [f"  {each.path!s:<{width}}  {each.rows:>12,} rows  {each.bytes:>14,} bytes" for each in written.files]
    if written.gaps:
        gaps = "1 gap is" if written.gaps == 1 else f"{written.gaps} gaps are"
        lines.append(f"  {gaps} longer than three rows: there was nothing to read meanwhile")
    lines += [f"  {note}" for note in written.notes]
    return "\n".join(lines) + "\n"


def _document(written: Export) -> dict[str, Any]:
    run = written.run
    return {
        "run": run.name,
        "cluster": run.cluster,
        "namespace": run.namespace,
        "start": _moment(written.start),
        "end": _moment(written.end),
        "ranks": len(run.ranks),
        "resolution_seconds": written.resolution,
        "files": [
            {"frame": each.name, "path": str(each.path), "rows": each.rows, "bytes": each.bytes}
            for each in written.files
        ],
        "gaps": written.gaps,
        "notes": list(written.notes),
    }


def _moment(unix: float) -> str:
    return dt.datetime.fromtimestamp(round(unix), dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
