"""Run an unmodified training script, and report to the node's exporter where its time goes."""

from __future__ import annotations

import atexit
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from stallscope.common.program_files import release
from stallscope.common.standard_error import show
from stallscope.tools.cli._become import become
from stallscope.tools.cli._run_summary import FORMS, SummaryOptions, discard, prepare
from stallscope.tools.cli._run_summary import VARIABLE as SUMMARY
from stallscope.tools.cli._supervised import end_as, supervise
from stallscope.training.shim import automatic, launchers, lifetime, stored_reports

if TYPE_CHECKING:
    from stallscope.tools.cli._parser import Parser

_USAGE_ERROR = 2
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127
_PACKAGE = str(Path(__file__).parents[2])


def parser() -> Parser:
    """Return the parser, only for the help: `main` parses the arguments itself, to leave the program's flags alone."""
    import argparse  # both imports are slow, and not needed for a training

    from stallscope.tools.cli._parser import Parser

    made = Parser(
        "run",
        usage="""stallscope run [flags] [--] SCRIPT.py [ARG...]
       stallscope run [flags] -m MODULE [ARG...]
       stallscope run [flags] COMMAND [ARG...]""",
        description="Run a PyTorch training without changing its code, and report data loader waits, forward and "
        "backward passes, optimizer steps and evaluation to the node's exporter. A script or module runs in this "
        "process, with its own exit status, signals and tracebacks. A command (torchrun, accelerate, python, a shell "
        "script) replaces this process, and every Python process that it starts is measured. With --fail-on, "
        "and as process 1 of a container, the program runs in a child process.",
        examples={
            "stallscope run train.py --epochs 3": "a script",
            "stallscope run --name resnet50 -m trainer.main": "a module, with a run name",
            "stallscope run torchrun --nproc-per-node 8 train.py": "all ranks of this node",
            "torchrun --nproc-per-node 8 --no-python stallscope run train.py": "inside the launcher",
            "stallscope run --fail-on 'lost>20%' --summary summary.json train.py": "a check of a pipeline",
        },
        notes="Set STALLSCOPE_ADDRESS if the exporter is not on this node. STALLSCOPE_DISABLE=1 runs without "
        "measuring.\n\nExit status: the program's own; 2 for an invalid command line, 126 for a command that cannot "
        "be executed, 127 for a command that does not exist; with --fail-on and a program that succeeds, 90 if a value "
        "is exceeded and 91 if it is unknown.",
    )
    made.add_argument(
        "--name",
        metavar="NAME",
        help="the run's name, the same on all ranks (default: from the script and the job's number or start time)",
    )
    group = made.add_argument_group("summary")
    group.add_argument(
        "--summary",
        metavar="off|text|json|FILE",
        help="at the end, write where the time went to standard error, as text or JSON, or as text and additionally as "
        f"JSON into a file with a slash or a dot in its name (default: {SUMMARY}, or text)",
    )
    group.add_argument(
        "--fail-on",
        metavar="NAME>VALUE",
        action="append",
        help="exit with status 90 if the program succeeds and a value is exceeded, and with 91 if the value is "
        "unknown: lost>20%% or data_wait>0.1 for a share of the time, step>250ms for the mean step; may be repeated",
    )
    group.add_argument("--exporter.url", metavar="URL", help="exporter with the GPUs (default: this node's)")
    group.add_argument(
        "--prometheus.url",
        metavar="URL",
        help="Prometheus with the verdicts (default: STALLSCOPE_PROMETHEUS_URL, or one on this machine)",
    )
    made.add_argument("-m", metavar="MODULE", help="run a module, as python -m does")
    made.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="what to run, with its arguments")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the program; return its exit status, or 2 for an invalid command line."""
    remaining = list(arguments)
    options = SummaryOptions()
    try:
        options.choose(os.environ.get(SUMMARY, "").strip() or FORMS[1])
    except ValueError as problem:  # a variable of the cluster must not keep a training from starting
        show(f"{SUMMARY}: {problem}; the summary is text")
    flags: dict[str, Callable[[str], object]] = {
        "--name": lambda name: os.environ.update(STALLSCOPE_RUN=name),
        "--summary": options.choose,
        "--fail-on": options.require,
        "--exporter.url": options.read_exporter,
        "--prometheus.url": options.read_prometheus,
    }
    while remaining and remaining[0].startswith("-") and remaining[0] != "-m":
        option, equals, value = remaining.pop(0).partition("=")
        if option in ("-h", "--help"):
            parser().print_help()
            return 0
        if option == "--":
            break
        if option not in flags:
            from stallscope.tools.cli._parser import nearest

            return _fail(f"unknown flag {option}{nearest(option, (*flags, '--help'))}")
        if not equals:
            if not remaining:
                return _fail(f"{option}: expected a {'name' if option == '--name' else 'value'}")
            value = remaining.pop(0)
        try:
            flags[option](value)
        except ValueError as problem:
            return _fail(f"{option}: {problem}")
    if not remaining or remaining == ["-m"]:
        return _fail("nothing to run; expected a script, -m MODULE or a command")
    # The kernel keeps signals from process 1 of a container, unless it handles them.
    if os.getpid() == 1 and (ended := supervise()) is not None:
        return end_as(ended)
    automatic.hand_on(os.environ)
    folder = prepare(options, _program(remaining))
    if options.fail_on:
        stored_reports.hold(folder)
        status = supervise()
        if status is not None:
            return _judged(folder, status)
    if remaining[0] == "-m":
        return _run_module(remaining[1], remaining[2:])
    if remaining[0].endswith(".py"):
        return _run_script(remaining[0], remaining[1:])
    return _become(remaining)


def _judged(folder: str, status: int) -> int:
    """Write the summary of the ended program; return its exit status, or the one for a condition that is met."""
    from stallscope.tools.summary.conditions import UNKNOWN
    from stallscope.tools.summary.main import summarise

    own = summarise(folder, has_succeeded=status == 0) if folder else UNKNOWN
    return own if status == 0 else end_as(status)


def _fail(message: str, status: int = _USAGE_ERROR) -> int:
    discard()
    show(message)
    return status


def _become(command: list[str]) -> int:
    name = command[0]
    hint = f"; if Python runs it: stallscope run python {name}" if Path(name).exists() else ""  # an archive or a folder
    try:
        become(command)
    except FileNotFoundError:
        return _fail(f"{name}: command not found{hint}", _NOT_FOUND)
    except OSError as error:
        return _fail(f"{name}: {error.strerror}{hint}", _NOT_EXECUTABLE)


def _run_script(script: str, arguments: list[str]) -> int:
    path = str(Path(script).absolute())
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        return _fail(f"can't open file {script!r}: [Errno {error.errno}] {error.strerror}")
    sys.argv[:] = [script, *arguments]
    _search_first(str(Path(script).resolve().parent))
    loader = SourceFileLoader("__main__", path)
    return _run(lambda: loader.source_to_code(source, path), _main_module(file=path, loader=loader))


def _program(command: Sequence[str]) -> str:
    """Return the name of the script or module in a command, which may begin with an interpreter or a launcher."""
    if command[0] == "-m":
        return command[1]
    script = next((argument for argument in command if argument.endswith(".py")), None)
    if script is None and "-m" in command[:-1]:
        return command[command.index("-m") + 1]
    return Path(script or command[0]).name


def _run_module(name: str, arguments: list[str]) -> int:
    _search_first(str(Path.cwd()))
    sys.argv[:] = ["-m", *arguments]
    try:
        spec = _found(name)
        loader: Any = spec.loader
        code = loader.get_code(spec.name)
        if code is None:
            raise ImportError(f"{spec.name} is not a Python module")
    except (ImportError, ValueError) as error:
        return _fail(str(error), 1)
    sys.argv[0] = spec.origin or name
    return _run(lambda: code, _main_module(file=spec.origin, loader=loader, spec=spec))


def _found(name: str) -> ModuleSpec:
    """Find a module, or a package's `__main__`.

    Raises:
        ImportError: the module does not exist.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(f"No module named {name}")
    return _found(f"{name}.__main__") if spec.submodule_search_locations is not None else spec


def _search_first(folder: str) -> None:
    """Replace the folder of this command on `sys.path` by the program's folder."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder
        release(folder)


def _main_module(file: str | None, loader: Any, spec: ModuleSpec | None = None) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__ = file
    module.__loader__ = loader
    module.__spec__ = spec
    module.__package__ = None if spec is None else spec.parent
    vars(module)["__cached__"] = None if spec is None else spec.cached
    if sys.version_info < (3, 14):
        vars(module)["__annotations__"] = {}
    vars(module)["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    return module


def _run(compiled: Any, main_module: ModuleType) -> int:
    automatic.start()
    lifetime.observe()
    # When the process ends, not when the main thread returns: other threads may train on.
    atexit.register(_note, main_module, os.getpid())
    try:
        code: CodeType = compiled()
        exec(code, vars(main_module))  # noqa: S102 - running the user's program is the purpose
    except SystemExit as error:
        lifetime.note_end(error)
        raise
    except BaseException as error:
        lifetime.note_end(error)
        _show_without_us()
        raise
    return 0


def _note(main_module: ModuleType, process: int) -> None:
    """Print in one line why nothing, or no step, was measured; not in a forked process."""
    if os.getpid() != process:
        return
    folder = os.environ.get(stored_reports.VARIABLE, "")
    if launchers.ranks(os.environ)[0] or stored_reports.has_reports(folder):
        return
    integration = sys.modules.get("stallscope.training.integrations.pytorch")
    # A program with its own `Run` is measured by it.
    if not {"torch", "stallscope.training.shim.run"} & sys.modules.keys():
        problem = "did not import torch, so there was nothing to measure"
    elif integration is not None and integration.misses_steps():
        problem = "computed gradients, but no step was found; report steps with stallscope.track() or Run.step()"
    else:
        return
    program = Path(main_module.__file__ or "the program").name
    show(f"{program} {problem}")


def _show_without_us() -> None:
    """Remove our own frames from the traceback that Python is about to print."""
    show = sys.excepthook

    def show_program(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error.__traceback__ = program = _of_program(trace)
        if getattr(sys, "last_traceback", None) is trace:
            sys.last_traceback = program
        show(kind, error, program)

    sys.excepthook = show_program


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback below this file's frames, without other frames of this package."""
    entries: list[TracebackType] = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file == __file__ or (not entries and file.startswith("<frozen ")):  # the import machinery
            entries.clear()
        elif not file.startswith(_PACKAGE + os.sep):
            entries.append(trace)
        trace = trace.tb_next
    program: TracebackType | None = None
    for entry in reversed(entries):
        program = TracebackType(program, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return program
