"""A child process that evaluates driver queries line by line: pynvml loads the library once per process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.nvml_library.stand_in import NvmlStandIn

if TYPE_CHECKING:
    from typing_extensions import Self

CHILD = """
import json, sys
from collections.abc import Mapping
from stallscope.node.drivers.device import DriverError
from stallscope.node.drivers.nvidia.device import NvmlDevice
from stallscope.node.drivers.nvidia.nvml import NvmlDriver

class Clock:
    now = 1000.0
    def __call__(self):
        return self.now

def plain(value):
    if isinstance(value, NvmlDevice):
        return value.identity().uuid
    if hasattr(value, "_asdict"):
        return {name: plain(each) for name, each in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value

driver = NvmlDriver()
names = globals()
for line in sys.stdin:
    try:
        kind, text = json.loads(line)
        answer = plain(eval(text, names)) if kind == "evaluate" else exec(text, names)
    except DriverError as problem:
        answer = [type(problem).__name__, problem.reason]
    print(json.dumps(answer), flush=True)
"""


class DriverProcess:
    """The child; `driver` is there from the beginning, and `gpu` after `open`."""

    def __init__(self, node: NvmlStandIn | None = None, **environment: str) -> None:
        """Start it where the node is, with these variables on top of the environment."""
        variables = os.environ | (node.environment if node is not None else {}) | environment
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def open(self) -> None:
        """Open the driver and take its first GPU."""
        assert self.execute("driver.open(); gpu = driver.devices()[0]") is None

    def evaluate(self, expression: str) -> Any:
        """Its value, structures as dictionaries; a DriverError as its kind and reason."""
        return self._send("evaluate", expression)

    def execute(self, statements: str) -> Any:
        """Return None, or a DriverError in the form that `evaluate` returns."""
        return self._send("execute", statements)

    def _send(self, kind: str, text: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([kind, text]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the child broke down"
        return json.loads(line)
