"""The record of the day: what the machine is, and how each step ended. It is written again after each step."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stallscope.common.version import __version__
from tests.hardware.day import ROOT

_Result = TypeVar("_Result")


class StepError(Exception):
    """A step failed. The message is `<what>: <problem>; <what to do>`."""


class StepSkipped(Exception):
    """A step is impossible on this machine. The message is `<what>: <problem>; <what to do>`."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM: the remaining steps are skipped."""


class Machine:
    """`machine.json`."""

    def __init__(self, file: Path, *, stand_in: bool, show: Callable[[str], None]) -> None:
        """Start with what is known without the driver."""
        self.is_interrupted = False
        self._file = file
        self._show = show
        self._began = time.monotonic()
        self._steps: list[dict[str, Any]] = []
        self._entry: dict[str, Any] = {}
        self._is_working = False
        self._is_unwritten = False
        self.content: dict[str, Any] = {
            "gpu": None,
            "driver": None,
            "cuda": None,
            "torch": None,
            "python": platform.python_version(),
            "kernel": platform.release(),
            "stallscope": f"{__version__} {_commit()}".strip(),
            "stand_in": stand_in,
            "started": time.time(),
            "steps": self._steps,
        }
        """Everything in the file; `steps` has `name`, `status`, `seconds` and `message`."""

    def set(self, **facts: Any) -> None:
        """Add facts, and write the file."""
        self.content.update(facts)
        self.write()

    def step(self, name: str, work: Callable[[], _Result]) -> _Result | None:
        """Run a step. Whatever it raises is recorded, and the day goes on; after Ctrl-C nothing more is started.

        Returns:
            The result; None if the step failed or was skipped.
        """
        entry = self._entry = {"name": name, "status": "running", "seconds": 0.0, "message": ""}
        self._steps.append(entry)
        began = time.monotonic()
        self._show(f"{began - self._began:5.0f} s  {name}")
        self.write()
        result = None
        again = f"run it again with --only {name.split()[-1]}"
        try:
            try:
                self._is_working = True
                if self.is_interrupted:
                    raise StepSkipped(f"{name}: the day was interrupted; {again}")
                result = work()
            finally:
                self._is_working = False
            entry["status"] = "done"
        except StepSkipped as reason:
            entry.update(status="skipped", message=str(reason))
        except Interrupted:
            entry.update(status="failed", message=f"{name}: interrupted; {again}")
        except StepError as problem:
            entry.update(status="failed", message=str(problem))
        except OSError as problem:
            what = ": ".join(filter(None, (name, problem.filename, problem.strerror or str(problem))))
            entry.update(status="failed", message=f"{what}; free space on the disk or name another folder")
        except Exception as problem:
            what = f"{name}: unexpected {type(problem).__name__}: {problem}"
            entry.update(status="failed", message=f"{what}; report it with machine.json")
        entry["seconds"] = round(time.monotonic() - began, 1)
        if entry["message"]:
            self._show("         " + str(entry["message"]).replace("\n", "\n         "))
        self.write()
        return result

    def interrupt(self) -> None:
        """End the step that runs, and skip all later ones; the handler of SIGINT and SIGTERM.

        Raises:
            Interrupted: a step runs.
        """
        self.is_interrupted = True
        if self._is_working:
            raise Interrupted

    def message(self, text: str) -> None:
        """Set the message of the step that runs."""
        self._entry["message"] = text

    def write(self) -> None:
        """Write the file; a full disk is no reason to stop, and shown once."""
        try:
            write_json(self._file, self.content)
        except OSError as problem:
            if not self._is_unwritten:
                self._show(f"{self._file}: cannot write: {problem.strerror}; free space on the disk, the day continues")
            self._is_unwritten = True
        else:
            self._is_unwritten = False

    @property
    def failed(self) -> list[str]:
        """Names of the steps that failed."""
        return [step["name"] for step in self._steps if step["status"] == "failed"]


def write_json(file: Path, content: object) -> None:
    """Replace a file by JSON at once, so that a day that is cut off leaves the earlier content."""
    aside = file.with_name(f".{file.name}")
    try:
        aside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        aside.replace(file)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _commit() -> str:
    """Return the commit of the tree; empty where git or the history is missing, as in a copy of the files."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()
