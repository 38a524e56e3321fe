"""A capture survives a round trip through its file; an invalid file is refused with the reason."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallscope.node.drivers.nvidia.capture import (
    FORMAT,
    Call,
    Capture,
    CaptureError,
    Failure,
    Handle,
    Header,
    parse,
    read,
    text,
    write,
)

HEADER = Header(
    stallscope="0.1.0",
    date="2026-02-01T12:00:00Z",
    start=1_769_947_200.25,
    driver="590.48.01",
    cuda="13.1",
    models=["NVIDIA H100 80GB HBM3"],
    pynvml="13.590.48",
    kernel="6.1.0",
    interval=1.0,
    masked=False,
    hardware=False,
)

_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.builds(Handle, st.text()),
)
_samples = st.lists(st.tuples(st.integers(min_value=0, max_value=1 << 64), _leaves))
_values = st.recursive(
    st.one_of(_leaves, _samples),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(min_size=1), inner, max_size=4).map(lambda fields: SimpleNamespace(**fields)),
    ),
    max_leaves=8,
)
_times = st.floats(min_value=0, max_value=1e6)
_failures = st.builds(Failure, st.one_of(st.none(), st.integers(1, 999)), st.text())
_calls = st.one_of(
    st.builds(Call, _times, _times, st.text(), st.lists(_values, max_size=3).map(tuple), _values, st.none()),
    st.builds(Call, _times, _times, st.text(), st.lists(_values, max_size=3).map(tuple), st.none(), _failures),
)


def typed(value: Any) -> Any:
    """The value with its types, since 1, 1.0 and True are equal."""
    if isinstance(value, (list, tuple)):
        return type(value), [typed(each) for each in value]
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace, [(name, typed(each)) for name, each in vars(value).items()]
    return type(value), value


def call(answer: Any, at: float = 0.5, name: str = "nvmlDeviceGetPowerUsage") -> Call:
    return Call(at, 0.001, name, (Handle("device 0"),), answer)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls=st.lists(_calls, max_size=5), rounds=st.lists(_times, max_size=5).map(sorted))
def test_what_is_written_is_what_is_read(calls: list[Call], rounds: list[float]) -> None:
    capture = Capture(HEADER, tuple(rounds), tuple(calls))
    found = parse(text(capture).splitlines())
    assert found.header == HEADER
    assert found.rounds == capture.rounds
    assert typed(found.calls) == typed(capture.calls)


def test_numbers_that_json_lacks_come_back(tmp_path: Path) -> None:
    write(Capture(HEADER, (), (call([math.nan, math.inf, -math.inf]),)), tmp_path / "capture")
    nan, *infinite = read(tmp_path / "capture").calls[0].answer
    assert math.isnan(nan)
    assert infinite == [math.inf, -math.inf]


def test_an_answer_that_repeats_is_written_once() -> None:
    long = "x" * 1000
    once = text(Capture(HEADER, (), (call(long),)))
    again = text(Capture(HEADER, (), (call(long),) * 5))
    assert len(again) - len(once) < 4 * 200
    assert [each.answer for each in parse(again.splitlines()).calls] == [long] * 5


def test_what_another_call_answered_is_not_taken_for_a_repetition() -> None:
    other = call(1, name="nvmlDeviceGetFanSpeed")
    calls = (call(1), other, call(2), other, call(1))
    assert parse(text(Capture(HEADER, (), calls)).splitlines()).calls == calls


def test_buffered_samples_take_a_few_characters_each() -> None:
    samples = [(1_700_000_000_000_000 + 20_000 * number, number % 100) for number in range(100)]
    assert len(text(Capture(HEADER, (), (call(samples),)))) < len(text(Capture(HEADER))) + 1400


def test_rounds_stand_before_their_calls() -> None:
    lines = text(Capture(HEADER, (0.0, 1.0), (call(1, 0.1), call(2, 1.0)))).splitlines()
    assert ["round" in json.loads(line) for line in lines[1:]] == [True, False, True, False]


def test_another_version_of_the_format_is_refused_with_the_stallscope_that_wrote_it() -> None:
    line = text(Capture(replace(HEADER, stallscope="9.9"))).replace(f'"format":{FORMAT}', '"format":99')
    with pytest.raises(CaptureError, match=r"format version 99.*only 1.*\(9\.9\)"):
        parse(line.splitlines())


@pytest.mark.parametrize("first", ["", "hello", "[]", "17", '{"at":1}'])
def test_what_has_no_header_is_no_capture(first: str) -> None:
    with pytest.raises(CaptureError, match=r"line 1 is not a header"):
        parse([first])


def test_a_header_that_lacks_something_is_refused_by_name() -> None:
    header = json.loads(text(Capture(HEADER)))
    del header["hardware"]
    with pytest.raises(CaptureError, match="'hardware'"):
        parse([json.dumps(header)])


def test_a_file_that_was_cut_is_refused_with_its_name_and_the_line(tmp_path: Path) -> None:
    file = tmp_path / "cut.capture.jsonl"
    file.write_text(text(Capture(HEADER, (), (call(1), call(2))))[:-20], encoding="ascii")
    with pytest.raises(CaptureError, match=r"cut\.capture\.jsonl: line 3 .*record it again"):
        read(file)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\x93NUMPY\xff")
    with pytest.raises(CaptureError, match="file"):
        read(tmp_path / "file")


def test_only_plain_data_is_written() -> None:
    with pytest.raises(TypeError, match="not plain data"):
        text(Capture(HEADER, (), (call(object()),)))
