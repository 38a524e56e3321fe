from __future__ import annotations

import pytest

from stallscope.training.protocol import stack_request
from stallscope.training.protocol.stack_file import STACKS_HEADER, STACKS_SIZE
from stallscope.training.protocol.stack_request import StackRequest
from stallscope.training.protocol.stacks import (
    MAX_FRAMES,
    MAX_SAMPLES,
    Capture,
    Frame,
    HotLine,
    Place,
    SampledPhase,
    parse,
    place_of,
)

THREAD = 0x7F0000000010
HEADER = STACKS_HEADER % THREAD
HEAD = f"Thread 0x{THREAD:016x} (most recent call first):\n"
OTHER = "Thread 0x00007f00000000ff (most recent call first):\n"
TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def content(text: str) -> bytes:
    return (HEADER + text.encode()).ljust(STACKS_SIZE, b"\0")


def frame(file: str, line: int = 1, function: str = "f") -> str:
    return f'  File "{file}", line {line} in {function}\n'


def test_the_stack_of_the_training_thread_is_found_among_others() -> None:
    dump = "Timeout (0:01:05)!\n" + OTHER + frame("/a/other.py") + "\n" + HEAD + frame("/a/train.py", 88, "step")
    assert parse(content(dump)) == Capture(True, ((Frame("/a/train.py", 88, "step"),),))


def test_names_of_threads_as_python_3_14_writes_them_are_skipped() -> None:
    dump = f"Timeout (0:01:05)!\nThread 0x{THREAD:016x} [MainThread] (most recent call first):\n" + frame("/a/b.py")
    assert parse(content(dump)) == Capture(True, ((Frame("/a/b.py", 1, "f"),),))


def test_of_standstills_the_newest_counts_and_samples_are_all_kept() -> None:
    stacks = [frame("/a/b.py", line) for line in (1, 2, 3)]
    still = "".join(f"Standstill\n{HEAD}{stack}\n" for stack in stacks)
    found = parse(content(still))
    assert found == Capture(True, ((Frame("/a/b.py", 3, "f"),),))
    found = parse(content(still.replace("Standstill", "Sample")))
    assert found is not None
    assert [stack[0].line for stack in found.stacks] == [1, 2, 3]
    assert not found.standstill


@pytest.mark.parametrize("text", ["", "Standstill\n", "Standstill\n" + HEAD, "Standstill\n" + OTHER + frame("/a/b.py")])
def test_without_the_training_thread_there_is_no_stack(text: str) -> None:
    assert parse(content(text)) is None


@pytest.mark.parametrize("data", [b"", bytes(100), b"stallscope-stacks 2 0x1\n", b"\xff\xfe", HEADER[:-1]])
def test_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="header"):
        parse(data)


def test_odd_names_of_files_and_functions_are_read_and_made_printable() -> None:
    odd = '/a/x", line 7 in y.py'
    lines = [
        frame(odd, 3, "<lambda>"),
        frame("<string>", 1, "<module>"),
        frame("/tmp/ipykernel_12/34.py", 2, "cell"),
        '  File "\x1b[31m\xff\u202e.py", line 5 in g\n',
        '  File "/a/b.py", line 99999999999 in too_long\n',
        '  File "/a/b.py", line x in no_number\n',
        '  File "/a/cut.py", line 4',
    ]
    found = parse(content("Standstill\n" + HEAD + "".join(lines)))
    assert found is not None
    assert [each.file for each in found.stacks[0]] == [odd, "<string>", "/tmp/ipykernel_12/34.py", "?[31m\xff?.py"]
    assert all(text.isprintable() for each in found.stacks[0] for text in (each.file, each.function))


def test_the_code_that_takes_the_stack_is_left_out() -> None:
    found = parse(content("Sample\n" + HEAD + frame("/x/stallscope/training/shim/stacks.py") + frame("/a/b.py")))
    assert found is not None
    assert found.stacks == ((Frame("/a/b.py", 1, "f"),),)


def test_frames_and_samples_are_limited() -> None:
    deep = "Sample\n" + HEAD + frame("/a/b.py") * (MAX_FRAMES + 50)
    found = parse(content(deep * (MAX_SAMPLES + 5)))
    assert found is not None
    assert len(found.stacks) == MAX_SAMPLES
    assert {len(stack) for stack in found.stacks} == {MAX_FRAMES}


LINE = '["data/augment.py:41", "elastic", 0.71, 4]'
PHASE = f'{{"data_wait": {{"seconds": 6.2, "lines": [{LINE}]}}}}'


def test_the_lines_of_a_burst_are_read_and_made_printable() -> None:
    found = parse(content(f"Lines {PHASE}\n"))
    assert found is not None
    assert found.lines == {"data_wait": SampledPhase(6.2, (HotLine("data/augment.py:41", "elastic", 0.71, 4),))}
    assert (found.stacks, found.standstill) == ((), False)
    odd = parse(content(f"Lines {PHASE}\n".replace("elastic", "\\u202e" + "x" * 500)))
    assert odd is not None
    assert odd.lines is not None
    assert odd.lines["data_wait"].lines[0].function == "?" + "x" * 127
    many = parse(content("Lines " + PHASE.replace(LINE, ",".join([LINE] * 9)) + "\n"))
    assert many is not None
    assert many.lines is not None
    assert len(many.lines["data_wait"].lines) == 5


def test_a_standstill_counts_more_than_the_lines_before_it() -> None:
    found = parse(content(f"Lines {PHASE}\nTimeout (0:01:05)!\n" + HEAD + frame("/a/b.py")))
    assert found == Capture(True, ((Frame("/a/b.py", 1, "f"),),))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"a": 1}',
        PHASE.replace("6.2", "NaN"),
        PHASE.replace("6.2", "Infinity"),
        PHASE.replace("0.71", "2"),
        PHASE.replace("4]", "true]"),
        PHASE.replace("4]", '4, "x"]'),
        PHASE.replace('"elastic"', "5"),
    ],
)
def test_invalid_lines_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(content(f"Lines {text}\n"))


@pytest.mark.parametrize("request_", [StackRequest("job", 5, 10.0, (3,), 1e9, 9e8), StackRequest("j", 1, 1.0, (), 1e9)])
def test_a_request_is_the_same_after_its_way(request_: StackRequest) -> None:
    for each in (request_, request_._replace(lines=True)):
        assert stack_request.parse(stack_request.encode(each)) == each


def test_a_request_of_an_older_exporter_is_for_stacks_at_once() -> None:
    data = b'{"version": 1, "run": "job", "samples": 5, "interval": 1.0, "ranks": [], "expires": 1700000700.0}'
    assert stack_request.parse(data) == StackRequest("job", 5, 1.0, (), 1700000700.0)


def test_the_place_is_the_user_s_innermost_line_and_the_call_below_it() -> None:
    stack = (
        Frame("/usr/lib/python3.11/threading.py", 320, "wait"),
        Frame(TORCH, 2810, "all_reduce"),
        Frame("/home/me/project/trainer.py", 88, "train_step"),
        Frame("/home/me/project/main.py", 5, "<module>"),
    )
    assert place_of(stack) == Place("project/trainer.py:88", "train_step", "all_reduce")
    assert place_of(stack[2:]) == Place("project/trainer.py:88", "train_step", "")


def test_the_call_is_the_function_inside_of_decorators_and_of_the_shim() -> None:
    user = Frame("/home/me/project/trainer.py", 88, "train_step")
    wrapper = Frame("/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 81, "wrapper")
    observed = Frame("/venv/lib/python3.11/site-packages/stallscope/training/integrations/pytorch.py", 5, "observed")
    assert place_of((Frame(TORCH, 2810, "all_reduce"), wrapper, observed, user)).call == "all_reduce"
    assert place_of((wrapper, user)).call == "wrapper"


def test_a_stack_of_libraries_alone_has_the_place_of_its_innermost_line() -> None:
    assert place_of((Frame(TORCH, 2810, "all_reduce"),)) == Place(
        "distributed/distributed_c10d.py:2810", "all_reduce", ""
    )


def test_a_place_fits_into_labels() -> None:
    place = place_of((Frame("/a/" + "x" * 500 + "/data.py", 1, "f" * 500),))
    assert place.location.endswith("/data.py:1")
    assert max(map(len, place)) == 128


@pytest.mark.parametrize(
    ("file", "location"),
    [
        ("/home/me/stallscope/train.py", "stallscope/train.py:7"),
        ("/venv/lib/python3.11/site-packages/stallscope/training/integrations/pytorch.py", "project/main.py:5"),
        ("/tmp/torchinductor_me/xy/cxyz.py", "project/main.py:5"),
        ("<frozen runpy>", "project/main.py:5"),
        ("/tmp/ipykernel_4242/123456.py", "notebook cell:7"),
        ("<ipython-input-3-abc>", "notebook cell:7"),
        ("train.py", "train.py:7"),
    ],
)
def test_the_users_own_code_is_recognised_by_its_path(file: str, location: str) -> None:
    assert place_of((Frame(file, 7, "f"), Frame("/home/me/project/main.py", 5, "<module>"))).location == location
