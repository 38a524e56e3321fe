"""GPUs on the status page."""

from __future__ import annotations

from typing import Any

import pytest

from stallscope.model.catalogue.metrics import FAMILIES
from stallscope.model.view.verdicts import Verdict, Verdicts
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.node.web.status.history import POINT_SECONDS, History
from tests.web.status_page import BUSY, NOW, Element, ScriptedVerdicts, gpu, shown, status


def cards(**changes: Any) -> list[Element]:
    return shown(**changes).one("section", **{"aria-labelledby": "gpus"}).all("article")


def facts(card: Element) -> dict[str, str]:
    return {each.one("dt").text: each.one("dd").text for each in card.one("dl", class_="facts").all("div")}


def widths(part: Element) -> list[int]:
    return [int(each.attributes["width"] or "") for each in part.all("rect")]


def test_a_gpu_at_work_shows_activity_memory_temperature_power_and_owner() -> None:
    owner = ("research", "resnet50-0", "trainer", "", "")
    (card,) = cards(samples=tuple(gpu(3, **BUSY, owners=[owner])))
    assert card.one("h3").text == "GPU 3 up"
    assert card.one(class_="model").text == "NVIDIA L40S"
    assert card.one(class_="activity").text == "Activity 97 %"
    assert facts(card) == {
        "Memory": "60.0 of 80.0 GiB",
        "Temperature": "61 °C",
        "Power": "512 of 700 W",
        "Held by": "research/resnet50-0",
    }
    assert widths(card) == [970, 750]
    assert card.one(class_="uuid").text == "GPU-3"


def test_memory_that_a_gpu_shares_with_the_host_is_named() -> None:
    memory: Any = {"up": 1, "memory_used_bytes": 1 << 30, "memory_total_bytes": 4 << 30}
    own, unified = cards(samples=(*gpu(0, **memory), *gpu(1, **memory, memory="unified")))
    assert facts(own)["Memory"] == "1.0 of 4.0 GiB"
    assert facts(unified)["Memory"] == "1.0 of 4.0 GiB, shared with the host"


def test_unknown_values_look_unlike_zero() -> None:
    silent, idle = cards(
        samples=(*gpu(0, up=1), *gpu(1, up=1, utilization_ratio=0.0, memory_used_bytes=0, memory_total_bytes=1 << 30))
    )
    assert silent.one(class_="activity").text == "Activity unknown"
    assert set(facts(silent).values()) == {"unknown"}
    assert silent.all("svg", class_="untold")
    assert idle.one(class_="activity").text == "Activity 0 %"
    assert facts(idle)["Memory"] == "0.0 of 1.0 GiB"
    assert not idle.all("svg", class_="untold")


def test_a_little_activity_is_not_shown_as_none() -> None:
    (card,) = cards(samples=tuple(gpu(0, up=1, utilization_ratio=0.001)))
    assert card.one(class_="activity").text == "Activity under 1 %"


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ([("research", "resnet50-0", "trainer", "", "")], "research/resnet50-0"),
        ([("", "", "", "4711", "ada")], "ada, job 4711"),
        ([("", "", "9f86d081", "", "ada")], "ada, container 9f86d081"),
        ([("", "", "", "", "ada")], "ada"),
        ([("", "", "", "", "ada"), ("", "", "", "", "bob")], "ada, bob"),
        ([("", "", "", "", name) for name in "abcde"], "a, b, c and 2 more"),
    ],
)
def test_shows_the_owners(owners: list[tuple[str, ...]], words: str) -> None:
    (card,) = cards(samples=tuple(gpu(0, up=1, owners=owners)))
    assert facts(card)["Held by"] == words


def test_a_gpu_has_no_owner_only_where_owners_are_read() -> None:
    samples = tuple(gpu(0, up=1))
    for reported, words in ((True, "nobody"), (False, "unknown"), (None, "unknown")):
        (card,) = cards(samples=samples, statuses=(status("owners", reported),))
        assert facts(card)["Held by"] == words


def test_a_lost_gpu_shows_reason_time_and_remedy_and_no_reading() -> None:
    reported: dict[str, Any] = {"up": 0, "lost_info": "gpu_lost", "last_reading_timestamp_seconds": NOW - 125}
    (card,) = cards(samples=tuple(gpu(5, **reported, owners=[("", "", "", "4711", "")])))
    assert card.one("h3").text == "GPU 5 down"
    assert "gpu_lost It fell off the bus: drain the node and reboot. Last reading 2 min 5 s ago." in card.text
    assert "job 4711" in card.text
    assert not card.all(class_="activity")


def test_a_reason_that_is_new_is_shown_as_it_is() -> None:
    (card,) = cards(samples=tuple(gpu(5, up=0, lost_info="struck_by_lightning")))
    assert "struck_by_lightning The exporter's log has the driver's own words." in card.text


def test_a_gpu_that_was_not_read_yet_is_neither_up_nor_down() -> None:
    (card,) = cards(samples=tuple(gpu(0)))
    assert card.one("h3").text == "GPU 0 not read yet"
    assert not card.all(class_="activity")


def test_mig_instances_stand_with_their_gpu() -> None:
    (card,) = cards(
        samples=(
            *gpu(2, sharing="mig", **BUSY),
            *gpu(2, mig="1g.18gb", sharing="mig", up=1, memory_used_bytes=1 << 30, memory_total_bytes=18 << 30),
            *gpu(2, mig="2g.35gb", sharing="mig", up=1, utilization_ratio=0.5, owners=[("", "", "", "", "ada")]),
            *gpu(2, mig="3g.71gb", sharing="mig", up=0, lost_info="mig_reconfigured"),
        ),
        statuses=(status("owners", True),),
    )
    rows = [row.text for row in card.one("tbody").all("tr")]
    assert rows == [
        "1g.18gb unknown 1.0 of 18.0 GiB nobody",
        "2g.35gb 50 % unknown ada",
        "3g.71gb down mig_reconfigured unknown nobody",
    ]
    assert "Held by" not in facts(card)


def test_an_instance_whose_gpu_is_not_known_stands_for_itself() -> None:
    (card,) = cards(samples=tuple(gpu(2, mig="1g.18gb", up=1)))
    assert card.one("h3").text == "GPU 2 MIG 1g.18gb up"


def test_gpus_are_in_the_order_of_their_numbers() -> None:
    samples = tuple(each for index in (10, 2, 1) for each in gpu(index, up=1))
    assert [card.one("h3").text for card in cards(samples=samples)] == ["GPU 1 up", "GPU 2 up", "GPU 10 up"]


def test_gpus_in_trouble_are_the_last_to_be_left_out() -> None:
    samples = [each for index in range(40) for each in gpu(index, up=1)]
    samples += gpu(40, up=0, lost_info="hung")
    titles = [card.one("h3").text for card in cards(samples=tuple(samples))]
    assert titles == [*[f"GPU {index} up" for index in range(15)], "GPU 40 down"]


def test_explains_why_there_is_no_gpu() -> None:
    def text(**changes: Any) -> str:
        return shown(**changes).one("section", **{"aria-labelledby": "gpus"}).text

    assert "No GPU on this machine responds; the sources below have the reason." in text()
    assert "No GPU collector is enabled." in text(reads_gpus=False)
    assert "Not read yet." in text(ready=False)


def observed(uuid: str, total: float, count: int) -> Sample:
    return Sample(FAMILIES["stallscope_gpu_utilization_samples"], ("0", uuid), Distribution((), total, count))


def test_the_line_shows_the_last_minutes_with_a_gap_where_nothing_was_read() -> None:
    clock = ScriptedClock()
    history = History(clock.monotonic)
    for reported in ((0.0, 0), (5.0, 10), (10.0, 20), None, (12.0, 40), (12.2, 60)):
        history.note([] if reported is None else [observed("GPU-0", *reported)])
        clock.advance(POINT_SECONDS)
    (card,) = cards(samples=tuple(gpu(0, **BUSY)), history=history)
    assert card.one("svg", class_="line").one("path").attributes["d"] == "M55 12h0L56 12M59 23.8h0"
    assert "30 s: mean 34 %, 1 to 50 %" in card.text


def test_there_is_no_line_before_there_is_anything_to_see() -> None:
    (card,) = cards(samples=tuple(gpu(0, **BUSY)))
    assert not card.all("svg", class_="line")


def verdicts(**gpus: Verdict) -> ScriptedVerdicts:
    return ScriptedVerdicts(Verdicts("http://prometheus", {}, frozenset(), gpus, 12.0, ""))


def test_the_verdict_is_shown_with_its_cost_and_remedy() -> None:
    reported = verdicts(**{"GPU-0": Verdict("thermal_throttle", 0.126), "GPU-1": Verdict("healthy", 0.0)})
    first, second, third = cards(
        samples=tuple(each for index in range(3) for each in gpu(index, **BUSY)), verdicts=reported
    )
    assert first.one(class_="verdict").text == (
        "Verdict: Slowed by heat. It costs 13 % of the GPU time. Check airflow, fans and inlet temperature."
    )
    assert "Verdict: Healthy. Nothing to do." in second.text
    assert "Verdict" not in third.text


def test_the_verdict_of_its_run_is_shown_on_a_gpu_without_advice_for_another_one() -> None:
    reported = verdicts(**{"GPU-0": Verdict("straggler_hw", 0.14)})
    (card,) = cards(samples=tuple(gpu(0, **BUSY)), verdicts=reported)
    assert "Verdict of its run: One rank's hardware is slow, 14 %." in card.text
    assert "replace" not in card.text


def test_verdicts_of_gpus_are_queried_by_uuid() -> None:
    reported = verdicts()
    cards(samples=(*gpu(0, **BUSY), *gpu(1, up=0, lost_info="gpu_lost")), verdicts=reported)
    assert [sorted(gpus) for _runs, gpus in reported.queried] == [["GPU-0", "GPU-1"]]
