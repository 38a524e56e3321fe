"""Cost of `stallscope run` for a step of an unmodified PyTorch loop, and the shim's own report of it.

Blocks of steps alternate between the loop as it is and the same loop observed; the difference of their median steps
is free of what changes slowly on a machine. Steps of one and of ten milliseconds, on one core, of the thread's CPU
time, so that other programs count only through the caches.

Run alone with `python -m tests.benchmarks.unmodified_loop`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import tempfile
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple

import stallscope

_BLOCKS = 12
_SECONDS = 1.0
"""Seconds of each block."""
_STEPS = (0.001, 0.010)
_LEAST_STEPS = 60


class Cost(NamedTuple):
    """Seconds of one step."""

    bare: float
    added: float
    reported: float


def table() -> str:
    """Measure, and return Markdown, or the reason why not."""
    if find_spec("torch") is None:
        return "An unmodified PyTorch loop: not measured, torch is not installed.\n"
    torch: Any = import_module("torch")
    torch.set_num_threads(1)
    head = f"`stallscope run` on an unmodified loop of PyTorch {torch.__version__}, one core"
    lines = [f"| {head} | µs a step | of the step | reported by the shim |", "|---|---|---|---|"]
    with drained_socket() as address:
        os.environ["STALLSCOPE_ADDRESS"] = address
        for length in _STEPS:
            cost = measure(torch, length)
            lines.append(
                f"| loader, seven modules, loss and optimizer; {cost.bare * 1e3:.1f} ms | {cost.added * 1e6:.0f} |"
                f" {cost.added / cost.bare:.2%} | {cost.reported * 1e6:.0f} µs |"
            )
    return "\n".join(lines) + "\n"


def measure(torch: Any, length: float) -> Cost:
    """Measure a loop with steps of about this many seconds."""
    pytorch: Any = import_module("stallscope.training.integrations.pytorch")
    batch = 8
    while (usual := _block(torch, batch, _LEAST_STEPS)) < 0.8 * length:
        batch = int(batch * min(max(length / usual, 1.2), 3.0))
    steps = max(int(_SECONDS / usual), _LEAST_STEPS)
    bare, observed, reported = [], [], []
    for _ in range(_BLOCKS):
        bare.append(_block(torch, batch, steps))
        run = pytorch.watch(run=stallscope.Run("unmodified"))
        before = run.overhead
        observed.append(_block(torch, batch, steps))
        run.finish()
        reported.append((run.overhead - before) / steps)
        pytorch.unwatch()
    added = statistics.median(after - plain for plain, after in zip(bare, observed, strict=True))
    return Cost(statistics.median(bare), added, statistics.median(reported))


def _block(torch: Any, batch: int, steps: int) -> float:
    """Train, and return the median CPU time of a step."""
    modules = [torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    model = torch.nn.Sequential(*modules, torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    criterion = torch.nn.CrossEntropyLoss()
    inputs, targets = torch.randn(batch, 256), torch.zeros(batch, dtype=torch.long)
    loader = torch.utils.data.DataLoader(_Batches(inputs, targets, steps), batch_size=None)
    lengths = []
    began = thread_time()
    for samples, labels in loader:
        optimizer.zero_grad()
        criterion(model(samples), labels).backward()
        optimizer.step()
        ended = thread_time()
        lengths.append(ended - began)
        began = ended
    return statistics.median(lengths)


class _Batches:
    """A data set of whole batches, all alike."""

    def __init__(self, inputs: Any, targets: Any, length: int) -> None:
        self._batch = (inputs, targets)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._batch


@contextlib.contextmanager
def drained_socket() -> Iterator[str]:
    """Yield the address of a socket whose reports are read and dropped."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as exporter:
        place = Path(folder) / "report.sock"
        exporter.bind(str(place))
        threading.Thread(target=_drain, args=(exporter,), daemon=True).start()
        yield f"unix://{place}"


def _drain(exporter: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed at the end
        while exporter.recv(65536):
            pass


if __name__ == "__main__":
    print(table())
