"""Verdicts of the rules on a recording of `record --pages`, on any machine."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallscope.tools.cli._durations import duration
from stallscope.tools.cli._parser import Parser
from stallscope.tools.cli._progress import add_flag, progress
from stallscope.tools.cli.thresholds import threshold

if TYPE_CHECKING:
    from stallscope.lab.replay.pages import Recording
    from stallscope.lab.replay.verdicts import Replayed, Span, Subject
    from stallscope.lab.stack.programs import Programs

_PLAYED_SECONDS = 300.0
"""Seconds at the end of a recording that are played by default."""


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "replay",
        usage="stallscope replay [flags] FILE",
        description="Evaluate the rules on a recording of `stallscope record --pages`, in a fraction of its time, and "
        "print the verdict of each run and GPU over time, and the alerts. Times count from the start of the "
        "recording. All rules are evaluated at once: a verdict may come a minute earlier than in a running Prometheus, "
        "where groups of rules follow each other. Needs promtool, which comes with Prometheus; no server is started, "
        "except with --open.",
        examples={
            "stallscope replay slow.pages.gz": "verdicts and alerts over time",
            "stallscope replay --threshold warmup_seconds=30 short.pages.gz": "judge after 30 s, not 5 min",
            "stallscope replay --open slow.pages.gz": "also servers for report, compare, top, status page and Grafana",
            "stallscope replay --open --at 7m slow.pages.gz": "top and the status page as they were after 7 min",
        },
        notes="Exit status: 0 if the rules were evaluated, 1 if that failed, 2 for an invalid command line.",
    )
    made.add_argument("file", type=Path, metavar="FILE", help="file that `stallscope record --pages` wrote")
    made.add_argument("--json", action="store_true", help="print one JSON document")
    made.add_argument(
        "--threshold",
        action="append",
        default=[],
        type=threshold,
        metavar="NAME=VALUE",
        help="another value of a threshold of prometheus/rules/thresholds.yml; again for further ones",
    )
    made.add_argument(
        "--open",
        action="store_true",
        help="start a Prometheus with the recording and its verdicts, moved so that it ends now, and an exporter that "
        "plays the recorded pages, until Ctrl-C; prints the commands that show them",
    )
    made.add_argument(
        "--at",
        type=duration("0s", "24h"),
        metavar="TIME",
        help="with --open: play the pages from this time of the recording to its end, again and again (default: the "
        "last 5 min)",
    )
    add_flag(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Replay; return 0 if the rules were evaluated, 1 if that failed, 2 for an invalid command line."""
    parsed = parser().parse_args(arguments)
    from stallscope.lab.replay import verdicts
    from stallscope.lab.replay.pages import Recording, RecordingError
    from stallscope.lab.replay.rule_engine import EngineError
    from stallscope.lab.stack.errors import StackError
    from stallscope.lab.stack.programs import find_programs

    programs = find_programs()
    if programs.promtool is None:
        return _fail("promtool is not on PATH; install Prometheus, which includes it")
    try:
        recording = Recording(parsed.file)
        with progress("Evaluating the rules", quiet=parsed.quiet):
            replayed = verdicts.replay(
                recording, programs.promtool, thresholds=dict(parsed.threshold), everything=parsed.open
            )
    except (RecordingError, StackError) as problem:
        return _fail(str(problem))
    except EngineError as problem:
        return _fail(f"promtool can't judge the recording: {problem}")
    if recording.is_cut:
        print(f"stallscope replay: {parsed.file} was cut off; it was read up to the cut", file=sys.stderr)
    if parsed.json:
        print(json.dumps(_document(recording, replayed), indent=2))
    else:
        print(_heading(recording, replayed))
        for line in verdicts.lines(replayed):
            print(line)
    if not parsed.open:
        return 0
    return _serve(recording, replayed, programs, parsed.at)


def _serve(recording: Recording, replayed: Replayed, programs: Programs, at: float | None) -> int:
    from stallscope.lab.replay.server import ServerError, serve
    from stallscope.node.web.http.server import ListenError
    from stallscope.tools.cli._recorded_exporter import Playback, recorded_exporter

    begin = max(0.0, replayed.seconds - _PLAYED_SECONDS) if at is None else at
    if begin >= replayed.seconds:
        return _fail(f"--at {begin:g}s: the recording has {replayed.seconds:.0f} s; choose an earlier time")
    playback = Playback(recording, begin, replayed.seconds)
    instance = str(recording.header.get("instance", "an exporter"))
    sys.stdout.flush()
    try:
        serve(
            replayed,
            programs,
            lambda line: print(line, file=sys.stderr),
            lambda port, url, start: recorded_exporter(playback, instance, port, url, start),
        )
    except (ServerError, ListenError) as problem:
        return _fail(str(problem))
    return 0


def _heading(recording: Recording, replayed: Replayed) -> str:
    header = recording.header
    gaps = f", {replayed.missing} scrapes without a page" if replayed.missing else ""
    source, version = header.get("instance", "an exporter"), header.get("stallscope", "?")
    return f"{recording.path}: {replayed.seconds:.0f} s of {source}, recorded by Stallscope {version}{gaps}"


def _document(recording: Recording, replayed: Replayed) -> dict[str, Any]:
    return {
        "recording": {key: value for key, value in recording.header.items() if key != "capture"},
        "seconds": replayed.seconds,
        "scrapes_without_page": replayed.missing,
        "runs": _entries(replayed.runs),
        "gpus": _entries(replayed.gpus),
        "alerts": _entries(replayed.alerts),
    }


def _entries(subjects: Mapping[Subject, Sequence[Span]]) -> list[dict[str, Any]]:
    return [
        {
            **dict(subject),
            "spans": [
                {
                    "from": span.begin,
                    "to": span.end,
                    "cause": span.cause,
                    "lowest": _number(span.lowest),
                    "highest": _number(span.highest),
                }
                for span in spans
            ],
        }
        for subject, spans in sorted(subjects.items())
    ]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _fail(message: str) -> int:
    print(f"stallscope replay: {message}", file=sys.stderr)
    return 1
