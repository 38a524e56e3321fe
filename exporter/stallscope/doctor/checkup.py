"""What a check is and what it finds, and how checks are made so that none can hold up the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

from stallscope.clients.client_certificate import ClientCertificate
from stallscope.common.concurrency import side_by_side

Status = Literal["ok", "warning", "failed", "skipped"]

_Found = TypeVar("_Found")


class Finding(NamedTuple):
    """What a check came to."""

    status: Status
    message: str
    """One line: what is, or what is wrong and where."""
    remedy: str = ""
    """One line: what to do."""


def ok(message: str) -> Finding:
    """All is well."""
    return Finding("ok", message)


def warning(message: str, remedy: str) -> Finding:
    """Something works, but not as well as it should."""
    return Finding("warning", message, remedy)


def failed(message: str, remedy: str) -> Finding:
    """Something does not work."""
    return Finding("failed", message, remedy)


def skipped(message: str, remedy: str = "") -> Finding:
    """There is nothing to check, or no way to."""
    return Finding("skipped", message, remedy)


class Stop(Exception):
    """A part or a check can't go on; the finding says why."""

    def __init__(self, finding: Finding) -> None:
        """Take what it came to."""
        super().__init__(finding.message)
        self.finding = finding


class Result(NamedTuple):
    """A finding, and which check of which part it is of."""

    part: str
    check: str
    finding: Finding


@dataclass(frozen=True)
class Subject:
    """What is examined."""

    exporter_url: str
    """With the path of the metrics, if that is not `/metrics`."""
    prometheus_url: str
    prometheus_named: bool
    """Whether somebody said that Prometheus is there; else it is fine if nothing is."""
    environment: Mapping[str, str]
    """As a training would have it."""
    root: Path = field(default=Path("/"))
    """Where `dev`, `proc`, `sys` and the sockets lie."""
    exporter_timeout: float = 5.0
    """Seconds that a page may take."""
    prometheus_timeout: float = 5.0
    """Seconds that one question may take."""
    certificate: ClientCertificate | None = None
    """Is shown to both where they want one."""


Context = TypeVar("Context")


@dataclass(frozen=True)
class Part(Generic[Context]):
    """Checks that look at one thing."""

    name: str
    begin: Callable[[Subject], Context]
    """Finds the thing, or raises Stop."""
    checks: Sequence[tuple[str, Callable[[Context], Iterable[Finding]]]]
    limit: float = 60.0
    """Seconds that a check may take."""


def examined(part: Part[Any], subject: Subject) -> Iterator[Result]:
    """Make all checks of a part, one after the other, each with its time limit."""
    try:
        context = _within(part.limit, lambda: part.begin(subject))
    except Exception as error:  # noqa: BLE001 - one part that breaks must not take the others along
        yield Result(part.name, "reachable", _finding_of(error))
        return
    for name, check in part.checks:
        for finding in _findings(part.limit, check, context):
            yield Result(part.name, name, finding)


def _findings(limit: float, check: Callable[[Context], Iterable[Finding]], context: Context) -> list[Finding]:
    try:
        return _within(limit, lambda: list(check(context)))
    except Exception as error:  # noqa: BLE001 - nor one check the other checks
        return [_finding_of(error)]


def _finding_of(error: Exception) -> Finding:
    if isinstance(error, Stop):
        return error.finding
    ours = type(error).__module__.startswith(f"{__name__.partition('.')[0]}.")  # in words for people
    message = str(error) if ours else f"what came can't be read ({type(error).__name__}: {error})"
    return failed(message, "see what answers there, and of which version it is")


def _within(limit: float, work: Callable[[], _Found]) -> _Found:
    """Do the work, and leave it behind if it takes longer than so many seconds.

    Raises:
        Stop: it takes longer.
        Exception: whatever the work raises.
    """
    (attempt,) = side_by_side({"work": work}, limit, "check").values()
    if not attempt.ended.is_set():
        raise Stop(failed(f"this check did not end within {limit:g} s", "look for a file system or device that hangs"))
    if attempt.error is not None:
        raise attempt.error
    return cast("_Found", attempt.answer)
