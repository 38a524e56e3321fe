"""Verdicts on a recording equal those that Prometheus would have recorded."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from stallscope.lab.replay import rule_engine
from stallscope.lab.replay.pages import Recording, RecordingError, Writer
from stallscope.lab.replay.rule_files import group_of, rule_files
from stallscope.lab.replay.verdicts import INTERVAL, Replayed, Span, Subject, lines, replay, scraped
from stallscope.lab.stack.errors import StackError
from tests.rules.rulebook import GROUPS, ROOT, RULE_FILES, tool
from tests.simulation.verdicts import pages_of, series_in

START = 1_790_000_000.0


def recording(folder: Path, pages: Mapping[float, str | None], start: float = START) -> Recording:
    file = io.BytesIO()
    writer = Writer(file, {"start": start, "instance": "node-1:19400"})
    for second, page in pages.items():
        if page is None:
            writer.write_error(second, "no answer")
        else:
            writer.write(second, page)
    writer.close()
    path = folder / "file.pages.gz"
    path.write_bytes(file.getvalue())
    return Recording(path)


def columns(found: Recording) -> dict[str, list[float | None]]:
    series, _seconds = scraped(found, INTERVAL)
    return {each.name: each.values for each in series}


def test_each_scrape_has_the_newest_page(tmp_path: Path) -> None:
    found = recording(tmp_path, {second + 0.02: f"a {second}\n" for second in range(46)})
    assert columns(found) == {"up": [1.0, 1.0, 1.0, 1.0], "a": [0.0, 14.0, 29.0, 44.0]}


def test_a_series_that_leaves_the_page_is_absent_from_then_on(tmp_path: Path) -> None:
    found = recording(tmp_path, {0.0: "a 1\nb 1\n", 14.0: "b 1\n", 29.0: "b 1\n", 45.0: "a 2\nb 1\n"})
    assert columns(found)["a"] == [1.0, None, None, 2.0]


def test_scrapes_without_a_page_are_down_and_have_no_series(tmp_path: Path) -> None:
    found = recording(tmp_path, {0.0: "a 1\n", 14.0: None, 60.0: "a 2\n"})
    # No page came between 14 and 60 s: the exporter did not answer, or the recording process was paused.
    assert columns(found) == {"up": [1.0, 0.0, 0.0, 0.0, 1.0], "a": [1.0, None, None, None, 2.0]}


def test_a_page_that_comes_a_little_late_leaves_no_gap_in_scrapes_of_a_second(tmp_path: Path) -> None:
    found = recording(tmp_path, {0.0: "a 0\n", 1.0: "a 1\n", 2.001: "a 2\n", 3.4: "a 3\n", 4.0: "a 4\n", 9.0: "a 9\n"})
    series, _seconds = scraped(found, 1)
    assert {each.name: each.values for each in series} == {
        "up": [1.0] * 7 + [0.0, 0.0, 1.0],
        "a": [0.0, 1.0, 1.0, 2.0, 4.0, 4.0, 4.0, None, None, 9.0],
    }


def test_unix_times_are_moved_with_the_recording(tmp_path: Path) -> None:
    page = f"stallscope_training_last_step_timestamp_seconds {START - 5}\na {START}\n"
    found = columns(recording(tmp_path, dict.fromkeys([0.0, 15.0, 30.0], page)))
    assert found["stallscope_training_last_step_timestamp_seconds"] == [-4.0] * 3
    assert found["a"] == [START] * 3


def test_labels_of_the_page_take_precedence_over_those_of_the_target(tmp_path: Path) -> None:
    found = recording(tmp_path, dict.fromkeys([0.0, 15.0, 30.0], 'a{instance="other",pod="p"} 1\n'))
    series, _seconds = scraped(found, INTERVAL)
    assert [each.labels for each in series if each.name == "a"] == [
        {"job": "stallscope", "instance": "other", "pod": "p"}
    ]


@pytest.mark.parametrize("seconds", [0, 1, 29])
def test_a_recording_that_is_too_short_is_refused(tmp_path: Path, seconds: int) -> None:
    found = recording(tmp_path, {float(second): "a 1\n" for second in range(seconds + 1)})
    with pytest.raises(RecordingError, match=f"{seconds} s of pages; rules need at least 30 s"):
        scraped(found, INTERVAL)


def test_a_recording_without_pages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="0 s of pages"):
        scraped(recording(tmp_path, {}), INTERVAL)


def test_every_rule_file_of_the_bundle_is_evaluated_except_adapters_for_other_exporters() -> None:
    there = {*(ROOT / "prometheus" / "rules").glob("*.yml"), *(ROOT / "alerts").glob("*.yml")}
    evaluated = rule_files()
    assert len(evaluated) == len(set(evaluated))
    left_out = there - set(evaluated)
    assert {path.name for path in left_out if not path.name.startswith("canonical")} == {"alertmanager.yml"}


def test_each_group_has_the_name_that_its_file_gives_it() -> None:
    for path in rule_files():
        (group,) = yaml.safe_load(path.read_text())["groups"]
        assert group["name"] == group_of(path)


def test_an_unknown_threshold_is_refused(tmp_path: Path) -> None:
    found = recording(tmp_path, dict.fromkeys([0.0, 15.0, 30.0], "a 1\n"))
    with pytest.raises(StackError, match="no threshold named warmup"):
        replay(found, tool("promtool"), thresholds={"warmup": 1.0})


def test_verdicts_and_alerts_on_a_recording_are_those_of_the_rules_on_the_same_pages(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    pages = list(pages_of("gpu_lost", tree, seconds=600, onset=300.0, gpus=2, scrape_seconds=INTERVAL))
    moments = range(0, 601, INTERVAL)
    found = recording(tmp_path, dict(zip(map(float, moments), pages, strict=True)), start=1.0)
    replayed = replay(found, tool("promtool"), everything=True)

    everything = '{__name__=~".+:.+"} or ALERTS{alertstate="firing"}'
    direct = rule_engine.evaluate(
        series_in(pages, {"job": "stallscope", "instance": "node-1:19400"}),
        {everything: moments},
        promtool=tool("promtool"),
        rule_files=RULE_FILES,
        groups=GROUPS,
        scrape_seconds=INTERVAL,
        evaluation_seconds=INTERVAL,
    )
    # Prometheus adds the values of a sum in any order.
    assert by_series(replayed.answers) == pytest.approx(by_series(direct.samples[everything]), rel=1e-9, nan_ok=True)

    (spans,) = replayed.runs.values()
    assert spans[-1].cause == "lost"
    assert 300 <= spans[-1].begin < 420
    assert "GpuLost (critical)" in "\n".join(lines(replayed))


def by_series(answers: rule_engine.Answers) -> dict[tuple[int, frozenset[tuple[str, str]]], float]:
    return {
        (moment, frozenset(sample.labels.items())): sample.value
        for moment, samples in answers.items()
        for sample in samples
    }


def test_gpus_with_the_same_verdicts_share_their_lines() -> None:
    spans = [Span(0, 60, "insufficient_data", 0, 0), Span(75, 120, "input_bound", 0.31, 0.33)]
    other = [Span(0, 120, "healthy", 0, 0)]
    gpus: dict[Subject, Sequence[Span]] = {
        (("gpu", str(gpu)), ("uuid", f"GPU-{gpu}")): other if gpu == 2 else spans for gpu in (0, 1, 2, 3)
    }
    found = Replayed(seconds=120, missing=0, runs={}, gpus=gpus, alerts={}, series=[], answers={})
    assert list(lines(found)) == [
        "GPU 0, 1, 3",
        "  0:00:00 to 0:01:00  insufficient_data",
        "  0:01:15 to 0:02:00  input_bound, 31 to 33 % lost",
        "GPU 2",
        "  0:00:00 to 0:02:00  healthy",
        "no alerts",
    ]
