from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.rules.together import Document, Together

GPU = 'stallscope_gpu_up{gpu="0"}'
TARGET = 'up{job="stallscope"}'
MET = "  SUCCESS\n"
UNMET = """Unit Testing:  stories.test.yml
  FAILED:
    expr: "label_replace(gpu:up:max{cluster=\\"story-1-\\"}, …)", time: 20m,
        exp: {gpu="0"} 1E+00
        got: nil
"""
FIRED = """Unit Testing:  stories.test.yml
  FAILED:
    alertname: GpuLost, time: 20m,
        exp:[
            0:
              Labels:{alertname="GpuLost", unexpected="yes"}
              Annotations:{}
            ],
        got:[
            0:
              Labels:{alertname="GpuLost", cluster="story-0-", run="train"}
              Annotations:{dashboard_url="/d/run?var-cluster=a&var-cluster=story-0-"}
            1:
              Labels:{alertname="GpuLost", cluster="story-1-", run="train"}
              Annotations:{dashboard_url="/d/run?var-cluster=b"}
            ]
"""


def story(
    expression: str = "gpu:up:max", *names: str, value: float = 1, at: str = "20m", rules: str = "rules.yml"
) -> Document:
    return {
        "rule_files": [rules],
        "tests": [
            {
                "interval": "30s",
                "input_series": [{"series": name, "values": f"{value}+0x120"} for name in names or (GPU,)],
                "promql_expr_test": [{"expr": expression, "eval_time": at, "exp_samples": []}],
            }
        ],
    }


def text(words: str, value: float = 1) -> Document:
    """A story that expects an alert in these words."""
    document = story(value=value)
    alert = {"exp_labels": {"run": "train"}, "exp_annotations": {"dashboard_url": words}}
    test = {name: of for name, of in document["tests"][0].items() if name != "promql_expr_test"}
    test["alert_rule_test"] = [{"alertname": "GpuLost", "eval_time": "20m", "exp_alerts": [alert]}]
    return {**document, "tests": [test]}


def saying(answer: str) -> tuple[Callable[[Document], str], list[Document]]:
    documents: list[Document] = []

    def run(document: Document) -> str:
        documents.append(document)
        return answer

    return run, documents


def test_stories_share_one_run_each_in_a_cluster_of_its_own() -> None:
    run, documents = saying(MET)
    stories = [story(value=value) for value in (1, 2, 3)]
    together = Together(stories, run)
    assert all(together.passed(each) for each in stories)
    assert [each["series"] for each in documents[0]["tests"][0]["input_series"]] == [
        f'stallscope_gpu_up{{cluster="story-{number}-",gpu="0"}}' for number in range(3)
    ]
    assert len(documents) == 1


def test_expectations_of_the_same_series_share_them_and_pass_together() -> None:
    run, documents = saying(UNMET)
    stories = [story(), story("count(gpu:up:max)", value=2), story("sum(gpu:up:max)", at="21m"), story(value=2)]
    together = Together(stories, run)
    assert [together.passed(each) for each in stories] == [True, False, True, False]
    test = documents[0]["tests"][0]
    assert [each["values"] for each in test["input_series"]] == ["1+0x120", "2+0x120"]
    clusters = [re.findall(r"story-\d+-", each["expr"]) for each in test["promql_expr_test"]]
    assert clusters == [["story-0-"], ["story-1-"], ["story-0-"], ["story-1-"]]


def test_a_query_is_restricted_to_the_storys_own_cluster() -> None:
    run, documents = saying(MET)
    expression = 'sum by (run) (gpu:up:max{gpu="0"}) / count(gpu:up:max)'
    Together([story(expression), story(value=2)], run).passed(story(expression))
    own = 'gpu:up:max{cluster="story-0-"'
    narrowed = f'sum by (run) ({own},gpu="0"}}) / count({own}}})'
    assert (
        documents[0]["tests"][0]["promql_expr_test"][0]["expr"] == f'label_replace({narrowed}, "cluster", "", "", "")'
    )


def test_only_the_story_whose_expectation_is_not_met_must_run_alone() -> None:
    run, _documents = saying(UNMET)
    stories = [story(value=value) for value in (1, 2, 3)]
    together = Together(stories, run)
    assert [together.passed(each) for each in stories] == [True, False, True]


def test_a_story_of_an_alerts_words_passes_where_its_own_alert_has_them() -> None:
    run, documents = saying(FIRED)
    words = ("/d/run?var-cluster=a", "/d/run?var-cluster=c", "/d/run")
    stories = [*(text(each, value) for value, each in enumerate(words)), story(value=5)]
    together = Together(stories, run)
    assert [together.passed(each) for each in stories] == [True, False, False, True]
    assert len(documents) == 1


def test_beside_words_an_expectation_that_is_not_met_is_still_seen() -> None:
    run, _documents = saying(FIRED + UNMET.partition("FAILED:\n")[2])
    stories = [text("/d/run?var-cluster=a"), story(value=2), story(value=3)]
    together = Together(stories, run)
    assert [together.passed(each) for each in stories] == [True, False, True]


def test_stories_of_other_rules_or_of_other_lengths_run_apart() -> None:
    run, documents = saying(MET)
    stories = [story(), story(at="1h"), story(rules="others.yml"), story(at="25m")]
    together = Together(stories, run)
    assert [together.passed(each) for each in stories] == [True, False, False, True]
    assert len(documents) == 1, "one that is left over need not be tried in company"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("  FAILED:\n    rule: gpu:up:max, time: 20m, err: many-to-many\n", id="a rule fails"),
        pytest.param(f"{UNMET}    rule: gpu:up:max, time: 20m, err: many-to-many\n", id="a rule fails as well"),
        pytest.param("  FAILED:\nstories.test.yml: yaml: line 1\n", id="the file can't be read"),
        pytest.param("", id="promtool says nothing"),
    ],
)
def test_no_story_passes_where_more_is_wrong_than_an_expectation(answer: str) -> None:
    run, _documents = saying(answer)
    stories = [story(value=value) for value in (1, 2)]
    together = Together(stories, run)
    assert not any(together.passed(each) for each in stories)


@pytest.mark.parametrize(
    "own",
    [
        pytest.param(story("gpu:up:max", 'stallscope_gpu_up{cluster="a"}'), id="clusters of its own"),
        pytest.param(story("vector(1)"), id="selects no series"),
        pytest.param(story("{gpu='0'}"), id="selects series without a name"),
        pytest.param(story('stallscope:threshold{name="x"}'), id="selects a series shared by all"),
        pytest.param(story("ALERTS"), id="alerts, without a target"),
    ],
)
def test_a_story_that_company_would_change_runs_alone(own: Document) -> None:
    run, documents = saying(MET)
    together = Together([own, story(), story(value=2)], run)
    assert not together.passed(own)
    assert documents == []


def test_a_story_that_queries_alerts_has_company_where_it_has_a_target() -> None:
    run, _documents = saying(MET)
    own = story("ALERTS", GPU, TARGET)
    assert Together([own, story()], run).passed(own)


def test_a_story_that_was_not_announced_runs_alone() -> None:
    run, documents = saying(MET)
    assert not Together([story()], run).passed(story(value=5))
    assert documents == []
