"""The words of a verdict and of its culprit, which every view shares."""

from __future__ import annotations

import re

import pytest

from stallscope.model.catalogue.causes import CAUSES, MISSING, REMAINDERS
from stallscope.model.view.verdict_words import line_sentence, phrase_of, root_words, words_of
from stallscope.model.view.verdicts import CodeLine, Culprit, OddRank, Verdict
from stallscope.training.protocol.stacks import Place
from tests.known_names import rules

HOT = Culprit("3", "b:9400", "1", "", "thermal_throttle")


def test_a_culprit_is_rank_gpu_node_and_root_cause_in_one_line() -> None:
    assert phrase_of(HOT) == "rank 3, GPU 1 of b:9400: slowed by heat"


@pytest.mark.parametrize(
    ("culprit", "words"),
    [
        (HOT._replace(gpu=""), "rank 3 of b:9400: slowed by heat"),
        (HOT._replace(mig="1g.10gb"), "rank 3, GPU 1 MIG 1g.10gb of b:9400: slowed by heat"),
        (HOT._replace(cause="lost"), "rank 3, GPU 1 of b:9400: GPU lost"),
        (HOT._replace(cause="nvlink_down"), "rank 3, GPU 1 of b:9400: NVLink down"),
        (HOT._replace(cause="straggler_rank"), "rank 3, GPU 1 of b:9400: slower than the others"),
        (HOT._replace(cause="hang_spin"), "rank 3, GPU 1 of b:9400: not in the collective of the others"),
        (HOT._replace(cause="of_tomorrow"), "rank 3, GPU 1 of b:9400: of_tomorrow"),
        (HOT._replace(instance="a\nb"), "rank 3, GPU 1 of a\\nb: slowed by heat"),
    ],
)
def test_a_culprit_is_described_as_far_as_known(culprit: Culprit, words: str) -> None:
    assert phrase_of(culprit) == words


def test_the_remedy_of_a_verdict_is_that_of_its_root_cause() -> None:
    words = words_of(Verdict("straggler_hw", 0.2, None, HOT))
    assert words.culprit == "Rank 3, GPU 1 of b:9400: slowed by heat."
    assert words.remedy == CAUSES["thermal_throttle"].remedy


def test_a_verdict_without_a_culprit_has_the_words_of_its_own_cause() -> None:
    words = words_of(Verdict("straggler_hw", 0.2))
    assert (words.culprit, words.remedy) == ("", CAUSES["straggler_hw"].remedy)


def test_a_root_cause_that_is_not_known_leaves_the_remedy_of_the_verdict() -> None:
    words = words_of(Verdict("straggler_hw", 0.2, None, HOT._replace(cause="of_tomorrow")))
    assert words.remedy == CAUSES["straggler_hw"].remedy


def test_the_total_is_shown_only_if_it_differs() -> None:
    assert words_of(Verdict("thermal_throttle", 0.42, 0.425)).cost == "It costs 42 % of the GPU time."
    total = words_of(Verdict("thermal_throttle", 0.42, 0.5), with_gpus=False).cost
    assert total == "It costs 42 % of its time, all causes together 50 %."


@pytest.mark.parametrize(
    ("places", "line"),
    [
        ([], ""),
        (
            [Place("metrics.py:46", "report", "all_gather")],
            "Rank 0 is in all_gather at metrics.py:46, unlike most ranks.",
        ),
        (
            [Place("a.py:1", "f", ""), Place("b\n.py:2", "g", "")],
            "Rank 0 is in f at a.py:1, unlike most ranks. Rank 1 is in g at b\\n.py:2, unlike most ranks.",
        ),
        (
            [Place("a.py:1", "f", "")] * 5,
            " ".join(f"Rank {number} is in f at a.py:1, unlike most ranks." for number in range(3))
            + " 2 more ranks differ.",
        ),
    ],
)
def test_a_verdict_of_a_standstill_names_the_ranks_that_differ_with_their_lines(places: list[Place], line: str) -> None:
    odd = tuple(OddRank(str(number), place) for number, place in enumerate(places))
    assert words_of(Verdict("hang_spin", 1.0, odd=odd)).line == line


SLOW = CodeLine("data_wait", "data/augment.py:41", "elastic > scipy.ndimage.map", 0.62, 4)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            SLOW,
            "62 % of the wait is in data/augment.py:41 elastic > scipy.ndimage.map, with 4 loader workers.",
        ),
        (SLOW._replace(workers=1, function=""), "62 % of the wait is in data/augment.py:41, with 1 loader worker."),
        (SLOW._replace(workers=0, function="f"), "62 % of the wait is in data/augment.py:41 f."),
        (CodeLine("checkpoint", "save.py:3", "f", 1.0), "100 % of the checkpoints is in save.py:3 f."),
        (CodeLine("other", "train.py:3", "f", 0.5), "50 % of this time is in train.py:3 f."),
        (CodeLine("my phase", "train.py:3", "f", 0.5), "50 % of phase my phase is in train.py:3 f."),
        (CodeLine("other", "tr\nain.py:3", "f\x1b", 0.5), "50 % of this time is in tr\\nain.py:3 f\\x1b."),
    ],
)
def test_a_line_of_code_is_one_sentence(line: CodeLine, sentence: str) -> None:
    assert line_sentence(line) == sentence
    assert words_of(Verdict("input_bound", 0.3, line=line)).line == sentence
    assert words_of(Verdict("input_bound", 0.3)).line == ""


def test_the_causes_with_a_phase_are_those_whose_line_the_rules_record_and_the_alerts_name() -> None:
    (rule,) = (rule for rule in rules() if rule.get("record") == "run:code:ratio2m")
    patterns = re.findall(r'run:verdict:ratio5m\{cause=~?"([^"]+)"\}', rule["expr"])
    recorded = {name for name in CAUSES if any(re.fullmatch(pattern, name) for pattern in patterns)}
    assert {cause.name for cause in CAUSES.values() if cause.phase} == recorded
    assert {cause.name for cause in CAUSES.values() if cause.rule and "{line}" in cause.rule.description} == recorded


@pytest.mark.parametrize("cause", CAUSES)
def test_words_of_a_root_cause_fit_into_a_template_and_a_line(cause: str) -> None:
    assert not set('"\\{}\n;') & set(root_words(cause))
    assert not set('"\\{}\n') & set(CAUSES[cause].remedy)


def test_insufficient_data_lists_the_missing_data_the_likely_first() -> None:
    words = words_of(Verdict("insufficient_data", 0.0, missing=("data_wait", "warmup")))
    assert words.remedy == f"{MISSING['warmup']} {MISSING['data_wait']}"


@pytest.mark.parametrize("missing", [(), ("a reason of tomorrow",)])
def test_insufficient_data_for_a_reason_that_is_not_known_names_the_series(missing: tuple[str, ...]) -> None:
    assert words_of(Verdict("insufficient_data", 0.0, missing=missing)).remedy == REMAINDERS["insufficient_data"][1]


def test_each_reason_that_the_rules_record_has_words_with_the_thresholds_of_the_rules() -> None:
    recorded = [rule for rule in rules() if rule.get("record") == "rank:missing:info"]
    assert {rule["labels"]["missing"] for rule in recorded} == set(MISSING)
    thresholds = {
        rule["labels"]["name"]: float(rule["expr"].removeprefix("vector(").removesuffix(")"))
        for rule in rules()
        if rule.get("record") == "stallscope:threshold"
    }
    assert (thresholds["report_stale_seconds"], thresholds["warmup_seconds"]) == (300, 300)
    assert (thresholds["warmup_steps"], thresholds["observed_share"]) == (6, 0.4)
