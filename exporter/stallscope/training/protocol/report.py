"""The report: the one document that a training process sends, and that the exporter takes in.

It is one JSON object, the same as UNIX datagram, UDP datagram and POST body, and it holds **cumulative** state of one
session (one process' life as one rank), so that a lost report loses nothing, and an exporter need only read the newest
of several. Unknown keys are ignored, so that an older exporter understands a newer shim; an unknown version is refused.

    {
      "version": 1,
      "run": "resnet50", "rank": 0,            the job's name, the global rank
      "session": "6f1c…", "sequence": 17,      this process' life; grows by one with every report
      "pid": 4242,
      "start": 1700000000.0,                   Unix time of the session's start
      "sent": 1700000100.0,                    Unix time of this report
      "state": "running", "activity": "training",
      "info": {"local_rank": "0", "world_size": "8", "framework": "pytorch", "hostname": "…", "namespace": "",
               "pod": "", "slurm_job": "", "user": "…", "git_commit": "", "job_class": "production"},
      "gpus": [{"gpu": "0", "uuid": "GPU-…"}],
      "first_step": 1700000005.0, "last_step": 1700000099.9,      Unix time; left out before the first step
      "step_seconds": {"counts": [0, …], "sum": 93.1, "count": 100},   counts as long as STEP_BUCKETS plus one
      "phases": {"data_wait": {"seconds": 3.2, "occurrences": 100, "max": 0.4, "gpu_seconds": 3.0}},
      "counters": {"samples": 6400, …},        keys: COUNTERS
      "gauges": {"loss": 0.3, …},              keys: GAUGES
      "values": {"accuracy": 0.9},             the user's own gauges
      "precision": ["bf16"],
      "restarts": 1,                           how often the launcher restarted this rank, if it reports that
      "failure": "OutOfMemoryError",           type of the exception that ended it; left out where none did
      "dropped": {"queue_full": 2},            reports that could not be sent, by cause
      "code": {"data_wait": [{"location": "data/augment.py:41", "function": "elastic_transform", "seconds": 2.1}]}
    }

`phases` sum to the loop's wall time: those inside steps (with `other` as their rest) and those of
`catalogue.OUTSIDE_PHASES`. An open phase is booked up to `sent`. `max` is the longest occurrence of the last minute,
an open one included; `gpu_seconds` is left out where it can't be measured.

The keys down to `activity` are required; the others may be left out. Whatever becomes a label is printable text of
limited length. A session's cumulative numbers only grow.

`code` has the lines of the program in which a phase spent its time, estimated from samples of stacks: up to
`MAX_CODE_LINES` of a phase. A line that is no longer among them is left out.

The state of a session's last report is `finished`, `failed` or `terminated`. Where SIGTERM or SIGHUP ends a process at
once, a datagram from the address `termination_notice.TERMINATION_ADDRESS` stands for that report.

A report of the run `stallscope-doctor` is a trial of the way to the exporter: checked and counted, and not held.

Both ends share this file; it needs the standard library alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple, NoReturn

from stallscope.training.protocol.measurements import COUNTERS, GAUGES
from stallscope.training.protocol.vocabulary import (
    ACTIVITIES,
    INFO_KEYS,
    JOB_CLASSES,
    MAX_BYTES,
    MAX_CODE_LINES,
    MAX_DROP_CAUSES,
    MAX_GPUS,
    MAX_LABEL_LENGTH,
    MAX_NAME_LENGTH,
    MAX_PHASES,
    MAX_RANK,
    MAX_RESTARTS,
    MAX_TIMESTAMP,
    MAX_VALUES,
    PRECISIONS,
    SHIM_STATES,
    STEP_BUCKET_COUNT,
    VERSION,
)

REASONS = (
    "too_large",
    "not_json",
    "version",
    "missing_field",
    "bad_field",
    "bad_name",
    "too_many_values",
    "too_many_phases",
    "too_many_gpus",
    "too_many_lines",
)
"""Why a document is refused, each one word fit for a label."""


class ReportError(ValueError):
    """A report was refused: `reason` is one of `REASONS`, `message` has the problem and the remedy."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Gpu(NamedTuple):
    """A GPU that the rank computes on; one of the two may be empty where the process doesn't know it."""

    gpu: str
    uuid: str


class CodeLine(NamedTuple):
    """Time of a phase in one line of the program: its file and number, its function, and seconds."""

    location: str
    function: str
    seconds: float


class StepSeconds(NamedTuple):
    """Durations of steps: observations by bucket (not cumulative), their sum in seconds, their number."""

    counts: tuple[int, ...]
    sum: float
    count: int  # type: ignore[assignment]  # the document's key; the tuple's method is not used


class Phase(NamedTuple):
    """Time in one phase, in seconds."""

    seconds: float
    occurrences: int
    max: float
    gpu_seconds: float | None


class Report(NamedTuple):
    """A report that was found right. Fields are the document's, in its order; what was left out is empty or None."""

    run: str
    rank: int
    session: str
    sequence: int
    pid: int
    start: float
    sent: float
    state: str
    activity: str
    info: Mapping[str, str]
    gpus: tuple[Gpu, ...]
    first_step: float | None
    last_step: float | None
    step_seconds: StepSeconds | None
    phases: Mapping[str, Phase]
    counters: Mapping[str, float]
    gauges: Mapping[str, float]
    values: Mapping[str, float]
    precision: tuple[str, ...]
    dropped: Mapping[str, float]
    failure: str = ""
    restarts: int = 0
    code: Mapping[str, tuple[CodeLine, ...]] = {}


def encode(document: Mapping[str, Any]) -> bytes:
    """Write a document as it travels.

    Raises:
        ValueError: a number is not finite.
        TypeError: a value has no form in JSON.
    """
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def to_document(report: Report) -> dict[str, Any]:
    """Turn a report back into the document that `from_document` reads as the same report."""
    document: dict[str, Any] = {"version": VERSION, **report._asdict()}
    document["gpus"] = [gpu._asdict() for gpu in report.gpus]
    document["precision"] = list(report.precision)
    if report.step_seconds is not None:
        document["step_seconds"] = {**report.step_seconds._asdict(), "counts": list(report.step_seconds.counts)}
    document["phases"] = {
        name: {key: value for key, value in phase._asdict().items() if value is not None}
        for name, phase in report.phases.items()
    }
    document["code"] = {phase: [line._asdict() for line in lines] for phase, lines in report.code.items()}
    return {key: value for key, value in document.items() if value is not None}


def parse(data: bytes) -> Report:
    """Read and check one report.

    Raises:
        ReportError: with a reason of `REASONS`, and a message naming the field, what it was and what it should be.
    """
    if len(data) > MAX_BYTES:
        raise ReportError("too_large", f"the report is longer than {MAX_BYTES} bytes; send fewer phases or values")
    try:
        document = _DECODER.decode(data.decode())
    except RecursionError:
        raise ReportError("not_json", "the report is nested too deeply") from None
    except ValueError as error:
        raise ReportError("not_json", f"the report is not JSON in UTF-8: {str(error)[:100]}") from None
    return from_document(document)


def from_document(document: object) -> Report:
    """Check a decoded document; see `parse`."""
    if type(document) is not dict:
        raise ReportError("not_json", f"the report is {_shown(document)}; expected one JSON object")

    version = _required(document, "version")
    if type(version) is not int or version != VERSION:
        raise ReportError(
            "version", f"version is {_shown(version)}; this exporter reads {VERSION}: update the older end"
        )
    info = _object(document, "info")
    values = _object(document, "values")
    if len(values) > MAX_VALUES:
        raise ReportError("too_many_values", f"values has {len(values)} names; expected at most {MAX_VALUES}")
    phases = _object(document, "phases")
    if len(phases) > MAX_PHASES:
        raise ReportError("too_many_phases", f"phases has {len(phases)} names; expected at most {MAX_PHASES}")
    job_class = info.get("job_class", "")
    if job_class:
        _one_of(job_class, "info.job_class", JOB_CLASSES)
    counters = _object(document, "counters")
    gauges = _object(document, "gauges")
    return Report(
        run=_name(_required(document, "run"), "run", MAX_NAME_LENGTH),
        rank=_whole(_required(document, "rank"), "rank", MAX_RANK),
        session=_name(_required(document, "session"), "session"),
        sequence=_whole(_required(document, "sequence"), "sequence"),
        pid=_whole(_required(document, "pid"), "pid"),
        start=_timestamp(_required(document, "start"), "start"),
        sent=_timestamp(_required(document, "sent"), "sent"),
        state=_one_of(_required(document, "state"), "state", SHIM_STATES),
        activity=_one_of(_required(document, "activity"), "activity", ACTIVITIES),
        info={key: _text(info[key], f"info.{key}") for key in INFO_KEYS if key in info},
        gpus=_gpus(document),
        first_step=_timestamp(document["first_step"], "first_step") if "first_step" in document else None,
        last_step=_timestamp(document["last_step"], "last_step") if "last_step" in document else None,
        step_seconds=_step_seconds(document["step_seconds"]) if "step_seconds" in document else None,
        phases={_name(name, "a name in phases"): _phase(name, phase) for name, phase in phases.items()},
        counters={key: _amount(counters[key], "counters", key) for key in COUNTERS if key in counters},
        gauges={key: _number(gauges[key], "gauges", key) for key in GAUGES if key in gauges},
        values={_name(name, "a name in values"): _number(value, "values", name) for name, value in values.items()},
        precision=_precision(document),
        dropped=_dropped(document),
        failure=_text(document.get("failure", ""), "failure"),
        restarts=_whole(document.get("restarts", 0), "restarts", MAX_RESTARTS),
        code=_code(document),
    )


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number; leave the key out")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_MAX_WHOLE = 2**53


def _shown(value: object) -> str:
    import reprlib  # only a refusal needs it; it stops at six levels, so that deep nesting can't harm

    return reprlib.repr(value)


def _bad(field: str, value: object, expected: str) -> ReportError:
    return ReportError("bad_field", f"{field} is {_shown(value)}; expected {expected}")


def _required(document: dict[str, Any], key: str) -> Any:
    if key not in document:
        raise ReportError("missing_field", f"{key} is missing")
    return document[key]


def _object(document: dict[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key, {})
    if type(value) is not dict:
        raise _bad(key, value, "an object")
    return value


def _list(document: dict[str, Any], key: str) -> list[Any]:
    value = document.get(key, [])
    if type(value) is not list:
        raise _bad(key, value, "a list")
    return value


def _text(value: Any, field: str, longest: int = MAX_LABEL_LENGTH) -> str:
    """Text fit for a label: printable rules out control characters, invisible ones and halves of surrogate pairs."""
    if type(value) is not str:
        raise _bad(field, value, "text")
    if len(value) > longest or not value.isprintable():
        raise ReportError(
            "bad_name", f"{field} is {_shown(value)}; expected printable text of at most {longest} characters"
        )
    return value


def _name(value: Any, field: str, longest: int = MAX_LABEL_LENGTH) -> str:
    text = _text(value, field, longest)
    if not text.strip():
        raise ReportError("bad_name", f"{field} is {_shown(value)}; expected a name")
    return text


def _one_of(value: Any, field: str, words: tuple[str, ...]) -> str:
    if type(value) is not str or value not in words:
        raise _bad(field, value, "one of " + ", ".join(words))
    return value


def _whole(value: Any, field: str, highest: int = _MAX_WHOLE) -> int:
    # The exact type, here and below: to Python, true is a number as well.
    if type(value) is not int or not 0 <= value <= highest:
        raise _bad(field, value, f"a whole number from 0 to {highest}")
    return value


def _number(value: Any, field: str, key: str = "") -> float:
    kind = type(value)
    if (kind is float and isfinite(value)) or (kind is int and -_MAX_WHOLE * 1024 <= value <= _MAX_WHOLE * 1024):
        return float(value)
    raise _bad(f"{field}.{key[:MAX_LABEL_LENGTH]}" if key else field, value, "a finite number")


def _amount(value: Any, field: str, key: str = "") -> float:
    number = _number(value, field, key)
    if number < 0:
        raise _bad(f"{field}.{key[:MAX_LABEL_LENGTH]}" if key else field, value, "a number not below 0")
    return number


def _timestamp(value: Any, field: str) -> float:
    number = _number(value, field)
    if not 0 < number < MAX_TIMESTAMP:
        raise _bad(field, value, "Unix time in seconds")
    return number


def _gpus(document: dict[str, Any]) -> tuple[Gpu, ...]:
    entries = _list(document, "gpus")
    if len(entries) > MAX_GPUS:
        raise ReportError("too_many_gpus", f"gpus has {len(entries)} entries; expected at most {MAX_GPUS}")
    found: dict[str, Gpu] = {}
    for position, entry in enumerate(entries):
        field = f"gpus[{position}]"
        if type(entry) is not dict:
            raise _bad(field, entry, "an object with gpu and uuid")
        gpu = Gpu(_text(entry.get("gpu", ""), f"{field}.gpu"), _text(entry.get("uuid", ""), f"{field}.uuid"))
        if not (gpu.gpu or gpu.uuid):
            raise ReportError("missing_field", f"{field} has neither gpu nor uuid")
        found.setdefault(gpu.uuid or gpu.gpu, gpu)
    return tuple(found.values())


def _step_seconds(value: Any) -> StepSeconds:
    if type(value) is not dict:
        raise _bad("step_seconds", value, "an object with counts, sum and count")
    counts = value.get("counts")
    if type(counts) is not list or len(counts) != STEP_BUCKET_COUNT:
        raise _bad("step_seconds.counts", counts, f"a list of {STEP_BUCKET_COUNT} whole numbers")
    whole = tuple([_whole(count, "step_seconds.counts") for count in counts])
    count = _whole(value.get("count"), "step_seconds.count")
    if count != sum(whole):
        raise _bad("step_seconds.count", count, f"the sum of its counts, {sum(whole)}")
    return StepSeconds(whole, _amount(value.get("sum"), "step_seconds", "sum"), count)


def _phase(name: str, value: Any) -> Phase:
    if type(value) is not dict:
        raise _bad(f"phases.{name}", value, "an object with seconds, occurrences and max")
    field = f"phases.{name}"
    return Phase(
        _amount(value.get("seconds"), field, "seconds"),
        _whole(value.get("occurrences"), f"{field}.occurrences"),
        _amount(value.get("max"), field, "max"),
        _amount(value["gpu_seconds"], field, "gpu_seconds") if "gpu_seconds" in value else None,
    )


def _code(document: dict[str, Any]) -> dict[str, tuple[CodeLine, ...]]:
    phases = _object(document, "code")
    if len(phases) > MAX_PHASES:
        raise ReportError("too_many_phases", f"code has {len(phases)} phases; expected at most {MAX_PHASES}")
    return {_name(phase, "a phase in code"): _lines(f"code.{phase}", lines) for phase, lines in phases.items()}


def _lines(field: str, value: Any) -> tuple[CodeLine, ...]:
    if type(value) is not list:
        raise _bad(field, value, "a list")
    if len(value) > MAX_CODE_LINES:
        raise ReportError("too_many_lines", f"{field} has {len(value)} lines; expected at most {MAX_CODE_LINES}")
    found: dict[tuple[str, str], CodeLine] = {}
    for position, entry in enumerate(value):
        if type(entry) is not dict:
            raise _bad(f"{field}[{position}]", entry, "an object with location, function and seconds")
        line = CodeLine(
            _name(entry.get("location"), f"{field}[{position}].location"),
            _text(entry.get("function", ""), f"{field}[{position}].function"),
            _amount(entry.get("seconds"), f"{field}[{position}]", "seconds"),
        )
        found.setdefault(line[:2], line)
    return tuple(found.values())


def _precision(document: dict[str, Any]) -> tuple[str, ...]:
    words = _list(document, "precision")
    return tuple(dict.fromkeys([_one_of(word, "precision", PRECISIONS) for word in words]))


def _dropped(document: dict[str, Any]) -> dict[str, float]:
    causes = _object(document, "dropped")
    if len(causes) > MAX_DROP_CAUSES:
        raise _bad("dropped", causes, f"at most {MAX_DROP_CAUSES} causes")
    return {_name(cause, "a cause in dropped"): _amount(number, "dropped", cause) for cause, number in causes.items()}
