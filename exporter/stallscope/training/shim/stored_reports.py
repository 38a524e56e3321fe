"""Reports stored for the summary at the end of `stallscope run`, and the process that starts the summary.

`stallscope run` creates a folder in memory and hands it on in the environment. Each run of this node stores its newest
report there, twice a second, so that also a process that is killed leaves its numbers. The summary is written by a
process of its own, which the last process of the training starts when it exits: nothing of it runs in the training.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress

from stallscope.common.program_files import OWN_FOLDERS
from stallscope.common.standard_library import standard_library
from stallscope.training.shim.descriptors import above_standard
from stallscope.training.shim.tolerance import tolerate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "STALLSCOPE_SUMMARY_DIR"
"""Environment variable with the folder, for the processes of the training."""
TRAINJOB = "KUBEFLOW_TRAINER_SERVER_URL"
"""Environment variable that Kubeflow Trainer sets in the pods of a TrainJob whose status they may update."""
SETTINGS = "settings.json"
"""File with the options of the summary, written by `stallscope run`."""
PAGE = "exporter.prom"
"""File with the exporter's series from before the program started, if it responded."""
NEWEST = ".report"
"""Suffix of the file with the newest report of a session."""
WARMED_UP = ".warmed-up"
"""Suffix of the file with the first report of a session after the steps that are slow by nature."""
STARTED = "started-"
"""Beginning of a file's name that ends with the number of a process that `stallscope run` was or became."""
UPDATES_ITSELF = ".updates-trainjob"
"""Suffix of an empty file: the program of this session updates the status of its TrainJob by itself."""
_LOCK = "lock"
_PATIENCE = 20.0
"""Seconds that the summary may take: it queries an exporter and Prometheus, with shorter limits."""
_CODE = (
    f"{OWN_FOLDERS}packages = [place for place, path in enumerate(sys.path) if path.endswith('-packages')]; "
    "sys.path.insert(packages[0] if packages else len(sys.path), sys.argv.pop(1)); "
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "import importlib; importlib.import_module(sys.argv.pop(1)).main(sys.argv[1])"
)
"""Code of the process: Ctrl-C ends it without a traceback, and the program's folder is not searched for modules."""
_held: tuple[int, str] | None = None
"""Process that holds the lock, and the folder."""
_registered = 0


class StoredReports:
    """Stores the reports of one session.

    The file is opened again each time: a program may close all descriptors, and reuse the number for a file of its own.
    """

    def __init__(self, folder: str, session: str) -> None:
        """Take the folder; the summary waits for the end of this process from now on."""
        self._path = os.path.join(folder, session)
        self._has_warmed_up = False
        self._may_update_itself = TRAINJOB in os.environ
        hold(folder)

    def store(self, payload: bytes, is_warm: bool) -> None:
        """Store the newest report.

        Args:
            payload: the report as it is sent.
            is_warm: True once the steps are over that are slow by nature.
        """
        try:
            if is_warm and not self._has_warmed_up:
                self._has_warmed_up = True
                _write(self._path + WARMED_UP, payload)
            if self._may_update_itself and updates_trainjob():
                self._may_update_itself = False
                _write(self._path + UPDATES_ITSELF, b"")
            _write(self._path + NEWEST, payload)
        except OSError:  # the folder is gone, or memory is full
            pass


def stored_reports(environment: Mapping[str, str], session: str) -> StoredReports | None:
    """Return the store of a session; None without a summary."""
    folder = environment.get(VARIABLE, "")
    return StoredReports(folder, session) if folder and os.path.isdir(folder) else None


def updates_trainjob() -> bool:
    """Return whether this program has imported a library that updates the status of its TrainJob."""
    callbacks = sys.modules.get("transformers.integrations.integration_utils")
    return "kubeflow.trainer" in sys.modules or (
        "transformers.trainer" in sys.modules and hasattr(callbacks, "KubeflowCallback")
    )


def hold(folder: str) -> None:
    """Let no other process start the summary before this one ends. Forked children do not inherit this."""
    global _held
    if _held == (os.getpid(), folder):
        return
    try:
        with standard_library():
            import fcntl

        fcntl.lockf(_open_lock(folder), fcntl.LOCK_SH | fcntl.LOCK_NB)  # the descriptor stays open
        _held = os.getpid(), folder
    except (ImportError, OSError):
        pass


def summarise_at_exit(environment: Mapping[str, str]) -> None:
    """Start the summary when this process exits, if no other process of the training is left."""
    global _registered
    folder = environment.get(VARIABLE, "")
    if not folder or _registered == os.getpid():
        return
    _registered = os.getpid()
    if os.path.exists(os.path.join(folder, f"{STARTED}{os.getpid()}")):
        hold(folder)
    atexit.register(_end, folder, os.getpid())


def _end(folder: str, process: int) -> None:
    """Start the summary, or delete a folder without reports.

    A forked child that ends like a program comes here too: its parent may be gone, as after a daemon's start.

    Args:
        folder: the folder of the reports.
        process: the process that has registered this function.
    """
    try:
        if lock_alone(folder) >= 0:  # held until this process is gone
            if has_reports(folder):
                _start(folder)
            elif os.path.exists(os.path.join(folder, f"{STARTED}{process}")):
                discard(folder)
    except (Exception, KeyboardInterrupt) as error:
        with suppress(Exception):
            tolerate(error if isinstance(error, Exception) else RuntimeError("interrupted"), "summary")


def lock_alone(folder: str) -> int:
    """Lock the folder if no other process holds it; return the descriptor to keep open, or -1."""
    descriptor = -1
    try:
        with standard_library():
            import fcntl

        descriptor = _open_lock(folder)
        # The own lock is released first: of processes that end together, the last to try finds no other lock.
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):  # another process holds it, or the folder is gone
        if descriptor >= 0:
            os.close(descriptor)
        return -1
    return descriptor


def _open_lock(folder: str) -> int:
    return above_standard(os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def has_reports(folder: str) -> bool:
    """Return whether any run has stored a report in the folder."""
    return os.path.isdir(folder) and any(name.endswith(NEWEST) for name in os.listdir(folder))


def _start(folder: str) -> None:
    with standard_library():
        import json
        import subprocess

    with open(os.path.join(folder, SETTINGS), encoding="utf-8") as file:
        settings = json.load(file)
    command = command_of("stallscope.tools.summary.main", settings["python"], settings["package"], folder)
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=_PATIENCE, check=False)


def command_of(module: str, python: str, package: str, folder: str) -> list[str]:
    """Return the command of a process that calls `main` of a module with the folder.

    Args:
        module: the module.
        python: the interpreter.
        package: folder that contains this package.
        folder: the folder of the reports.
    """
    # -E: variables such as PYTHONPATH belong to the program.
    return [python, "-E", "-c", _CODE, package, module, folder]


def started(folder: str) -> set[int]:
    """Return the processes that `stallscope run` was or became."""
    return {int(name[len(STARTED) :]) for name in os.listdir(folder) if name.startswith(STARTED)}


def is_alive(process: int) -> bool:
    """Return whether a process exists and has not ended, though its parent may not have collected its status."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def discard(folder: str) -> None:
    """Delete the folder."""
    with suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def _write(path: str, payload: bytes) -> None:
    """Write a line over the former content, whose end remains if it was longer: there is no moment without a report."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, payload + b"\n")
    finally:
        os.close(descriptor)
