"""Write a run's measurements to files: steps, phases, GPUs and hosts, as Parquet or CSV."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallscope.common.formatting import readable
from stallscope.tools.cli import _prometheus, _times
from stallscope.tools.cli._durations import duration
from stallscope.tools.cli._extras import missing
from stallscope.tools.cli._parser import Parser
from stallscope.tools.cli._progress import add_flag, progress

if TYPE_CHECKING:
    from stallscope.model.analysis.export import Export


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "frames",
        usage="stallscope frames --run NAME [--out DIRECTORY] [flags]",
        description="Write a run's series from Prometheus to five files: steps, phases, gpu, host and values (custom "
        "values that the training reported). A row is one scrape of one rank, phase, GPU or host, with the rank's "
        "training step at that time. Values cover the interval since the previous scrape. A run of any length fits "
        "into memory. In Python, use stallscope.analysis.frames.",
        examples={
            "stallscope frames --run resnet50": "the last day, as steps.parquet, gpu.parquet ... in this directory",
            "stallscope frames --run resnet50 --since 30d --step 5m --out month": "a month, one row per five minutes",
            "stallscope frames --run resnet50 --format csv --json": "for a spreadsheet, and a summary for a program",
        },
        notes="Exit status: 0 if all files were written, 1 if that failed and no file was written, 2 for an invalid "
        "command line.",
    )
    made.add_argument(
        "--run", required=True, metavar="NAME", help="the run's name; CLUSTER/NAMESPACE/NAME if it is not unique"
    )
    made.add_argument(
        "--out", type=Path, default=Path(), metavar="DIRECTORY", help="directory to write to (default: the current one)"
    )
    made.add_argument("--format", choices=("parquet", "csv"), default="parquet", help="file format (default: parquet)")
    made.add_argument(
        "--step",
        type=duration("1s"),
        metavar="DURATION",
        help="one row per interval, with means computed by the server (default: one row per scrape)",
    )
    _prometheus.add_run_flags(made, "the run", "a run of that name")
    made.add_argument("--json", action="store_true", help="print a summary of the files as one JSON document")
    _times.add_flags(made)
    add_flag(made)
    _prometheus.add_flags(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status that `parser` describes."""
    reader = parser()
    parsed = reader.parse_args(arguments)
    if not parsed.run:
        reader.error("--run: expected a name")  # empty, for example from an unset shell variable
    if parsed.out.is_file():
        reader.error(f"--out: {parsed.out} is a file; name a directory")
    try:
        written = _write(parsed)
    except _prometheus.CommandFailed as failed:
        print(f"stallscope frames: {failed}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        return missing("frames", error, "analysis")
    if parsed.json:
        print(json.dumps(_document(written), indent=2))
    else:
        print(_text(written), end="")
    return 0


def _write(parsed: Any) -> Export:
    from stallscope.common.whole_files import reason
    from stallscope.model.analysis.data_frames import pieces
    from stallscope.model.analysis.export import export
    from stallscope.model.analysis.runs import find_run

    try:
        with (
            closing(_prometheus.client(parsed)) as server,
            _prometheus.one_line_errors(),
            progress(f"Reading {readable(parsed.run)}", total=1.0, quiet=parsed.quiet) as advance,
        ):
            start, end = _times.span(parsed, server.now())
            run = find_run(server, parsed.run, start, end, cluster=parsed.cluster, namespace=parsed.namespace)
            read = pieces(run, prometheus=server, start=start, end=end, step=parsed.step, advance=advance)
            return export(read, parsed.out, parsed.format)
    except OSError as problem:
        raise _prometheus.CommandFailed(reason(problem, parsed.out)) from None


def _text(written: Export) -> str:
    run = written.run
    when = f"{_moment(written.start)} to {_moment(written.end)}"
    ranks = "1 rank" if len(run.ranks) == 1 else f"{len(run.ranks)} ranks"
    lines = [f"{readable(run.name)}: {when}, {ranks}, one row per {written.resolution:g} s"]
    width = max(len(str(each.path)) for each in written.files)
    lines += [f"  {each.path!s:<{width}}  {each.rows:>12,} rows  {each.bytes:>14,} bytes" for each in written.files]
    if written.gaps:
        gaps = "1 gap is" if written.gaps == 1 else f"{written.gaps} gaps are"
        lines.append(f"  {gaps} longer than three rows: Prometheus has no samples there")
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
