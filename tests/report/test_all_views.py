"""Summary, report, comparison, `top`, status page and metrics of a run show what a stopwatch in its program shows.

Programs run in scripted time, except for one of `tests/shim/loops`, whose reports are sent again. The exporter's page
is scraped, the bundle's rules are evaluated over the scrapes, and a real Prometheus answers for both.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from json import dumps, loads
from pathlib import Path

import pytest

from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.model.analysis.run_figures import read_figures
from stallscope.model.analysis.runs import find_run
from stallscope.model.catalogue.causes import CAUSES, MISSING
from stallscope.model.clients.prometheus import Prometheus
from stallscope.model.view.model import Run, runs_of
from stallscope.model.view.observer import Observer, wanted
from stallscope.node.intake.runs import RunRegistry
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.sampler import Sampler
from stallscope.tools.report import json
from stallscope.tools.report.contents import build
from stallscope.tools.report.document import Document, Facts, Notice
from stallscope.tools.report.subject import of_run
from stallscope.tools.summary.measured import RankTime, RunTime
from stallscope.training.protocol.report import Report, parse
from stallscope.training.shim.bursts import Burst, Line
from tests.filled_prometheus import recorded, write
from tests.prometheus_server import prometheus
from tests.scenarios.runner import EVALUATION_SECONDS
from tests.shim.loops.__main__ import REPORTS
from tests.simulation.verdicts import series_in

# Two real programs import PyTorch, and Prometheus is started.
pytestmark = [pytest.mark.slow(45), pytest.mark.timeout(900)]
_LABELS = {"cluster": "east", "job": "stallscope", "instance": "node:19400"}
_START = 1.0
_AFTER_SECONDS = 480
"""Seconds after the end of a program at which it is reported: longer than the window of the rules."""
_TIMES = ("start", "sent", "first_step", "last_step")
ROOT = Path(__file__).parents[2]


@dataclass
class Stopwatch:
    """The clock of a program, which scrapes the exporter while time passes, and what the program spent."""

    clock: ScriptedClock
    scrape: Callable[[], None]
    spent: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    step_seconds: float = 0.0
    next_scrape: float = EVALUATION_SECONDS

    def spend(self, seconds: float, phase: str = "") -> None:
        """Let time pass, in a phase."""
        if phase:
            self.spent[phase] = self.spent.get(phase, 0.0) + seconds
        end = self.clock.time() + seconds
        while end >= self.next_scrape + _START:
            self.clock.advance(self.next_scrape + _START - self.clock.time())
            self.scrape()
            self.next_scrape += EVALUATION_SECONDS
        self.clock.advance(end - self.clock.time())


Take = Callable[[bytes], None]
Program = Callable[[SimulatedRun, Stopwatch], None]


def steps(run: SimulatedRun, watch: Stopwatch, number: int, wait: float, work: float) -> None:
    for _ in range(number):
        with run.phase("data_wait"):
            watch.spend(wait, "data_wait")
        with run.phase("forward"):
            watch.spend(work, "forward")
        run.step()
        watch.steps += 1
        watch.step_seconds += wait + work


class SampledLine(Burst):
    """Stands for samples of stacks, which a run in scripted time does not take."""

    def start(self) -> None:
        self._is_done = True

    def lines(self) -> dict[str, list[Line]]:
        return {"data_wait": [Line("train.py:31", "main", 0.9, 0)]}


def short(run: SimulatedRun, watch: Stopwatch) -> None:
    run.sample(SampledLine)
    watch.spend(20)  # before the loop, in no phase
    steps(run, watch, 40, 1.06, 0.09)
    run.finish()


def hanging(run: SimulatedRun, watch: Stopwatch) -> None:
    steps(run, watch, 500, 0.02, 0.1)
    watch.spend(600)


def replay_program(name: str, take: Take, watch: Stopwatch, folder: Path) -> None:
    """Send the reports of a real PyTorch program."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed: make frameworks")
    command = [sys.executable, "-m", "tests.shim.loops", "--exact", f"--keep={folder}", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840, check=False)
    program = folder / f"{name}-with"
    assert (program / "truth-0.json").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    truth = loads((program / "truth-0.json").read_text())
    watch.spent = {phase: seconds for phase, seconds in truth["seconds"].items() if phase != "initialization"}
    watch.steps, watch.step_seconds = truth["steps"], truth["step_seconds"]
    documents = [loads(line) for line in (program / REPORTS).read_bytes().splitlines()]
    shift = _START - documents[0]["start"]
    for document in documents:
        document |= {key: document[key] + shift for key in _TIMES if key in document} | {"run": "job"}
        watch.spend(max(0.0, document["sent"] - watch.clock.time()))
        take(dumps(document).encode())


def evaluating(run: SimulatedRun, watch: Stopwatch) -> None:
    for _ in range(10):
        steps(run, watch, 20, 0.1, 0.4)
        with run.phase("evaluation"):
            watch.spend(5, "evaluation")
    run.finish()


PROGRAMS = {
    "gpt_uploads": "with checkpoints but without evaluation",
    "evaluation_between_memory": "with checkpoints but without evaluation",
}
"""Real programs, with what their steps contain."""


@dataclass(frozen=True)
class Views:
    """One run in all views."""

    watch: Stopwatch
    seconds: float
    """From its start to its end."""
    summary: RunTime
    report: Document
    node: Run
    """The model of `top` and the status page."""
    step_seconds: float | None
    """As compared."""

    @property
    def reported(self) -> dict[str, object]:
        """The report's values by name."""
        return json.values(self.report)


@pytest.fixture(
    scope="module",
    params=[short, hanging, evaluating, *PROGRAMS],
    ids=lambda program: getattr(program, "__name__", program),
)
def views(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Views]:
    folder: Path = tmp_path_factory.mktemp("node")
    clock = ScriptedClock(_START)
    registry = RunRegistry(clock=clock, root=folder)
    sampler = Sampler(clock=clock, interval=5.0)
    sampler.add_collector("reports", registry.collect)
    reports: list[Report] = []
    pages: list[str] = []

    def take(payload: bytes) -> None:
        reports.append(parse(payload))
        registry.accept(payload, "http", 1)

    def scrape() -> None:
        sampler.run_round()
        pages.append(sampler.page(openmetrics=False, gzip=False).decode())

    scrape()
    watch = Stopwatch(clock, scrape)
    program = request.param
    began = clock.time()
    if program in PROGRAMS:
        replay_program(program, take, watch, tmp_path_factory.mktemp("programs"))
    else:
        run = SimulatedRun("job", clock=clock, sender=take, samples_per_step=8, gpus=[{"gpu": "0"}], pid=70003)
        program(run, watch)
    seconds = clock.time() - began
    if program is not hanging:
        watch.spend(_AFTER_SECONDS)
    scraped = series_in(pages, _LABELS)
    observer = Observer()
    for number, page in enumerate(pages):
        node = observer.observe(wanted(page), number * EVALUATION_SECONDS + _START)
    (shown,) = runs_of(node.ranks)
    summary = RunTime("job", (RankTime(reports[-1], None),))
    with prometheus() as server:
        # A whole minute some hours ago, so that the times of all queries are in the past.
        start = 1_700_000_040.0
        write([server.port], [*scraped, *recorded(scraped)], start, len(pages))
        client = Prometheus(server.address, timeout=60)
        end = start + (len(pages) - 1) * EVALUATION_SECONDS
        known = find_run(client, "job", start - 60, end)
        document = build(of_run(client, known), client)
        step = read_figures(client, known).step_seconds
        client.close()
    return getattr(program, "__name__", program), Views(watch, seconds, summary, document, shown, step)


def test_phases_have_the_shares_of_the_stopwatch(views: tuple[str, Views]) -> None:
    _, found = views
    total = sum(found.watch.spent.values())
    truth = {name: spent / total for name, spent in found.watch.spent.items()}
    phases = found.reported["phases"]
    assert isinstance(phases, list)
    reported = {row["phase"].lower().replace(" ", "_"): row["ratio"] for row in phases}
    node = sum(found.node.phases.values())
    for phase, share in truth.items():
        assert found.summary.shares[phase] == pytest.approx(share, abs=0.01), "summary"
        assert reported[phase] == pytest.approx(share, abs=0.01), "report"
        if found.node.since is None:  # else its phases are those of the last minute
            assert found.node.phases[phase] / node == pytest.approx(share, abs=0.01), "top"


def test_steps_and_their_time_are_those_of_the_stopwatch(views: tuple[str, Views]) -> None:
    name, found = views
    number = found.watch.steps
    # A hung process has not yet reported its last half second.
    assert number - (5 if name == "hanging" else 0) <= found.summary.all_steps <= number
    assert found.node.step == found.summary.all_steps
    assert found.reported["step_reached"] == found.summary.all_steps
    if name not in PROGRAMS:
        assert found.reported["samples"] == 8 * found.summary.all_steps
    assert found.reported["step_seconds"] == pytest.approx(found.step_seconds)
    assert found.summary.step == pytest.approx(found.step_seconds, rel=0.01)


def test_a_step_has_one_length_without_the_named_pauses(views: tuple[str, Views]) -> None:
    name, found = views
    step = pytest.approx(found.watch.step_seconds / found.watch.steps, rel=0.01)
    assert found.summary.step == step, "summary"
    assert found.reported["step_seconds"] == step, "report"
    assert found.step_seconds == step, "metrics, as compared"
    if name != "hanging":
        assert found.node.step_seconds == step, "top"
    (section,) = (section for section in found.report.sections if section.key == "steps")
    (note,) = (
        fact.note
        for block in section.blocks
        if isinstance(block, Facts)
        for fact in block.facts
        if fact.key == "step_seconds"
    )
    contents = {"evaluating": "without evaluation", **PROGRAMS}
    assert note == contents.get(name, note)


def test_times_are_those_of_the_stopwatch(views: tuple[str, Views]) -> None:
    name, found = views
    live = found.reported["live_seconds"]
    hours = found.reported.get(
        "gpu_hours", found.reported.get("rank_hours")
    )  # the page has no GPUs, so rules count ranks
    assert isinstance(live, float)
    assert isinstance(hours, float)
    assert live == pytest.approx(found.seconds, abs=EVALUATION_SECONDS / 2 if name == "hanging" else 1)
    assert live <= found.report.end - found.report.start + 0.01
    assert hours == pytest.approx(live / 3600)


def test_a_standstill_is_lost_from_the_last_step_on(views: tuple[str, Views]) -> None:
    name, found = views
    lost = found.reported["lost_ratio"]
    if name != "hanging":
        assert found.report.live is False
        assert found.report.standstill_timestamp_seconds is None
        return
    assert found.report.standstill_timestamp_seconds == found.reported["last_step_timestamp_seconds"]
    assert lost == pytest.approx(600 / 660, abs=0.03)
    assert found.reported["main_verdict"] == "stalled"
    advised = found.reported["recommendations"]
    assert isinstance(advised, list)
    assert "speed_up" not in advised[0]


def test_a_run_without_verdict_has_its_largest_phase_in_front(views: tuple[str, Views]) -> None:
    name, found = views
    first = found.report.highlights[0]
    if name == "short":
        assert (first.name, first.value) == ("Largest phase", "Data wait")
        line = "most of it at train.py:31 main"
        assert first.note == f"92 % of the loop's time, by the run's own counters; {line}"
        (lead, *_) = found.report.sections[0].blocks
        assert isinstance(lead, Notice)
        assert f"Data wait: {line}." in lead.text
        assert MISSING["warmup"] in lead.text
        (advice,) = found.report.sections[1].blocks
        assert isinstance(advice, Notice)
        largest = "There is no verdict. The largest phase apart from the work is data wait: "
        assert advice.text == largest + CAUSES["input_bound"].remedy
    elif name == "hanging":
        assert (first.name, first.value) == ("Main verdict", "stalled")
