"""`stallscope doctor` as a person, and a script, meet it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from stallscope.common.local_stack import LocalStack, announced
from stallscope.tools.cli import doctor, main
from stallscope.tools.doctor.examination import PARTS
from tests.doctor.test_exporter import page
from tests.doctor.web_servers import Served, serving
from tests.free_ports import free_port


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    for variable in ("STALLSCOPE_ADDRESS", "STALLSCOPE_PROMETHEUS_URL"):
        monkeypatch.delenv(variable, raising=False)
    with serving() as served:
        served.texts = {"/metrics": page(time.time()), "/-/ready": "ready"}
        yield served


def test_each_result_has_one_line_and_what_failed_says_what_to_do(
    exporter: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "exporter", "--exporter.url", exporter.url]) == 0
    reported = capsys.readouterr().out
    assert reported.startswith("exporter\n  ok       version:")
    assert reported.endswith("\n9 ok\n")
    assert "\033" not in reported

    exporter.texts["/metrics"] = page(time.time()).replace('up{source="cpu"} 1', 'up{source="cpu"} 0')
    assert main(["doctor", "exporter", "--exporter.url", exporter.url]) == 1
    reported = capsys.readouterr().out
    assert "  failed   sources:           collector cpu fails\n" in reported
    assert "-> see the exporter's log for the reason, or disable it with --no-collector.cpu" in " ".join(
        reported.split()
    )
    assert reported.endswith("\n1 failed, 8 ok\n")


def test_what_to_do_is_not_said_again_right_below(exporter: Served, capsys: pytest.CaptureFixture[str]) -> None:
    refused = 'reason="unsigned"} 3\nstallscope_exporter_reports_rejected_total{reason="unknown_token"} 2'
    exporter.texts["/metrics"] = page(time.time()).replace('reason="unsigned"} 0', refused)
    assert main(["doctor", "exporter", "--exporter.url", exporter.url]) == 0
    reported = capsys.readouterr().out
    assert reported.count("training reports were rejected") == 2
    assert reported.count("->") == 1


def test_warnings_are_no_failure_and_json_has_the_same_results(
    exporter: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    exporter.texts["/metrics"] = page(time.time()).replace('limit="series"} 0', 'limit="series"} 4')
    assert main(["doctor", "exporter", "--exporter.url", exporter.url, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["counts"] == {"ok": 8, "warning": 1}
    (warned,) = (each for each in reported["results"] if each["status"] == "warning")
    assert (warned["part"], warned["check"], warned["message"]) == (
        "exporter",
        "series",
        "4 series were dropped since the exporter started: limit series",
    )


def test_nothing_that_is_quoted_steers_the_terminal(exporter: Served, capsys: pytest.CaptureFixture[str]) -> None:
    exporter.texts["/metrics"] = page(time.time()).replace('reason="unsigned"} 0', 'reason="\x1b[2J\u202eevil"} 3')
    assert main(["doctor", "exporter", "--exporter.url", exporter.url]) == 0
    reported = capsys.readouterr().out
    assert "\\x1b[2J\\u202eevil" in reported
    assert reported.replace("\n", "").isprintable()


def test_a_prometheus_that_was_not_configured_may_be_missing(
    exporter: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setattr("stallscope.model.clients.address.LOCAL", nowhere)
    monkeypatch.setenv("STALLSCOPE_DISABLE", "1")
    main(["doctor", "--exporter.url", exporter.url, "--json"])
    reported = {(each["part"], each["status"]) for each in json.loads(capsys.readouterr().out)["results"]}
    assert ("prometheus", "skipped") in reported
    assert main(["doctor", "prometheus"]) == 1, "this part was named"
    assert "failed   reachable:" in capsys.readouterr().out
    assert main(["doctor", "prometheus", "--prometheus.url", nowhere]) == 1
    assert f"failed   reachable:         {nowhere}: it can't be reached" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("", "http://localhost:19400"),
        ("unix:///run/stallscope/report.sock", "http://localhost:19400"),
        ("udp://10.0.0.7", "http://10.0.0.7:19400"),
        ("udp://[fd00::1]:20000", "http://[fd00::1]:20000"),
        ("https://gpu7/api/v1/report", "https://gpu7:443"),
        ("udp://[", "http://localhost:19400"),
        ("udp://", "http://localhost:19400"),
        ("udp://gpu 7", "http://localhost:19400"),
    ],
)
def test_the_exporter_is_looked_for_where_reports_go(address: str, url: str) -> None:
    assert doctor._exporter_of(address) == url


def test_a_local_stack_is_checked_without_flags(exporter: Served, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with announced(LocalStack(exporter.url, nowhere)):
        assert main(["doctor", "exporter", "prometheus"]) == 1
    shown = capsys.readouterr().out
    assert f"ok       version:           {exporter.url.partition('//')[2]} responds" in shown
    assert f"failed   reachable:         {nowhere}: it can't be reached" in shown


def test_an_unknown_part_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "exporters"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "stallscope doctor: unknown part 'exporters'; did you mean exporter?\n"


def test_help_names_every_part_in_the_order_in_which_they_are_checked() -> None:
    assert list(doctor.PARTS) == list(PARTS)
