"""Recorded steps: seconds of each phase by rank and step, and the published answer. See README.md for the format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.catalogue.metrics import FAMILIES
from stallscope.training.protocol.measurements import COUNTERS, GAUGES
from stallscope.training.protocol.vocabulary import MAX_LABEL_LENGTH, MAX_PHASES, MAX_RANK
from tests.external.errors import ExternalError
from tests.external.json_stream import members

Step = Sequence[Mapping[str, float]]
"""Seconds by phase, of each rank."""
Values = Mapping[str, float]

MAX_RANKS = 4096
MAX_RANK_STEPS = 400_000
"""Steps of all ranks that are read; the rest of a longer file is left out."""
_MAX_SECONDS = 1e6
_HEALTHY = ("healthy", "compute_bound", "insufficient_data")
ANSWERS = Path(__file__).parent / "answers.json"
"""Published answers to recordings that are not in the repository, by the name of their file."""


@dataclass(frozen=True)
class Published:
    """The answer that the source gives."""

    statement: str
    """The cause in the words of a person."""
    causes: tuple[str, ...]
    """Verdicts that are right; empty if no verdict of the catalogue describes the cause."""
    alert: str = ""
    """The alert that is right, for a cause that is never a verdict."""
    ranks: tuple[int, ...] = ()
    """Ranks of which the culprit must be one; empty if the source names none."""
    lost: float | None = None
    """Share of the step that would vanish if the cause did."""


@dataclass(frozen=True)
class Recording:
    """Steps of a training, and the constant values around them."""

    name: str
    source: str
    ranks: tuple[int, ...]
    """Global ranks."""
    steps: Sequence[Step]
    stages: tuple[int, ...] = ()
    """Pipeline stage of each rank; empty if unknown."""
    ranks_per_node: int = 8
    clocks: tuple[float, ...] = ()
    """Seconds by which the clock of each node is ahead; the first ones again for further nodes. Empty if all agree."""
    stops_minute: float | None = None
    """Minute from which no rank makes a step or sends a report, while all processes stay."""
    process: Values = field(default_factory=dict)
    """Values of each rank's process, by the names of the report; counters by their rate."""
    gpu: Values = field(default_factory=dict)
    """Values of each rank's GPU, by the names of the metrics; counters by their rate."""
    gpu_stopped: Values = field(default_factory=dict)
    """Other values of each GPU, from the minute of the stop."""
    host: Values = field(default_factory=dict)
    """Values of each host."""
    published: Published | None = None
    notes: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        """Mean length of a step: ranks that train together end it together."""
        return sum(max(sum(rank.values()) for rank in step) for step in self.steps) / len(self.steps)

    @property
    def measures_communication(self) -> bool:
        """True if any step has the phase `communication`."""
        return any("communication" in rank for step in self.steps for rank in step)


def read(path: Path, *, max_rank_steps: int = MAX_RANK_STEPS) -> Recording:
    """Read a recording, step by step.

    Args:
        path: a JSON file, compressed with gzip or not.
        max_rank_steps: steps of all ranks that are kept.

    Raises:
        ExternalError: the file is not a recording.
    """
    name = path.name.removesuffix(".gz").removesuffix(".json")
    checks = _Checks(path.name)
    head: dict[str, Any] = {}
    steps: list[Step] = []
    is_cut = False
    for key, value in members(path, streamed=("steps",)):
        if key != "steps":
            head[key] = value
            continue
        step = checks.step(len(steps), value)
        if (len(steps) + 1) * len(step) > max_rank_steps and steps:
            is_cut = True  # the head may follow
            continue
        steps.append(step)
    answer = head.get("published") or _answers().get(name)
    ranks = checks.ranks(head, len(steps[0]) if steps else 0)
    if not steps:
        raise ExternalError(f"{path.name}: steps: missing; write seconds by phase of each rank in each step")
    if len(steps) == 1 and head.get("constant") is not True:
        raise ExternalError(
            f'{path.name}: steps: one step only, which may be any; record two or more, or add "constant": true '
            "if its figures are means"
        )
    stops = checks.number(head, "stops_minute", 0.0, 1e6)
    per_node = checks.number(head, "ranks_per_node", 1, MAX_RANKS)
    return Recording(
        name=name,
        source=str(head.get("source") or (answer.get("source", "") if isinstance(answer, dict) else "")),
        ranks=ranks,
        stages=checks.stages(head, len(ranks)),
        steps=steps,
        ranks_per_node=8 if per_node is None else int(per_node),
        stops_minute=stops,
        process=checks.values(head, "process", {*COUNTERS, *GAUGES}),
        gpu=checks.values(head, "gpu", None),
        gpu_stopped=checks.values(head, "gpu_stopped", None),
        host=checks.values(head, "host", None),
        published=None if answer is None else checks.published(answer),
        notes=(f"only the first {len(steps)} steps are used",) if is_cut else (),
    )


def write(recording: Recording, path: Path) -> None:
    """Write a converted recording; values are rounded to microseconds."""
    document: dict[str, Any] = {"source": recording.source, "ranks": len(recording.ranks)}
    document["global_ranks"] = list(recording.ranks)
    if recording.stages:
        document["stages"] = list(recording.stages)
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(document)[:-1] + ', "steps": [')
        for number, step in enumerate(recording.steps):
            rounded = [{phase: round(seconds, 6) for phase, seconds in rank.items()} for rank in step]
            file.write((",\n" if number else "\n") + json.dumps(rounded))
        file.write("\n]}\n")


def _answers() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return found


class _Checks:
    """Checks of one file; each error names the place in it."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._ranks = 0
        self._phases: set[str] = set()

    def step(self, number: int, step: object) -> Step:
        """Return a step if all of its ranks and phases are valid."""
        where = f"{self._file}: steps[{number}]"
        if not isinstance(step, list) or not step:
            raise ExternalError(f"{where}: expected a list with an object for each rank; see tests/external/README.md")
        self._ranks = self._ranks or len(step)
        if len(step) > MAX_RANKS:
            raise ExternalError(f"{where}: {len(step)} ranks, at most {MAX_RANKS} are supported; leave some out")
        if len(step) != self._ranks:
            raise ExternalError(
                f"{where}: {len(step)} ranks, but {self._ranks} in the first step; leave out steps that lack a rank"
            )
        return [self._rank(f"{where}[{place}]", rank) for place, rank in enumerate(step)]

    def _rank(self, where: str, rank: object) -> Mapping[str, float]:
        if rank is None:
            raise ExternalError(f"{where}: the rank is missing; leave out steps that lack a rank")
        if not isinstance(rank, dict) or not rank:
            raise ExternalError(f"{where}: expected an object with seconds by phase")
        total = 0.0
        for phase, seconds in rank.items():
            if not _is_number(seconds) or seconds > _MAX_SECONDS:
                raise ExternalError(f"{where}: {phase}: expected seconds, got {seconds!r}")
            if seconds < 0:
                raise ExternalError(
                    f"{where}: {phase}: {seconds:g} s is negative; correct the clock, or leave the step out"
                )
            if phase not in self._phases:
                self._phase(where, phase)
            total += seconds
        if total <= 0:
            raise ExternalError(f"{where}: the step takes no time; leave it out")
        return rank

    def _phase(self, where: str, phase: str) -> None:
        if not phase or len(phase) > MAX_LABEL_LENGTH or not phase.isprintable():
            raise ExternalError(f"{where}: invalid name of a phase; use up to {MAX_LABEL_LENGTH} printable characters")
        self._phases.add(phase)
        if len(self._phases) > MAX_PHASES - 2:  # the shim always has two
            raise ExternalError(f"{where}: more than {MAX_PHASES - 2} phases; join some of them")

    def ranks(self, head: Mapping[str, Any], count: int) -> tuple[int, ...]:
        """Return the global ranks."""
        stated = head.get("ranks", count)
        if stated != count and count:
            raise ExternalError(f"{self._file}: ranks: {stated!r}, but the steps have {count}; correct one of them")
        found = head.get("global_ranks", list(range(count)))
        if (
            not isinstance(found, list)
            or len(set(map(str, found))) != len(found)
            or not all(type(rank) is int and 0 <= rank <= MAX_RANK for rank in found)
        ):
            raise ExternalError(f"{self._file}: global_ranks: expected different whole numbers from 0 to {MAX_RANK}")
        if len(found) != count:
            raise ExternalError(f"{self._file}: global_ranks: {len(found)} ranks, but the steps have {count}")
        return tuple(found)

    def stages(self, head: Mapping[str, Any], count: int) -> tuple[int, ...]:
        """Return the pipeline stages."""
        found = head.get("stages") or []
        if not isinstance(found, list) or (found and len(found) != count) or not all(type(n) is int for n in found):
            raise ExternalError(f"{self._file}: stages: expected a whole number for each of {count} ranks")
        return tuple(found)

    def number(self, head: Mapping[str, Any], key: str, least: float, most: float) -> float | None:
        """Return a number of the head."""
        found = head.get(key)
        if found is not None and not (_is_number(found) and least <= found <= most):
            raise ExternalError(f"{self._file}: {key}: expected a number from {least:g} to {most:g}, got {found!r}")
        return None if found is None else float(found)

    def values(self, head: Mapping[str, Any], key: str, known: set[str] | None) -> Values:
        """Return constant values by their names; with `known` None, these are metrics."""
        found = head.get(key) or {}
        if not isinstance(found, dict):
            raise ExternalError(f"{self._file}: {key}: expected an object with a number by name")
        for name, value in found.items():
            is_known = (
                name in known if known is not None else f"stallscope_{key[:4].rstrip('_')}_{base(name)}" in FAMILIES
            )
            if not is_known:
                raise ExternalError(f"{self._file}: {key}: {name}: unknown name; use one of exporter/METRICS.md")
            if not _is_number(value) or value < 0:
                raise ExternalError(f"{self._file}: {key}: {name}: expected a number of at least 0, got {value!r}")
        return {name: float(value) for name, value in found.items()}

    def published(self, answer: Any) -> Published:
        """Return the published answer."""
        if not isinstance(answer, dict) or not isinstance(answer.get("statement"), str):
            raise ExternalError(f"{self._file}: published: expected an object with a statement")
        causes, ranks = answer.get("causes", []), answer.get("ranks", [])
        if not isinstance(causes, list) or not isinstance(ranks, list):
            raise ExternalError(f"{self._file}: published: expected lists of causes and ranks")
        for cause in causes:
            if cause not in CAUSES and cause not in _HEALTHY:
                raise ExternalError(f"{self._file}: published: {cause!r} is no cause; use one of alerts/CAUSES.md")
        lost = self.number(answer, "lost", 0.0, 1.0)
        return Published(answer["statement"], tuple(causes), str(answer.get("alert", "")), tuple(ranks), lost)


def base(name: str) -> str:
    """Return the name of a metric without its labels."""
    return name.partition("{")[0]


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and isfinite(value)  # type: ignore[arg-type]
