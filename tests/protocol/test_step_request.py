from __future__ import annotations

import json
from typing import Any

import pytest

from stallscope.training.protocol.request_name import request_name
from stallscope.training.protocol.step_request import MAX_BYTES, StepRequest, encode, parse

REQUEST = StepRequest("trace", "resnet50", 20_012, 5, (0, 3), 1_700_000_100.0, 1_700_000_700.0)


def test_a_request_reads_as_it_was_written() -> None:
    assert parse(encode(REQUEST)) == REQUEST


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"action": "reboot"},
        {"action": None},
        {"action": []},
        {"run": ""},
        {"run": 7},
        {"first_step": -1},
        {"first_step": 1.5},
        {"steps": 0},
        {"steps": 101},
        {"steps": True},
        {"ranks": 3},
        {"ranks": ["3"]},
        {"ranks": [0] * 1025},
        {"created": None},
        {"created": True},
        {"expires": "soon"},
        {"expires": float("nan")},
    ],
)
def test_an_invalid_request_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse(json.dumps({**json.loads(encode(REQUEST)), **change}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 8000, b" " * (MAX_BYTES + 1)])
@pytest.mark.usefixtures("nothing_collected")
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse(data)


@pytest.mark.parametrize("run", ["resnet50", "../../etc/passwd", "a/b", "\udcff", "x" * 1000, "日本"])
def test_any_run_has_a_plain_file_name(run: str) -> None:
    name = request_name("trace", run)
    assert "/" not in name
    assert name.startswith("trace-")
    assert len(name) == len(request_name("trace", "a"))


def test_runs_have_files_of_their_own() -> None:
    names = {request_name(action, f"run {number}") for number in range(1000) for action in ("trace", "stop")}
    assert len(names) == 2000
