"""Programs end as they would without `stallscope run`, and their last state is right.

Each program runs by itself with the shim switched off, as `stallscope run program.py`, and as
`stallscope run python program.py`. Exit status, standard output and standard error must be equal. The state is that of
the exporter's own registry.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stallscope.node.intake.service import Intake, IntakeSettings

BEGIN = "import stallscope\nfor _ in stallscope.track(range(3), 'job'):\n    pass\n"
"""A run of three steps that is open until the program ends."""
KILL = "import os, signal\nos.kill(os.getpid(), signal.{})\n"
WAIT = "import time\nfor _ in range(600):\n    time.sleep(0.1)\n"
HANDLE = "import signal\ndef stop(number, frame):\n    {}\n"
SET = "signal.signal(signal.SIGTERM, stop)\n"
NATIVE = """
import ctypes, subprocess
killer = subprocess.Popen(["sh", "-c", "sleep 0.3; kill -{} $PPID"])
ctypes.CDLL(None).sleep(60)
"""
CHILDREN = """
import multiprocessing, sys
def work(status):
    sys.exit(status)
if __name__ == "__main__":
    {}
    context = multiprocessing.get_context("{}")
    children = [context.Process(target=work, args=(status,)) for status in (0, 3, "words")]
    for child in children:
        child.start()
        child.join()
    print([child.exitcode for child in children])
"""


class Ending(NamedTuple):
    """A program, and its state at the exporter when it has ended."""

    text: str
    state: str = "finished"
    state_of_command: str = ""
    """The state under `stallscope run python program.py`, where it differs."""
    options: tuple[str, ...] = ()
    """Options of the interpreter."""
    reads: int = -1
    """Lines of its output that are read before the pipe is closed; all if below zero."""


ENDINGS = {
    # Exit statuses.
    "return": Ending(BEGIN),
    "exit without a status": Ending(BEGIN + "import sys\nsys.exit()"),
    "exit with None": Ending(BEGIN + "import sys\nsys.exit(None)"),
    "exit with 0": Ending(BEGIN + "import sys\nsys.exit(0)"),
    "exit with 3": Ending(BEGIN + "import sys\nsys.exit(3)", "failed"),
    "exit with words": Ending(BEGIN + "import sys\nsys.exit('no data')", "failed"),
    "exit with True": Ending(BEGIN + "import sys\nsys.exit(True)", "failed"),
    "exit with 256": Ending(BEGIN + "import sys\nsys.exit(256)", "failed"),
    "exit with -1": Ending(BEGIN + "import sys\nsys.exit(-1)", "failed"),
    "exit with a tuple": Ending(BEGIN + "import sys\nsys.exit((1, 2))", "failed"),
    "exit with too many arguments": Ending(BEGIN + "import sys\nsys.exit(1, 2)", "failed"),
    "exit with 143": Ending(BEGIN + "import sys\nsys.exit(128 + 15)", "terminated"),
    "exit that is caught": Ending(
        BEGIN + "import sys\ntry:\n    sys.exit(3)\nexcept SystemExit as left:\n    print(left.code)",
        "finished",
        "failed",
    ),
    "SystemExit raised": Ending(BEGIN + "raise SystemExit(4)", "failed", "finished"),
    "SystemExit of a subclass": Ending(
        BEGIN + "class Leave(SystemExit):\n    pass\nraise Leave(5)", "failed", "finished"
    ),
    "quit": Ending(BEGIN + "quit(2)", "failed"),
    "exit deleted": Ending(
        "import builtins, sys\ndel builtins.exit, builtins.quit\n" + BEGIN + "sys.exit(3)", "failed"
    ),
    "exit replaced": Ending(
        BEGIN + "import sys\nleave = sys.exit\nsys.exit = lambda status: leave(status + 1)\nsys.exit(3)", "failed"
    ),
    "exit pickled": Ending(
        BEGIN + "import pickle, sys, inspect\nprint(pickle.loads(pickle.dumps(sys.exit)) is sys.exit)\n"
        "print(sys.exit.__name__, sys.exit.__module__, sys.exit.__doc__, inspect.signature(sys.exit))\nsys.exit(3)",
        "failed",
    ),
    "_exit": Ending(BEGIN + "import os\nos._exit(5)", "lost"),
    # Exceptions.
    "exception": Ending(BEGIN + "def fail():\n    raise ValueError('boom')\nfail()", "failed"),
    "chained exception": Ending(
        BEGIN + "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('after') from error", "failed"
    ),
    "exception with a note of a group": Ending(
        BEGIN + "if hasattr(__builtins__, 'ExceptionGroup'):\n    raise ExceptionGroup('both', [ValueError(1)])\n1 / 0",
        "failed",
    ),
    "exception in a thread": Ending(
        BEGIN + "import threading\ndef work():\n    1 / 0\nthread = threading.Thread(target=work)\nthread.start()\n"
        "thread.join()"
    ),
    "exception hook of threads": Ending(
        BEGIN + "import threading\nthreading.excepthook = lambda failed: print(failed.exc_type)\n"
        "thread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()"
    ),
    "exception at exit": Ending(BEGIN + "import atexit\natexit.register(lambda: 1 / 0)"),
    "exception at exit before the run": Ending("import atexit\natexit.register(lambda: 1 / 0)\n" + BEGIN),
    "exit in atexit": Ending(BEGIN + "import atexit, sys\natexit.register(sys.exit, 3)"),
    "exception in __del__": Ending(
        BEGIN + "class Broken:\n    def __del__(self):\n        1 / 0\nbroken = Broken()\ndel broken"
    ),
    "unraisable hook": Ending(
        BEGIN + "import sys\nsys.unraisablehook = lambda failed: print(failed.exc_type)\n"
        "class Broken:\n    def __del__(self):\n        1 / 0\nbroken = Broken()\ndel broken"
    ),
    "exception hook before": Ending(
        "import sys\nsys.excepthook = lambda kind, error, trace: print(kind, trace.tb_lineno)\n" + BEGIN + "1 / 0",
        "failed",
    ),
    "exception hook after": Ending(
        BEGIN + "import sys\nsys.excepthook = lambda kind, error, trace: print(kind, trace.tb_lineno)\n1 / 0",
        "failed",
        "finished",
    ),
    "last traceback": Ending(
        BEGIN + "import atexit, sys, traceback\natexit.register(lambda: traceback.print_tb(sys.last_traceback))\n1 / 0",
        "failed",
    ),
    "memory error": Ending(
        BEGIN + "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2 << 30, -1))\nbytearray(1 << 40)", "failed"
    ),
    "recursion error": Ending(BEGIN + "def deeper():\n    deeper()\ndeeper()", "failed"),
    "keyboard interrupt raised": Ending(BEGIN + "raise KeyboardInterrupt", "terminated"),
    # Signals.
    "SIGINT": Ending(
        # A shell ignores it for commands in the background, such as these tests.
        BEGIN
        + "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        + KILL.format("SIGINT")
        + WAIT,
        "terminated",
    ),
    "SIGINT caught": Ending(
        BEGIN
        + "import sys\ntry:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    print(1)\n    sys.exit(1)",
        "terminated",
    ),
    "SIGINT caught by a framework": Ending(
        BEGIN + "import sys\ntry:\n    try:\n        raise KeyboardInterrupt\n    except KeyboardInterrupt as left:\n"
        "        raise RuntimeError('aborted') from left\nexcept RuntimeError:\n    sys.exit(1)",
        "terminated",
    ),
    "SIGINT handled": Ending(
        BEGIN
        + HANDLE.format("raise SystemExit(1)")
        + "signal.signal(signal.SIGINT, stop)\nimport sys\n"
        + KILL.format("SIGINT")
        + WAIT,
        "terminated",
        "finished",
    ),
    "SIGINT that a program survives": Ending(
        BEGIN + "try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    print('stopping early')"
    ),
    "failure while an interrupt is handled": Ending(
        BEGIN + "try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    open('/nowhere/checkpoint')",
        "failed",
    ),
    "SIGINT ignored": Ending(
        BEGIN + "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + KILL.format("SIGINT")
    ),
    "SIGTERM": Ending(BEGIN + KILL.format("SIGTERM") + WAIT, "terminated"),
    "SIGTERM in native code": Ending(BEGIN + NATIVE.format("TERM"), "terminated"),
    "SIGTERM in a loop": Ending(
        "import os, signal, stallscope\nfor step in stallscope.track(range(9), 'job'):\n    if step == 5:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)",
        "terminated",
    ),
    "SIGTERM handled": Ending(BEGIN + HANDLE.format("print(number)") + SET + KILL.format("SIGTERM") + "print(1)"),
    "SIGTERM handled before": Ending(
        HANDLE.format("print(number)") + SET + BEGIN + KILL.format("SIGTERM") + "print(1)"
    ),
    "SIGTERM handled with exit 143": Ending(
        BEGIN + "import sys\n" + HANDLE.format("sys.exit(143)") + SET + KILL.format("SIGTERM") + WAIT, "terminated"
    ),
    "SIGTERM handled with exit 0": Ending(
        BEGIN + "import sys\n" + HANDLE.format("sys.exit(0)") + SET + KILL.format("SIGTERM") + WAIT, "terminated"
    ),
    "SIGTERM handled by an exception": Ending(
        BEGIN + HANDLE.format("raise TimeoutError('stop')") + SET + KILL.format("SIGTERM") + WAIT, "terminated"
    ),
    "SIGTERM handled by an exception in a loop": Ending(
        "import os\n" + HANDLE.format("raise SystemExit(1)") + SET + "import stallscope\ndef train():\n"
        "    for step in stallscope.track(range(99), 'job'):\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        import time; time.sleep(5)\ntrain()",
        "terminated",
    ),
    "SIGTERM handled by a method": Ending(
        BEGIN + "import signal, sys\nclass Stop:\n    def leave(self, *_):\n        sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, Stop().leave)\n" + KILL.format("SIGTERM") + WAIT,
        "terminated",
    ),
    "SIGTERM handled and raised again": Ending(
        HANDLE.format("print(number); signal.signal(number, signal.SIG_DFL); os.kill(os.getpid(), number)")
        + SET
        + BEGIN
        + "import sys; sys.stdout.reconfigure(line_buffering=True)\n"
        + KILL.format("SIGTERM")
        + WAIT,
        "terminated",
    ),
    "SIGTERM handled, then killed": Ending(
        HANDLE.format("os.kill(os.getpid(), signal.SIGKILL)") + SET + BEGIN + KILL.format("SIGTERM") + WAIT,
        "terminated",
    ),
    "SIGTERM handled in the background": Ending(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        + HANDLE.format("os.kill(os.getpid(), signal.SIGKILL)")
        + SET
        + BEGIN
        + KILL.format("SIGTERM")
        + WAIT,
        "terminated",
    ),
    "SIGTERM ignored": Ending(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + BEGIN + KILL.format("SIGTERM")
    ),
    "SIGTERM with the program's faulthandler before": Ending(
        "import faulthandler, signal, sys\nfaulthandler.register(signal.SIGTERM, file=sys.stdout, chain=True)\n"
        + BEGIN
        + KILL.format("SIGTERM")
        + WAIT,
        "lost",
    ),
    "SIGTERM with the program's faulthandler after": Ending(
        BEGIN + "import faulthandler, signal, sys\nfaulthandler.register(signal.SIGTERM, file=sys.stdout, chain=True)\n"
        "faulthandler.enable()\n" + KILL.format("SIGTERM") + WAIT,
        "lost",
    ),
    "SIGTERM with the program's faulthandler and a handler": Ending(
        HANDLE.format("print(number)")
        + SET
        + "import faulthandler, sys\nfaulthandler.register(signal.SIGTERM, file=sys.stdout, chain=True)\n"
        + BEGIN
        + "sys.stdout.flush()\n"
        + KILL.format("SIGTERM")
    ),
    "SIGTERM after the run": Ending(
        "import stallscope\nrun = stallscope.Run('job')\nrun.finish()\n" + KILL.format("SIGTERM") + WAIT
    ),
    "SIGTERM to a forked child": Ending(
        BEGIN + "import os, signal\nchild = os.fork()\nif child == 0:\n    signal.pause()\n"
        "os.kill(child, signal.SIGTERM)\nprint(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    ),
    "SIGTERM to a child of a child": Ending(
        BEGIN + "import subprocess\nprint(subprocess.run(['sh', '-c', 'kill -TERM $$']).returncode)"
    ),
    "SIGTERM's action": Ending(
        BEGIN + "import signal\nprint(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP))"
    ),
    "SIGHUP": Ending(BEGIN + KILL.format("SIGHUP") + WAIT, "terminated"),
    "SIGHUP ignored": Ending(
        "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + BEGIN + KILL.format("SIGHUP")
    ),
    "SIGUSR1": Ending(BEGIN + KILL.format("SIGUSR1") + WAIT, "lost"),
    "SIGKILL": Ending(BEGIN + KILL.format("SIGKILL") + WAIT, "lost"),
    "abort": Ending(BEGIN + "import os\nos.abort()", "lost"),
    "segmentation fault": Ending(BEGIN + "import ctypes\nctypes.string_at(0)", "lost"),
    "segmentation fault with faulthandler": Ending(
        BEGIN + "import faulthandler\nfaulthandler.enable(all_threads=False)\nimport ctypes\n"
        "def fall():\n    faulthandler._sigsegv()\nfall()",
        "lost",
    ),
    "faulthandler's watchdog": Ending(
        BEGIN + "import faulthandler, time\nfaulthandler.dump_traceback_later(0.5, exit=True)\ntime.sleep(60)", "lost"
    ),
    "closed pipe": Ending(BEGIN + "for number in range(100000):\n    print(number)", "failed", reads=1),
    "closed pipe with SIGPIPE": Ending(
        BEGIN + "import signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nfor number in range(100000):\n"
        "    print(number)",
        "lost",
        reads=1,
    ),
    "closed pipe at exit": Ending(
        BEGIN + "import select\nprint(0, flush=True)\npipe = select.poll()\npipe.register(1, 0)\n"
        "print(1) if pipe.poll(60000) else None",  # which the closed pipe ends
        reads=1,
    ),
    # Threads and processes.
    "thread that outlives main": Ending(
        BEGIN + "import threading, time\ndef late():\n    time.sleep(0.1)\n    print('late')\n"
        "threading.Thread(target=late).start()\nprint('main')"
    ),
    "daemon thread": Ending(
        BEGIN + "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    ),
    "children that are forked": Ending(CHILDREN.format(BEGIN.replace("\n", "\n    "), "fork")),
    "children that are spawned": Ending(CHILDREN.format(BEGIN.replace("\n", "\n    "), "spawn")),
    "children of a fork server": Ending(CHILDREN.format(BEGIN.replace("\n", "\n    "), "forkserver")),
    "fork that goes on": Ending(
        BEGIN + "import os, sys\nsys.stdout.flush()\nchild = os.fork()\n"
        "if child:\n    print('parent', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "else:\n    print('child')\n    sys.exit(7)"
    ),
    "fork that goes on with an exception": Ending(
        BEGIN + "import os\nchild = os.fork()\n"
        "if child:\n    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\nelse:\n    1 / 0"
    ),
    "another program": Ending(BEGIN + "import os, sys\nos.execv('/bin/sh', ['sh', '-c', 'echo sh; exit 9'])", "lost"),
    "another program by SIGTERM": Ending(
        BEGIN + "import os, sys\nos.execv('/bin/sh', ['sh', '-c', 'kill -TERM $$'])", "lost"
    ),
    # Tools and introspection.
    "trace function": Ending(
        "import sys\nlines = []\ndef trace(frame, event, arg):\n"
        "    if frame.f_code.co_filename == __file__:\n        lines.append((event, frame.f_lineno))\n"
        "    return trace\n"
        "def work():\n    for number in range(2):\n        pass\n"
        + BEGIN
        + "sys.settrace(trace)\nwork()\nsys.settrace(None)\nprint(lines)"
    ),
    "profile function": Ending(
        "import sys\ncalls = []\ndef profile(frame, event, arg):\n    calls.append((event, frame.f_code.co_name))\n"
        + BEGIN
        + "sys.setprofile(profile)\nsorted([2, 1])\nsys.setprofile(None)\nprint(calls)"
    ),
    "debugger": Ending(
        BEGIN + "import pdb\nnumber = 1\npdb.Pdb(nosigint=True, readrc=False).set_trace()\nprint(number)"
    ),
    "run by runpy": Ending(
        "import runpy, sys\nif __name__ == '__main__':\n    sys.argv[1:] = ['again']\n"
        "    print(sorted(runpy.run_path(__file__, run_name='again')))\n" + BEGIN + "print(__name__)"
    ),
    "standard input": Ending(BEGIN + "import sys\nprint(sys.stdin.read().split())"),
    "streams closed": Ending(BEGIN + "import sys\nprint(1)\nsys.stdout.close()\nsys.stderr.close()"),
    "descriptors closed": Ending(BEGIN + "import os\nos.close(1)\nos.close(2)"),
    "all descriptors closed": Ending(BEGIN + "import os\nprint(1, flush=True)\nos.closerange(3, 256)"),
    "options": Ending(
        BEGIN + "import sys\nprint(sys.flags, sys.warnoptions, sys._xoptions)\nassert False",
        options=("-O", "-W", "error::UserWarning", "-X", "dev", "-B", "-u"),
    ),
    "warning": Ending(BEGIN + "import warnings\nwarnings.warn('careful')"),
    "introspection": Ending(
        "import sys, __main__\nprint(__name__, __file__, __spec__, __package__, sys.argv, sys.path[0])\n"
        + BEGIN
        + "print(sorted(vars(__main__)), sys.modules['__main__'].__file__)\n"
        "print(sys.excepthook is sys.__excepthook__, type(sys.exit), sys.orig_argv[0])"
    ),
}
ONLY_AS_A_SCRIPT = {"introspection", "exit in atexit", "exit with too many arguments"}
"""Programs that see that another Python, which `stallscope run` starts, has `sys.exit` and `sys.excepthook` chained."""
NOT_COMPARED = re.compile(
    r"0x[0-9a-f]+|Previous line repeated \d+ more times"
    # Frames below the program, as faulthandler writes them.
    r'|  File "([^"]*/stallscope/[^"]*|<frozen runpy>|[^"]*/runpy.py)", line \d+ in (\w+|<module>)\n'
)


class Ended(NamedTuple):
    """Exit status and output of a program."""

    status: int
    output: str
    errors: str


@contextlib.contextmanager
def intake(folder: Path) -> Iterator[Intake]:
    running = Intake(IntakeSettings(socket=folder / "report.sock", udp=None))
    running.start()
    try:
        yield running
    finally:
        running.stop()


def state_at_end(running: Intake) -> str:
    """The rank's state once all has been read and its process was looked for."""
    running.stop(timeout=60)
    running.run_housekeeping()
    (held,) = running.registry.held
    return held.state


def environment_of(folder: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("STALLSCOPE_", "SLURM_", "PYTHON")) and name not in ("RANK", "WORLD_SIZE")
    }
    ours = {"STALLSCOPE_ADDRESS": f"unix://{folder}/report.sock", "STALLSCOPE_SUMMARY": "off"}
    return {**kept, **ours, "OMP_NUM_THREADS": "1"}


def play(arguments: tuple[str, ...], ending: Ending, folder: Path, **variables: str) -> Ended:
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment_of(folder), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if ending.reads < 0:
            output, errors = process.communicate("p number\nc\n", timeout=280)
        else:
            output = "".join(process.stdout.readline() for _ in range(ending.reads))
            process.stdout.close()
            errors = process.stderr.read()
        status = process.wait(timeout=280)
    kept = "".join(line for line in errors.splitlines(keepends=True) if not line.startswith("stallscope run: "))
    return Ended(status, NOT_COMPARED.sub("", output), NOT_COMPARED.sub("", kept))


@pytest.mark.parametrize("name", ENDINGS)
def test_a_program_ends_as_without_us(name: str, tmp_path: Path) -> None:
    ending = ENDINGS[name]
    (tmp_path / "program.py").write_text(textwrap.dedent(ending.text))
    alone = play((*ending.options, "program.py"), ending, tmp_path, STALLSCOPE_DISABLE="1")
    with intake(tmp_path) as running:
        as_script = play((*ending.options, "-m", "stallscope", "run", "program.py"), ending, tmp_path)
        assert as_script == alone
        assert state_at_end(running) == ending.state
    if name in ONLY_AS_A_SCRIPT:
        return
    with intake(tmp_path) as running:
        command = (sys.executable, *ending.options, "program.py")
        assert play(("-m", "stallscope", "run", *command), ending, tmp_path) == alone
        assert state_at_end(running) == (ending.state_of_command or ending.state)
