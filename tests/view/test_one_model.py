"""The status page, `stallscope top` and its JSON show the same values of one node."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from stallscope.common.formatting import ago, count, duration, percent, progress, size_of, time_left, whole_time
from stallscope.model.catalogue.gpu_losses import explained
from stallscope.model.view import observer
from stallscope.model.view.phase_shares import phase_shares
from stallscope.model.view.verdict_words import words_of
from stallscope.model.view.verdicts import Culprit, RunName, Verdict, Verdicts
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.node.web.status.history import MARK_SECONDS, History
from stallscope.tools.terminal.document import document
from stallscope.tools.terminal.feed import ExporterState
from stallscope.tools.terminal.lines import plain
from stallscope.tools.terminal.screen import Screen
from stallscope.tools.terminal.views import VIEWS
from tests.terminal.pages import GIB, NOW, rendered, sample, samples
from tests.web.status_page import Element, ScriptedVerdicts, shown

FIRST, SECOND = 1000.0, 1240.0
STARTED = NOW + 100
VERDICTS = Verdicts(
    server="http://prometheus:9090",
    runs={
        RunName("resnet50", ""): Verdict("input_few_workers", 0.23, 0.31),
        RunName("resnet50", "research"): Verdict(
            "straggler_hw", 0.21, 0.21, Culprit("0", "b:9400", "1", "", "thermal_throttle")
        ),
    },
    ambiguous=frozenset({RunName("other", "")}),
    gpus={"GPU-0": Verdict("input_few_workers", 0.23), "GPU-1": Verdict("thermal_throttle", 0.126)},
    age=12.0,
    problem="",
)


class Shown(NamedTuple):
    """The three renderings of a node."""

    page: Element
    top: dict[str, list[str]]
    """For each view, a text for each GPU or run."""
    json: dict[str, Any]


def rank(run: str, number: int, state: str, *, seconds: float, namespace: str = "", pushed: float) -> list[Sample]:
    """Return the samples of a rank that waits for data half of the time, with steps of four seconds."""
    labels = (run, str(number))
    steps = int(seconds / 4)
    counts = (*[0] * len(observer.STEP_SECONDS.buckets), steps)
    return [
        sample(observer.RANK_INFO, (*labels, "0", "4", "", "", namespace, *[""] * 5)),
        sample(observer.RANK_GPU, (*labels, str(number), f"GPU-{number}")),
        sample(observer.RANK_STATE, (*labels, state)),
        sample(observer.START, labels, STARTED),
        sample(observer.LAST_PUSH, labels, NOW + pushed),
        sample(observer.RESTARTS, labels, number),
        sample(observer.STEP_SECONDS, labels, Distribution(counts, steps * 3.0, steps)),
        sample(observer.PHASE_SECONDS, (*labels, "data_wait"), seconds / 2),
        sample(observer.PHASE_SECONDS, (*labels, "augment"), seconds / 2),
    ]


def node(second: float) -> list[Sample]:
    """Return a node with four GPUs (one lost, one split) and three runs (two of one name, one ended)."""
    instance = ("2", "MIG-0")
    extra = [
        sample(observer.GPU_UP, ("7", "GPU-7"), 0),
        sample(observer.LOST_INFO, ("7", "GPU-7", "gpu_lost")),
        sample(observer.LAST_READING, ("7", "GPU-7"), NOW + second - 20),
        sample(observer.OWNER_INFO, ("7", "GPU-7", "research", "trainer-0", "main", "", "")),
        sample(observer.GPU_INFO, ("2", "GPU-2", "NVIDIA H200", *[""] * 7, "mig")),
        sample(observer.GPU_UP, ("2", "GPU-2")),
        sample(observer.GPU_INFO, (*instance, "NVIDIA H200", *[""] * 7, "mig", "1g.18gb")),
        sample(observer.GPU_UP, (*instance, "1g.18gb")),
        sample(observer.UTILIZATION, (*instance, "1g.18gb"), 0.375),
        sample(observer.MEMORY_USED, (*instance, "1g.18gb"), GIB),
        sample(observer.MEMORY_TOTAL, (*instance, "1g.18gb"), 18 * GIB),
        sample(observer.OWNER_INFO, (*instance, "", "", "0123456789abcdef", "", "carol", "1g.18gb")),
        sample(observer.SOURCE_UP, ("owners",)),
        *rank("resnet50", 7, "running", seconds=second - 100, namespace="research", pushed=second),
        *rank("other", 0, "failed", seconds=900, pushed=950),
        *rank("other", 1, "lost", seconds=900, pushed=900),
    ]
    return samples(second, extra=extra)


def three_renderings(*seconds: float) -> Shown:
    """Render the node at the last of these seconds."""
    clock = ScriptedClock()
    history = History(clock.monotonic)
    watching = observer.Observer()
    for second in seconds[:-1]:
        watching.observe(observer.wanted(rendered(node(second))), second)
        for _ in range(2):  # an older mark and a newer one
            history.note(node(second))
            clock.advance(MARK_SECONDS)
    now = seconds[-1]
    found = watching.observe(observer.wanted(rendered(node(now))), now)
    screen = Screen((ExporterState("node1:19400", found, 0.4, ""),), VERDICTS)
    top = {
        name: "\n".join(plain(each) for each in view(screen, "number", 1000)).split("\n\n")
        for name, view in VIEWS.items()
    }
    page = shown(samples=node(now), at=NOW + now, now=NOW + now, history=history, verdicts=ScriptedVerdicts(VERDICTS))
    return Shown(page, top, document(screen))


@pytest.fixture(params=[(FIRST,), (FIRST, SECOND)], ids=["first look", "later"], scope="module")
def renderings(request: pytest.FixtureRequest) -> Shown:
    return three_renderings(*request.param)


def spaced(text: str) -> str:
    """Convert the terminal's `20.0/48.0 GiB` to the page's wording."""
    return " ".join(text.replace("/", " of ").replace("│", " ").split())


def verdict_words(verdict: dict[str, Any] | None, of_gpu: bool) -> list[str]:
    """Return the words expected for a verdict in JSON."""
    if verdict is None:
        return []
    culprit = None if verdict["culprit"] is None else Culprit(**verdict["culprit"])
    words = words_of(Verdict(verdict["cause"], verdict["share_ratio"], verdict["lost_ratio"], culprit))
    if of_gpu and words.of_run:
        return [f"Verdict of its run: {words.title}, {percent(verdict['share_ratio'])}."]
    return [f"Verdict: {words.title}.", *(each for each in (words.cost, words.culprit, words.remedy) if each)]


def gpu_words(gpu: dict[str, Any], now: float) -> list[str]:
    """Return the words expected for a GPU in JSON."""
    words = [owner["user"] or owner["pod"] for owner in gpu["owners"]] + verdict_words(gpu["verdict"], of_gpu=True)
    if not gpu["up"]:
        return [*words, gpu["reason"], explained(gpu["reason"]), f"Last reading {ago(now - gpu['last_reading'])}."]
    if gpu["utilization_ratio"] is not None:
        words.append(percent(gpu["utilization_ratio"]))
    if gpu["memory_used_bytes"] is not None:
        words.append(size_of(gpu["memory_used_bytes"], gpu["memory_total_bytes"]))
    if gpu["power_watts"] is not None:
        words.append(f"{gpu['power_watts']:.0f} of {gpu['power_limit_watts']:.0f} W")
    if gpu["temperature_celsius"] is not None:
        words.append(f"{gpu['temperature_celsius']:.0f} °C")
    return words


def test_gpus_have_the_same_values() -> None:
    """On the first page. Later, top shows activity since the previous page, the status page that of the last second."""
    page, top, json = three_renderings(FIRST)
    gpus, now = json["nodes"][0]["gpus"], json["nodes"][0]["time"]
    whole = [gpu for gpu in gpus if gpu["mig"] is None]
    assert [gpu["gpu"] for gpu in whole] == ["0", "1", "2", "7"]
    cards = page.one("section", **{"aria-labelledby": "gpus"}).all("article")
    for gpu, card in zip(whole, cards, strict=True):
        assert f"GPU {gpu['gpu']} {'up' if gpu['up'] else 'down'}" in card.text
        assert [each for each in gpu_words(gpu, now) if each not in card.text] == []
    for gpu, block in zip(gpus, top["GPUs"], strict=True):
        assert [each for each in gpu_words(gpu, now) if each not in spaced(block)] == []
    (instance,) = (gpu for gpu in gpus if gpu["mig"])
    (row,) = page.one("section", **{"aria-labelledby": "gpus"}).one("tbody").all("tr")
    assert row.text == "1g.18gb 38 % 1.0 of 18.0 GiB carol, container 0123456789ab"
    assert [each for each in gpu_words(instance, now) if each not in row.text] == []


def run_words(run: dict[str, Any], now: float) -> list[str]:
    """Return the words expected for a run in JSON."""
    states = [state if len(run["states"]) == 1 else f"{number} {state}" for state, number in run["states"].items()]
    since = "since the start" if run["since_seconds"] is None else f"in the last {whole_time(run['since_seconds'])}"
    words = [
        *verdict_words(run["verdict"], of_gpu=False),
        *states,
        since,
        duration(run["step_seconds"]),
        count(run["step"]),
        f"{ago(now - run['last_report'])}",
        *(f"{name.replace('_', ' ')} {percent(share)}" for name, share in phase_shares(run["phases_ratio"])),
    ]
    if run["verdict_ambiguous"]:
        words.append("Verdict: unknown.")
    if run["steps_planned"] is not None:
        words.append(f"of {count(run['steps_planned'])}, {progress(run['step'] / run['steps_planned'])}")
        words.append(f"{time_left(run['seconds_left'])} left")
    if run["loss"] is not None:
        words.append(f"{run['loss']:.4g}")
    return words


def test_a_run_without_steps_is_the_same_in_all_three() -> None:
    """The two ranks of the first run made their last step 10 s and 310 s before the last page, then 310 s both."""
    for recent, expected in ((10, None), (310, 310)):
        ages = {0: recent, 1: 310}
        steps = [sample(observer.LAST_STEP, ("resnet50", str(rank)), NOW + FIRST - ages[rank]) for rank in ages]
        found = samples(FIRST, without=[observer.LAST_STEP], extra=steps)
        node_now = observer.node_of(observer.wanted(rendered(found)))
        screen = Screen((ExporterState("node1:19400", node_now, 0.4, ""),), None)
        block = "\n".join(plain(each) for each in VIEWS["Runs"](screen, "number", 200))
        article = shown(samples=found, at=NOW + FIRST, now=NOW + FIRST).one("article", **{"class": "card run"})
        json = document(screen)["runs"][0]
        assert json["seconds_without_step"] == expected
        assert [rank["seconds_without_step"] for rank in json["ranks"]] == [expected, 310]
        assert (json["samples_per_second"] is None) is (expected is not None)
        for text, rank_places in ((block, 1), (article.text, 1)):
            places = text.count("no step for 5 min 10 s")
            assert places == (rank_places if expected is None else 2), text  # equal ranks share a row at a standstill
        assert ("per step" in block) is (expected is None)
        assert ("Step time" in article.text) is (expected is None)


def test_runs_and_ranks_have_the_same_values(renderings: Shown) -> None:
    page, top, json = renderings
    runs, now = json["runs"], json["nodes"][0]["time"]
    assert [(run["run"], run["namespace"]) for run in runs] == [
        ("resnet50", None),
        ("resnet50", "research"),
        ("other", None),
    ]
    articles = page.one("section", **{"aria-labelledby": "runs"}).all("article")
    blocks = top["Runs"]
    for run, article, block in zip(runs, articles, blocks, strict=True):
        assert [each for each in run_words(run, now) if each not in article.text] == []
        assert [each for each in run_words(run, now) if each not in spaced(block)] == []
        rows = [row.text for row in article.one("tbody").all("tr")] if len(run["ranks"]) > 1 else [article.text]
        lines = block.splitlines()[-len(run["ranks"]) :]
        for each, row, line in zip(run["ranks"], rows, lines, strict=True):
            most = max(each["phases_ratio"], key=each["phases_ratio"].__getitem__)
            words = [
                each["state"],
                count(each["step"]),
                duration(each["step_seconds"]),
                percent(each["phases_ratio"][most]),
            ]
            assert [word for word in words if word not in row] == []
            assert [word for word in words if word not in line] == []
            assert most.replace("_", " ") in row
            assert f"{percent(each['phases_ratio'][most])} {most.replace('_', ' ')}" in line
