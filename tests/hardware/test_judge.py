"""`python -m tests.hardware.judge` on days that a stand-in has recorded."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from stallscope.lab.replay.pages import FORMAT, Writer
from stallscope.node.drivers.nvidia.capture import read, text
from stallscope.tools.cli.record import replay
from tests.captures.golden import captures
from tests.hardware import judge
from tests.hardware.judge_inputs import Machine
from tests.hardware.judge_tables import with_section
from tests.simulation.verdicts import pages_of

START = 1_790_000_000.0
SECONDS = 40
MACHINE = {
    "gpu": "NVIDIA H100 80GB HBM3",
    "driver": "590.48.01",
    "stallscope": "0.1.0",
    "started": START,
    "stand_in": True,
    "steps": [
        {"name": "suite", "status": "done", "seconds": 3},
        {"name": "clocks", "status": "skipped", "message": "no permission"},
    ],
}
COSTS = {
    "nvml": {"nvmlDeviceGetTemperature": {"median_us": 12.0, "p99_us": 30.0, "n": 100}},
    "poll_seconds": 0.0123,
    "scrape_seconds": {"median": 0.001, "p99": 0.0042, "n": 100},
    "shim": {"with_us": 12345.6, "why": "text"},
}


def program(name: str, planted: Iterable[str] = (), **others: Any) -> dict[str, Any]:
    return {
        "name": name,
        "run": "simulated-small-batch",
        "planted": list(planted),
        "started": START,
        "ended": START + SECONDS,
        "exit": 0,
        "truth": {"lost": None},
        **others,
    }


def write_pages(folder: Path, pages: Iterable[str], header: Mapping[str, Any] = MappingProxyType({})) -> None:
    with (folder / "pages.rec").open("wb") as file:
        writer = Writer(file, {"start": START, **header})
        for second, page in enumerate(pages):
            writer.write(float(second), page)
        writer.close()


def write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


def write_programs(folder: Path, *programs: Mapping[str, Any]) -> None:
    (folder / "programs.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in programs), encoding="utf-8")


@pytest.fixture
def day(tmp_path: Path) -> Path:
    """A day without pages and programs."""
    folder = tmp_path / "day"
    folder.mkdir()
    write_json(folder / "machine.json", MACHINE)
    write_json(folder / "costs.json", COSTS)
    (folder / "suite.xml").write_text(
        "<testsuites><testsuite><testcase name='a'/><testcase name='b'><skipped/></testcase>"
        "<testcase name='test_c'><failure/></testcase></testsuite></testsuites>"
    )
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of its own."""
    for name in ("alerts/VERDICTS.md", "exporter/COST.md"):
        (tmp_path / "root" / name).parent.mkdir(parents=True)
        shutil.copy(judge.ROOT / name, tmp_path / "root" / name)
    (tmp_path / "root" / "tests" / "captures").mkdir(parents=True)
    return tmp_path / "root"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def row(said: str, name: str) -> list[str]:
    """Return the cells of a row."""
    (line,) = (line for line in said.splitlines() if line.startswith(f"| {name} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_each_program_is_judged_by_its_planted_cause_and_a_stand_in_writes_nothing(
    day: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    story = pages_of("small_batch", tree, seconds=SECONDS, onset=1.0, gpus=1, scrape_seconds=1, poll_seconds=1.0)
    # Scripted time begins at 1 s.
    write_pages(day, story, {"start": 1.0})
    moved: dict[str, Any] = {"started": 1.0, "ended": 1.0 + SECONDS}
    write_programs(
        day,
        program("right", ["small_batch"], allowed=["gpu_mem_headroom"], truth={"lost": 0.5}, **moved),
        program("wrong", truth={}, **moved),
        program("of-the-gpu", ["small_batch"], run=None, exit=1, **moved),
        program("never", ["gpu_mem_headroom"], allowed=["small_batch"], **moved),
        program("cpu", ["h2d_bound"], runs=["other"], rehearsed=False, **moved),
        program("later", ["small_batch"], started=START, ended=START + 9),
        program("none", ["small_batch"], skipped="no PyTorch", started=None, ended=None),
    )
    before = contents(root)

    assert judge.main([str(day)], root) == 0

    said = capsys.readouterr()
    assert "a stand-in: none of this was measured on hardware" in said.out
    assert "divided by 30" in said.out
    assert "`stall_seconds` is 10 s" in said.out
    planted, verdict, is_right, after, lost, alerts = row(said.out, "right")[1:]
    assert (planted, is_right, alerts) == ("`small_batch`", "yes", "none")
    assert verdict.startswith("`small_batch`, ")
    assert 0 < int(after.removesuffix(" s")) < 30
    assert lost.endswith(" %, 50 %")
    wrong = row(said.out, "wrong")
    assert wrong[1] == "no cause"
    assert wrong[3] == "no"
    assert "TrainingSmallBatch (warning)" in wrong[6]
    assert row(said.out, "of-the-gpu (exit status 1)")[3] == "yes"
    assert row(said.out, "never")[3] == "yes"
    assert row(said.out, "cpu")[3] == "not rehearsed"
    assert row(said.out, "later")[2] == "not in the recording"
    assert row(said.out, "none")[2] == "skipped: no PyTorch"
    assert "Right verdicts: 3 of 4; false alerts: " in said.out
    assert contents(root) == before


def test_a_day_without_pytorch_has_the_reason_for_each_program(day: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pages(day, ['stallscope_gpu_up{gpu="0"} 1\n'] * 4)
    write_programs(day, program("none", ["small_batch"], skipped="no PyTorch", started=None, ended=None))
    assert judge.main([str(day)]) == 0
    said = capsys.readouterr().out
    assert row(said, "none")[2] == "skipped: no PyTorch"
    assert "Right verdicts: 0 of 0; false alerts: 0" in said


def test_signals_are_compared_with_their_truth(day: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 100 W for ten seconds, and then 300 W, of GPU 0.
    watts = [100.0] * 10 + [300.0] * 11
    joules = [100.0 * second if second < 10 else 1000 + 300.0 * (second - 10) for second in range(21)]
    other = 'power_watts{gpu="1"} 7\n'
    write_pages(
        day,
        (f'power_watts{{gpu="0"}} {w}\n{other}energy_joules_total {j}\n' for w, j in zip(watts, joules, strict=True)),
    )

    def signal(load: str, metric: str, truth: float) -> dict[str, Any]:
        window = {"from": START + 10, "to": START + 20}
        labels = {"gpu": "0"} if metric == "power_watts" else {}
        return {"load": load, "metric": metric, **window, "truth": truth, "tolerance": 5.0, "labels": labels}

    found = [
        signal("gauge", "power_watts", 301.0),
        signal("total", "energy_joules_total", 299.0),
        signal("outside", "power_watts", 310.0),
        signal("absent", "no_such", 1.0),
        {"load": "invalid", "metric": "power_watts"},
    ]
    write_json(day / "signals.json", found)

    assert judge.main([str(day)]) == 0

    said = capsys.readouterr()
    assert row(said.out, "gauge")[2:7] == ["301", "300", "-1", "5", "yes"]
    assert row(said.out, "total")[2:7] == ["299", "300", "+1", "5", "yes"]
    assert row(said.out, "outside")[6] == "no"
    assert row(said.out, "absent")[3:7] == ["missing", "missing", "5", "no"]
    assert "2 of 4 within the tolerance" in said.out
    assert "signals.json: entry 5: from: expected a number, got None; run the day again" in said.err


def test_costs_and_the_suite_are_shown_and_steps_that_were_not_done(
    day: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge.main([str(day)]) == 0
    said = capsys.readouterr()
    assert "hardware suite: 1 passed, 1 skipped, 1 failed: test_c" in said.out
    assert row(said.out, "poll of all GPUs, seconds")[1] == "0.0123"
    assert row(said.out, "scrape, seconds")[1] == "median 0.001, 99th percentile 0.0042"
    assert row(said.out, "step with the shim, µs")[1] == "12,346"
    assert row(said.out, "`nvmlDeviceGetTemperature`")[1] == "median 12 µs, 99th percentile 30 µs"
    assert "judge: clocks: skipped: no permission" in said.err


def test_a_day_on_hardware_is_written_into_the_repository_once(
    day: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(day / "machine.json", {**MACHINE, "stand_in": False})
    recorded = read(captures()[0])
    capture = replace(recorded, header=replace(recorded.header, hardware=True, masked=True))
    (day / "capture.json.gz").write_bytes(gzip.compress(text(capture).encode()))
    verdicts = (root / "alerts/VERDICTS.md").read_text()
    for _ in range(2):
        assert judge.main([str(day)], root) == 0
    cost = (root / "exporter/COST.md").read_text()
    assert cost.count("### NVIDIA H100 80GB HBM3, driver 590.48.01\n") == 1
    assert "| poll of all GPUs, seconds | 0.0123 |" in cost
    assert cost.startswith((judge.ROOT / "exporter/COST.md").read_text().rstrip())
    assert (root / "alerts/VERDICTS.md").read_text() == verdicts, "there were no programs and signals"
    file, page = sorted((root / "tests/captures").iterdir())
    assert file.name.startswith("nvidia__")
    assert (file.read_text(), page.read_text()) == (text(capture), replay(capture)[0])


def test_a_day_with_a_capture_of_a_stand_in_is_not_written_whatever_the_machine_claims(
    day: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(day / "machine.json", {**MACHINE, "stand_in": False})
    (day / "capture.json.gz").write_bytes(gzip.compress(captures()[0].read_bytes()))
    before = contents(root)
    assert judge.main([str(day)], root) == 0
    assert "recorded from a stand-in, which machine.json does not state; nothing is written" in capsys.readouterr().err
    assert contents(root) == before


def test_a_section_replaces_that_of_the_same_gpu_and_driver_alone() -> None:
    one = Machine("A", "1", "0.1.0", 0.0, stand_in=False)
    other = replace(one, driver="2")
    page = with_section(with_section("# Page\n\nText.\n", other, "two\n"), one, "first\n")
    page = page.rstrip() + "\n\n## Next\n\nMore.\n"
    assert with_section(page, one, "second\n") == (
        "# Page\n\nText.\n\n## On real GPUs\n\n"
        "### A, driver 1\n\nsecond\n\n### A, driver 2\n\ntwo\n\n## Next\n\nMore.\n"
    )


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("machine.json", "{", "machine.json: invalid JSON"),
        ("machine.json", "[]", "machine.json: expected an object, got []"),
        ("machine.json", '{"gpu": 3}', "machine.json: gpu: expected str, got 3"),
        ("costs.json", None, "costs.json: missing; its part of the day is not judged"),
        ("costs.json", "[", "costs.json: invalid JSON"),
        ("suite.xml", "<a", "suite.xml: invalid XML"),
        ("signals.json", "{}", "signals.json: expected a list"),
        ("signals.json", "[3]", "signals.json: entry 1: expected an object, got 3"),
        ("programs.jsonl", "{}\n", "programs.jsonl: line 1: name: expected str, got None"),
        ("programs.jsonl", "x\n", "programs.jsonl: line 1: invalid JSON"),
        ("programs.jsonl", json.dumps(program("a", ["no"])), "line 1: unknown cause 'no'; alerts/CAUSES.md lists them"),
        ("programs.jsonl", json.dumps(program("a", truth={"lost": "x"})), "line 1: truth: lost: expected a number"),
        ("capture.json.gz", "text", "capture.json.gz: unreadable"),
        ("capture.json.gz", gzip.compress(b"text"), "capture.json.gz: line 1 is not a header of a capture"),
        ("capture.json.gz", gzip.compress(b"text" * 99)[:-9], "capture.json.gz: unreadable"),
        ("pages.rec", None, "pages.rec: No such file or directory"),
        ("pages.rec", "text", "pages.rec: not a recording of pages"),
        (
            "pages.rec",
            gzip.compress(json.dumps({"format": FORMAT, "version": 99, "start": 1, "stallscope": "9.0"}).encode()),
            "pages.rec: recorded by Stallscope 9.0 in version 99 of the format, this one reads up to 1",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # compressed bytes have the time in them
)
def test_an_invalid_file_is_named_and_everything_else_is_judged(
    day: Path, root: Path, file: str, content: str | bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(root)
    if content is None:
        (day / file).unlink(missing_ok=True)
    else:
        (day / file).write_bytes(content.encode() if isinstance(content, str) else content)
    assert judge.main([str(day)], root) == 0
    said = capsys.readouterr()
    assert message in said.err
    assert ("hardware suite: 1 passed" in said.out) is (file != "suite.xml")
    assert ("poll of all GPUs" in said.out) is (file != "costs.json")
    assert contents(root) == before


def test_a_recording_that_is_cut_is_judged_up_to_the_cut(day: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pages(day, [f"a {second}\n" for second in range(30)])
    content = gzip.decompress((day / "pages.rec").read_bytes())
    (day / "pages.rec").write_bytes(gzip.compress(content[:-5]))
    window = {"from": START, "to": START + 30, "tolerance": 1}
    write_json(day / "signals.json", [{"load": "x", "metric": "a", "truth": 14, **window}])
    assert judge.main([str(day)]) == 0
    said = capsys.readouterr()
    assert "the file was cut off; it was judged up to the cut" in said.err
    assert row(said.out, "x")[6] == "yes"


def test_a_folder_without_a_day_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge.main([str(tmp_path)]) == 1
    assert f"{tmp_path}: nothing could be judged" in capsys.readouterr().err
