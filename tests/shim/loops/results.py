"""Results: the truth of each program next to its reports, and what differs from a run without Stallscope."""

from __future__ import annotations

import ast
import json
import pickle
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from stallscope.report import Report, parse

SHARE = 0.03
SECONDS = 0.02
"""Each phase must be within this share or this many seconds of the truth, whichever is more."""
PHASES = (
    *("initialization", "data_wait", "forward", "backward", "optimizer", "communication", "evaluation"),
    *("checkpoint", "restore", "other"),
)


class Rank(NamedTuple):
    """Truth and report of one rank."""

    rank: int
    steps: tuple[int, int | None]
    """True and reported; None where nothing was reported."""
    samples: tuple[int | None, float | None]
    phases: Mapping[str, tuple[float, float]]
    """Seconds, true and reported."""


class Result(NamedTuple):
    """Verdict on one program."""

    program: str
    style: str
    ranks: tuple[Rank, ...]
    problems: tuple[str, ...]
    """Empty where everything is as it should be."""
    timing_only: bool
    """Whether the only problems are small errors of phases, as noise causes them."""
    files: tuple[str, ...]
    """Files that differ."""
    exit_codes: tuple[int | None, int | None]
    """Without and with Stallscope."""
    number_of_files: int
    seconds: float

    @property
    def largest_error(self) -> tuple[str, float, float]:
        """Phase with the largest error: its name, its error in seconds and as a share of the truth."""
        errors = [
            (abs(reported - true), name, true) for rank in self.ranks for name, (true, reported) in rank.phases.items()
        ]
        error, name, true = max(errors, default=(0.0, "", 1.0))
        return name, error, error / true if true else float("inf")


class Run(NamedTuple):
    """One run of a program: its folder, and what `children` returned."""

    folder: Path
    exit_code: int | None
    seconds: float
    payloads: Sequence[bytes]


def style(program: Path) -> str:
    """Return the program's style: the first line of its docstring."""
    return (ast.get_docstring(ast.parse(program.read_text())) or program.stem).splitlines()[0].rstrip(".")


def tolerance(true: float) -> float:
    """Return the seconds by which a report may differ from the truth."""
    return max(SHARE * true, SECONDS)


def judge(program: Path, bare: Run, watched: Run) -> Result:
    """Compare a program's two runs with each other, and its reports with its truth."""
    ranks = _ranks(watched)
    problems: list[str] = []
    if not ranks:
        problems.append("the program recorded no truth: " + _last_line(watched.folder / "stderr"))
    noise = True
    for rank in ranks:
        who = f"rank {rank.rank}: " if len(ranks) > 1 else ""
        if rank.steps[0] != rank.steps[1]:
            problems.append(f"{who}steps {rank.steps[0]}, reported {rank.steps[1]}")
            noise = False
        if rank.samples[0] is not None and rank.samples[0] != rank.samples[1]:
            problems.append(f"{who}samples {rank.samples[0]}, reported {rank.samples[1]}")
            noise = False
        for name, (true, reported) in rank.phases.items():
            if abs(reported - true) > tolerance(true):
                problems.append(f"{who}{name} {true:.3f} s, reported {reported:.3f} s")
                noise = noise and abs(reported - true) < 3 * tolerance(true)
    others = []
    if bare.exit_code != watched.exit_code:
        others.append(
            f"exit code {bare.exit_code}, watched {watched.exit_code}: {_last_line(watched.folder / 'stderr')}"
        )
    if bare.exit_code is None:
        others.append("killed: it took too long")
    if (bare.folder / "stdout").read_bytes() != (watched.folder / "stdout").read_bytes():
        others.append("stdout differs")
    if _traceback(bare.folder) != _traceback(watched.folder):
        others.append("stderr differs")
    files = _different(_files(bare.folder / "work"), _files(watched.folder / "work"))
    others.extend(f"file {name} differs" for name in files)
    others.extend(_inspections(bare.folder, watched.folder))
    return Result(
        program.stem,
        style(program),
        ranks,
        (*problems, *others),
        noise and bool(problems) and not others and bool(ranks),
        files,
        (bare.exit_code, watched.exit_code),
        len(_files(bare.folder / "work")),
        watched.seconds,
    )


def _ranks(run: Run) -> tuple[Rank, ...]:
    newest: dict[int, Report] = {}
    for payload in run.payloads:
        report = parse(payload)
        newest[report.rank] = report
    found = []
    records = (json.loads(path.read_text()) for path in run.folder.glob("truth-*.json"))
    for record in sorted((record for record in records if record["seconds"]), key=lambda record: int(record["rank"])):
        if "other" not in record["seconds"]:
            continue  # a process that started ranks and had no loop itself
        report_of_rank = newest.get(record["rank"])
        several = len(list(run.folder.glob("truth-*.json"))) > 1
        found.append(_rank(record, report_of_rank, several))
    return tuple(found)


def _rank(record: Mapping[str, Any], report: Report | None, several: bool) -> Rank:
    seconds: Mapping[str, float] = record["seconds"]
    reported = {} if report is None else {name: phase.seconds for name, phase in report.phases.items()}
    names = [name for name in PHASES if name in seconds or name in reported]
    names += sorted(reported.keys() - set(names))
    phases = {
        name: (seconds.get(name, 0.0), reported.get(name, 0.0))
        for name in names
        # A rank's process begins before its truth does.
        if not (several and name == "initialization")
    }
    steps = None
    if report is not None:
        steps = 0 if report.step_seconds is None else report.step_seconds.count
    samples = None if report is None else report.counters.get("samples")
    return Rank(record["rank"], (record["steps"], steps), (record["samples"], samples), phases)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _traceback(folder: Path) -> str:
    text = (folder / "stderr").read_text(errors="replace").replace(str(folder), "")
    return text[text.find("Traceback (most recent call last)") :] if "Traceback (most" in text else ""


def _inspections(bare: Path, watched: Path) -> Iterable[str]:
    for name in sorted({path.name for folder in (bare, watched) for path in folder.glob("*.json")}):
        one, other = (
            (json.loads((folder / name).read_text()) if (folder / name).exists() else {}) for folder in (bare, watched)
        )
        if name.startswith("truth-"):
            if one.get("steps") != other.get("steps") or one.get("samples") != other.get("samples"):
                yield f"{name}: steps or samples of the program itself differ"
            one, other = one.get("attributes", {}), other.get("attributes", {})
        for model in sorted(one.keys() | other.keys()):
            if one.get(model) != other.get(model):
                what = "pickle" if name.startswith("pickles-") else "attributes"
                yield f"{what} of {model} differ{'s' if what == 'pickle' else ''}"


def _files(folder: Path) -> dict[str, Any]:
    return {str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _content(path: Path) -> Any:
    if path.name == ".metadata":  # of torch.distributed.checkpoint, with the folder and a random number in it
        metadata = pickle.loads(path.read_bytes())
        metadata.storage_meta = None
        return repr(metadata)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return {name.partition("/")[2]: sha256(archive.read(name)).hexdigest() for name in archive.namelist()}
    return sha256(path.read_bytes()).hexdigest()


def _different(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name))
