"""Messages: the loss per day, the cause, the first action, one link."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.alerting.alertmanager import ALERTS, Alertmanager
from tests.alerting.golden import GOLDEN, STORIES, Receivers, golden, messages, receiving
from tests.rules.rulebook import run_tool


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Alertmanager, Receivers]]:
    with receiving(tmp_path_factory.mktemp("alertmanager")) as started:
        yield started


@pytest.mark.parametrize("name", STORIES)
def test_every_receiver_gets_the_golden_messages(name: str, stage: tuple[Alertmanager, Receivers]) -> None:
    """After a change of the templates: `python -m tests.alerting.golden`."""
    assert messages(*stage, STORIES[name]) == golden(name).read_text(encoding="utf-8")


def test_no_golden_message_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(STORIES)


@pytest.mark.parametrize("name", STORIES)
def test_the_first_lines_of_an_email_name_severity_subject_and_loss(name: str) -> None:
    firing, *_, resolved = re.split(r"^# Notification \d+$", golden(name).read_text(encoding="utf-8"), flags=re.M)[1:]
    subject, _, _, first = firing.split("## E-mail\n")[1].splitlines()[:4]
    assert re.match(r"Subject: (Critical|Warning), (run|GPU) .+: .+", subject), subject
    assert first.startswith("Loses") or name == "hostile"
    assert resolved.split("## E-mail\n")[1].startswith("Subject: Resolved, ")


def test_a_name_that_means_something_to_slack_or_a_browser_stays_a_name() -> None:
    text = golden("hostile").read_text(encoding="utf-8")
    for part in re.findall(r"## (?:Slack|E-mail, as HTML)\n.*?\n(?=## )", text, flags=re.S):
        assert "<!channel>" not in part
        assert "<script>" not in part
        assert "&lt;!channel&gt;" in part


AlertData = Mapping[str, object]
ALERT: AlertData = {
    "status": "firing",
    "labels": {"alertname": "TrainingInputBound", "severity": "warning", "run": "a&b"},
    "annotations": {"runbook_url": "https://example.org/runbook", "dashboard_url": "/d/stallscope-run?var-run=a%26b"},
}
GRAFANA = re.compile(r'\{\{ define "stallscope.alert.link" \}\}\{\{ with .*')


def rendered(folder: Path, alert: AlertData, template: str = "stallscope.link", kind: str = "text") -> str:
    data = folder / "data.json"
    data.write_text(json.dumps({"status": "firing", "alerts": [alert]}))
    flags = (f"--template.glob={folder}/*.tmpl", f"--template.data={data}", f"--template.type={kind}")
    return run_tool(
        "amtool", "template", "render", *flags, f'--template.text={{{{ template "{template}" . }}}}'
    ).strip()


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    for file in (ALERTS / "templates").glob("*.tmpl"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


@pytest.fixture
def templates_with_grafana(templates: Path) -> Path:
    """With the second definition of links.tmpl."""
    file = templates / "links.tmpl"
    definition = GRAFANA.search(file.read_text(encoding="utf-8"))
    assert definition
    file.write_text(definition.group(), encoding="utf-8")
    return templates


def test_the_link_goes_to_the_runbook_while_no_grafana_is_named(templates: Path) -> None:
    assert rendered(templates, ALERT) == "https://example.org/runbook"


def test_it_goes_to_the_dashboard_of_a_grafana_that_is(templates_with_grafana: Path) -> None:
    dashboard = "https://grafana.example.org/d/stallscope-run?var-run=a%26b"
    assert rendered(templates_with_grafana, ALERT) == dashboard
    mail = rendered(templates_with_grafana, ALERT, "stallscope.mail.html", "html")
    assert f'<a href="{dashboard}"' in mail


def test_an_alert_without_a_dashboard_still_has_its_runbook(templates_with_grafana: Path) -> None:
    without: AlertData = {**ALERT, "annotations": {"runbook_url": "https://example.org/runbook"}}
    assert rendered(templates_with_grafana, without) == "https://example.org/runbook"


def test_the_mails_link_is_never_a_program(templates: Path) -> None:
    hostile: AlertData = {**ALERT, "annotations": {"runbook_url": "javascript:alert(1)"}}
    assert "javascript" not in rendered(templates, hostile, "stallscope.mail.html", "html")


def test_an_alert_that_says_nothing_is_known_by_its_name(templates: Path) -> None:
    bare: AlertData = {"status": "firing", "labels": {"alertname": "SomebodyElses"}, "annotations": {}}
    assert rendered(templates, bare, "stallscope.title") == "Alert: SomebodyElses"
    assert rendered(templates, bare, "stallscope.text") == "SomebodyElses"


@pytest.mark.parametrize("template", ["stallscope.text", "stallscope.slack.text", "stallscope.mail.text"])
def test_a_message_about_an_alert_of_others_is_never_empty_and_has_no_empty_link(
    templates: Path, template: str
) -> None:
    foreign: AlertData = {"status": "firing", "labels": {"alertname": "TargetDown", "job": "node"}, "annotations": {}}
    assert rendered(templates, foreign, template) == "TargetDown"
    assert "href" not in rendered(templates, foreign, "stallscope.mail.html", "html")


@pytest.mark.parametrize("template", ["stallscope.text", "stallscope.slack.text", "stallscope.mail.html"])
def test_a_message_about_an_alert_without_a_description_has_its_summary_and_its_link(
    templates: Path, template: str
) -> None:
    brief: AlertData = {**ALERT, "annotations": {"summary": "Input is slow.", "runbook_url": "https://example.org/r"}}
    text = rendered(templates, brief, template, "html" if template.endswith("html") else "text")
    assert "Input is slow" in text
    assert "https://example.org/r" in text
