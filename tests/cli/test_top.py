"""`stallscope top` from the command line: once, as JSON, live in a pseudo-terminal, and with exporters that fail."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallscope.common.installation import install_command
from stallscope.common.local_stack import LocalStack, announced
from stallscope.model.view import observer
from tests.analysis.servers import answering
from tests.free_ports import free_port
from tests.terminal.pages import sample, text
from tests.terminal.servers import exporter, speaking

_PATIENCE = 120.0


@contextmanager
def node(**changes: object) -> Iterator[str]:
    """The address of an exporter whose pages are two seconds apart, except the second one.

    The second page repeats the first, as an exporter does that renders a large page only every few seconds.
    """
    seconds = itertools.chain((1000,), itertools.count(1000, 2))
    with exporter(lambda: (200, text(next(seconds), **changes).encode())) as (url, _):
        yield url


def top(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stallscope", "top", "--interval=200ms", *flags],
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_once_prints_the_screen() -> None:
    with node() as url:
        finished = top(f"--exporter.url={url}", "--once")
    assert (finished.returncode, finished.stderr) == (0, "")
    lines = finished.stdout.splitlines()
    assert lines[0].startswith("stallscope top  ")
    assert "1   ███████▎  90 % 21.0/48.0 GiB 251/350 W 61 °C 2490   25 %    2 alice, job 41" in lines
    assert max(len(line) for line in lines) <= 80
    assert "\x1b" not in finished.stdout


def test_where_output_is_no_terminal_or_a_dumb_one_the_screen_is_printed_once() -> None:
    with node() as url:
        assert "alice, job 41" in top(f"--exporter.url={url}").stdout


def test_other_encodings_get_what_they_can_show() -> None:
    with node(extra=[sample(observer.RANK_INFO, ("日本", "0", *[""] * 10))]) as url:
        finished = top(f"--exporter.url={url}", "--once", PYTHONIOENCODING="ascii")
    assert finished.returncode == 0
    assert finished.stdout.isascii()
    assert "1   ########  90 %" in finished.stdout
    assert "\\u65e5\\u672c" in finished.stdout


def test_json_has_everything_with_its_units() -> None:
    with node() as url:
        finished = top(f"--exporter.url={url}", "--json", "--owner=alice")
    assert (finished.returncode, finished.stderr) == (0, "")
    document = json.loads(finished.stdout)
    (found,) = document["nodes"]
    assert found["exporter"] == url
    assert found["problem"] is None
    (gpu,) = found["gpus"]  # bob's is left out
    assert gpu["owners"] == [
        {
            "namespace": None,
            "pod": None,
            "container": None,
            "slurm_job": "41",
            "user": "alice",
            "memory_used_bytes": 18 << 30,
            "busy_ratio": None,
        }
    ]
    assert gpu["utilization_ratio"] == pytest.approx(0.9)
    assert gpu["throttled_ratio"] == {"hw_thermal": pytest.approx(0.25)}
    assert gpu["verdict"] is None
    assert found["host"]["cpu_ratio"] == pytest.approx(0.3)
    assert [source["source"] for source in found["sources"]] == ["cpu", "disk", "network", "nvidia", "pressure"]
    assert document["verdicts"] is None


def test_json_of_runs() -> None:
    with node() as url:
        (run,) = json.loads(top(f"--exporter.url={url}", "--json").stdout)["runs"]
    assert (run["run"], run["states"], run["step"]) == ("resnet50", {"running": 2}, 2004)
    assert run["phases_ratio"]["data_wait"] == pytest.approx(0.3)
    assert run["samples_per_second"] == pytest.approx(128)
    assert [rank["gpus"] for rank in run["ranks"]] == [["0"], ["1"]]
    assert run["ranks"][0]["user"] == "bob"


def test_verdicts_come_from_prometheus() -> None:
    series = {"metric": {"run": "resnet50", "namespace": "", "cause": "checkpoint_stall", "uuid": "GPU-1"}}
    vector = {"resultType": "vector", "result": [{**series, "value": [1, "0.25"]}]}
    body = json.dumps({"status": "success", "data": vector}).encode()
    with node() as url, answering(body=body) as (prometheus, _):
        finished = top(f"--exporter.url={url}", "--once", STALLSCOPE_PROMETHEUS_URL=prometheus)
    assert finished.returncode == 0
    assert "Verdict: Blocking checkpoints. It costs 25 % of the GPU time." in finished.stdout


def test_a_local_stack_is_shown_with_its_verdicts() -> None:
    series = {"metric": {"run": "resnet50", "namespace": "", "cause": "checkpoint_stall", "uuid": "GPU-1"}}
    vector = {"resultType": "vector", "result": [{**series, "value": [1, "0.25"]}]}
    body = json.dumps({"status": "success", "data": vector}).encode()
    with node() as url, answering(body=body) as (prometheus, _), announced(LocalStack(url, prometheus)):
        found = top("--once")
        other = top("--once", f"--exporter.url={url}")
    assert "Verdict: Blocking checkpoints. It costs 25 % of the GPU time." in found.stdout
    assert "No verdicts: set --prometheus.url" in other.stdout, "another exporter than the stack's"


def test_a_prometheus_that_fails_is_reported_and_the_rest_is_shown() -> None:
    with node() as url:
        finished = top(f"--exporter.url={url}", "--once", f"--prometheus.url=http://127.0.0.1:{free_port()}")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "alice, job 41" in finished.stdout
    assert "No newer verdicts: http://127.0.0.1:" in finished.stdout


def test_an_exporter_that_does_not_answer_is_a_failure() -> None:
    port = free_port()
    finished = top(f"--exporter.url=127.0.0.1:{port}", "--once")
    assert (finished.returncode, finished.stdout) == (1, "")
    assert finished.stderr == (
        f"stallscope top: 127.0.0.1:{port}: it can't be reached: Connection refused; start it with `stallscope "
        "exporter`\n"
    )
    document = json.loads(top(f"--exporter.url=127.0.0.1:{port}", "--json").stdout)
    assert document["nodes"][0]["problem"].startswith("it can't be reached")


def test_what_is_no_exporter_is_a_failure_beside_one_that_is_shown() -> None:
    with node() as url, speaking(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi") as other:
        finished = top(f"--exporter.url={url}", f"--exporter.url={other}", "--once")
    assert finished.returncode == 1
    assert "alice, job 41" in finished.stdout
    assert finished.stderr == (
        f"stallscope top: {other}: no Stallscope metrics on its page; check what listens at that address\n"
    )


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--intervall=2s"], "unknown flag --intervall; did you mean --interval?"),
        (["--interval=2"], "expected a duration with its unit, such as 500ms"),
        (["--interval=1ms"], "expected a duration from 200ms to 1h, got '1ms'"),
        (
            ["--exporter.url=node 1"],
            "'node 1' is not the address of an exporter; use one such as http://localhost:19400",
        ),
        (["--prometheus.url=nowhere"], "expected http://HOST:PORT or https://HOST:PORT, got 'nowhere'"),
        (["node1"], "unexpected argument node1"),
    ],
)
def test_a_wrong_command_line(flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    from stallscope.tools.cli.top import main

    with pytest.raises(SystemExit) as caught:
        main(flags)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


def test_without_its_library_the_live_screen_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError('not here', name='textual')")
    status, said = in_a_terminal("--exporter.url=localhost:9", PYTHONPATH=str(tmp_path))
    assert status == 1
    assert (
        f"stallscope top needs textual: {install_command('terminal')}; --once and --json work without it".encode()
        in said
    )


@pytest.mark.parametrize("end", [b"\x03", signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_live_in_a_terminal_until_it_is_ended(end: bytes | signal.Signals) -> None:
    with node() as url:
        status, said = in_a_terminal(f"--exporter.url={url}", until=b"alice, job 41", end=end)
    assert status == 0
    assert b"\x1b[36m" in said  # cyan
    assert said.rindex(b"\x1b[?1049l") > said.index(b"\x1b[?1049h")  # the terminal is as it was


def test_no_colour_means_none() -> None:
    with node() as url:
        status, said = in_a_terminal(f"--exporter.url={url}", until=b"alice, job 41", end=b"q", NO_COLOR="1")
    assert status == 0
    codes = {int(code) for sequence in re.findall(rb"\x1b\[([0-9;]*)m", said) for code in sequence.split(b";") if code}
    # 39 and 49 are the terminal's own.
    assert not codes & {*range(30, 39), *range(40, 49), *range(90, 98), *range(100, 108)}


def test_a_dumb_terminal_gets_plain_text() -> None:
    with node() as url:
        status, said = in_a_terminal(f"--exporter.url={url}", TERM="dumb")
    assert status == 0
    assert b"alice, job 41" in said
    assert b"\x1b" not in said


def in_a_terminal(
    *flags: str, until: bytes = b"", end: bytes | signal.Signals = b"", **environment: str
) -> tuple[int, bytes]:
    """Run in a pseudo-terminal of 80 by 24, end it once it said something; its exit status and all that it said."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "stallscope", "top", "--interval=200ms", *flags],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={
            **{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")},
            "TERM": "xterm-256color",
            "PYTHONIOENCODING": "utf-8",
            **environment,
        },
    )
    os.close(theirs)
    said = bytearray()
    reported = False
    deadline = time.monotonic() + _PATIENCE
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    said += os.read(ours, 65_536)
                except OSError:  # the other end is closed
                    break
            if until and not reported and until in said:
                reported = True
                if isinstance(end, bytes):
                    os.write(ours, end)
                else:
                    process.send_signal(end)
        return process.wait(_PATIENCE), bytes(said)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
