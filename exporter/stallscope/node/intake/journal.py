"""State file that keeps the runs over a restart of the exporter.

The file has JSON lines: a header, then one line for each rank. It is written to a temporary file and renamed, so that
it is always complete. Symbolic links are not followed; files and folders must belong to root or to this user.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from errno import EPERM
from math import isfinite
from pathlib import Path
from typing import Any

from stallscope.common import file_trust
from stallscope.node.intake.held import Held
from stallscope.node.intake.processes import Process, Processes
from stallscope.node.sampling.clock import Clock, SystemClock
from stallscope.training.protocol.report import encode, from_document, to_document

_logger = logging.getLogger(__name__)

_VERSION = 1
_MAX_LINE = 1 << 20
"""Longest valid line in bytes; escaping makes lines longer than the reports."""


class Journal:
    """A state file."""

    def __init__(self, path: Path, *, clock: Clock | None = None, root: Path = Path("/")) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._boot_id = Processes(root).boot_id()
        self._problem = ""

    def save(self, holdings: Iterable[Held]) -> bool:
        """Write all ranks, and return True on success. A repeated failure is logged once."""
        new = self._path.with_name(f"{self._path.name}.tmp")
        head = {"version": _VERSION, "boot_id": self._boot_id}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # A pod's emptyDir is writable for everyone. Reading is safe nevertheless: `open_own` checks the owner.
            if problem := file_trust.owner_problem(self._path.parent.stat()):
                raise PermissionError(EPERM, f"its folder belongs to another user: {problem}")
            # Private, because it shows who trains what.
            with open(file_trust.create(new, 0o600), "wb") as file:
                for line in (head, *map(self._entry, holdings)):
                    file.write(encode(line) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            self._log(f"the state file {self._path} can't be written: {error.strerror}; a restart will lose all runs")
            return False
        self._problem = ""
        return True

    def load(self) -> Iterator[Held]:
        """Read the ranks, one at a time.

        A corrupt file is renamed; the ranks before the corruption are returned.
        """
        number = 0
        try:
            with open(file_trust.open_own(self._path), "rb") as file:
                same_boot = self._read_head(json.loads(file.readline(_MAX_LINE)))
                while line := file.readline(_MAX_LINE):
                    held = self._held(json.loads(line), same_boot=same_boot)
                    number += 1
                    yield held
        except FileNotFoundError:
            pass
        except OSError as error:
            self._log(f"the state file {self._path} can't be read: {error.strerror}; starting without it")
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            self._set_aside(f"after {number} ranks: {type(error).__name__}: {error}")

    def _entry(self, held: Held) -> dict[str, Any]:
        to_wall = self._clock.time() - self._clock.monotonic()
        return {
            "report": to_document(held.report),
            "arrived": held.arrived,
            "admitted": held.admitted + to_wall,
            "restarts": held.restarts,
            "process": held.process,
            "uid": held.uid,
            "lost": held.lost,
            "ended": None if held.ended is None else held.ended + to_wall,
            "told_run": held.reported_run,
            "former": held.former,
        }

    def _read_head(self, content: Any) -> bool:
        if content["version"] != _VERSION:
            raise ValueError(f"version is {content['version']!r}; expected {_VERSION}")
        return bool(self._boot_id and content["boot_id"] == self._boot_id)

    def _held(self, content: Any, *, same_boot: bool) -> Held:
        now, wall = self._clock.monotonic(), self._clock.time()
        process, ended = content["process"], content["ended"]
        arrived = min(_amount(content["arrived"]), wall)
        held = Held(
            report=from_document(content["report"]),
            arrived=arrived,
            # Silence continues while the exporter is down; otherwise frequent restarts would keep a rank forever.
            last_seen=now - (wall - arrived),
            restarts=int(_amount(content["restarts"])),
            process=None if process is None else Process(int(process[0]), int(process[1])),
            uid=None if content.get("uid") is None else int(_amount(content["uid"])),
            lost=content["lost"] is True,
            ended=None if ended is None else now - max(0.0, wall - _amount(ended)),
            reported_run=str(content.get("told_run", "")),  # absent in files of older versions
            former=tuple(map(str, content.get("former", ()))),
            admitted=now - max(0.0, wall - _amount(content.get("admitted", arrived))),
        )
        if not same_boot and held.ended is None:
            held = held._replace(lost=True, ended=now)
        return held

    def _set_aside(self, problem: str) -> None:
        broken = self._path.with_name(f"{self._path.name}.broken")
        _logger.warning("the state file %s is corrupt (%s); it is kept as %s", self._path, problem, broken)
        try:
            self._path.replace(broken)
        except OSError as error:
            self._log(f"the state file {self._path} can't be renamed: {error.strerror}")

    def _log(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _logger.warning("%s", problem)


def _amount(value: Any) -> float:
    number = float(value)
    if not (isfinite(number) and number >= 0):
        raise ValueError(f"{value!r} is not a number of at least 0")
    return number
