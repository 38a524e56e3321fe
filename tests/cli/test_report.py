"""`stallscope report` on a real Prometheus that holds half an hour of two runs, one of which goes on."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stallscope.common.installation import install_command
from stallscope.lab.replay.series import Series
from stallscope.model.clients.prometheus import Prometheus, PrometheusError
from stallscope.tools.cli import report
from tests.filled_prometheus import write
from tests.free_ports import free_port
from tests.prometheus_server import prometheus

SCRAPES = 61
"""One every half a minute."""
pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")


def reported(run: str, state: str) -> Iterator[Series]:
    rank = {"namespace": "vision", "run": run, "rank": "0", "job": "stallscope", "instance": f"{run}:19400"}
    labels = {"namespace": "vision", "run": run}
    for name, more, value in (
        ("stallscope_training_rank_info", {**rank, "world_size": "1"}, 1.0),
        ("stallscope_training_state", {**rank, "state": state}, 1.0),
        ("stallscope_build_info", {"job": "stallscope", "instance": f"{run}:19400"}, 1.0),
        ("run:ranks:count", labels, 1.0),
        ("run:gpus:count", labels, 2.0),
        ("run:time_lost:ratio5m", labels, 0.25),
        ("run_cause:time_lost:ratio5m", {**labels, "cause": "input_disk_bound"}, 0.25),
        ("run:verdict:ratio5m", {**labels, "cause": "input_disk_bound"}, 0.25),
    ):
        yield Series(name, more, [value] * SCRAPES)


def namesakes() -> Iterator[Series]:
    """A node in each of two clusters, one with a GPU that lies idle and one with two that are used."""
    for cluster, gpus, verdict in (("east", 1, "idle_allocated"), ("west", 2, "healthy")):
        node = {"cluster": cluster, "job": "stallscope", "instance": "shared:19400"}
        yield Series("stallscope_build_info", node, [1.0] * SCRAPES)
        for gpu in map(str, range(gpus)):
            card = {**node, "gpu": gpu, "uuid": f"{cluster}-{gpu}"}
            yield Series("gpu:up:max", card, [1.0] * SCRAPES)
            yield Series("gpu:verdict:ratio5m", {**card, "cause": verdict}, [1.0] * SCRAPES)


@contextmanager
def filled() -> Iterator[tuple[str, float]]:
    """A server and the time of its last samples."""
    with prometheus() as running:
        end = time.time()
        without_gpu = [each for each in reported("cpu", "running") if each.name != "run:gpus:count"]
        held = [
            Series("owner:gpus_held:sum", {"namespace": "vision", "user": user}, [gpus] * SCRAPES)
            for user, gpus in (("ada", 2.0), ("grace", 1.0))
        ]
        everything = [
            *held,
            *reported("resnet50", "running"),
            *reported("resnet18", "finished"),
            *without_gpu,
            *namesakes(),
        ]
        write([running.port], everything, end - 30 * (SCRAPES - 1), SCRAPES)
        yield running.address, end


@pytest.fixture(scope="module")
def filled_once() -> Iterator[tuple[str, float]]:
    with filled() as found:
        yield found


@pytest.fixture
def server(filled_once: tuple[str, float], monkeypatch: pytest.MonkeyPatch) -> str:
    """A server whose time does not go on: it returns the last samples for five more minutes, and hours would grow."""
    address, end = filled_once
    monkeypatch.setattr(Prometheus, "now", lambda _: end)
    return address


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_page_is_written_and_what_to_change_first_is_said(
    server: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main(["--prometheus.url", server, "--run", "resnet50"]) == 0
    page = (here / "report.html").read_text(encoding="utf-8")
    assert "<h1>Run resnet50" in page
    assert 'http-equiv="refresh"' not in page
    assert capsys.readouterr().out.splitlines() == [
        "wrote report.html",
        "change first: Waiting for data: disk. Read from local NVMe or memory, in larger sequential shards.",
    ]
    assert [each.name for each in here.iterdir()] == ["report.html"]


def test_the_name_of_the_file_says_how_it_is_written(server: str, here: Path) -> None:
    assert report.main(["--prometheus.url", server, "--run", "resnet50", "--out", "it.md"]) == 0
    assert (here / "it.md").read_text(encoding="utf-8").startswith("# Run resnet50\n")


def test_other_formats_go_to_standard_output_with_what_was_lost_in_money(
    server: str, here: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    prices = ["--price-per-gpu-hour", "2.5", "--currency", "EUR"]
    assert report.main(["--prometheus.url", server, "--run", "resnet18", "--format", "json", *prices]) == 0
    document = json.loads(capsysbinary.readouterr().out)
    (advised,) = [
        block for section in document["sections"] for block in section["blocks"] if block["type"] == "Recommendation"
    ]
    gain = {fact["kind"]: fact["value"] for fact in advised["gain"]}
    assert advised["cause"] == "input_disk_bound"
    assert gain["share"] == pytest.approx(0.25, abs=0.01)
    # A quarter of the time of two GPUs for half an hour.
    assert gain["gpu_hours"] == pytest.approx(0.25, abs=0.02)
    assert gain["money"] == pytest.approx(2.5 * gain["gpu_hours"])
    assert not list(here.iterdir())


def test_a_report_with_an_end_in_the_past_claims_nothing_still_runs(server: str, here: Path) -> None:
    for which in (["--run", "resnet50"], ["--instance", "resnet50"]):
        assert report.main(["--prometheus.url", server, *which, "--end", "10m", "--out", "it.md"]) == 0
        assert "still running" not in (here / "it.md").read_text(encoding="utf-8").split("##", 1)[0]


def test_a_server_without_the_rules_is_an_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with prometheus() as running:
        scraped = [each for each in reported("resnet50", "running") if ":" not in each.name]
        write([running.port], scraped, time.time() - 30 * (SCRAPES - 1), SCRAPES)
        for which in (["--run", "resnet50"], ["--instance", "resnet50"], []):
            assert report.main(["--prometheus.url", running.address, *which]) == 1
            said = capsys.readouterr().err
            assert "recorded no results of Stallscope's rules in this time; load prometheus/rules/*.yml" in said
            assert said.count("\n") == 1
    assert not list(here.iterdir())


def test_owners_are_written_for_chargeback(server: str, here: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    arguments = ["--prometheus.url", server, "--by", "user", "--price-per-gpu-hour", "2", "--format", "csv"]
    assert report.main(arguments) == 0
    header, *rows = capsysbinary.readouterr().out.decode().splitlines()
    assert header.startswith("start_timestamp_seconds,end_timestamp_seconds,user,held_gpu_hours,")
    assert [row.split(",")[2] for row in rows] == ["ada", "grace"]
    assert report.main([*arguments[:5], "2EUR", "--format", "csv"]) == 0
    assert capsysbinary.readouterr().out.decode().splitlines()[1].endswith(",EUR")
    assert float(rows[0].split(",")[3]) == pytest.approx(1, abs=0.1)
    assert report.main(["--prometheus.url", server, "--by", "team", "--compare-to", "1d", "--out", "it.html"]) == 0
    assert "GPU time by team" in (here / "it.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--compare-to", "7d"], "--compare-to: requires --by"),
        (["--format", "csv"], "--format csv: requires --by"),
        (["--out", "it.csv"], "--format csv: requires --by"),
        (["--by", "user", "--watch", "1m", "--out", "it.md"], "--watch: cannot be combined with --by"),
        (["--by", "user", "--run", "resnet50"], "not allowed with argument"),
        (
            ["--by", "team", "--team-label", "a-b"],
            "--team-label: expected a label such as kube_namespace_labels:label_team, got 'a-b'",
        ),
        (["--by", "department"], "invalid choice"),
    ],
)
def test_flags_of_owners_that_do_not_fit_are_refused(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        report.main(arguments)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_run_without_a_gpu_has_a_share_but_no_gpu_hours(server: str, here: Path) -> None:
    assert report.main(["--prometheus.url", server, "--out", "it.md"]) == 0
    rows = {line.split(" | ")[0]: line for line in (here / "it.md").read_text(encoding="utf-8").splitlines()}
    hours, lost, share = (cell.strip() for cell in rows["| resnet50"].split("|")[-4:-1])
    assert float(hours.removesuffix(" h")) == pytest.approx(1.0, abs=0.17)
    assert float(lost.removesuffix(" h")) == pytest.approx(0.25, abs=0.05)
    assert share == "25 %"
    assert rows["| cpu"].endswith("|  |  | 25 % |")
    assert report.main(["--prometheus.url", server, "--run", "cpu", "--out", "it.md"]) == 0
    text = (here / "it.md").read_text(encoding="utf-8")
    assert re.search(r"Rank-hours: \*\*0\.5\d* h\*\*", text)
    assert "GPU-hours" not in text.split("## What to change", 1)[0]


def test_nodes_are_found_with_and_without_their_port(server: str, here: Path) -> None:
    for name in ("resnet50", "resnet50:19400"):
        assert report.main(["--prometheus.url", server, "--instance", name, "--out", "it.html"]) == 0
        assert "<h1>Node resnet50:19400" in (here / "it.html").read_text(encoding="utf-8")


def test_a_cluster_selects_among_nodes_of_one_name(server: str, here: Path) -> None:
    flags = ["--prometheus.url", server, "--instance", "shared", "--out", "it.json", "--cluster"]
    for cluster, gpus, verdict in (("east", 1, "idle_allocated"), ("west", 2, "healthy")):
        assert report.main([*flags, cluster]) == 0
        document = json.loads((here / "it.json").read_text(encoding="utf-8"))
        assert document["title"] == f"Node shared:19400 of cluster {cluster}"
        assert document["subtitle"].startswith(f"{gpus} GPU")
        assert {fact["name"]: fact["value"] for fact in document["highlights"]}["Main verdict"] == verdict
        states = next(
            block["plot"]["spans"]
            for section in document["sections"]
            for block in section["blocks"]
            if section["key"] == "verdicts" and block["type"] == "Figure"
        )
        assert {span["state"] for row in states for span in row} == {verdict}


def test_a_notebook_has_the_run_and_the_server_filled_in(server: str, here: Path) -> None:
    address = server.replace("http://", "http://user:secret@")
    assert report.main(["--prometheus.url", address, "--run", "resnet50", "--notebook", "it.ipynb"]) == 0
    notebook = (here / "it.ipynb").read_text(encoding="utf-8")
    assert "secret" not in notebook
    cells = json.loads(notebook)["cells"]
    (parameters,) = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", ())]
    values: dict[str, Any] = {}
    exec("".join(parameters["source"]), values)
    assert (values["RUN"], values["SERVER"], values["NAMESPACE"], values["END"]) == ("resnet50", server, "vision", None)


def test_a_section_whose_query_fails_is_reported_as_incomplete(
    server: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hosts(_queries: Any) -> Any:
        raise PrometheusError("no answer within 60 s")

    monkeypatch.setattr("stallscope.tools.report.hosts.blocks", hosts)
    assert report.main(["--prometheus.url", server, "--run", "resnet50"]) == 0
    assert capsys.readouterr().err == "stallscope report: incomplete: Hosts: no answer within 60 s\n"
    assert "This section is unavailable: no answer within 60 s" in (here / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--run", "resnet5"], "there is no run 'resnet5' between"),
        (["--run", "resnet5"], "did you mean resnet50"),
        (["--run", "resnet50", "--against", "resnet"], "there is no run 'resnet' between"),
        (["--run", "resnet50", "--since", "2020-01-01", "--end", "2020-01-02"], "try another time"),
        (["--run", "resnet50", "--namespace", "speech"], "elsewhere only, as CLUSTER/NAMESPACE/RUN: /vision/resnet50"),
        (["--run", "resnet50", "--against", "vision/resnet50"], "--against: 'vision/resnet50' is the run itself"),
        (["--since", "2026-02-01", "--end", "2026-01-01"], "--since must be before --end"),
        (["--instance", "resnet"], "no exporter has instance 'resnet' in this time range; did you mean resnet50:19400"),
        (["--instance", "shard"], "no exporter has instance 'shard' in this time range; did you mean shared?"),
        (["--instance", "resnet50", "--cluster", "north"], "no Stallscope exporter of cluster 'north' in this"),
        (["--instance", "shared"], "several clusters have a node shared:19400; choose one with --cluster: east, west"),
        (["--run", "resnet50", "--out", "no/such/folder.html"], "can't be written: No such file or directory"),
        (
            ["--run", "a", "--prometheus.url", f"http://127.0.0.1:{free_port()}"],
            "Connection refused; name another server",
        ),
    ],
)
def test_a_failure_is_one_line_of_error_and_keeps_the_existing_report(
    server: str, here: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    (here / "report.html").write_text("the last one")
    assert report.main(["--prometheus.url", server, *flags]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("stallscope report: ")
    assert shown.err.count("\n") == 1
    assert said in shown.err
    assert shown.out == ""
    assert [(each.name, each.read_text()) for each in here.iterdir()] == [("report.html", "the last one")]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--run", "a", "--instance", "b"], "not allowed with argument"),
        (
            ["--run", "a", "--notebook", "report.html"],
            "--notebook: report.html is also the report's file; name another",
        ),
        (["--against", "b"], "--against: requires --run"),
        (["--cluster", "b"], "--cluster: requires --run, --instance or --by"),
        (["--notebook", "it.ipynb"], "--notebook: requires --run"),
        (["--run", "a", "--against", "a"], "--against: 'a' is the run itself; name another"),
        (["--run", "a", "--watch", "60s", "--out", "-"], "name a file with --out"),
        (["--run", "a", "--watch", "60s", "--end", "1h"], "--watch: cannot be combined with --end"),
        (["--run", ""], "--run: expected a name"),
        (["--run", "a", "--out", "."], ". is a directory; name a file in it"),
        (["--run", "a", "--watch", "1s"], "expected a duration 5s or more, got '1s'"),
        (["--run", "a", "--watch", "60"], "did you mean 60s?"),
        (["--run", "a", "--price-per-gpu-hour", "-1"], "expected a price such as 2.50 or 2.50USD, got '-1'"),
        (["--run", "a", "--price-per-gpu-hour", "2 dollars"], "expected a price such as 2.50 or 2.50USD"),
        (["--run", "a", "--timezone", "Mars/Olympus"], "time zone 'Mars/Olympus' is not known here"),
        (["--run", "a", "--format", "pdf"], "invalid choice: 'pdf'"),
        (["--run", "a", "--out", "a.pdf"], "a.pdf: unknown format; expected .html, .md, .json, .csv, or set --format"),
        (["--runs", "a"], "unknown flag --runs; did you mean --run?"),
    ],
)
def test_a_wrong_command_line_is_refused(capsys: pytest.CaptureFixture[str], flags: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        report.main(flags)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_library_that_is_missing_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "stallscope.tools.report.html", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert report.main(["--run", "resnet50"]) == 1
    assert capsys.readouterr().err == f"stallscope report needs jinja2: {install_command('analysis')}\n"


def test_watching_ends_with_the_run_and_a_page_that_renews_itself_no_more(
    server: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallscope.tools.cli.report.sleep", lambda _seconds: pytest.fail("the run has ended"))
    assert report.main(["--prometheus.url", server, "--run", "resnet18", "--watch", "60s"]) == 0
    assert 'http-equiv="refresh"' not in (here / "report.html").read_text(encoding="utf-8")


def test_watching_keeps_the_last_good_report_while_the_server_is_gone(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pages: list[str] = []
    with ExitStack() as until_gone:
        address, _ = until_gone.enter_context(filled())

        def sleep(seconds: float) -> None:
            assert 0 < seconds <= 60
            pages.append((here / "report.html").read_text(encoding="utf-8"))
            until_gone.close()
            if len(pages) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr("stallscope.tools.cli.report.sleep", sleep)
        with pytest.raises(KeyboardInterrupt):
            report.main(["--prometheus.url", address, "--run", "resnet50", "--watch", "60s"])
    assert '<meta http-equiv="refresh" content="60">' in pages[0]
    assert pages[2] == pages[0]
    shown = capsys.readouterr()
    assert shown.out == "wrote report.html; writing it again every 60 s until Ctrl-C\n"
    complaints = shown.err.splitlines()
    assert len(complaints) == 2
    assert "it can't be reached" in complaints[0]
    assert complaints[0].endswith("will retry")
