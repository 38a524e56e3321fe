"""Cost of `stallscope top`: CPU time live and once, memory, and reading a page, next to nvitop's screen."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from stallscope.model.clients.exporter import ExporterClient
from stallscope.model.view.observer import wanted
from tests.benchmarks.exporters import await_everything, busy_node, ours
from tests.benchmarks.processes import SERVER_CPU, cpu_seconds, finished, proportional_memory, repeatedly, running
from tests.nvml_library.stand_in import NvmlStandIn

_WARM_SECONDS = 40
"""Until training is shown of the last half minute, and all is drawn that is drawn once."""
_MEASURED_SECONDS = 90
_PAGES = 50
_ROWS, _COLUMNS = 40, 120
_BIN = Path(sys.executable).parent


class _Terminal:
    """A program in a pseudo-terminal of 120 by 40, of which everything is read."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", **environment},
        )
        os.close(theirs)
        self._name = command[0]
        self._terminal = ours
        self.drawn = 0
        """Bytes so far."""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the program, which must live still."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self._name} ended by itself with {self._process.returncode}")
        return self._process.pid

    def end(self) -> None:
        """End the program."""
        self._process.terminate()
        self._process.wait(10)
        self._reader.join()

    def _read(self) -> None:
        try:
            while piece := os.read(self._terminal, 65_536):
                self.drawn += len(piece)
        except OSError:  # the other end is closed
            os.close(self._terminal)


def _change(node: NvmlStandIn, chance: random.Random) -> None:
    """Change each GPU's values, so that every line must be drawn again."""
    for gpu in node.gpu:
        gpu.utilization = chance.randrange(40, 100)
        gpu.power_milliwatts = chance.randrange(200_000, 700_000)


def _reading(page: str) -> tuple[float, float]:
    """Milliseconds that reading a page takes us, and the client library."""
    taken = []
    for read in (wanted, lambda text: list(text_string_to_metric_families(text))):
        began = time.perf_counter()
        for _ in range(_PAGES):
            read(page)
        taken.append((time.perf_counter() - began) / _PAGES * 1000)
    return taken[0], taken[1]


def table() -> str:
    """Measure and return the table as Markdown."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        node = stack.enter_context(busy_node(folder))
        server = ours(folder)
        started = time.perf_counter()
        stack.enter_context(running(server.command, node.environment, SERVER_CPU))
        await_everything(server, node, started)
        chance = random.Random(1)
        stack.enter_context(repeatedly(1, lambda: _change(node, chance)))
        url = f"127.0.0.1:{server.port}"
        once = finished([str(_BIN / "stallscope"), "top", "--once", "--interval=1s", f"--exporter.url={url}"]).cpu
        client = ExporterClient(url)
        page = client.read()
        client.close()
        reading, library = _reading(page)
        # At once, so that both see the same node and the same machine.
        terminals = [
            _Terminal(command, node.environment)
            for command in (
                (str(_BIN / "stallscope"), "top", f"--exporter.url={url}"),
                (str(_BIN / "nvitop"), "--monitor", "full", "--interval", "2"),
            )
        ]
        for terminal in terminals:
            stack.callback(terminal.end)
        time.sleep(_WARM_SECONDS)
        before, began = [(cpu_seconds(each.pid), each.drawn) for each in terminals], time.perf_counter()
        time.sleep(_MEASURED_SECONDS)
        elapsed = time.perf_counter() - began
        shares, drawn = zip(
            *(
                ((cpu_seconds(each.pid) - cpu) / elapsed, (each.drawn - size) / elapsed)
                for each, (cpu, size) in zip(terminals, before, strict=True)
            ),
            strict=True,
        )
        memory = [proportional_memory(each.pid) for each in terminals]
    rows = [
        ("CPU time live, % of a core", f"{shares[0] * 100:.2f}", f"{shares[1] * 100:.2f}", "< 1"),
        ("memory (PSS), MB", f"{memory[0] / 1e6:.1f}", f"{memory[1] / 1e6:.1f}", ""),
        ("bytes a second for the terminal", f"{drawn[0]:.0f}", f"{drawn[1]:.0f}", ""),
        ("CPU time of --once, ms", f"{once * 1000:.0f}", "", ""),
        (f"reading a page of {len(page) // 1000} kB, ms", f"{reading:.2f}", f"{library:.1f} (client library)", ""),
    ]
    setting = (
        "Eight GPUs of the stand-in whose figures change every second, and eight ranks that report; a look every 2 s, "
        f"in a terminal of {_COLUMNS} by {_ROWS}, over {_MEASURED_SECONDS} s."
    )
    return "\n".join(
        [
            setting,
            "",
            "| | stallscope top | nvitop | to reach |",
            "|---|---|---|---|",
            *("| " + " | ".join(row) + " |" for row in rows),
        ]
    )


if __name__ == "__main__":
    print(table())
