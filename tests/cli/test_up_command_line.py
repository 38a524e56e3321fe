"""The command line of `stallscope up`: errors are reported in one line, with status 2."""

from __future__ import annotations

import pytest

from stallscope.cli.up import main, parser
from stallscope.simulation.scenarios import SCENARIOS


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
