"""One incident is one notification: people who get forty messages about a dead node stop reading."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stallscope.lab.simulation.scenarios import SCENARIOS
from stallscope.model.catalogue.causes import CAUSES
from tests.alerting.alertmanager import PATIENCE, Alert, Alertmanager, bundled, hastened, notifying, running
from tests.alerting.dying_node import (
    Moment,
    crowded_node,
    fallen_gpus,
    raised_by_ignorant_rules,
    raised_by_the_rules,
    spanning_run,
)
from tests.alerting.notifications import Sent, notifications
from tests.alerting.of_scenarios import NAMES, Timeline, simulated, stored
from tests.alerting.subjects import on_gpu, on_run
from tests.webhook import Notification, Webhook

TOGETHER = 30
"""Seconds of one evaluation: alerts this close arrive within one wait of their group."""
LOUD = ("critical", "warning")
"""Severities that notify someone."""


def calculated(story: Sequence[Moment]) -> list[Sent]:
    """Calculate the notifications of a story until ten minutes after its last moment."""
    return notifications(bundled(), [(each.second, each.alerts) for each in story], story[-1].second + 600)


class Audience:
    """Everyone to whom the bundle's routes lead."""

    def __init__(self, alertmanager: Alertmanager, webhook: Webhook) -> None:
        self._alertmanager = alertmanager
        self._webhook = webhook
        self._numbers = itertools.count()
        self._received = 0

    def watch(self, story: Sequence[Moment]) -> list[Notification]:
        """Post the alerts of a story as Prometheus does, and return the notifications, which are as calculated."""
        received: list[Notification] = []
        posted: list[Alert] = []
        firing: tuple[Any, ...] = ()
        for moment, following in itertools.zip_longest(story, story[1:]):
            posted += (Alert(labels) for labels in moment.alerts)
            posted += (Alert(labels, ended=True) for labels in firing if labels not in moment.alerts)
            firing = moment.alerts
            if following is None or following.second - moment.second > TOGETHER:
                self._alertmanager.post(posted)  # at once: the wait in which they meet is short here
                posted.clear()
                received += self._settled()
        assert sorted(map(_of_received, received)) == sorted(map(_of_calculated, calculated(story)))
        return received

    def _next(self) -> Notification:
        self._received += 1
        return self._webhook.notifications.get(timeout=PATIENCE)

    def _settled(self) -> list[Notification]:
        """Return the notifications until every group has notified: a marker alert, posted last, arrives after all
        others."""
        last = f"Last{next(self._numbers)}"
        notifications = []
        for part in ("first", "second"):
            self._alertmanager.post([Alert({"alertname": last, "cluster": last, "part": part})])
            while (notification := self._next())["groupLabels"] != {"cluster": last}:
                notifications.append(notification)
        # If the machine paused, all were due at once, and another one may have arrived before it.
        while self._received < self._alertmanager.notified():
            notifications.append(self._next())
        return notifications


_Words = tuple[str, str, list[tuple[str, str]], list[str], list[str]]


def _of_received(notification: Notification) -> _Words:
    by_status = {
        status: sorted({each["labels"]["alertname"] for each in notification["alerts"] if each["status"] == status})
        for status in ("firing", "resolved")
    }
    group = sorted(notification["groupLabels"].items())
    return notification["receiver"], notification["status"], group, by_status["firing"], by_status["resolved"]


def _of_calculated(sent: Sent) -> _Words:
    return sent.receiver, sent.status, sorted(sent.group.items()), sorted(sent.firing), sorted(sent.resolved)


@pytest.fixture
def audience(tmp_path: Path) -> Iterator[Audience]:
    webhook = Webhook()
    configuration = bundled()
    posts = {"webhook_configs": [{"url": webhook.url, "send_resolved": True}]}
    everybody = {each["name"]: posts for each in configuration["receivers"] if len(each) > 1}
    try:
        with running(hastened(notifying(configuration, everybody)), tmp_path) as alertmanager:
            yield Audience(alertmanager, webhook)
    finally:
        webhook.close()


def names(notification: Notification) -> set[str]:
    return {alert["labels"]["alertname"] for alert in notification["alerts"]}


def test_a_dead_node_is_one_page_whatever_else_is_raised_for_it(audience: Audience) -> None:
    (page,) = audience.watch(raised_by_ignorant_rules())
    assert page["receiver"] == "page"
    assert page["groupLabels"] == {"instance": "n1:19400"}
    assert names(page) == {"StallscopeExporterDown"}
    assert [alert["labels"]["run"] for alert in page["alerts"]] == ["bert"]


def test_eight_lost_gpus_under_a_run_are_one_page(audience: Audience) -> None:
    lost = tuple(on_gpu("GpuLost", gpu=str(gpu), uuid=f"GPU-{gpu}", run="bert", namespace="vision") for gpu in range(8))
    (page,) = audience.watch([Moment(0, lost), Moment(360, (*lost, on_run("TrainingStalled")))])
    assert page["receiver"] == "page"
    assert len(page["alerts"]) == 8


def test_a_reason_for_waiting_that_comes_and_goes_is_one_notification() -> None:
    reason, wait = on_run("TrainingInputCpuSaturated"), on_run("TrainingInputBound")
    story = [Moment(1200 * number, (reason, wait) if number % 2 else (reason,)) for number in range(4)]
    assert [(each.status, *each.firing) for each in calculated(story)] == [("firing", "TrainingInputCpuSaturated")]


@pytest.mark.parametrize(
    ("seconds", "errors"),
    [pytest.param(28, [], id="before the group notifies"), pytest.param(120, [(["GpuXidHw"], [])], id="later")],
)
def test_a_hardware_error_that_becomes_a_loss_is_not_reported_as_resolved(
    seconds: int, errors: list[tuple[list[str], list[str]]]
) -> None:
    error, lost = on_gpu("GpuXidHw", xid="79"), on_gpu("GpuLost")
    ends = seconds + 30  # the rules end it after one evaluation with a lost GPU
    story = [Moment(0, (error,)), Moment(seconds, (error, lost)), Moment(ends, (lost,)), Moment(1200, ())]
    sent = [(sorted(each.firing), sorted(each.resolved)) for each in calculated(story)]
    assert sent == [*errors, (["GpuLost"], []), ([], ["GpuLost"])]


@pytest.mark.parametrize(("namespace", "number"), [("vision", 1), ("speech", 2)])
def test_a_run_that_starts_on_a_faulty_gpu_notifies_only_another_namespace(
    audience: Audience, namespace: str, number: int
) -> None:
    first = on_gpu("GpuRowRemapPending", run="bert", namespace="vision")
    later = on_gpu("GpuRowRemapPending", run="gpt", namespace=namespace, later_run="true")
    slow = on_run("TrainingStragglerHw", run="gpt", namespace=namespace, rank="0")
    later, slow = {**later, "rank": "0"}, {**slow, "rank": "0"}
    sent = audience.watch([Moment(0, (first,)), Moment(1200, (first, later, slow)), Moment(2400, ())])
    assert [each["status"] for each in sent] == ["firing"] * number + ["resolved"]


def test_two_runs_are_two_matters(audience: Audience) -> None:
    notifications = audience.watch([Moment(0, (on_run("TrainingStalled"), on_run("TrainingStalled", run="gpt")))])
    assert sorted(each["groupLabels"]["run"] for each in notifications) == ["bert", "gpt"]


def test_two_nodes_are_two_matters(audience: Audience) -> None:
    notifications = audience.watch([Moment(0, (on_gpu("GpuLost"), on_gpu("GpuLost", instance="n2:19400")))])
    assert sorted(each["groupLabels"]["instance"] for each in notifications) == ["n1:19400", "n2:19400"]


def test_two_faults_of_one_run_are_one_notification(audience: Audience) -> None:
    (ticket,) = audience.watch([Moment(0, (on_run("TrainingH2dBound"), on_run("TrainingCheckpointStall")))])
    assert ticket["receiver"] == "ticket"
    assert len(ticket["alerts"]) == 2


def test_a_resolved_alert_notifies_once_more(audience: Audience) -> None:
    notifications = audience.watch([Moment(0, (on_run("TrainingStalled"),)), Moment(600, ())])
    assert [each["status"] for each in notifications] == ["firing", "resolved"]


def test_an_inhibited_alert_notifies_once_the_inhibiting_one_ends(audience: Audience) -> None:
    lost, waits = on_gpu("GpuLost", run="bert", namespace="vision"), on_run("TrainingInputBound")
    notifications = audience.watch([Moment(0, (lost, waits)), Moment(600, (waits,))])
    assert {(each["status"], *names(each)) for each in notifications} == {
        ("firing", "GpuLost"),
        ("resolved", "GpuLost"),
        ("firing", "TrainingInputBound"),
    }


def test_context_notifies_no_one(audience: Audience) -> None:
    experiment = (on_run("TrainingStalled", severity="info"), on_gpu("GpuPowerCapped"), on_gpu("GpuXidApp"))
    assert audience.watch([Moment(0, experiment)]) == []


def test_alerts_of_two_evaluations_meet_in_the_wait_of_a_node() -> None:
    """Alerts of a node arrive in bursts: an Xid, then the lost GPU; an exporter down, then the run that waits."""
    (node,) = [each for each in bundled()["route"]["routes"] if "Gpu" in each["matchers"][0]]
    assert {each["group_wait"] for each in (node, *node["routes"]) if "group_wait" in each} == {"1m", "2m"}
    assert TOGETHER < 60


@pytest.fixture(scope="module")
def raised() -> dict[str, list[Moment]]:
    return raised_by_the_rules({"spanning": spanning_run(), "crowded": crowded_node(), "fallen": fallen_gpus()})


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("story", "receiver", "alert"),
    [
        pytest.param("spanning", "page", "StallscopeExporterDown", id="a-node-dies-under-a-run-of-32-ranks"),
        pytest.param(
            "crowded", "ticket", "StallscopeExporterDown", id="a-node-dies-with-32-ranks-and-all-that-knew-them"
        ),
        pytest.param("fallen", "page", "GpuLost", id="eight-gpus-fall-off-the-bus-under-32-ranks"),
    ],
)
def test_by_the_bundles_own_rules_a_dying_node_is_one_notification(
    story: str, receiver: str, alert: str, raised: dict[str, list[Moment]]
) -> None:
    (notification,) = calculated(raised[story])
    assert notification.receiver == receiver
    assert notification.firing == {alert}


@pytest.fixture(scope="module")
def timelines() -> dict[str, Timeline]:
    found = stored()
    missing = " ".join(name for name in NAMES if name not in found)
    assert not missing, f"python -m tests.alerting.of_scenarios {missing}"
    return found


@pytest.mark.parametrize("scenario", NAMES)
def test_a_scenario_sends_one_notification_and_another_one_when_its_fault_has_ended(
    scenario: str, timelines: dict[str, Timeline]
) -> None:
    timeline = timelines[scenario]
    loud = any(labels["severity"] in LOUD for _, _, labels in timeline.alerts)
    expected = ["firing", "resolved"] if loud else []
    assert [each.status for each in timeline.notifications()] == expected


@pytest.mark.parametrize(
    ("scenario", "alert"),
    [
        (name, cause.alert)
        for name in NAMES
        if (cause := CAUSES.get(SCENARIOS[name].expected)) and cause.severity in LOUD
    ],
)
def test_the_notification_of_a_scenario_names_its_cause(
    scenario: str, alert: str, timelines: dict[str, Timeline]
) -> None:
    assert alert in timelines[scenario].notifications()[0].firing


@pytest.mark.slow
def test_the_rules_still_raise_the_alerts_of_a_gpu_that_is_lost(timelines: dict[str, Timeline]) -> None:
    found = simulated(["gpu_lost"], 240, 600)["gpu_lost"].notifications()
    assert [each[1:] for each in found] == [each[1:] for each in timelines["gpu_lost"].notifications()]
