from __future__ import annotations

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


def story(expression: str = "gpu:up:max", *names: str, value: float = 1) -> Document:
    return {
        "rule_files": ["rules.yml"],
        "tests": [
            {
                "interval": "30s",
                "input_series": [{"series": name, "values": f"{value}+0x120"} for name in names or (GPU,)],
                "promql_expr_test": [{"expr": expression, "eval_time": "20m", "exp_samples": []}],
            }
        ],
    }


def saying(answer: str) -> tuple[Callable[[Document], str], list[Document]]:
    asked: list[Document] = []

    def run(document: Document) -> str:
        asked.append(document)
        return answer

    return run, asked


def test_stories_share_one_run_each_in_a_cluster_of_its_own() -> None:
    run, asked = saying(MET)
    stories = [story(value=value) for value in (1, 2, 3)]
    together = Together(stories, run)
    assert all(together.passed(each) for each in stories)
    assert [each["series"] for each in asked[0]["tests"][0]["input_series"]] == [
        f'stallscope_gpu_up{{cluster="story-{number}-",gpu="0"}}' for number in range(3)
    ]
    assert len(asked) == 1


def test_what_is_asked_is_asked_of_the_storys_own_cluster() -> None:
    run, asked = saying(MET)
    expression = 'sum by (run) (gpu:up:max{gpu="0"}) / count(gpu:up:max)'
    Together([story(expression), story(value=2)], run).passed(story(expression))
    own = 'gpu:up:max{cluster="story-0-"'
    narrowed = f'sum by (run) ({own},gpu="0"}}) / count({own}}})'
    assert asked[0]["tests"][0]["promql_expr_test"][0]["expr"] == f'label_replace({narrowed}, "cluster", "", "", "")'


def test_only_the_story_whose_expectation_is_not_met_must_run_alone() -> None:
    run, _asked = saying(UNMET)
    stories = [story(value=value) for value in (1, 2, 3)]
    together = Together(stories, run)
    assert [together.passed(each) for each in stories] == [True, False, True]


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
    run, _asked = saying(answer)
    stories = [story(value=value) for value in (1, 2)]
    together = Together(stories, run)
    assert not any(together.passed(each) for each in stories)


@pytest.mark.parametrize(
    "own",
    [
        pytest.param(story("gpu:up:max", 'stallscope_gpu_up{cluster="a"}'), id="clusters of its own"),
        pytest.param(story("vector(1)"), id="asks for no series"),
        pytest.param(story("{gpu='0'}"), id="asks for series without a name"),
        pytest.param(story('stallscope:threshold{name="x"}'), id="asks for what all share"),
        pytest.param(story("ALERTS"), id="alerts, without a target"),
    ],
)
def test_a_story_that_company_would_change_runs_alone(own: Document) -> None:
    run, asked = saying(MET)
    together = Together([own, story(), story(value=2)], run)
    assert not together.passed(own)
    assert asked == []


def test_a_story_that_asks_for_alerts_has_company_where_it_has_a_target() -> None:
    run, _asked = saying(MET)
    own = story("ALERTS", GPU, TARGET)
    assert Together([own, story()], run).passed(own)


def test_a_story_that_was_not_announced_runs_alone() -> None:
    run, asked = saying(MET)
    assert not Together([story()], run).passed(story(value=5))
    assert asked == []
