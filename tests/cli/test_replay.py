"""`stallscope record --pages` on a running exporter, and `stallscope replay` on what it wrote."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stallscope.lab.replay import verdicts
from stallscope.lab.replay.pages import Recording, Writer
from stallscope.lab.replay.verdicts import INTERVAL
from stallscope.lab.stack.programs import find_programs
from stallscope.model.catalogue.metrics import FAMILIES
from stallscope.model.clients.exporter import ExporterClient
from stallscope.node.sampling.exposition import Renderer
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.tools.cli import _record_pages, replay
from stallscope.tools.cli._recorded_exporter import Playback, samples_of
from tests.cli.test_trace import exporter
from tests.free_ports import free_port
from tests.simulation.verdicts import pages_of
from tests.waiting import until


@pytest.fixture
def client(url: str) -> Iterator[ExporterClient]:
    with contextlib.closing(ExporterClient(url)) as made:
        yield made


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with exporter(tmp_path_factory.mktemp("exporter"), "--simulation.scenario=healthy") as address:
        yield address


def command(*arguments: str | Path, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "stallscope", *map(str, arguments)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("STALLSCOPE_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_ends_a_recording_early_and_leaves_a_valid_file(url: str, tmp_path: Path) -> None:
    process = command("record", "--pages", "10m", "--exporter.url", url, "early.pages.gz", folder=tmp_path)
    file = tmp_path / "early.pages.gz"
    until(lambda: file.exists() and file.stat().st_size)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "ended early: interrupted" in said
    found = Recording(file)
    pages = [dict(page.samples) for page in found.pages()]
    assert pages
    assert not found.is_cut
    assert any(name.startswith("stallscope_build_info{") for name in pages[0])


def test_the_exporters_pages_are_recorded_once_a_second(
    client: ExporterClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(_record_pages, "time", clock)

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            clock.seconds += timeout or 0.0
            return False

    file = tmp_path / "file"
    with file.open("wb") as out:
        done = _record_pages.write_pages(out, client, {"start": 0.0}, duration=2.0, stop=Stop())
    assert done == (3, 0, "")
    assert [round(page.time) for page in Recording(file).pages()] == [0, 1, 2]


def test_a_recording_ends_when_its_file_is_full(client: ExporterClient, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("wb") as out:
        done = _record_pages.write_pages(
            out, client, {"start": 0.0}, duration=60.0, stop=threading.Event(), max_bytes=100
        )
    assert done.ended
    assert len(list(Recording(file).pages())) == done.pages


def test_seconds_without_an_answer_are_recorded_as_such(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("wb") as out:
        done = _record_pages.write_pages(
            out,
            ExporterClient(f"127.0.0.1:{free_port()}"),
            {"start": 0.0},
            duration=1.0,
            stop=threading.Event(),
        )
    assert done == (0, 2, "")
    assert ["it can't be reached" in page.error for page in Recording(file).pages()] == [True, True]


def test_masked_names_are_replaced_by_the_same_number_each_time() -> None:
    mask = _record_pages.Mask()
    page = 'a{user="ann",gpu="0"} 1\nb{pod="ann",container=""} 2\n'
    assert mask(page) == 'a{user="user-1",gpu="0"} 1\nb{pod="pod-2",container=""} 2\n'
    assert mask('c{user="bob"} 1\nc{user="ann"} 1\n') == 'c{user="user-3"} 1\nc{user="user-1"} 1\n'


def test_a_password_in_the_exporters_address_is_not_recorded(url: str) -> None:
    client = ExporterClient(url.replace("http://", "http://ann:secret@"))
    assert "secret" not in json.dumps(_record_pages.header(client, masked=False, capture=""))


def test_an_address_where_nothing_answers_is_refused(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    process = command("record", "--pages", "30s", "--exporter.url", address, "x", folder=tmp_path)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"stallscope record: {address}: it can't be reached" in said
    assert not (tmp_path / "x").exists()


def test_an_existing_file_is_kept_without_force(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    process = command("record", "--pages", "30s", "x", folder=tmp_path)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "exists already; overwrite it with --force" in said
    assert (tmp_path / "x").read_text() == "mine"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of six minutes, in which one GPU is lost after three."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "tree").mkdir()
    out = io.BytesIO()
    writer = Writer(out, {"start": 1.0, "stallscope": "0.1.0", "instance": "node-7:19400"})
    pages = pages_of("gpu_lost", folder / "tree", seconds=360, onset=180.0, gpus=2, scrape_seconds=INTERVAL)
    for place, page in enumerate(pages):
        writer.write(float(place * INTERVAL), page)
    writer.close()
    path = folder / "lost.pages.gz"
    path.write_bytes(out.getvalue())
    return path


def test_a_replay_prints_verdicts_and_alerts_over_time_and_as_json_the_same_spans(
    recorded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = verdicts.replay(Recording(recorded), str(find_programs().promtool))
    monkeypatch.setattr(verdicts, "replay", lambda *_arguments, **_options: replayed)
    assert replay.main([str(recorded)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{recorded}: 360 s of node-7:19400, recorded by Stallscope 0.1.0"
    assert said[1] == "run simulated-gpu-lost"
    assert said[2].startswith("  0:00:00 to 0:02:")
    assert any("  lost, " in line for line in said)
    assert any("GpuLost (critical)" in line for line in said)
    assert replay.main(["--json", str(recorded)]) == 0
    document = json.loads(capsys.readouterr().out)
    (run,) = document["runs"]
    assert run["run"] == "simulated-gpu-lost"
    assert run["spans"][0]["from"] == 0
    assert [span["cause"] for span in run["spans"]] == ["insufficient_data", "compute_bound", "lost"]
    assert run["spans"][-1]["to"] == document["seconds"] == 360
    assert {alert["alertname"] for alert in document["alerts"]} >= {"GpuLost", "StallscopeWatchdog"}


class Replayed(NamedTuple):
    """Output of a replay."""

    document: dict[str, Any]
    errors: str


@pytest.fixture(scope="module")
def replayed_cut_file(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    """A replay of a file that is cut off, with a changed threshold: one evaluation for two tests."""
    path = tmp_path_factory.mktemp("cut") / "cut"
    path.write_bytes(gzip.compress(gzip.decompress(recorded.read_bytes())[:-10]))
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        assert replay.main(["--json", "--threshold", "warmup_steps=1000000", str(path)]) == 0
    return Replayed(json.loads(out.getvalue()), errors.getvalue())


def test_a_file_that_is_cut_is_judged_up_to_the_cut_and_says_so(replayed_cut_file: Replayed) -> None:
    assert "was cut off; it was read up to the cut" in replayed_cut_file.errors
    (run,) = replayed_cut_file.document["runs"]
    assert (run["run"], run["spans"][-1]["cause"]) == ("simulated-gpu-lost", "lost")
    assert 0 < replayed_cut_file.document["seconds"] < 360


def test_a_changed_threshold_changes_the_verdicts(replayed_cut_file: Replayed) -> None:
    (run,) = replayed_cut_file.document["runs"]
    assert [span["cause"] for span in run["spans"]] == ["insufficient_data", "lost"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "none: No such file or directory"),
        ([__file__], "not a recording of pages; write one with `stallscope record --pages 10m FILE`"),
        (["--threshold", "none=1", "RECORDED"], "no threshold named none"),
    ],
)
def test_what_can_not_be_replayed_is_refused(
    recorded: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay.main([str(recorded) if word == "RECORDED" else word for word in arguments]) == 1
    assert message in capsys.readouterr().err


def content(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        return str(response.read().decode())


def test_servers_with_the_recording_answer_as_the_live_ones_did(recorded: Path, tmp_path: Path) -> None:
    process = command("replay", "--open", "--at", "5m", recorded, folder=tmp_path)
    try:
        assert process.stderr is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("Ctrl-C"):
            lines.append(process.stderr.readline())
            assert lines[-1], "the command has ended"
        (address,) = (line.split()[-1] for line in lines if "Prometheus with the recording" in line)
        (top,) = (line.split() for line in lines if line.startswith("stallscope top"))
        screen = command(*top[1:], "--once", folder=tmp_path)
        report = command(
            *("report", "--run", "simulated-gpu-lost", "--prometheus.url", address, "--out", "r.json"), folder=tmp_path
        )
        _, said = report.communicate(timeout=60)
        assert report.returncode == 0, said
        document = json.loads((tmp_path / "r.json").read_text())
        assert "lost" in json.dumps(document)
        shown, said = screen.communicate(timeout=60)
        assert screen.returncode == 0, said
        assert "Verdict: GPU lost" in shown
        assert "<bdi>Recording of node-7:19400</bdi>" in content(top[-1])
        # The first page that is read makes the recorded exporter query the verdicts.
        until(lambda: "GPU lost" in content(top[-1]), "the status page has no verdict")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_pages_are_not_played_from_a_time_after_the_end(
    recorded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = verdicts.Replayed(seconds=360, missing=0, runs={}, gpus={}, alerts={}, series=[], answers={})
    monkeypatch.setattr(verdicts, "replay", lambda *_arguments, **_options: short)
    assert replay.main(["--open", "--at", "6m", str(recorded)]) == 1
    assert "--at 360s: the recording has 360 s; choose an earlier time" in capsys.readouterr().err


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    monotonic = __call__


def playback(folder: Path, clock: Clock, *, begin: float) -> Playback:
    """Play a recording of 3 s from Unix time 1000, one of whose seconds has no page."""
    with (folder / "file").open("wb") as out:
        writer = Writer(out, {"start": 1000.0})
        for second in range(4):
            writer.write(float(second), f'a{{b="c"}} {second}\nb_timestamp_seconds {990 + second}\n')
        writer.write_error(3.5, "no answer")
        writer.close()
    return Playback(Recording(folder / "file"), begin, 4.0, monotonic=clock, now=lambda: 5000.0 + clock.seconds)


def test_pages_are_played_in_their_own_time_again_and_again(tmp_path: Path) -> None:
    clock = Clock()
    played = playback(tmp_path, clock, begin=1.5)
    shown = []
    for clock.seconds in (0.0, 0.6, 1.6, 2.1, 2.6):
        shown.append(played.values().get('a{b="c"}'))
    assert shown == ["1", "2", "3", None, "1"]


def test_unix_times_of_a_played_page_are_as_old_as_they_were(tmp_path: Path) -> None:
    clock = Clock()
    played = playback(tmp_path, clock, begin=1.0)
    for clock.seconds in (0.0, 0.5):
        age = 5000.0 + clock.seconds - float(played.values()["b_timestamp_seconds"])
        assert age == pytest.approx(10.0 + clock.seconds)


def test_samples_of_a_page_are_those_that_it_was_made_of_without_buckets() -> None:
    up, observed = FAMILIES["stallscope_gpu_up"], FAMILIES["stallscope_gpu_utilization_samples"]
    counts = (*[0] * len(observed.buckets), 4)
    given = [
        Sample(up, ("0", "GPU-1", ""), 1.0),
        Sample(up, ("0", 'a "b"', "3"), 0.0),
        Sample(observed, ("0", "GPU-1", ""), Distribution(counts, 2.5, 4)),
    ]
    groups, _series, _dropped = Renderer().lines(given, 1000)
    values = {series: value for group in groups.values() for series, value in group.items()}
    values["unknown_sum"] = "1"
    assert samples_of(values) == (*given[:2], given[2]._replace(value=Distribution((), 2.5, 4)))
