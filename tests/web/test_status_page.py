"""The status page as a whole: what is on it, in which order, for whom, and what it costs."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest

from stallscope.common.version import __version__
from stallscope.model.view.explanation_watch import Explanations
from stallscope.model.view.verdicts import RunName, Verdict, Verdicts
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.web.application import Choices
from stallscope.node.web.status.exporter_state import ExporterState
from stallscope.node.web.status.history import History
from stallscope.node.web.status.page import MAX_EXPLAINED, StatusPage
from tests.web.status_page import (
    BUSY,
    NOW,
    Element,
    ScriptedExplanations,
    ScriptedVerdicts,
    gpu,
    held,
    look,
    read,
    rendered,
    shown,
    status,
)

HOSTILE = (
    "<script>alert('x')</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style></svg><b>bold</b>",
    "line\nbreak\r\ttab\x00nul",
    "\u202egnp.exe \u200f\u2066 \u05d0\u05d1",
    "🐌 &amp; \ud800",
    "{{7*7}} <!-- ",
    "k" * 1024,
)


def section(page: Element, name: str) -> Element:
    return page.one("section", **{"aria-labelledby": name})


def test_shows_node_state_version_and_links_to_the_metrics() -> None:
    page = shown(host="node1", telemetry_path="/m")
    assert page.one("h1").text == "node1 ready"
    assert __version__ in page.one("footer").text
    addresses = [link.attributes["href"] for link in page.one("nav").all("a")]
    assert addresses == ["#runs", "#gpus", "#sources", "/m", "/-/healthy", "/-/ready", "/runbooks/"]
    assert shown(ready=False).one("h1").text == "node1 starting"


def test_the_title_shows_the_state_of_the_gpus() -> None:
    samples = (*gpu(0, **BUSY), *gpu(1, up=0, lost_info="gpu_lost"), *gpu(0, mig="1g.10gb", up=1))
    assert "<title>node1: 1 of 2 GPUs up, Stallscope</title>" in rendered(samples=samples).decode()
    assert "<title>node1: no GPU, Stallscope</title>" in rendered().decode()


def test_the_first_tiles_summarise_the_node() -> None:
    page = shown(
        samples=(*gpu(0, **BUSY), *gpu(1, **{**BUSY, "utilization_ratio": 0.43}), *gpu(2, up=0, lost_info="gpu_lost")),
        held=(held(), held("other", state="finished", ended=1.0)),
        statuses=(status("cpu", True), status("nvidia", False, "no library"), status("nfs", None, "no mount")),
    )
    tiles = [(each.one("dt").text, each.one("dd").text) for each in page.one("dl", class_="tiles").all("div")]
    assert tiles == [
        ("GPUs up", "2 of 3 1 down"),
        ("Mean activity", "70 %"),
        ("Power", "1,025 W"),
        ("Runs under way", "1"),
        ("Collectors up", "1 1 down"),
    ]


def test_unknown_values_are_not_zero_in_the_tiles() -> None:
    tiles = shown(samples=tuple(gpu(0, up=1))).one("dl", class_="tiles").text
    assert "Mean activity unknown" in tiles
    assert "Power unknown" in tiles
    assert "0 %" not in tiles


def test_shows_how_gpus_are_released() -> None:
    texts = [code.text for code in shown().one("footer").all("code")]
    assert texts == ["POST /-/release?for=2m", "POST /-/resume"]


def test_shows_each_source_and_its_problem() -> None:
    page = shown(
        statuses=(
            status("cpu", True),
            status("nvidia", False, "DriverUnavailable: no library", None),
            status("nfs", None, "no NFS mount", None),
            status("disk", None, "", None),
        )
    )
    rows = [row.text for row in section(page, "sources").one("tbody").all("tr")]
    assert rows == [
        "cpu up 10 s ago",
        "nvidia DriverUnavailable: no library down never",
        "nfs no NFS mount not present never",
        "disk not read yet never",
    ]
    assert "No collector is enabled." in section(shown(), "sources").text


def test_a_receiver_that_is_not_open_is_shown_with_its_reason_and_an_open_one_is_not() -> None:
    problem = "no reports through UDP 127.0.0.1:19400: Address already in use; choose a free port"
    assert problem in section(shown(closed_receivers=(problem,)), "sources").text
    assert "no reports through" not in section(shown(), "sources").text


def test_a_simulated_node_is_labelled_and_a_real_one_is_not() -> None:
    page = shown(simulated="gpu_lost")
    assert "are not real; they play the scenario gpu_lost." in page.one(class_="notice").text
    assert page.one("h1").text == "Simulated node ready"
    assert not shown().all(class_="notice")


def judged(explanations: ScriptedExplanations | None, **changes: Any) -> Element:
    """Return the page of four runs with verdicts and one without."""
    names = [f"run{number}" for number in range(5)]
    found = {RunName(name, ""): Verdict("input_bound", 0.3) for name in names[1:]}
    verdicts = ScriptedVerdicts(Verdicts("http://prometheus", found, frozenset(), {}, 1.0, ""))
    return shown(held=[held(name) for name in names], verdicts=verdicts, explanations=explanations, **changes)


def test_verdicts_are_explained_only_on_request() -> None:
    explanations = ScriptedExplanations(Explanations({}, None, ""))
    page = judged(explanations)
    assert not explanations.queried
    assert "reasons of the verdict" not in page.text
    (link,) = [each for each in page.all("a", class_="pause") if each.text == "Show why"]
    assert link.attributes["href"] == "?refresh=on&why=on"
    explained = judged(explanations, choices=Choices(refreshing=False, explained=True))
    assert explanations.queried == [[RunName(f"run{number}", "") for number in (1, 2, 3)]]
    assert explained.text.count("Querying the reasons of the verdict.") == MAX_EXPLAINED
    hrefs = {each.text: each.attributes["href"] for each in explained.all("a", class_="pause")}
    assert hrefs == {"Reload automatically": "?refresh=on&why=on", "Hide the reasons": "?refresh=off"}


def test_without_verdicts_or_a_prometheus_there_is_nothing_to_explain() -> None:
    assert "Show why" not in judged(None).text
    assert "Show why" not in shown(explanations=ScriptedExplanations(Explanations({}, None, ""))).text


def test_a_reader_can_pause_and_resume_reloading() -> None:
    assert shown().one("a", class_="pause").attributes["href"] == "?refresh=off"
    assert shown(choices=Choices(refreshing=False)).one("a", class_="pause").attributes["href"] == "?refresh=on"


def test_says_so_where_what_it_shows_is_old() -> None:
    assert not shown(now=NOW + 2).one("header").all(class_="warn")
    assert shown(now=NOW + 70).one("header").one(class_="warn").text == "1 min 10 s ago"


def test_works_without_scripts_and_loads_nothing() -> None:
    page = shown(samples=tuple(gpu(0, **BUSY)), held=(held(),))
    assert not {"script", "link", "img", "iframe", "form", "object"} & {each.tag for each in page.all()}
    assert not [each for each in page.all() for name in each.attributes if name.startswith("on") or name == "src"]


def test_has_a_language_a_viewport_landmarks_and_both_colour_schemes() -> None:
    page = shown(samples=tuple(gpu(0, **BUSY)), held=(held(), held(rank=1)), statuses=(status("cpu", True),))
    assert page.one("html").attributes["lang"] == "en"
    assert page.one("meta", name="viewport")
    assert "prefers-color-scheme:dark" in rendered().decode()
    assert [each.tag for each in page.one("body").children if isinstance(each, Element)] == ["header", "main", "footer"]
    levels = [int(each.tag[1]) for each in page.all() if each.tag in ("h1", "h2", "h3")]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(table.one("caption").text for table in page.all("table"))
    assert all(cell.attributes.get("scope") in ("row", "col") for cell in page.all("th"))
    assert all(image.attributes.get("aria-hidden") == "true" for image in page.all("svg"))


def test_every_place_that_it_links_to_is_there_once() -> None:
    page = shown(samples=tuple(gpu(0, **BUSY)), held=(held(),))
    identifiers = [each.attributes["id"] for each in page.all() if "id" in each.attributes]
    assert len(set(identifiers)) == len(identifiers)
    wanted = {
        (each.attributes["href"] or "")[1:] for each in page.all("a") if (each.attributes["href"] or "").startswith("#")
    }
    assert wanted <= set(identifiers)


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_from_outside_stay_text_and_are_cut(text: str) -> None:
    owners = [(text, text, text, "", ""), ("", "", "", text, text), ("", "", text, "", text)]
    samples = (
        *gpu(0, **BUSY, model=text, owners=owners),
        *gpu(1, up=0, lost_info=text, model=text, owners=owners),
        *gpu(2, sharing="mig", up=1),
        *gpu(2, mig=text, up=1, owners=owners),
    )
    name = text if text.isprintable() and len(text) <= 128 else "x"
    runs = (
        held(name, phases={name: 3.0}, failure=name, state="failed", ended=1.0),
        held(name, 1, gpus=[{"gpu": name, "uuid": ""}], info={"world_size": name, "namespace": name}),
    )
    page = rendered(
        samples=samples,
        held=runs,
        statuses=(status(text, False, text),),
        simulated=text,
        host=text,
        telemetry_path=text,
    )
    tree = read(page)
    plain = shown(
        samples=(
            *gpu(0, **BUSY, owners=owners),
            *gpu(1, up=0, lost_info="x", owners=owners),
            *gpu(2, sharing="mig", up=1),
            *gpu(2, mig="x", up=1, owners=owners),
        ),
        held=(
            held("x", phases={"x": 3.0}, failure="x", state="failed", ended=1.0),
            held("x", 1, gpus=[{"gpu": "x", "uuid": ""}], info={"world_size": "x", "namespace": "x"}),
        ),
        statuses=(status("x", False, "x"),),
        simulated="x",
    )
    assert [each.tag for each in tree.all()] == [each.tag for each in plain.all()]
    assert [sorted(each.attributes) for each in tree.all()] == [sorted(each.attributes) for each in plain.all()]
    assert all(each in "\n" or each.isprintable() for each in page.decode())
    assert len(page) < 60_000


def test_a_text_from_outside_can_not_turn_what_stands_beside_it() -> None:
    page = shown(samples=tuple(gpu(0, **BUSY, model="\u05d0\u05d1\u05d2")))
    (name,) = [each for each in page.all("bdi") if each.text == "\u05d0\u05d1\u05d2"]
    assert name.parent is not None
    assert name.parent.attributes["class"] == "model"


def test_eight_gpus_and_eight_ranks_take_less_than_60_kilobytes() -> None:
    clock = ScriptedClock()
    history = History(clock.monotonic)
    names = ("data_wait", "host_copy", "forward", "backward", "communication", "optimizer", "logging", "other")
    owner = ("research-team", "resnet50-worker-0-abcde", "trainer", "", "")
    page = rendered(
        samples=tuple(each for index in range(8) for each in gpu(index, **BUSY, owners=[owner])),
        held=tuple(held("resnet50-imagenet", rank, phases=dict.fromkeys(names, 10.0)) for rank in range(8)),
        statuses=tuple(status(f"source{number}", True) for number in range(14)),
        history=history,
    )
    assert len(page) < 60_000


def test_a_flood_of_gpus_and_ranks_leaves_the_page_bounded_and_says_what_is_missing() -> None:
    samples = tuple(each for index in range(200) for each in gpu(index, **BUSY))
    ranks = tuple(held(f"run{number:02}", rank) for number in range(64) for rank in range(16))
    page = rendered(samples=samples, held=ranks)
    assert len(page) < 150_000
    text = read(page).one("main").text
    assert "184 more GPUs are not shown; the metrics have them all." in text
    assert "52 more runs are not shown; the metrics have them all." in text


class Counting:
    """A page renderer that counts its calls, and blocks while the test holds it."""

    def __init__(self) -> None:
        self.looks = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.waiting = threading.Event()

    def __call__(self) -> ExporterState:
        self.looks += 1
        self.waiting.set()
        assert self.may_go_on.wait(60)
        return look()._replace(at=time.time())


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def page(counting: Counting) -> StatusPage:
    return StatusPage(counting, host="node1", telemetry_path="/metrics", history=History(ScriptedClock().monotonic))


def test_many_viewers_at_once_cost_one_rendering(
    page: StatusPage, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallscope.node.web.status.page.SHARED_SECONDS", 3600.0)
    assert len({page.html(Choices()) for _ in range(50)}) == 1
    assert counting.looks == 1


def test_those_who_paused_get_a_page_of_their_own(page: StatusPage) -> None:
    assert page.html(Choices()) != page.html(Choices(refreshing=False))


def test_who_comes_during_a_rendering_does_not_wait_for_it(
    page: StatusPage, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallscope.node.web.status.page.SHARED_SECONDS", 0.0)
    before = page.html(Choices())
    counting.may_go_on.clear()
    counting.waiting.clear()
    slow = threading.Thread(target=page.html, args=(Choices(),))
    slow.start()
    try:
        assert counting.waiting.wait(60)
        assert page.html(Choices()) == before
    finally:
        counting.may_go_on.set()
        slow.join()
