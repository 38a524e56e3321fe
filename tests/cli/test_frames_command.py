"""`stallscope frames` on a real Prometheus."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from stallscope.common.installation import install_command
from stallscope.lab.replay.series import Series
from stallscope.tools.cli import frames
from tests.analysis.scrapes import SCRAPES, of_gpu, of_host, of_rank, scraped, there


def everything() -> Iterator[Series]:
    for each in (*of_rank("resnet50", uuid="GPU-a", world_size=2), *of_gpu("resnet50:19400", 0, "GPU-a")):
        yield Series(each.name, each.labels, there(each.values, range(20), range(30, SCRAPES)))
    yield from of_host("resnet50:19400")
    for cluster in ("east", "west"):
        yield from of_rank("twins", instance=cluster, cluster=cluster)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with scraped(list(everything())) as held:
        yield held.url


@dataclass(frozen=True)
class Folder:
    """Where a command writes, and what it says."""

    path: Path
    capsys: pytest.CaptureFixture[str]

    def written(self, *line: str) -> str:
        """Run the command, which must succeed, and return its output."""
        assert frames.main([*line, "--out", str(self.path)]) == 0
        shown = self.capsys.readouterr()
        assert shown.err == ""
        return shown.out

    def refusal(self, *line: str) -> str:
        """The one line that a command says which fails and writes nothing."""
        assert frames.main(["--out", str(self.path), *line]) == 1
        shown = self.capsys.readouterr()
        assert shown.out == ""
        assert not list(self.path.iterdir())
        (said,) = shown.err.splitlines()
        return said


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path, capsys)


def test_writes_the_frames_and_says_what_and_what_is_missing(server: str, folder: Folder) -> None:
    said = folder.written("--run", "resnet50", "--prometheus.url", server)
    rows = len(pd.read_parquet(folder.path / "gpu.parquet"))
    assert rows == SCRAPES - 10
    assert re.search(rf"/gpu\.parquet +{rows} rows +[0-9,]+ bytes", said)
    assert "1 rank, one row per 30 s" in said
    assert "1 gap is longer than three rows" in said
    assert "1 of 2 ranks reported; missing: 1" in said


def test_writes_csv_and_describes_the_files_as_json(server: str, folder: Folder) -> None:
    said = folder.written("--run", "resnet50", "--prometheus.url", server, "--format", "csv", "--json", "--step", "5m")
    document = json.loads(said)
    assert (document["run"], document["resolution_seconds"]) == ("resnet50", 300)
    assert {each["frame"] for each in document["files"]} == {"steps", "phases", "gpu", "host", "values"}
    for each in document["files"]:
        assert len(pd.read_csv(each["path"])) == each["rows"]
        assert Path(each["path"]).stat().st_size == each["bytes"]


def test_a_cluster_must_be_chosen_and_can_be(server: str, folder: Folder) -> None:
    said = folder.refusal("--run", "twins", "--prometheus.url", server)
    assert "choose one with --cluster, or as CLUSTER/NAMESPACE/RUN: east//twins, west//twins" in said
    said = folder.written("--run", "twins", "--cluster", "west", "--prometheus.url", server, "--json")
    assert json.loads(said)["cluster"] == "west"
    assert set(pd.read_parquet(folder.path / "steps.parquet")["instance"]) == {"west"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--run", "resnet5"], "did you mean resnet50?"),
        (["--run", "resnet50", "--since", "1h", "--end", "10h"], "'resnet50' reported nothing between"),
        (["--run", "resnet50", "--since", "1900000000"], "--since must be before --end"),
        (["--run", "resnet50", "--step", "1h"], "the run's 1800 s have no row of 3600 s"),
        (["--run", "resnet50", "--out", "/dev/null/frames"], "/dev/null/frames can't be written: Not a directory"),
    ],
)
def test_an_impossible_request_is_one_line_of_error(server: str, folder: Folder, line: list[str], words: str) -> None:
    assert words in folder.refusal("--prometheus.url", server, *line)


def test_the_environment_may_name_the_server_and_an_unreachable_one_is_an_error(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setenv("STALLSCOPE_PROMETHEUS_URL", url)
    said = folder.refusal("--run", "resnet50")
    assert said == (
        f"stallscope frames: {url}: it can't be reached: Connection refused; "
        "name another server with --prometheus.url or STALLSCOPE_PROMETHEUS_URL"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--out", "x"], "required: --run"),
        (["--run", ""], "--run: expected a name"),
        (["--run", "a", "--out", __file__], "test_frames_command.py is a file; name a directory"),
        (["--run", "a", "--step", "5"], "did you mean 5s?"),
        (["--run", "a", "--step", "10ms"], "expected a duration 1s or more, got '10ms'"),
        (["--run", "a", "--since", "yesterday"], "expected a duration such as 90m"),
        (
            ["--run", "a", "--prometheus.url", "localhost:9090"],
            "expected http://HOST:PORT or https://HOST:PORT, got 'localhost:9090'",
        ),
        (["--run", "a", "--prometheus.timeout", "0s"], "expected a duration from 100ms to 1h, got '0s'"),
    ],
)
def test_a_wrong_command_line_is_refused(line: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        frames.main(line)
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert words in said


def test_without_a_library_it_says_what_to_install(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "stallscope.model.analysis.export", raising=False)
    said = folder.refusal("--run", "resnet50")
    assert said == f"stallscope frames needs pyarrow: {install_command('analysis')}"
