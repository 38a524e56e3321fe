"""The report document: what is read, what is refused and with which words."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.model.catalogue import metrics as catalogue
from stallscope.training.protocol import measurements, report, vocabulary
from stallscope.training.protocol.report import (
    CodeLine,
    Gpu,
    Phase,
    Report,
    ReportError,
    StepSeconds,
    encode,
    from_document,
    parse,
    to_document,
)


def document(**changes: Any) -> dict[str, Any]:
    """A document that uses every key; a change of None takes a key away."""
    full: dict[str, Any] = {
        "version": 1,
        "run": "resnet50",
        "rank": 3,
        "session": "6f1c",
        "sequence": 17,
        "pid": 4242,
        "start": 1700000000.0,
        "sent": 1700000100.0,
        "state": "running",
        "activity": "training",
        "info": {"local_rank": "3", "world_size": "8", "framework": "pytorch", "job_class": "production"},
        "gpus": [{"gpu": "3", "uuid": "GPU-3"}],
        "first_step": 1700000005.0,
        "last_step": 1700000099.5,
        "step_seconds": {"counts": [0] * 8 + [100] + [0] * 11, "sum": 93.1, "count": 100},
        "phases": {"data_wait": {"seconds": 3.5, "occurrences": 100, "max": 0.5, "gpu_seconds": 3.0}},
        "counters": dict.fromkeys(measurements.COUNTERS, 1.5),
        "gauges": dict.fromkeys(measurements.GAUGES, 2.5),
        "values": {"accuracy": 0.875},
        "precision": ["bf16"],
        "dropped": {"queue_full": 2},
        "code": {"data_wait": [{"location": "data/augment.py:41", "function": "elastic", "seconds": 2.5}]},
    }
    full.update(changes)
    return {key: value for key, value in full.items() if value is not None}


def parsed(**changes: Any) -> Report:
    return parse(encode(document(**changes)))


def refused(data: bytes) -> ReportError:
    with pytest.raises(ReportError) as caught:
        parse(data)
    assert caught.value.reason in report.REASONS
    assert "\n" not in caught.value.message
    return caught.value


def read_or_reason(data: bytes) -> Report | str:
    try:
        return parse(data)
    except ReportError as error:
        return error.reason


def test_every_field_is_read() -> None:
    found = parsed()
    assert (found.run, found.rank, found.session, found.sequence, found.pid) == ("resnet50", 3, "6f1c", 17, 4242)
    assert (found.start, found.sent, found.first_step, found.last_step) == (1.7e9, 1.7e9 + 100, 1.7e9 + 5, 1.7e9 + 99.5)
    assert (found.state, found.activity) == ("running", "training")
    assert found.info["world_size"] == "8"
    assert found.gpus == (Gpu("3", "GPU-3"),)
    assert found.step_seconds == StepSeconds((0,) * 8 + (100,) + (0,) * 11, 93.1, 100)
    assert found.phases == {"data_wait": Phase(3.5, 100, 0.5, 3.0)}
    assert set(found.counters) == set(measurements.COUNTERS)
    assert set(found.gauges) == set(measurements.GAUGES)
    assert found.values == {"accuracy": 0.875}
    assert found.precision == ("bf16",)
    assert found.dropped == {"queue_full": 2.0}


def test_required_keys_alone_make_a_report() -> None:
    required = ("version", "run", "rank", "session", "sequence", "pid", "start", "sent", "state", "activity")
    found = parse(encode({key: document()[key] for key in required}))
    assert found.first_step is None
    assert found.step_seconds is None
    assert found.phases == {}


def test_unknown_keys_are_ignored_everywhere() -> None:
    newer = document(colour="blue")
    for key in ("info", "counters", "gauges"):
        newer[key] = {**newer[key], "colour": "blue"}
    newer["phases"]["data_wait"]["colour"] = "blue"
    newer["gpus"][0]["colour"] = "blue"
    assert parse(encode(newer)) == parsed()


def test_gpus_reported_twice_are_one() -> None:
    twice = [
        {"gpu": "0", "uuid": "GPU-0"},
        {"gpu": "1", "uuid": "GPU-0"},
        {"gpu": "2"},
        {"gpu": "2"},
        {"uuid": "GPU-3"},
    ]
    assert parsed(gpus=twice).gpus == (Gpu("0", "GPU-0"), Gpu("2", ""), Gpu("", "GPU-3"))


def test_a_report_survives_the_way_back_to_a_document() -> None:
    for changes in (
        {},
        {"step_seconds": None, "first_step": None, "phases": {"other": {"seconds": 1, "occurrences": 1, "max": 1}}},
    ):
        found = parsed(**changes)
        assert from_document(json.loads(encode(to_document(found)))) == found


@pytest.mark.parametrize(
    "key", ["version", "run", "rank", "session", "sequence", "pid", "start", "sent", "state", "activity"]
)
def test_a_missing_key_is_named(key: str) -> None:
    error = refused(encode(document(**{key: None})))
    assert (error.reason, error.message) == ("missing_field", f"{key} is missing")


@pytest.mark.parametrize("version", [0, 2, True, "1", 1.0])
def test_another_version_is_refused(version: object) -> None:
    error = refused(encode(document(version=version)))
    assert error.reason == "version"
    assert "update the older end" in error.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rank", True),
        ("rank", -1),
        ("rank", 1.0),
        ("rank", vocabulary.MAX_RANK + 1),
        ("sequence", "17"),
        ("sequence", 2**80),
        ("pid", -4),
        ("run", 7),
        ("session", ["a"]),
        ("start", True),
        ("start", 0),
        ("start", -1.7e9),
        ("start", 1.7e12),
        ("sent", "now"),
        ("first_step", []),
        ("state", "lost"),
        ("state", ["running"]),
        ("activity", "dancing"),
        ("info", []),
        ("info", {"hostname": 5}),
        ("info", {"job_class": "hobby"}),
        ("gpus", {}),
        ("gpus", ["GPU-0"]),
        ("gpus", [{"gpu": 0}]),
        ("step_seconds", 3),
        ("step_seconds", {"counts": [1] * 20, "sum": 1.0}),
        ("step_seconds", {"counts": [1] * 19, "sum": 1.0, "count": 19}),
        ("step_seconds", {"counts": [1] * 20, "sum": 1.0, "count": 19}),
        ("step_seconds", {"counts": [1] * 20, "sum": -1.0, "count": 20}),
        ("step_seconds", {"counts": [-1] + [1] * 19, "sum": 1.0, "count": 18}),
        ("step_seconds", {"counts": [1.5] * 20, "sum": 1.0, "count": 30}),
        ("phases", [1]),
        ("phases", {"x": 3}),
        ("phases", {"x": {"seconds": 1.0, "occurrences": 1}}),
        ("phases", {"x": {"seconds": -1.0, "occurrences": 1, "max": 1.0}}),
        ("phases", {"x": {"seconds": 1.0, "occurrences": 0.5, "max": 1.0}}),
        ("phases", {"x": {"seconds": 1.0, "occurrences": 1, "max": 1.0, "gpu_seconds": False}}),
        ("counters", {"samples": -1}),
        ("counters", {"samples": False}),
        ("counters", {"samples": "many"}),
        ("counters", {"samples": 10**400}),
        ("gauges", {"loss": {}}),
        ("values", {"accuracy": "high"}),
        ("precision", "bf16"),
        ("precision", ["int8"]),
        ("dropped", {"queue_full": -1}),
        ("dropped", {f"cause {number}": 1 for number in range(17)}),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(key: str, value: object) -> None:
    error = refused(encode(document(**{key: value})))
    assert error.reason == "bad_field"
    assert error.message.startswith(key)
    assert "expected" in error.message
    assert len(error.message) < 500


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_not_finite_are_refused(token: str) -> None:
    text = encode(document()).replace(b'"accuracy":0.875', f'"accuracy":{token}'.encode())
    assert token.strip("-") in refused(text).message


def test_a_number_too_large_for_a_float_is_refused() -> None:
    text = encode(document()).replace(b'"accuracy":0.875', b'"accuracy":1e999')
    assert refused(text).reason == "bad_field"


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\x00b", "\ud800", "a\u202eb", "x" * 129])
def test_a_name_unfit_for_a_label_is_refused(name: str) -> None:
    entry = {"seconds": 1.0, "occurrences": 1, "max": 1.0}
    for changes in (
        {"run": name},
        {"session": name},
        {"values": {name: 1.0}},
        {"phases": {name: entry}},
        {"dropped": {name: 1}},
    ):
        assert refused(encode(document(**changes))).reason == "bad_name"


def test_names_in_any_script_are_welcome() -> None:
    assert parsed(run="größe 模型").run == "größe 模型"


def test_each_limit_has_its_own_reason() -> None:
    entry = {"seconds": 1.0, "occurrences": 1, "max": 1.0}
    assert refused(encode(document(values={str(n): 1 for n in range(33)}))).reason == "too_many_values"
    assert refused(encode(document(phases={str(n): entry for n in range(33)}))).reason == "too_many_phases"
    assert refused(encode(document(gpus=[{"gpu": str(n)} for n in range(65)]))).reason == "too_many_gpus"
    assert len(parsed(values={str(n): 1 for n in range(32)}).values) == 32


def test_a_report_is_read_up_to_its_longest_size_only() -> None:
    short = encode(document())
    padded = short[:-1] + b" " * (vocabulary.MAX_BYTES - len(short)) + b"}"
    assert parse(padded) == parsed()
    assert refused(padded + b" ").reason == "too_large"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"nonsense", b"[1]", b"null", b"3", b"[" * 32_000, b'{"version":' * 2_900, b"9" * 5_000],
    ids=lambda data: data[:8].decode("latin-1") or "empty",
)
@pytest.mark.usefixtures("nothing_collected")
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    assert refused(data).reason == "not_json"


def test_deep_nesting_inside_a_field_is_refused_with_a_short_message() -> None:
    text = encode(document()).replace(b'"resnet50"', b"[" * 400 + b"]" * 400)
    error = refused(text)
    assert error.reason == "bad_field"
    assert len(error.message) < 200


def test_encode_refuses_what_the_other_end_would_refuse() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"loss": float("nan")})


def test_encode_is_compact() -> None:
    assert encode({"a": 1, "b": [2, 3]}) == b'{"a":1,"b":[2,3]}'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(document())), JSON)
def test_any_value_in_any_field_is_read_or_refused_with_a_reason(key: str, value: object) -> None:
    found = read_or_reason(json.dumps({**document(), key: value}).encode())
    assert found in report.REASONS if isinstance(found, str) else from_document(to_document(found)) == found


@given(st.data())
def test_a_damaged_report_is_read_or_refused_with_a_reason(data: st.DataObject) -> None:
    text = encode(document())
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(len(text), begin + 20)))
    damaged = text[:begin] + data.draw(st.binary(max_size=20)) + text[end:]
    found = read_or_reason(damaged)
    assert isinstance(found, Report) or found in report.REASONS


def test_counters_and_gauges_are_the_catalogues() -> None:
    for key in measurements.COUNTERS:
        found = catalogue.family(f"stallscope_training_{key}_total")
        assert (found.type, found.labels) == (catalogue.MetricType.COUNTER, ("run", "rank"))
    for key in measurements.GAUGES:
        found = catalogue.family(f"stallscope_training_{key}")
        assert (found.type, found.labels) == (catalogue.MetricType.GAUGE, ("run", "rank"))


def test_every_training_family_has_its_place_in_the_document() -> None:
    reported = {f"stallscope_training_{key}_total" for key in measurements.COUNTERS}
    reported |= {f"stallscope_training_{key}" for key in measurements.GAUGES}
    elsewhere = (
        "rank_info rank_gpu_info process_info state activity start_timestamp_seconds first_step_timestamp_seconds "
        "last_step_timestamp_seconds last_push_timestamp_seconds restarts_total step_seconds phase_seconds_total "
        "phase_gpu_seconds_total phase_occurrences_total phase_max_seconds code_seconds_total value precision_info "
        "shim_dropped_reports_total stack_info"
    )
    reported |= {f"stallscope_training_{name}" for name in elsewhere.split()}
    assert reported == {found.name for found in catalogue.TRAINING_FAMILIES}


def test_lines_of_code_are_read_and_may_be_left_out() -> None:
    assert parsed().code == {"data_wait": (CodeLine("data/augment.py:41", "elastic", 2.5),)}
    assert parsed(code=None).code == {}
    assert from_document(to_document(parsed())) == parsed()
    twice = [{"location": "a.py:1", "function": "f", "seconds": seconds} for seconds in (2.0, 1.0)]
    assert parsed(code={"other": twice}).code == {"other": (CodeLine("a.py:1", "f", 2.0),)}
    assert parsed(code={"other": [{"location": "a.py:1", "seconds": 1}]}).code["other"][0].function == ""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ([], "bad_field"),
        ({"other": {}}, "bad_field"),
        ({"other": ["a.py:1"]}, "bad_field"),
        ({"other": [{"location": 1, "function": "f", "seconds": 1.0}]}, "bad_field"),
        ({"other": [{"location": " ", "function": "f", "seconds": 1.0}]}, "bad_name"),
        ({"other": [{"location": "a\nb.py:1", "function": "f", "seconds": 1.0}]}, "bad_name"),
        ({"other": [{"location": "a" * 129, "function": "f", "seconds": 1.0}]}, "bad_name"),
        ({"other": [{"location": "a.py:1", "function": "f\x00", "seconds": 1.0}]}, "bad_name"),
        ({"other": [{"location": "a.py:1", "function": "f"}]}, "bad_field"),
        ({"other": [{"location": "a.py:1", "function": "f", "seconds": -1}]}, "bad_field"),
        ({"other": [{"location": f"a.py:{n}", "function": "f", "seconds": 1} for n in range(6)]}, "too_many_lines"),
        ({f"p{n}": [] for n in range(33)}, "too_many_phases"),
        ({"": []}, "bad_name"),
    ],
)
def test_malformed_lines_of_code_are_refused(code: Any, reason: str) -> None:
    assert refused(encode(document(code=code))).reason == reason


def test_closed_lists_are_the_catalogues() -> None:
    assert catalogue.family("stallscope_training_rank_info").labels == ("run", "rank", *vocabulary.INFO_KEYS)
    assert dict(catalogue.family("stallscope_training_rank_info").values)["job_class"] == vocabulary.JOB_CLASSES
    assert dict(catalogue.family("stallscope_training_precision_info").values)["precision"] == vocabulary.PRECISIONS
    assert vocabulary.ACTIVITIES == catalogue.ACTIVITIES
    assert (*vocabulary.SHIM_STATES, "lost") == catalogue.RUN_STATES
    assert len(catalogue.STEP_BUCKETS) + 1 == vocabulary.STEP_BUCKET_COUNT
    assert len({*catalogue.PHASES, *catalogue.OUTSIDE_PHASES}) <= vocabulary.MAX_PHASES


def test_report_needs_the_standard_library_alone() -> None:
    code = "import sys, stallscope.training.protocol.report; print([m for m in sys.modules if 'stallscope.' in m])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "stallscope.model.catalogue.metrics" not in answer
