"""The summary at the end of `stallscope run`: its options, and the folder in which it finds the reports."""

from __future__ import annotations

import json
import os
import sys
from binascii import crc32
from contextlib import suppress
from pathlib import Path

from stallscope.common.standard_error import show
from stallscope.model.clients.address import VARIABLE as PROMETHEUS
from stallscope.model.clients.address import default_exporter
from stallscope.training.shim import launched, stored_reports, trainjob_process
from stallscope.training.shim.tolerance import switched_on

VARIABLE = "STALLSCOPE_SUMMARY"
"""Environment variable with the default of `--summary`."""
FORMS = ("off", "text", "json")
_MEMORY = "/dev/shm"  # noqa: S108 - the folder in it is private
_PREFIX = "stallscope-summary-"
_PRIVATE_FOLDER = 0o40700
_PACKAGE_PARENT = str(Path(__file__).parents[3])


class SummaryOptions:
    """Options of the summary, as on the command line."""

    def __init__(self) -> None:
        self.form = "text"
        self.file = ""
        """Path of the JSON document, if it is to be written into a file."""
        self.fail_on: list[str] = []
        self.exporter = ""
        self.prometheus = ""

    def choose(self, form: str) -> None:
        """Set the form.

        Args:
            form: one of `FORMS`, or a path with a slash or a dot.

        Raises:
            ValueError: neither of them; the message is one line.
        """
        if form in FORMS:
            self.form, self.file = form, ""
            return
        if "/" not in form and "." not in form:
            raise ValueError(f'expected off, text, json or a file such as summary.json, got "{form}"')
        path = Path(form).absolute()
        if not path.parent.is_dir():
            raise ValueError(f'folder "{path.parent}" does not exist; create it')
        if path.is_dir():
            raise ValueError(f'"{form}" is a folder; expected a file such as summary.json')
        self.form, self.file = "text", str(path)

    def require(self, condition: str) -> None:
        """Add a condition of `--fail-on`.

        Raises:
            ValueError: it is invalid; the message is one line.
        """
        from stallscope.tools.summary.conditions import parse

        self.fail_on.append(parse(condition).text)

    def read_exporter(self, url: str) -> None:
        """Set the exporter's address.

        Raises:
            ValueError: it is invalid; the message is one line.
        """
        from stallscope.model.clients.exporter import ExporterClient

        ExporterClient(url)
        self.exporter = url if "://" in url else f"http://{url}"

    def read_prometheus(self, url: str) -> None:
        """Set Prometheus' address.

        Raises:
            ValueError: it is invalid; the message is one line.
        """
        from stallscope.node.configuration import parse_server

        self.prometheus = parse_server(url)


def prepare(options: SummaryOptions, program: str) -> str:
    """Create the folder for the reports, name it in the environment, and return it.

    Ranks that one launcher starts on this node share a folder. If this command was itself started under
    `stallscope run`, the outer command writes the summary.

    Returns:
        The folder; empty if there is no summary.
    """
    inherited = os.environ.get(stored_reports.VARIABLE, "")
    is_read = options.form != "off" or trainjob_process.trainjob_of(os.environ) is not None
    if not options.fail_on and (not is_read or switched_on("STALLSCOPE_DISABLE")):
        os.environ.pop(stored_reports.VARIABLE, None)
        return ""
    if inherited and Path(inherited).is_dir() and not options.fail_on:
        return inherited
    os.environ.pop(stored_reports.VARIABLE, None)
    try:
        base = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else _temporary()
        _remove_leftovers(base)
        launch = launched.launch_of(os.environ)
        local_rank = None if launch is None else launch.local_rank
        if options.fail_on and local_rank:  # each rank is judged by itself, and the first one writes the summary
            options.form, options.file = "off", ""
        is_shared = local_rank is not None and not options.fail_on
        folder, is_new = _folder(base, f"{program} {vars(options)}" if is_shared else "")
        (folder / f"{stored_reports.STARTED}{os.getpid()}").touch()
        if is_new:
            _settle(folder, options, program)
    except OSError as problem:
        show(f"no summary: {problem.filename}: {problem.strerror}")
        return ""
    os.environ[stored_reports.VARIABLE] = str(folder)
    return str(folder)


def discard() -> None:
    """Delete the folder of this command, whose program could not be started."""
    folder = os.environ.pop(stored_reports.VARIABLE, "")
    with suppress(OSError):
        if folder and stored_reports.started(folder) == {os.getpid()}:
            stored_reports.discard(folder)


def _temporary() -> str:
    import tempfile  # slow to import

    return tempfile.gettempdir()


def _folder(base: str, shared_by: str) -> tuple[Path, bool]:
    """Return the folder, and whether it was created now.

    Args:
        base: the folder in which it is.
        shared_by: the command that all ranks of a launcher have; empty for a folder of its own.
    """
    prefix = f"{_PREFIX}{os.getuid()}-"
    if shared_by:
        launcher = f"{os.getppid()}-{_start_of(os.getppid())}"
        shared = Path(base, f"{prefix}{launcher}-{crc32(shared_by.encode(errors='replace')):08x}")
        with suppress(FileExistsError):
            shared.mkdir(0o700)
            return shared, True
        found = shared.lstat()
        if found.st_uid == os.getuid() and found.st_mode == _PRIVATE_FOLDER:
            return shared, False
    own = Path(base, prefix + os.urandom(8).hex())
    own.mkdir(0o700)
    return own, True


def _settle(folder: Path, options: SummaryOptions, program: str) -> None:
    """Store the options, and the counters of the exporter before the program starts."""
    exporter = options.exporter or _exporter()
    settings = {
        "package": _PACKAGE_PARENT,
        "python": sys.executable,
        "program": program,
        "form": options.form,
        "file": options.file,
        "fail_on": options.fail_on,
        "exporter": exporter,
        "prometheus": options.prometheus or os.environ.get(PROMETHEUS, ""),
    }
    (folder / stored_reports.SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    if page := _page(exporter):
        (folder / stored_reports.PAGE).write_text(page, encoding="utf-8")
    if trainjob_process.trainjob_of(os.environ) is not None:
        trainjob_process.start(sys.executable, _PACKAGE_PARENT, str(folder))


def _exporter() -> str:
    """Return the address of the exporter: that of the reports if they are sent over HTTP, else this node's."""
    address = os.environ.get("STALLSCOPE_ADDRESS", "").strip()
    scheme, separator, rest = address.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator and scheme in ("http", "https") else default_exporter()


def _page(exporter: str) -> str:
    """Return the exporter's series of GPUs and runs, or nothing where none responds within a second."""
    from stallscope.training.shim.gpu_counters import Exporter

    try:
        page = Exporter(exporter).page()
    except (OSError, ValueError):
        return ""
    kept = ("stallscope_gpu_", "stallscope_training_rank_", "stallscope_training_state")
    return "".join(line for line in page.splitlines(keepends=True) if line.startswith(kept))


def _remove_leftovers(base: str) -> None:
    """Delete the folders of commands that were killed: their processes are gone."""
    for folder in Path(base).glob(f"{_PREFIX}{os.getuid()}-*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.getuid() and not _is_in_use(folder):
                stored_reports.discard(str(folder))


def _is_in_use(folder: Path) -> bool:
    """Return whether a process that `stallscope run` was or became, or a rank, is alive."""
    started = stored_reports.started(str(folder))
    if not started or any(stored_reports.is_alive(process) for process in started):
        return True
    descriptor = stored_reports.lock_alone(str(folder))
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor < 0


def _start_of(process: int) -> str:
    """Return when a process began, in the kernel's ticks, so that a number that is used again names another folder."""
    return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
