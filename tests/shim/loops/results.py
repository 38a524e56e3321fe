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

from stallscope.model.catalogue.metrics import OUTSIDE_PHASES
from stallscope.training.protocol.report import Report, ReportError, parse

SHARE = 0.02
SECONDS = 0.01
"""Each phase must be within this share or these seconds, whichever is more. The clock moves only while the program
sleeps (`helpers/clock.py`), so that a slow machine makes no difference."""
_CHECKSUM = "/.data/serialization_id"
"""Member of PyTorch's archives that depends on all others, the paths in them included."""
_SPEEDS = ("_runtime", "_per_second")
_ROUNDING = 0.001
PHASES = (
    *("initialization", "data_wait", "forward", "backward", "optimizer", "communication", "evaluation"),
    *("checkpoint", "restore", "other"),
)


class Seconds(NamedTuple):
    """Seconds in one phase."""

    true: float
    reported: float
    either: float
    """Further seconds that may count for this phase or for another (`truth("data_wait or other")`)."""

    @property
    def error(self) -> float:
        """Seconds by which the report is off."""
        return max(self.true - self.reported, self.reported - self.true - self.either, 0.0)

    @property
    def is_wrong(self) -> bool:
        """True if the error exceeds the limit."""
        return self.error > max(SHARE * self.true, SECONDS)


class Rank(NamedTuple):
    """Truth and report of one rank."""

    rank: int
    steps: tuple[int, int | None]
    """True and reported; None where nothing was reported."""
    samples: tuple[int | None, float | None]
    phases: Mapping[str, Seconds]


class Result(NamedTuple):
    """Verdict on one program."""

    program: str
    style: str
    ranks: tuple[Rank, ...]
    problems: tuple[str, ...]
    """Empty where everything is as it should be."""
    files: tuple[str, ...]
    """Files that differ."""
    exit_codes: tuple[int | None, int | None]
    """Without and with Stallscope."""
    number_of_files: int
    seconds: float

    @property
    def largest_error(self) -> tuple[str, float, float]:
        """Phase with the largest error: its name, the error and the truth in seconds."""
        errors = [(phase.error, name, phase.true) for rank in self.ranks for name, phase in rank.phases.items()]
        error, name, true = max(errors, default=(0.0, "none", 0.0))
        return name, error, true


class Run(NamedTuple):
    """One run of a program: its folder, and what `children` returned."""

    folder: Path
    exit_code: int | None
    seconds: float
    payloads: Sequence[bytes]


def style(program: Path) -> str:
    """Return the program's style: the first line of its docstring."""
    return (ast.get_docstring(ast.parse(program.read_text())) or program.stem).splitlines()[0].rstrip(".")


def judge(program: Path, bare: Run, watched: Run, disabled: bool = False) -> Result:
    """Compare a program's two runs with each other, and its reports with its truth unless nothing is reported."""
    reports, refused = _reports(watched)
    ranks = _ranks(watched, reports)
    problems: list[str] = []
    if not ranks:
        problems.append("the program recorded no truth: " + _last_line(watched.folder / "stderr"))
    for rank in () if disabled else ranks:
        who = f"rank {rank.rank}: " if len(ranks) > 1 else ""
        if rank.steps[0] != rank.steps[1]:
            problems.append(f"{who}steps {rank.steps[0]}, reported {rank.steps[1]}")
        if rank.samples[0] is not None and rank.samples[0] != rank.samples[1]:
            problems.append(f"{who}samples {rank.samples[0]}, reported {rank.samples[1]}")
        for name, phase in rank.phases.items():
            if phase.is_wrong:
                problems.append(f"{who}{name} {phase.true:.3f} s, reported {phase.reported:.3f} s")
    others = [f"the exporter refuses a report: {why}" for why in sorted(refused)]
    others += [f"rank {rank}: {problem}" for rank, report in reports.items() if (problem := _step_problem(report))]
    if bare.exit_code != watched.exit_code:
        failed = watched if watched.exit_code else bare
        others.append(
            f"exit code {bare.exit_code}, watched {watched.exit_code}: {_last_line(failed.folder / 'stderr')}"
        )
    if bare.exit_code is None:
        others.append("killed: it took too long")
    if (bare.folder / "stdout").read_bytes() != (watched.folder / "stdout").read_bytes():
        others.append("stdout differs")
    if _stderr(bare.folder) != _stderr(watched.folder):
        others.append("stderr differs")
    files = _different(_files(bare.folder / "work"), _files(watched.folder / "work"))
    others.extend(f"file {name} differs" for name in files)
    others.extend(_inspections(bare.folder, watched.folder))
    return Result(
        program.stem,
        style(program),
        ranks,
        (*problems, *others),
        files,
        (bare.exit_code, watched.exit_code),
        len(_files(bare.folder / "work")),
        watched.seconds,
    )


def _reports(run: Run) -> tuple[dict[int, Report], set[str]]:
    """Return each rank's newest report, and why others were refused."""
    read = [_read(payload) for payload in run.payloads]
    return {report.rank: report for report in read if isinstance(report, Report)}, {
        why for why in read if isinstance(why, str)
    }


def _read(payload: bytes) -> Report | str:
    try:
        return parse(payload)
    except ReportError as error:
        return str(error)


def _ranks(run: Run, newest: Mapping[int, Report]) -> tuple[Rank, ...]:
    records = [json.loads(path.read_text()) for path in sorted(run.folder.glob("truth-*.json"))]
    return tuple(_rank(record, newest.get(record["rank"])) for record in records)


def _rank(record: Mapping[str, Any], report: Report | None) -> Rank:
    seconds: Mapping[str, float] = record["seconds"]
    reported = {} if report is None else {name: phase.seconds for name, phase in report.phases.items()}
    true: dict[str, float] = {}
    either: dict[str, float] = {}
    for names, spent in seconds.items():
        first, *others = names.split(" or ")
        for name in (first, *others):
            true.setdefault(name, 0.0)
            either[name] = either.get(name, 0.0) + (spent if others else 0.0)
        if not others:
            true[first] += spent
    phases = {
        name: Seconds(true.get(name, 0.0), reported.get(name, 0.0), either.get(name, 0.0))
        for name in (*PHASES, *sorted((true.keys() | reported.keys()) - set(PHASES)))
        if name in true or name in reported
    }
    steps = None
    if report is not None:
        steps = 0 if report.step_seconds is None else report.step_seconds.count
    samples = None if report is None else report.counters.get("samples")
    return Rank(record["rank"], (record["steps"], steps), (record["samples"], samples), phases)


def _step_problem(report: Report) -> str:
    """Return by how much the steps exceed their phases; an unfinished step is in the phases only."""
    if report.step_seconds is None:
        return ""
    phases = {name: phase.seconds for name, phase in report.phases.items() if name not in OUTSIDE_PHASES}
    if report.step_seconds.sum <= sum(phases.values()) + _ROUNDING:
        return ""
    return f"the phases of steps take {sum(phases.values()):.3f} s, the steps {report.step_seconds.sum:.3f} s"


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _stderr(folder: Path) -> str:
    return (folder / "stderr").read_text(errors="replace").replace(str(folder), "")


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
    return {
        str(path.relative_to(folder)): _content(path, folder) for path in sorted(folder.rglob("*")) if path.is_file()
    }


def _content(path: Path, folder: Path) -> Any:
    """Return what is compared of a file: not its folder, whose name is equally long in each run."""

    def digest(content: bytes) -> str:
        return sha256(content.replace(str(folder).encode(), b"")).hexdigest()

    if path.name == ".metadata":  # of torch.distributed.checkpoint, with the folder and a random number in it
        metadata = pickle.loads(path.read_bytes())
        metadata.storage_meta = None
        return repr(metadata)
    if path.name == "trainer_state.json":  # of Transformers, with speeds in it
        return _without_speeds(json.loads(path.read_text()))
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith(_CHECKSUM)]
            return {name.partition("/")[2]: digest(archive.read(name)) for name in names}
    return digest(path.read_bytes())


def _without_speeds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_speeds(each) for key, each in value.items() if not key.endswith(_SPEEDS)}
    return [_without_speeds(each) for each in value] if isinstance(value, list) else value


def _different(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name))
