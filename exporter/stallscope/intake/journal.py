"""Store the runs on disk, so that a restart of the exporter loses none.

A file of JSON lines: first the file's own facts, then one line a rank. Written beside and renamed, so that it is
always whole; links are not followed, and files and folders of other users than root and this one are not used.
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
from stallscope.intake.processes import Process, Processes
from stallscope.intake.runs import Held
from stallscope.protocol.report import encode, from_document, to_document
from stallscope.sampling.clock import Clock, SystemClock

_logger = logging.getLogger(__name__)

_VERSION = 1
_MAX_LINE = 1 << 20
"""Longest line in bytes that is believed; escaped text makes lines longer than the reports were."""


class Journal:
    """One state file."""

    def __init__(self, path: Path, *, clock: Clock | None = None, root: Path = Path("/")) -> None:
        """Take the file's path, the clock, and where `proc` lies."""
        self._path = path
        self._clock = clock or SystemClock()
        self._boot_id = Processes(root).boot_id()
        self._problem = ""

    def save(self, holdings: Iterable[Held]) -> bool:
        """Rewrite the file; log a failure once, and return False."""
        new = self._path.with_name(f"{self._path.name}.tmp")
        head = {"version": _VERSION, "boot_id": self._boot_id}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Everybody may write to a pod's emptyDir; that only `open_own` trusts what is read makes up for it.
            if problem := file_trust.owner_problem(self._path.parent.stat()):
                raise PermissionError(EPERM, f"its folder is another user's: {problem}")
            # For this user alone: it tells who trains what.
            with open(file_trust.create(new, 0o600), "wb") as file:
                for line in (head, *map(self._entry, holdings)):
                    file.write(encode(line) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            self._log(f"the state file {self._path} can't be written: {error.strerror}; runs won't outlive a restart")
            return False
        self._problem = ""
        return True

    def load(self) -> Iterator[Held]:
        """Read what was held, one rank at a time.

        A broken file is moved aside; the ranks before the damage are returned.
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
            "told_run": held.told_run,
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
            # Silence goes on while the exporter is away: a restart every few minutes must not keep a rank for ever.
            heard=now - (wall - arrived),
            restarts=int(_amount(content["restarts"])),
            process=None if process is None else Process(int(process[0]), int(process[1])),
            uid=None if content.get("uid") is None else int(_amount(content["uid"])),
            lost=content["lost"] is True,
            ended=None if ended is None else now - max(0.0, wall - _amount(ended)),
            told_run=str(content.get("told_run", "")),  # which earlier versions didn't write
            former=tuple(map(str, content.get("former", ()))),
            admitted=now - max(0.0, wall - _amount(content.get("admitted", arrived))),
        )
        if not same_boot and held.ended is None:
            held = held._replace(lost=True, ended=now)
        return held

    def _set_aside(self, problem: str) -> None:
        broken = self._path.with_name(f"{self._path.name}.broken")
        _logger.warning("the state file %s is broken (%s); it is kept as %s", self._path, problem, broken)
        try:
            self._path.replace(broken)
        except OSError as error:
            self._log(f"the state file {self._path} can't be moved aside: {error.strerror}")

    def _log(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _logger.warning("%s", problem)


def _amount(value: Any) -> float:
    number = float(value)
    if not (isfinite(number) and number >= 0):
        raise ValueError(f"{value!r} is not a number of at least 0")
    return number
