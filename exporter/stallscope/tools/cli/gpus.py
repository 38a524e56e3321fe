"""Show this machine's GPUs: supported signals, the driver call behind each, its duration, and problems."""

from __future__ import annotations

import json
import logging
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stallscope.common.formatting import gpu_name
from stallscope.tools.cli._extras import missing
from stallscope.tools.cli._parser import Parser

if TYPE_CHECKING:
    from stallscope.node.collectors.gpu.survey import Survey, SurveyedGpu, SurveyedSignal
    from stallscope.node.drivers.device import Driver
    from stallscope.node.drivers.nvidia.record import RecordingLibrary
    from stallscope.node.sampling.reading import Sample

_COLUMNS = 80
_SLOW_SECONDS = 0.005
"""Mean duration of a driver call above which a warning is shown."""
_CALLS_SHOWN = 8
_WAITS = ("nvmlInit", "nvmlShutdown", "nvmlEventSetWait")
"""Functions that may be slow: called once per session, or waiting by design."""
_SCALES: Mapping[str, tuple[tuple[float, str], ...]] = {
    "bytes": ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "joules": ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J")),
    "hertz": ((1e6, "MHz"),),
    "watts": ((1.0, "W"),),
    "celsius": ((1.0, "C"),),
    "seconds": ((1.0, "s"),),
    "ratio": ((0.01, "%"),),
}
"""Divisors and display units of each unit, largest first: the first divisor that is not above the value is used."""
_NO_GPU = (
    "no GPU responds on this machine. NVIDIA: `nvidia-smi` must work first; install or load the driver, and start "
    "containers with their GPUs (docker run --gpus all). AMD: the amdgpu kernel driver must be loaded. "
    "Without a GPU, the exporter serves host and training metrics. To see simulated GPUs: "
    "stallscope gpus --simulation.scenario thermal_throttle"
)


class _Cost(NamedTuple):
    """Durations of one function of the driver's library."""

    name: str
    calls: int
    mean: float
    """Seconds."""
    longest: float


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "gpus",
        usage="stallscope gpus [--json] [--simulation.scenario NAME]",
        description="Read every GPU a few times, one second apart, with the exporter's own code. Show its model, the "
        "optional signals that it supports, the driver call behind each signal, the duration of calls, and problems.",
        examples={
            "stallscope gpus": "this machine's GPUs",
            "stallscope gpus --json | jq '.gpus[].trouble'": "for scripts",
            "stallscope gpus --simulation.scenario thermal_throttle": "simulated GPUs, on any machine",
        },
        notes="Exit status: 0 if all GPUs respond, 1 if one does not or there is none, 2 for an invalid command line.",
    )
    made.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    made.add_argument(
        "--simulation.scenario", dest="scenario", metavar="NAME", help="show simulated GPUs; needs no hardware"
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Show the GPUs; return 0 if all respond, 1 if one does not or there is none, 2 for an invalid command line."""
    command_line = parser()
    parsed = command_line.parse_args(arguments)
    # The output already contains the collectors' log messages, as warnings.
    logging.getLogger("stallscope").addHandler(logging.NullHandler())
    try:
        surveys, recording = _simulated(parsed.scenario) if parsed.scenario else _real()
    except ModuleNotFoundError as error:
        return missing("gpus", error, "exporter")
    except ValueError as error:
        command_line.error(f"--simulation.scenario: {error}")
    gpus = [gpu for each in surveys for gpu in each.gpus]
    costs = _costs(recording)
    warnings = _warnings(surveys, costs, recording)
    if parsed.json:
        print(json.dumps(_document(gpus, costs, warnings, simulated=parsed.scenario), indent=2))
    else:
        print(_report(gpus, costs, warnings, simulated=parsed.scenario), end="")
    if not gpus:
        print(_wrapped("stallscope gpus: " + _NO_GPU), file=sys.stderr)
    silent = any(each.hung or (each.gpus and each.problem) for each in surveys)
    return int(not gpus or silent or any(gpu.trouble for gpu in gpus))


def _real() -> tuple[list[Survey], RecordingLibrary | None]:
    from stallscope.node.collectors.base import Environment, available
    from stallscope.node.collectors.gpu.source import GpuCollector
    from stallscope.node.collectors.gpu.survey import survey
    from stallscope.node.drivers.nvidia.library import PynvmlLibrary
    from stallscope.node.drivers.nvidia.nvml import NvmlDriver
    from stallscope.node.drivers.nvidia.record import RecordingLibrary

    recording = RecordingLibrary(PynvmlLibrary())
    drivers: dict[str, Callable[[], Driver]] = {"nvidia": lambda: NvmlDriver(recording)}
    surveys = [
        survey(source(Environment(driver=drivers.get(name))))
        for name, source in available().items()
        if issubclass(source, GpuCollector)
    ]
    return surveys, recording


def _simulated(scenario: str) -> tuple[list[Survey], None]:
    from stallscope.lab.simulation.simulation import Simulation
    from stallscope.node.collectors.base import Environment
    from stallscope.node.collectors.gpu.survey import survey
    from stallscope.node.collectors.nvidia import NvidiaCollector
    from stallscope.node.sampling.clock import SystemClock

    simulation = Simulation.named(scenario, clock=SystemClock())
    simulation.start()
    try:
        return [survey(NvidiaCollector(Environment(driver=simulation.driver)))], None
    finally:
        simulation.stop()


def _costs(recording: RecordingLibrary | None) -> list[_Cost]:
    """Return the durations of each function, largest total first."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for call in list(recording.calls) if recording is not None else ():
        seconds[call.name].append(call.seconds)
    costs = [_Cost(name, len(each), sum(each) / len(each), max(each)) for name, each in seconds.items()]
    return sorted(costs, key=lambda cost: -cost.calls * cost.mean)


def _warnings(surveys: Sequence[Survey], costs: Iterable[_Cost], recording: RecordingLibrary | None) -> list[str]:
    found: list[str] = []
    none = not any(each.gpus for each in surveys)
    for each in surveys:
        # A missing AMD driver is no problem on a machine with NVIDIA GPUs, and vice versa.
        if each.problem and (each.gpus or each.hung or none):
            found.append(f"{each.source}: {each.problem}")
        for gpu in each.gpus:
            found += [f"{_name(gpu)}: {warning}" for warning in _warnings_of(gpu)]
    for call in recording.pending if recording is not None else ():
        found.append(f"driver call {call.text} has not returned")
    found += [
        f"{cost.name} takes {cost.mean * 1e3:.1f} ms per call"
        for cost in costs
        if cost.mean > _SLOW_SECONDS and cost.name not in _WAITS
    ]
    return found


def _warnings_of(gpu: SurveyedGpu) -> list[str]:
    found: list[str] = []
    if gpu.trouble:
        found.append(gpu.trouble)
    elif not any(signal.supported for signal in gpu.signals):
        found.append("no optional signal is supported; check that the right driver is installed")
    if gpu.persistence_off:
        found.append(
            "persistence mode is off: the first use of an idle GPU initialises it again, which can take seconds; "
            "turn it on with nvidia-persistenced, or nvidia-smi -pm 1"
        )
    if gpu.info["sharing"] == "mig" and not gpu.info.get("mig"):
        found.append(
            "MIG is on: the driver does not report the utilization of the whole GPU; see the activity and processes "
            "of its instances"
        )
    return found


def _report(gpus: Sequence[SurveyedGpu], costs: Sequence[_Cost], warnings: Sequence[str], *, simulated: str) -> str:
    parts: list[str] = []
    if simulated:
        parts.append(f"simulated GPUs (scenario {simulated}): no value here was measured\n")
    shown: dict[tuple[object, ...], SurveyedGpu] = {}
    for gpu in gpus:
        kind = tuple((signal.supported, signal.call) for signal in gpu.signals)
        parts.append(_table(gpu, shown.get(kind)))
        shown.setdefault(kind, gpu)
    if timed := [cost for cost in costs if cost.name not in _WAITS]:
        parts.append(_cost_table(timed))
    if gpus:
        newest = [gpu.calls for gpu in gpus if not gpu.trouble]
        if newest:
            parts.append(
                f"calls of the newest poll: {sum(newest)}, {sum(newest) / len(newest):.1f} per GPU "
                "(the exporter polls once a second)\n"
            )
    if warnings:
        parts.append("warnings\n" + "".join(f"{_wrapped(each, '  - ', '    ')}\n" for each in warnings))
    return "\n".join(parts)


def _table(gpu: SurveyedGpu, alike: SurveyedGpu | None) -> str:
    """Return a table of a GPU; a short one if `alike`, a GPU with the same signals, was shown before."""
    info = gpu.info
    lines = [
        f"{_name(gpu)}: {info['model']}",
        f"  {info['uuid']}",
        _wrapped(
            ", ".join(
                f"{title} {value}"
                for title, value in (
                    ("MIG", info.get("mig", "")),
                    ("driver", info["driver_version"]),
                    ("CUDA", info["cuda_version"]),
                    ("architecture", info["architecture"]),
                    ("compute capability", info["compute_capability"]),
                    ("PCI", info["pci_bus_id"]),
                    ("sharing", info["sharing"]),
                )
                if value
            ),
            "  ",
            "  ",
        ),
    ]
    if gpu.trouble:
        return "\n".join([*lines, _wrapped(f"DOWN: {gpu.trouble}", "  ", "  "), ""])
    has = [signal for signal in gpu.signals if signal.supported]
    if alike is not None and has:
        values = ", ".join(f"{each.family.signal} {_now(each)}" for each in has if len(each.samples) == 1)
        lines += ["", _wrapped(f"signals and calls as {_name(alike)}; now: {values}", "  ", "    ")]
        return "\n".join([*lines, ""])
    if has:
        rows = [("signal", "now", "served by"), *((each.family.signal, _now(each), each.call or "-") for each in has)]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines.append("")
        for name, now, call in rows:
            start = f"  {name:<{widths[0]}} {now:>{widths[1]}}  "
            lines.append(_wrapped(call, start, " " * len(start)))
    unsupported = [signal.family.signal for signal in gpu.signals if signal.supported is False]
    unknown = [signal.family.signal for signal in gpu.signals if signal.supported is None]
    for title, names in (("not supported", unsupported), ("unknown", unknown)):
        if names:
            lines += ["", _wrapped(f"{title}: {', '.join(names)}", "  ", "    ")]
    return "\n".join([*lines, ""])


def _now(signal: SurveyedSignal) -> str:
    if not signal.samples:
        return "none"
    if len(signal.samples) > 1:
        return f"{len(signal.samples)} series"
    value = signal.samples[0].value
    if not isinstance(value, (int, float)):
        return "-"
    scales = _SCALES.get(signal.family.unit, ((1.0, ""),))
    scale, unit = next((each for each in scales if value >= each[0]), scales[-1])
    scaled = value / scale
    digits = f"{scaled:.0f}" if abs(scaled) >= 100 or scaled == int(scaled) else f"{scaled:.3g}"
    return f"{digits} {unit}".rstrip()


def _cost_table(costs: Sequence[_Cost]) -> str:
    lines = [f"{'driver calls, including the first polls':<48}{'calls':>8}{'mean ms':>10}{'max ms':>10}"]
    lines += [
        f"  {cost.name:<46}{cost.calls:>8}{cost.mean * 1e3:>10.3f}{cost.longest * 1e3:>10.3f}"
        for cost in costs[:_CALLS_SHOWN]
    ]
    others = costs[_CALLS_SHOWN:]
    if others:
        count = sum(cost.calls for cost in others)
        mean = sum(cost.calls * cost.mean for cost in others) / count
        longest = max(cost.longest for cost in others)
        lines.append(f"  {f'{len(others)} others':<46}{count:>8}{mean * 1e3:>10.3f}{longest * 1e3:>10.3f}")
    return "\n".join([*lines, ""])


def _document(
    gpus: Iterable[SurveyedGpu], costs: Iterable[_Cost], warnings: Sequence[str], *, simulated: str | None
) -> dict[str, Any]:
    return {
        "simulated": simulated or None,
        "gpus": [
            {
                **gpu.info,
                "parent_uuid": gpu.parent,
                "up": not gpu.trouble,
                "trouble": gpu.trouble,
                "calls": gpu.calls,
                "signals": {
                    signal.family.signal: {
                        "supported": signal.supported,
                        "call": signal.call or None,
                        "values": [_value(sample) for sample in signal.samples],
                    }
                    for signal in gpu.signals
                },
            }
            for gpu in gpus
        ],
        "calls": [
            {"call": cost.name, "count": cost.calls, "mean_seconds": cost.mean, "max_seconds": cost.longest}
            for cost in costs
        ],
        "warnings": list(warnings),
    }


def _value(sample: Sample) -> dict[str, Any]:
    labels = dict(zip(sample.family.all_labels, sample.labels, strict=False))
    own = {name: value for name, value in labels.items() if name not in ("gpu", "uuid", "mig")}
    return {**own, "value": sample.value}


def _name(gpu: SurveyedGpu) -> str:
    return gpu_name(gpu.info["gpu"], gpu.info.get("mig", ""))


def _wrapped(text: str, first: str = "", others: str = "") -> str:
    return textwrap.fill(
        text, _COLUMNS, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, break_long_words=True
    )
