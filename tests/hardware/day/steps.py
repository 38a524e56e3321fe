"""The steps of the day, in the order of their value, within its time."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree as ET

from tests.hardware.day import ROOT, child, costs, planted, signals
from tests.hardware.day.machine import Machine, StepError, StepSkipped, write_json
from tests.hardware.day.node import Node, StandInNode
from tests.hardware.day.recording import Exporter, Recording

_Result = TypeVar("_Result")

MAX_BYTES = 16 << 20
STEPS = ("suite", "capture", "nvidia-smi", "nvml", "scrapes", "signals", "shim")
PROGRAMS = (planted.HELD_IDLE.name, *(program.name for program in planted.PROGRAMS))
_LEAST_FREE_BYTES = 64 << 20
_SUITE_SECONDS = 120.0
_CAPTURE_SECONDS = 10.0
_LOAD_SECONDS = 2.5
_NVML_SECONDS = 10.0
_SHIM_SECONDS = 12.0
_RESERVED = {"signals": 65.0, "shim": 25.0}
"""Seconds that the steps after the programs take on a real GPU."""
_CLOSING_SECONDS = 8.0
_LAST_PAGES_SECONDS = 3.0
"""The last reports reach a page with the next poll, and that page is recorded a second later."""
_OVERHEAD_SECONDS = 8.0
"""First guess of what a program takes in addition to its time: imports, CUDA, its end."""
_LEAST_SECONDS = 12.0
"""Seconds of a program, below which it shows little: the first programs have them, the last may have none."""
_TORCH = "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda, torch.cuda.is_available()]))"
_TORCH_SECONDS = 90.0


@dataclass(frozen=True)
class Options:
    """The selection of the command line."""

    out: Path
    stand_in: bool = False
    seconds: float = 40.0
    """Of each program at most."""
    limit: float = 540.0
    """Of the whole day."""
    only: Collection[str] = field(default_factory=tuple)
    """Steps and programs; everything if empty."""


class Day:
    """One day."""

    def __init__(self, options: Options, show: Callable[[str], None]) -> None:
        """Write the first `machine.json`."""
        self.machine = Machine(options.out / "machine.json", stand_in=options.stand_in, show=show)
        self._options = options
        self._show = show
        self._out = options.out
        self._deadline = time.monotonic() + options.limit - _CLOSING_SECONDS
        self._overheads: list[float] = []
        self._costs: dict[str, Any] = {}
        self._no_torch = ""

    def run(self) -> None:
        """Run all steps."""
        self.machine.write()
        with tempfile.TemporaryDirectory(prefix="stallscope-day-") as folder:
            self._folder = Path(folder)
            self._run()

    def _run(self) -> None:
        node = self.machine.step("driver", self._node)
        if node is None:
            return
        # Its import takes ten seconds at first, in which the exporter starts.
        torch = child.Child("PyTorch", ["-c", _TORCH], self._folder / "torch.log", node.variables)
        exporter = self.machine.step("exporter", lambda: Exporter(self._folder, node))
        recording = None
        try:
            if exporter is not None:
                pages = self._out / "pages.rec"
                recording = self.machine.step("recording", lambda: Recording(exporter, pages, self._folder, node))
            self.machine.step("torch", lambda: self._find_torch(torch))
            self._steps(node, exporter)
        finally:
            torch.end(seconds=0.0)
            self._close(exporter, recording)

    def _steps(self, node: Node, exporter: Exporter | None) -> None:
        # Idle until the programs begin, while the steps in between use the driver, not the GPU.
        held = None
        if self._is_selected(planted.HELD_IDLE.name):
            held = self.machine.step("start of held_idle", lambda: self._start_held_idle(node, exporter))
        self._step("suite", lambda: self._suite(node))
        self._step("capture", lambda: self._capture(node))
        self._step("nvidia-smi", self._nvidia_smi)
        self._step("nvml", lambda: self._cost(costs.nvml(self._seconds(_NVML_SECONDS), node, self._folder)))
        self._step("scrapes", lambda: self._cost(costs.scrapes(_running(exporter))))
        if held is not None:
            self._step("held_idle", lambda: self._end_held_idle(held, node))
        selected = [program for program in planted.PROGRAMS if self._is_selected(program.name)]
        for place, program in enumerate(selected):
            self._step(program.name, lambda: self._program(selected[place:], exporter, node))  # noqa: B023
        self._step("signals", lambda: self._signals(node))
        self._step("shim", lambda: self._shim(node, _running(exporter)))

    def _step(self, name: str, work: Callable[[], _Result]) -> _Result | None:
        return self.machine.step(name, work) if self._is_selected(name) else None

    def _node(self) -> Node:
        node = (StandInNode if self._options.stand_in else Node)(self._folder)
        self.machine.set(gpu=node.gpu["name"], driver=node.driver["driver"], cuda=node.driver["cuda"])
        problems = node.problems
        if (free := shutil.disk_usage(self._out).free) < _LEAST_FREE_BYTES:
            problems.append(f"{self._out}: {free >> 20} MiB free; free 64 MiB for a whole recording")
        self.machine.message("\n".join(problems))
        return node

    def _is_selected(self, name: str) -> bool:
        return not self._options.only or name in self._options.only

    def _seconds(self, wanted: float) -> float:
        """Return the time of a step, which a short day shortens."""
        return max(1.0, min(wanted, self._options.seconds))

    def _find_torch(self, program: child.Child) -> None:
        """Find why programs can't run, if they can't."""
        program.wait(_TORCH_SECONDS)
        if program.status:
            self._no_torch = (
                "PyTorch: not installed; use a Python that has it, for programs, signals and the shim's cost"
            )
        elif program.status is None:
            self._no_torch = f"PyTorch: its import took over {_TORCH_SECONDS:.0f} s; see if the driver responds"
        else:
            version, cuda, is_usable = json.loads(program.last_line())
            self.machine.set(torch=version, torch_cuda=cuda)
            if not is_usable and not self._options.stand_in:
                self._no_torch = (
                    f"PyTorch: {version} cannot use the GPU; install one that is built for CUDA "
                    f"{self.machine.content['cuda']} or older"
                )
        self.machine.message(self._no_torch)

    def _needs_torch(self) -> None:
        if self._no_torch:
            raise StepSkipped(self._no_torch)

    def _suite(self, node: Node) -> None:
        output = self._out / "suite.xml"
        command = ["-m", "pytest", "-c", str(ROOT / "tests/hardware/day/suite.ini"), f"--rootdir={ROOT}"]
        command += ["--noconftest", f"--junitxml={output}", "-q"]
        command += [str(ROOT / "tests/hardware/test_real_gpu.py")]
        if not node.is_stand_in:  # the other test is about a kernel driver
            command += [str(ROOT / "tests/hardware/test_record_real_gpu.py")]
        ended = child.run("suite", command, self._folder / "suite.log", node.variables, _SUITE_SECONDS)
        if not output.exists():
            raise ended.failure("see if pytest is installed")
        counts = _counts(output)
        text = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
        if counts["failed"]:
            raise StepError(f"suite: {text}; read the failures in suite.xml")
        self.machine.message(text)

    def _capture(self, node: Node) -> None:
        plain = self._folder / "capture.jsonl"
        seconds = self._seconds(_CAPTURE_SECONDS)
        command = ["-m", "stallscope", "record", f"--duration={seconds:g}s", f"--output={plain}", "--force"]
        if node.is_stand_in:
            command.append("--stand-in")
        ended = child.run("capture", command, self._folder / "capture.log", node.variables, seconds + 60)
        if not plain.exists():
            raise ended.failure("see if nvidia-smi works")
        with gzip.open(self._out / "capture.json.gz", "wb") as file:
            file.write(plain.read_bytes())
        if ended.status:
            raise ended.failure("the file ends there")
        self.machine.message(ended.last_line().replace(str(plain), "capture"))

    def _nvidia_smi(self) -> None:
        program = shutil.which("nvidia-smi")
        if program is None:
            raise StepSkipped("nvidia-smi: not installed; install NVIDIA's driver with its tools")
        try:
            done = subprocess.run([program, "-q"], capture_output=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            raise StepError("nvidia-smi: no answer within 60 s; see the kernel's log for Xids") from None
        with gzip.open(self._out / "nvidia-smi.txt.gz", "wb") as file:
            file.write(done.stdout)
        if done.returncode:
            raise StepError(f"nvidia-smi: ended with status {done.returncode}; read nvidia-smi.txt.gz")

    def _cost(self, found: dict[str, Any]) -> None:
        self._costs.update(found)
        write_json(self._out / "costs.json", self._costs)

    def _start_held_idle(self, node: Node, exporter: Exporter | None) -> planted.Running:
        try:
            self._needs_torch()
            seconds = max(self._options.limit, 60.0)
            return planted.start(planted.HELD_IDLE, seconds, _running(exporter), node, self._folder)
        except StepSkipped as reason:
            self._write_line(planted.skipped(planted.HELD_IDLE, str(reason), node))
            raise

    def _end_held_idle(self, held: planted.Running, node: Node) -> None:
        # It is there for its few seconds even if no step was in between.
        held.children[0].wait(held.started + self._options.seconds - time.time())
        held.children[0].end(seconds=10.0)
        planted.finish(held, 0.0, node)
        self._write_line(held.line(node))

    def _program(self, left: Sequence[planted.Program], exporter: Exporter | None, node: Node) -> None:
        """Run the first of the programs that are left."""
        program = left[0]
        try:
            self._needs_torch()
            running_exporter = _running(exporter)
            seconds = self._program_seconds(left)
            if not seconds:
                raise StepSkipped(f"{program.name}: no time is left; run it with --only {program.name}")
        except StepSkipped as reason:
            self._write_line(planted.skipped(program, str(reason), node))
            raise
        began = time.monotonic()
        running = planted.start(program, seconds, running_exporter, node, self._folder)
        try:
            planted.finish(running, seconds, node)
        finally:
            self._overheads.append(time.monotonic() - began - seconds)
            line = running.line(node)
            self._write_line(line)
        if not line["truth"]:
            raise StepError(f"{program.name}: no truth was measured; run it alone and read its output")
        self.machine.message(f"{line['truth']['steps']} steps in {seconds:.0f} s")

    def _program_seconds(self, left: Sequence[planted.Program]) -> float:
        """Return the time of the next program: its part of what is left of the day; 0 if that is too little."""
        reserved = sum(seconds for name, seconds in _RESERVED.items() if self._is_selected(name))
        overhead = sum(self._overheads) / len(self._overheads) if self._overheads else _OVERHEAD_SECONDS
        part = left[0].weight / sum(program.weight for program in left)
        remaining = self._deadline - reserved - time.monotonic()
        seconds = min(self._options.seconds, max((remaining - len(left) * overhead) * part, _LEAST_SECONDS))
        return seconds if seconds + overhead <= remaining else 0.0

    def _write_line(self, line: dict[str, Any]) -> None:
        with (self._out / "programs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _signals(self, node: Node) -> None:
        seconds = self._seconds(_LOAD_SECONDS)
        if node.is_stand_in:
            lines = signals.played(seconds, node)
        else:
            self._needs_torch()
            lines, effects = signals.measured(seconds, node, self._folder)
            if effects:
                self._cost({"profiler_side_effects": effects})
        write_json(self._out / "signals.json", lines)
        self.machine.message(f"{len(lines)} values")

    def _shim(self, node: Node, exporter: Exporter) -> None:
        self._needs_torch()
        found = costs.shim(self._seconds(_SHIM_SECONDS), node, exporter, self._folder)
        self._cost({"shim": found})
        text = f"{found['with_us']:.0f} us with, {found['without_us']:.0f} us without, {found['pairs']} pairs"
        self.machine.message(text)

    def _close(self, exporter: Exporter | None, recording: Recording | None) -> None:
        """End everything, also after Ctrl-C."""
        interrupted, self.machine.is_interrupted = self.machine.is_interrupted, False
        if exporter is not None:
            self.machine.step("CPU of exporter and recording", lambda: self._cpu_shares(exporter, recording))
        if recording is not None:
            self.machine.step("end of the recording", lambda: self._end_recording(recording))
        if exporter is not None:
            exporter.close()
        self.machine.step("size", self._check_size)
        self.machine.is_interrupted |= interrupted

    def _cpu_shares(self, exporter: Exporter, recording: Recording | None) -> None:
        shares = {"exporter_cpu_share": exporter.cpu_share()}
        if recording is not None:
            shares["record_cpu_share"] = recording.cpu_share()
        self._cost({name: share for name, share in shares.items() if share is not None})
        if lost := [name.partition("_")[0] for name, share in shares.items() if share is None]:
            raise StepError(f"{' and '.join(lost)}: ended before the day did; see if the machine has memory and disk")

    def _end_recording(self, recording: Recording) -> None:
        time.sleep(_LAST_PAGES_SECONDS)
        self.machine.message(recording.close())

    def _check_size(self) -> None:
        size = sum(file.stat().st_size for file in self._out.iterdir() if file.is_file())
        self.machine.message(f"{size / 1e6:.1f} MB")
        if size > MAX_BYTES:
            raise StepError(f"{self._out}: {size >> 20} MiB, over {MAX_BYTES >> 20}; shorten the day with --limit")


def _running(exporter: Exporter | None) -> Exporter:
    if exporter is None:
        raise StepSkipped("exporter: none runs; see the step exporter in machine.json")
    return exporter


def _counts(file: Path) -> dict[str, int]:
    """Return the results of a JUnit file."""
    suite = next(ET.parse(file).getroot().iter("testsuite"))
    number = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    passed = number["tests"] - failed - number["skipped"]
    return {"passed": passed, "failed": failed, "skipped": number["skipped"]}
