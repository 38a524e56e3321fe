"""Real exporters, a real driver library and a real Prometheus, each with faults that users have met."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import yaml

from stallscope.tools.doctor import cluster, exporter, node, prometheus
from stallscope.tools.doctor.checkup import Finding, Part, Subject
from tests.doctor.web_servers import findings
from tests.free_ports import free_port
from tests.nvml_library.stand_in import NvmlStandIn
from tests.prometheus_server import Server
from tests.prometheus_server import prometheus as prometheus_server
from tests.rules.rulebook import ROOT
from tests.waiting import until

OTHER_VERSION = """
import sys
import stallscope.common.version
stallscope.common.version.__version__ = "0.0.1"
from stallscope.tools.cli import main
sys.exit(main(sys.argv[1:]))
"""
RULES = ROOT / "prometheus/rules"


@contextmanager
def exporter_process(*flags: str, start: Sequence[str] = ("-m", "stallscope"), **environment: str) -> Iterator[Any]:
    """Start an exporter; return its process and its address as soon as it is ready."""
    address = f"127.0.0.1:{free_port()}"
    usual = (f"--web.listen-address={address}", "--report.unix-socket=", "--report.udp-address=", "--log.level=error")
    command = [sys.executable, *start, "exporter", *usual, *flags]
    with subprocess.Popen(command, env={**os.environ, **environment}) as process:
        try:
            until(lambda: urllib.request.urlopen(f"http://{address}/-/ready", timeout=30).read())
            yield process, address
        finally:
            process.kill()


@pytest.fixture(scope="module")
def exporters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[subprocess.Popen[bytes], str]]]:
    """A simulated node, and an exporter of another version without GPUs."""
    program = tmp_path_factory.mktemp("other") / "stallscope"
    program.write_text(OTHER_VERSION, encoding="utf-8")
    with ExitStack() as stack:
        first = stack.enter_context(exporter_process("--simulation.scenario=healthy"))
        other = ("--collector.disable-defaults", "--collector.cpu")
        yield [first, stack.enter_context(exporter_process(*other, start=(str(program),)))]


def subject(**changes: Any) -> Subject:
    nowhere = f"http://127.0.0.1:{free_port()}"
    usual = {"exporter_url": nowhere, "prometheus_url": nowhere, "prometheus_named": True, "environment": {}}
    return Subject(**{**usual, "exporter_timeout": 30.0, "prometheus_timeout": 30.0, **changes})


def problems(part: Part[Any], examined: Subject) -> dict[str, list[Finding]]:
    """Return what failed or is worth a warning, by check."""
    found = findings(part, examined)
    kept = {check: [each for each in all_ if each.status in ("failed", "warning")] for check, all_ in found.items()}
    assert all(each.remedy for all_ in kept.values() for each in all_)
    return {check: each for check, each in kept.items() if each}


def test_of_several_exporters_the_process_at_the_url_is_judged(
    exporters: list[tuple[subprocess.Popen[bytes], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = {"problem": "", "reason": "", "hung": False, "nvml": "", "gpus": []}
    monkeypatch.setattr("stallscope.tools.doctor.drivers._probe", lambda _: {"nvidia": silent, "amd": silent})
    for process, address in exporters:
        (found,) = findings(node.PART, subject(exporter_url=address))["processes"]
        assert f"(process {process.pid})" in found.message
    (found,) = findings(node.PART, subject())["processes"]
    assert (found.status, "no exporter process that listens on port" in found.message) == ("skipped", True)
    (found,) = findings(node.PART, subject(exporter_url="http://192.0.2.1:19400"))["processes"]
    assert (found.status, "another machine" in found.message) == ("skipped", True)


def test_an_exporter_of_another_version_without_gpus_is_reported(
    exporters: list[tuple[subprocess.Popen[bytes], str]],
) -> None:
    # After a moment in which the machine stood still, readings may be too old.
    def found(number: int) -> dict[str, list[Finding]]:
        return problems(exporter.PART, subject(exporter_url=exporters[number][1]))

    until(lambda: set(found(1)) == {"version", "gpus"}, lambda: str(found(1)))
    assert "version 0.0.1" in found(1)["version"][0].message
    until(lambda: not found(0), lambda: str(found(0)))


def test_collectors_of_a_driver_that_hangs_and_of_none_fail(nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.control.hang_function = b"nvmlDeviceGetCount_v2"
    only = ("--collector.disable-defaults", "--collector.nvidia", "--sampling.interval=0.1s")
    with exporter_process("--collector.disable-defaults") as (_, address):
        (failed,) = problems(exporter.PART, subject(exporter_url=address))["sources"]
        assert failed.message == "no collector has been polled"
    with exporter_process(*only, **nvml_stand_in.environment) as (_, address):

        def found() -> bool:
            (failed,) = problems(exporter.PART, subject(exporter_url=address))["sources"]
            return failed.message.startswith("collector nvidia")

        until(found)


@pytest.fixture(scope="module")
def broken(
    exporters: list[tuple[subprocess.Popen[bytes], str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A Prometheus with faults in its jobs and its rules."""
    folder = tmp_path_factory.mktemp("rules")
    first, other = (address for _, address in exporters)

    def job(name: str, *targets: str, **settings: object) -> dict[str, object]:
        return {"job_name": name, "scrape_interval": "1s", "static_configs": [{"targets": list(targets)}], **settings}

    files = [each for each in sorted(RULES.glob("*.yml")) if each.name not in ("thresholds.yml", "verdicts.yml")]
    document = yaml.safe_load((RULES / "verdicts.yml").read_text(encoding="utf-8"))
    rules = document["groups"][0]["rules"]
    repeated = next(name for name, number in Counter(rule["record"] for rule in rules).items() if number > 1)
    rules.remove(next(rule for rule in rules if rule["record"] == repeated))
    rules[-1]["expr"] = '{__name__=~"up|scrape_duration_seconds"} * on (job) up'
    (folder / "verdicts.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    copied = folder / "copied.yml"
    copied.write_bytes((RULES / "limits.yml").read_bytes())
    with prometheus_server(
        interval=1,
        files=[*files, folder / "verdicts.yml", copied],
        scrapes=[
            job("stallscope", first, other, f"127.0.0.1:{free_port()}"),
            job("stallscope-again", first),
            job("stallscope-rare", f"127.0.0.1:{free_port()}", scrape_interval="1m"),
            job("gpus", other),
        ],
        alertmanagers=[f"127.0.0.1:{free_port()}"],
    ) as server:

        def number_of(expression: str) -> int:
            return len(server.get("query", query=expression)["data"]["result"])

        def has_failed_rule() -> bool:
            groups = server.get("rules")["data"]["groups"]
            return any(rule["health"] == "err" for group in groups for rule in group["rules"])

        until(lambda: number_of("stallscope_build_info") == 4 and number_of('up{job="stallscope"} == 0') == 1)
        until(lambda: number_of("exporter:unusable:info") and has_failed_rule())
        yield server


def test_faults_of_jobs_rules_and_alerts_are_found_in_a_real_prometheus(broken: Server) -> None:
    found = problems(prometheus.PART, subject(prometheus_url=broken.address))
    reported = {check: " | ".join(each.message for each in all_) for check, all_ in found.items()}
    assert set(reported) == {
        *("targets", "jobs", "honor labels", "rules", "thresholds", "freshness", "pages", "alertmanagers"),
    }, reported
    for check, words in (
        ("targets", "connection refused"),
        ("targets", "1 exporters are scraped only every 1m"),
        ("jobs", "1 exporters are scraped by job 'gpus'"),
        ("honor labels", "job stallscope, stallscope-again, stallscope-rare has no honor_labels"),
        ("rules", "rule groups are not loaded"),
        ("rules", "group stallscope-verdicts of another version is loaded: missing rules:"),
        ("rules", "loaded twice, from two files: stallscope-limits"),
        ("rules", "1 rules fail"),
        ("thresholds", "thresholds are missing"),
        ("freshness", "the rules record nothing"),
        ("pages", "cannot be used: scraped_twice"),
        ("alertmanagers", "the alert StallscopeWatchdog does not fire"),
        ("alertmanagers", "does not respond to this machine"),
    ):
        assert words in reported[check]


def test_the_number_of_rules_is_that_of_prometheus(broken: Server) -> None:
    found = findings(prometheus.PART, subject(prometheus_url=broken.address))
    groups = {group["name"]: len(group["rules"]) for group in broken.get("rules")["data"]["groups"]}
    assert found["rules"][-1].message == f"{len(groups)} rule groups with {sum(groups.values())} rules are loaded"


def test_faults_of_the_nodes_are_found_in_a_real_prometheus(
    broken: Server, exporters: list[tuple[subprocess.Popen[bytes], str]]
) -> None:
    first, other = (address for _, address in exporters)

    def seen() -> dict[str, tuple[str, str]]:
        found = findings(cluster.PART, subject(prometheus_url=broken.address))
        return {check: (all_[0].status, all_[0].message) for check, all_ in found.items()}

    # After a moment in which the machine stood still, readings may be too old.
    until(
        lambda: {seen()[check][0] for check in ("sources", "clocks")} == {"ok"}, lambda: str(seen()), errors=(KeyError,)
    )
    reported = seen()
    assert reported["exporters"][0] == "failed"
    assert "exporters do not respond" in reported["exporters"][1] or "exporters does not" in reported["exporters"][1]
    assert reported["versions"][0] == "warning"
    assert other in reported["versions"][1]
    assert reported["GPUs"][0] == "warning"
    assert f"by {first} of job stallscope, {first} of job stallscope-again" in reported["GPUs"][1]
    assert reported["foreign exporters"][0] == "skipped", "without the rules nothing is known"


def test_nothing_is_ok_in_a_prometheus_that_has_nothing() -> None:
    with prometheus_server() as server:
        examined = subject(prometheus_url=server.address)
        found = {**findings(prometheus.PART, examined), **findings(cluster.PART, examined)}
    fine = {check for check, all_ in found.items() if any(each.status == "ok" for each in all_)}
    assert fine == {"version", "clock"}
    failed = {check for check, all_ in found.items() if any(each.status == "failed" for each in all_)}
    assert failed == {"targets", "rules", "thresholds", "freshness", "alertmanagers", "exporters"}
