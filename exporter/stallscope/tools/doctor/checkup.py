"""Checks, their findings, and the runner, which limits the time of each check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

from stallscope.common.concurrency import run_concurrently
from stallscope.model.clients.client_certificate import ClientCertificate

Status = Literal["ok", "warning", "failed", "skipped"]

_Found = TypeVar("_Found")


class Finding(NamedTuple):
    """Result of a check."""

    status: Status
    message: str
    """One line: the state, or the problem and where it is."""
    remedy: str = ""
    """One line: what to do."""


def ok(message: str) -> Finding:
    """Return a finding without a problem."""
    return Finding("ok", message)


def warning(message: str, remedy: str) -> Finding:
    """Return a finding that something works, but not as well as it should."""
    return Finding("warning", message, remedy)


def failed(message: str, remedy: str) -> Finding:
    """Return a finding that something does not work."""
    return Finding("failed", message, remedy)


def skipped(message: str, remedy: str = "") -> Finding:
    """Return a finding that there is nothing to check, or that it cannot be checked."""
    return Finding("skipped", message, remedy)


class Stop(Exception):
    """A part or a check cannot continue; the finding gives the reason."""

    def __init__(self, finding: Finding) -> None:
        """Set the finding to report."""
        super().__init__(finding.message)
        self.finding = finding


class Result(NamedTuple):
    """A finding, with its part and check."""

    part: str
    check: str
    finding: Finding


@dataclass(frozen=True)
class Subject:
    """The installation to check."""

    exporter_url: str
    """Includes the path of the metrics, if that is not `/metrics`."""
    prometheus_url: str
    prometheus_named: bool
    """True if the user has given the URL; otherwise a missing Prometheus is no problem."""
    environment: Mapping[str, str]
    """Environment variables of a training."""
    root: Path = field(default=Path("/"))
    """Root of `dev`, `proc`, `sys` and the sockets."""
    exporter_timeout: float = 5.0
    """Seconds per page."""
    prometheus_timeout: float = 5.0
    """Seconds per query."""
    driver_timeout: float = 5.0
    """Seconds for each GPU, and for each driver's list of GPUs."""
    arrival_timeout: float = 8.0
    """Seconds until a test report is counted; the interval of pages is five seconds with dozens of ranks."""
    page_interval: float = 1.2
    """Seconds to wait for the next page: a page may be made between a report's arrival and its rejection."""
    certificate: ClientCertificate | None = None
    """Client certificate for both servers."""


Context = TypeVar("Context")


@dataclass(frozen=True)
class Part(Generic[Context]):
    """Checks of one part of the installation."""

    name: str
    begin: Callable[[Subject], Context]
    """Returns the context of the checks, or raises Stop."""
    checks: Sequence[tuple[str, Callable[[Context], Iterable[Finding]]]]
    limit: float = 60.0
    """Time limit of a check, in seconds."""


def examined(part: Part[Any], subject: Subject) -> Iterator[Result]:
    """Run all checks of a part in order, each with its time limit."""
    try:
        context = _within(part.limit, lambda: part.begin(subject))
    except Exception as error:  # noqa: BLE001 - an error in one part must not prevent the others
        yield Result(part.name, "reachable", _finding_of(error))
        return
    for name, check in part.checks:
        for finding in _findings(part.limit, check, context):
            yield Result(part.name, name, finding)


def _findings(limit: float, check: Callable[[Context], Iterable[Finding]], context: Context) -> list[Finding]:
    try:
        return _within(limit, lambda: list(check(context)))
    except Exception as error:  # noqa: BLE001 - an error in one check must not prevent the others
        return [_finding_of(error)]


def _finding_of(error: Exception) -> Finding:
    if isinstance(error, Stop):
        return error.finding
    is_ours = type(error).__module__.startswith(f"{__name__.partition('.')[0]}.")  # its message is for users
    message = str(error) if is_ours else f"cannot read the response ({type(error).__name__}: {error})"
    return failed(message, "check which program responds there, and its version")


def _within(limit: float, work: Callable[[], _Found]) -> _Found:
    """Return the result of `work`, or abandon it after `limit` seconds.

    Raises:
        Stop: the time limit is over.
        Exception: raised by `work`.
    """
    (attempt,) = run_concurrently({"work": work}, limit, "check").values()
    if not attempt.ended.is_set():
        raise Stop(failed(f"this check did not end within {limit:g} s", "check for a hanging file system or device"))
    if attempt.error is not None:
        raise attempt.error
    return cast("_Found", attempt.answer)
