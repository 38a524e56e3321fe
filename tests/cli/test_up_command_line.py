"""The command line of `stallscope up`: errors are reported in one line, with status 2."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.common.local_stack import LocalStack, announced
from stallscope.lab.simulation.scenarios import SCENARIOS
from stallscope.tools.cli.up import main, parser


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--scenari", "x"], "unknown flag --scenari; did you mean --scenario?"),
        (["--no-instal"], "unknown flag --no-instal; did you mean --no-install?"),
        (["now"], "unexpected argument now"),
        (["--scenario", "gpu_lst"], "--scenario: unknown scenario 'gpu_lst'; did you mean gpu_lost?"),
        (["--grafana.port", "x"], "argument --grafana.port: expected a port"),
        (["--prometheus.port", "70000"], "argument --prometheus.port: expected a port from 1 to 65535, got '70000'"),
        (["--timeout", "soon"], "argument --timeout: expected a time above 0"),
        (["--timeout", "2d"], "argument --timeout: expected a time above 0, at most 1d"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)

    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"stallscope up: {complaint}")
    assert shown.count("\n") == 1


def test_every_scenario_is_listed_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-scenarios"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(SCENARIOS)
    assert all(line.endswith(".") for line in lines)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("0.5", 0.5), ("1m30s", 90.0)])
def test_a_time_is_a_number_of_seconds_or_has_its_units(text: str, seconds: float) -> None:
    assert parser().parse_args(["--timeout", text]).timeout == seconds


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """The signals that this process, in place of a launcher, receives."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGUSR1, before)


def stack(pid: int, fault: str) -> LocalStack:
    return LocalStack("http://127.0.0.1:1", "http://127.0.0.1:2", pid, fault)


def test_the_end_of_a_fault_is_requested_from_the_stack_that_was_started_last(
    received: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    with announced(stack(0, "")), announced(stack(os.getpid(), "gpu_lost")):
        assert main(["--end"]) == 0
    assert received == [signal.SIGUSR1]
    assert capsys.readouterr().out.startswith("the fault of scenario gpu_lost ends")


@pytest.mark.parametrize("pid", [0, -1])
def test_without_a_stack_no_process_is_signalled(
    pid: int, received: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--end"]) == 1
    with announced(stack(pid, "gpu_lost")):
        assert main(["--end"]) == 1
    assert received == []
    assert capsys.readouterr().err.count("no stack of this user is running; start one with `stallscope up`") == 2


def test_a_stack_without_a_fault_is_not_signalled(received: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    with announced(stack(os.getpid(), "")):
        assert main(["--end"]) == 1
    assert received == []
    assert "the running stack simulates no fault" in capsys.readouterr().err
