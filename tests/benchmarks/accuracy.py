"""How far busy seconds are from the exact integral of the stand-in's loads, and whether dips are counted.

What is long runs in scripted time through the real source and sampler; windows of up to half a minute are also watched
in real time, on the real exporter process.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.exporters import ours
from tests.benchmarks.processes import SERVER_CPU, Client, first_page, running
from tests.collectors.test_busy_accuracy import LOADS, PERIOD, PERIOD_US, Reading, falls, load, readings
from tests.nvml_library.stand_in import Gpu, NvmlStandIn, Wave

_DIPS = {
    f"{idle} s after {busy} s at {percent} %": load(Wave.SQUARE, busy + idle, busy=busy, percent=percent)
    for idle, busy, percent in [
        (0.5, 1.0, 100),
        (0.5, 1.7, 60),
        (0.5, 4.1, 100),
        (0.63, 1.21, 80),
        (1.0, 1.0, 60),
        (3.7, 2.3, 100),
        (0.34, 3.1, 100),
    ]
}
_WINDOWS = (1, 2, 5, 15, 30, 60, 120)
_REAL_WINDOWS = (1, 2, 5, 15, 30)
_REAL_SECONDS = 75
_LITTLE = 0.1
"""Share of a window under which what it should come to is too small to be a measure of errors."""
_SERIES = re.compile(
    rb"^stallscope_gpu_(busy_seconds_total|utilization_samples_count|dips_total|last_reading_timestamp_seconds)"
    rb'{gpu="(\d+)".*} (.+)$'
)


class Errors(NamedTuple):
    """The worst of a load over windows of one length, as shares."""

    of_window: float
    of_truth: float
    """Of the true integral, in windows where that is not next to nothing."""
    by_wall: float
    """Of the window between two readings by the wall clock, so with what the newest sample lags behind."""


def table() -> str:
    """Measure, and return the tables as Markdown."""
    scripted = dict(zip(LOADS, readings(list(LOADS.values())), strict=True))
    real = _in_real_time(list(LOADS.values()))
    rows = [
        (f"{name}, scripted", [_errors(LOADS[name], shown, window) for window in _WINDOWS])
        for name, shown in scripted.items()
    ] + [
        (f"{name}, real time", [_errors(LOADS[name], shown, window) for window in _REAL_WINDOWS])
        for name, shown in zip(LOADS, real, strict=True)
    ]
    busy = (
        "Busy seconds against the exact integral of the load: the worst error of any window over the time that the "
        f"driver's samples (every {PERIOD_US} µs, whole percent) cover, in percent of the window, and in brackets in "
        f"percent of the integral, in windows with at least {_LITTLE:.0%} of load. To reach: 1 %; what is over it in "
        "brackets is what the driver rounds off."
    )
    wall = (
        "By the wall clock between two readings the newest sample lags up to one period behind at either end, which no "
        "reader can know better. Worst of all loads, in percent of the window:"
    )
    lines = [busy, "", *_grid([(name, [_cell(each) for each in errors]) for name, errors in rows])]
    lines += ["", wall, "", *_grid([("by the wall clock", [f"{share * 100:.2f}" for share in _worst_by_wall(rows)])])]
    lines += ["", f"Dips over {_minutes(scripted):.0f} minutes of scripted time:", ""]
    lines += ["| load | the load fell | dips counted |", "|---|---|---|", *_dips()]
    return "\n".join(lines)


def _errors(load: Gpu, shown: Sequence[Reading], window: int) -> Errors:
    of_window, of_truth, by_wall = 0.0, 0.0, 0.0
    for before, after in pairwise(shown[1::window]):
        covered = after.samples - before.samples
        # The reading's time is known to milliseconds, so its newest sample may be a neighbour.
        truths = [
            load.true_busy_seconds((end - covered) * PERIOD_US, end * PERIOD_US)
            for end in (int(after.at * 1e6) // PERIOD_US, int((after.at - 0.02) * 1e6) // PERIOD_US)
        ]
        grown = after.busy - before.busy
        truth = min(truths, key=lambda each: abs(grown - each))
        seconds, error = covered * PERIOD, abs(grown - truth)
        of_window = max(of_window, error / seconds)
        if truth > _LITTLE * seconds:
            of_truth = max(of_truth, error / truth)
        wall = load.true_busy_seconds(int(before.at * 1e6), int(after.at * 1e6))
        by_wall = max(by_wall, abs(grown - wall) / (after.at - before.at))
    return Errors(of_window, of_truth, by_wall)


def _worst_by_wall(rows: Iterable[tuple[str, Sequence[Errors]]]) -> list[float]:
    columns = [[errors[place].by_wall for _, errors in rows if place < len(errors)] for place in range(len(_WINDOWS))]
    return [max(column) for column in columns]


def _dips() -> list[str]:
    rows = []
    for name, shown in zip(_DIPS, readings(list(_DIPS.values())), strict=True):
        first, last = shown[10], shown[-1]
        # A dip is counted with its first sample, so within two periods of its beginning.
        fewest = falls(_DIPS[name], first.at, last.at - 3 * PERIOD)
        most = falls(_DIPS[name], first.at - 3 * PERIOD, last.at)
        fell = f"{fewest}" if fewest == most else f"{fewest} to {most}, by where the watch begins and ends"
        rows.append(f"| {name} | {fell} | {last.dips - first.dips} |")
    return rows


def _in_real_time(loads: Sequence[Gpu]) -> list[list[Reading]]:
    """Return the exporter's values for each load, second by second."""
    found: list[list[Reading]] = [[] for _ in loads]
    with tempfile.TemporaryDirectory() as folder:
        node = NvmlStandIn(Path(folder), gpus=len(loads))
        for gpu, load in zip(node.gpu, loads, strict=True):
            gpu.load(
                Wave(load.wave),
                load.wave_period_us,
                percent=load.utilization,
                busy_us=load.wave_busy_us,
                seed=load.wave_seed,
            )
        server = ours(Path(folder))
        started = time.perf_counter()
        with running(server.command, node.environment, SERVER_CPU):
            first_page(server.port, server.last_series, started)
            client = Client(server.port, gzip=False)
            for _ in range(_REAL_SECONDS):
                time.sleep(1)
                page = _page(client.get())
                for index, each in enumerate(found):
                    each.append(
                        Reading(
                            page[b"last_reading_timestamp_seconds", index],
                            page[b"busy_seconds_total", index],
                            int(page[b"utilization_samples_count", index]),
                            int(page[b"dips_total", index]),
                        )
                    )
            client.close()
    return found


def _page(body: bytes) -> dict[tuple[bytes, int], float]:
    return {
        (series[1], int(series[2])): float(series[3])
        for line in body.splitlines()
        if (series := _SERIES.match(line)) is not None
    }


def _minutes(scripted: Mapping[str, Sequence[Reading]]) -> float:
    shown = next(iter(scripted.values()))
    return (shown[-1].at - shown[0].at) / 60


def _cell(errors: Errors) -> str:
    return f"{errors.of_window * 100:.2f} ({errors.of_truth * 100:.2f})"


def _grid(rows: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    lines = ["| | " + " | ".join(f"{window} s" for window in _WINDOWS) + " |", "|---" * (len(_WINDOWS) + 1) + "|"]
    for name, cells in rows:
        lines.append(f"| {name} | " + " | ".join([*cells, *[""] * (len(_WINDOWS) - len(cells))]) + " |")
    return lines


if __name__ == "__main__":
    print(table())
