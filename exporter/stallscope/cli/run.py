"""Run a training script as it is, and tell the node's exporter where its time goes."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from stallscope.cli._become import become
from stallscope.shim import automatic, lifetime

if TYPE_CHECKING:
    from stallscope.cli._parser import Parser

_USAGE_ERROR = 2
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127
_PACKAGE = str(Path(__file__).parents[1])


def parser() -> Parser:
    """The command line, for help alone: `main` reads it itself, since the program's own flags are not to be judged."""
    import argparse  # this and the next are imported where somebody asks, and not before every training

    from stallscope.cli._parser import Parser

    made = Parser(
        "run",
        usage="""stallscope run [--name NAME] [--] SCRIPT.py [ARG...]
       stallscope run [--name NAME] -m MODULE [ARG...]
       stallscope run [--name NAME] COMMAND [ARG...]""",
        description="Run a PyTorch training as it is, with no line changed: waits for data loaders, forward and "
        "backward passes, optimizer steps and evaluation are told to the node's exporter. A script or module runs in "
        "this process, and its exit status, signals and tracebacks are its own; a command (torchrun, accelerate, "
        "python, a shell script) takes this process' place, and every Python that it starts is watched.",
        examples={
            "stallscope run train.py --epochs 3": "a script",
            "stallscope run --name resnet50 -m trainer.main": "a module, under a name of its own",
            "stallscope run torchrun --nproc-per-node 8 train.py": "all ranks of this node",
            "torchrun --nproc-per-node 8 --no-python stallscope run train.py": "the same, under the launcher",
        },
        notes="STALLSCOPE_ADDRESS says where the exporter is, if it isn't this node's; STALLSCOPE_DISABLE=1 runs "
        "without watching.\n\nExit status: the program's own; 2 for a wrong command line, 126 and 127 for a command "
        "that can't be run or is not there.",
    )
    made.add_argument(
        "--name",
        metavar="NAME",
        help="the run's name, the same on all ranks (default: from the script and the job's number or start)",
    )
    made.add_argument("-m", metavar="MODULE", help="run a module, as python -m does")
    made.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="what to run, with its arguments")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; what the program itself ends with, or 2 for a wrong command line."""
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        option, equals, value = rest.pop(0).partition("=")
        if option in ("-h", "--help"):
            parser().print_help()
            return 0
        if option == "--":
            break
        if option != "--name":
            from stallscope.cli._parser import nearest

            return _complain(f"unknown flag {option}{nearest(option, ('--name', '--help'))}")
        if not equals:
            if not rest:
                return _complain("--name needs a name")
            value = rest.pop(0)
        os.environ["STALLSCOPE_RUN"] = value
    if not rest or rest == ["-m"]:
        return _complain("what is to be run? Give a script, -m and a module, or a command")
    automatic.hand_on(os.environ)
    if rest[0] == "-m":
        return _run_module(rest[1], rest[2:])
    if rest[0].endswith(".py"):
        return _run_script(rest[0], rest[1:])
    return _become(rest)


def _complain(message: str, status: int = _USAGE_ERROR) -> int:
    print(f"stallscope run: {message}", file=sys.stderr)
    return status


def _become(command: list[str]) -> int:
    try:
        become(command)
    except FileNotFoundError:
        return _complain(f"{command[0]}: command not found", _NOT_FOUND)
    except OSError as error:
        return _complain(f"{command[0]}: {error.strerror}", _NOT_EXECUTABLE)


def _run_script(script: str, arguments: list[str]) -> int:
    path = str(Path(script).absolute())
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        return _complain(f"can't open file {script!r}: [Errno {error.errno}] {error.strerror}")
    sys.argv[:] = [script, *arguments]
    _search_first(str(Path(script).resolve().parent))
    loader = SourceFileLoader("__main__", path)
    return _run(lambda: loader.source_to_code(source, path), _main_module(file=path, loader=loader))


def _run_module(name: str, arguments: list[str]) -> int:
    _search_first(str(Path.cwd()))
    sys.argv[:] = ["-m", *arguments]
    try:
        spec = _found(name)
        loader: Any = spec.loader
        code = loader.get_code(spec.name)
        if code is None:
            raise ImportError(f"{spec.name} has no code that could be run")
    except (ImportError, ValueError) as error:
        return _complain(str(error), 1)
    sys.argv[0] = spec.origin or name
    return _run(lambda: code, _main_module(file=spec.origin, loader=loader, spec=spec))


def _found(name: str) -> ModuleSpec:
    """Find a module, or what a package runs as.

    Raises:
        ImportError: there is none.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(f"No module named {name}")
    return _found(f"{name}.__main__") if spec.submodule_search_locations is not None else spec


def _search_first(folder: str) -> None:
    """Look there for imports, and no more where this command lies."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


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
    try:
        code: CodeType = compiled()
        exec(code, vars(main_module))  # noqa: S102 - this is what was asked for
    except SystemExit as error:
        lifetime.note_end(error)
        raise
    except BaseException as error:
        lifetime.note_end(error)
        _show_without_us()
        raise
    finally:
        _note(main_module)
    return 0


def _note(main_module: ModuleType) -> None:
    """Say in one line why nothing, or no step, was measured."""
    if os.environ.get("RANK", "0") != "0":
        return
    integration = sys.modules.get("stallscope.integrations.pytorch")
    if not {"torch", "stallscope.shim.run"} & sys.modules.keys():  # a program with a run of its own is measured by that
        problem = "did not import torch, so there was nothing to measure"
    elif integration is not None and integration.misses_steps():
        problem = "computed gradients, but no step was found; report steps with stallscope.track() or Run.step()"
    else:
        return
    program = Path(main_module.__file__ or "the program").name
    with contextlib.suppress(OSError, ValueError):  # it may have closed standard error
        print(f"stallscope run: {program} {problem}", file=sys.stderr)


def _show_without_us() -> None:
    """Let the traceback that Python is about to show begin in the program, as if it had been started by itself."""
    show = sys.excepthook

    def show_program(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error.__traceback__ = program = _of_program(trace)
        if getattr(sys, "last_traceback", None) is trace:
            sys.last_traceback = program
        show(kind, error, program)

    sys.excepthook = show_program


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback after this file's frames, without those of the package in between."""
    entries: list[TracebackType] = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file == __file__ or (not entries and file.startswith("<frozen ")):  # which compile it for this one
            entries.clear()
        elif not file.startswith(_PACKAGE + os.sep):
            entries.append(trace)
        trace = trace.tb_next
    program: TracebackType | None = None
    for entry in reversed(entries):
        program = TracebackType(program, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return program
