"""Golden messages: `python -m tests.alerting.golden` (or `make generate`) regenerates the messages of every receiver.

Each story is posted to a real Alertmanager with the bundle's routes, inhibition and templates, and with its example
receivers, whose addresses are a mail server and web servers of this process.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from email.message import EmailMessage, MIMEPart
from pathlib import Path

from tests.alerting.alertmanager import (
    PATIENCE,
    Alert,
    Alertmanager,
    Configuration,
    bundled,
    hastened,
    notifying,
    running,
    with_examples,
)
from tests.alerting.mail_server import MailServer
from tests.alerting.subjects import on_gpu, on_run
from tests.webhook import Notification, Webhook

GOLDEN = Path(__file__).with_suffix("")
RUNBOOKS = "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks"

_TIME = re.compile(r"\d+ [A-Z][a-z]{2} \d\d:\d\d")


def _input_bound(*, ended: bool) -> list[Alert]:
    line = "62 % of the wait is in data/augment.py:41 elastic_transform, with 4 loader workers."
    annotations = {
        "summary": "Training run waits for data that its CPUs can't prepare in time.",
        "description": (
            "Run bert loses 24 % of its GPU time waiting for batches that the CPUs cannot prepare in time: "
            f"without the wait it would be up to 1.3 times as fast. {line} More workers will not help. Decode and "
            "augment less per sample (cache decoded data, resize offline, decode faster or on the GPU), or give the "
            "job more CPUs per GPU."
        ),
        "line": line,
        "lost": "46.1 GPU-hours a day",
        "runbook_url": f"{RUNBOOKS}/TrainingInputCpuSaturated.md",
        "dashboard_url": "/d/stallscope-run?var-run=bert",
    }
    return [Alert(on_run("TrainingInputCpuSaturated"), annotations, ended=ended)]


def _lost(gpus: range, *, ended: bool) -> list[Alert]:
    def annotations(gpu: int) -> dict[str, str]:
        return {
            "summary": "GPU is lost: it cannot be read any more.",
            "description": (
                f"GPU {gpu} (GPU-n1-{gpu}) of n1:19400 can no longer be read: all of its time (100 %) is lost, and "
                f"run bert, which has rank {gpu} on it, cannot continue. Drain the node, look for Xid 79 in dmesg, "
                "and reboot; if the GPU is lost again, reseat or replace it."
            ),
            "lost": "24.0 GPU-hours a day",
            "runbook_url": f"{RUNBOOKS}/GpuLost.md",
        }

    return [
        Alert(
            on_gpu("GpuLost", gpu=str(gpu), uuid=f"GPU-n1-{gpu}", run="bert", rank=str(gpu)),
            annotations(gpu),
            ended=ended,
        )
        for gpu in gpus
    ]


def _mixed(*, ended: bool) -> list[Alert]:
    """Tickets and pages in one group, as a team's own route may have; the most severe is first."""
    leak = {
        "summary": "Training run's GPU memory grows.",
        "description": "The memory of run bert grows by 1.2 GiB an hour. Look for tensors that are kept.",
        "runbook_url": f"{RUNBOOKS}/TrainingGpuMemLeak.md",
    }
    others = {"description": "An alert of others, without a summary."}
    alerts = [
        Alert(on_run("TrainingGpuMemLeak"), leak, ended=ended),
        *_lost(range(1), ended=ended),
        Alert({"alertname": "SomebodyElses", "run": "bert"}, others, ended=ended),
    ]
    return [replace(alert, labels={**alert.labels, "namespace": "team"}) for alert in alerts]


def _hostile(*, ended: bool) -> list[Alert]:
    """Runs with unusual names, and alerts of others that lack the labels of the bundle's alerts."""
    run = '<!channel> & "<script>alert(1)</script>'
    described = Alert(
        on_run("TrainingLossNonfinite", run=run),
        {
            "summary": "Loss is no number.",
            "description": f"Run {run} computes nonsense.",
            "runbook_url": "https://example.org/",
        },
        ended=ended,
    )
    stalled = Alert(on_run("TrainingStalled", run=run), {"line": f"Rank 3 is in step at {run}.py:3."}, ended=ended)
    return [described, stalled]


STORIES: dict[str, list[list[Alert]]] = {
    "one_run": [_input_bound(ended=False), _input_bound(ended=True)],
    "many_gpus": [
        _lost(range(8), ended=False),
        _lost(range(7), ended=True),
        _lost(range(7, 8), ended=True),
    ],
    "a_team": [_mixed(ended=False), _mixed(ended=True)],
    "hostile": [_hostile(ended=False), _hostile(ended=True)],
}
"""Stories by name. Each is a list of posts, and a notification follows each post."""


class Receivers:
    """A mail server, and web servers in place of Slack, PagerDuty and Discord."""

    def __init__(self) -> None:
        self._mail, self._slack, self._pager, self._chat = MailServer(), Webhook(), Webhook(), Webhook()

    def configuration(self) -> Configuration:
        """Return the bundle's configuration with its examples as `page` and `ticket`, at the addresses of these
        servers."""
        examples = {each["name"]: each for each in with_examples()["receivers"]}
        everything = {
            "email_configs": [
                {
                    **examples["mail"]["email_configs"][0],
                    "smarthost": self._mail.address,
                    "require_tls": False,
                    "hello": "localhost",
                }
            ],
            "slack_configs": [{**examples["slack"]["slack_configs"][0], "api_url": self._slack.url}],
            "pagerduty_configs": [{**examples["pager"]["pagerduty_configs"][0], "url": self._pager.url}],
            "discord_configs": [{**examples["chat"]["discord_configs"][0], "webhook_url": self._chat.url}],
        }
        configuration = notifying(bundled(), {"page": everything, "ticket": everything})
        configuration["receivers"].append({"name": "team", **everything})
        # For the story of a team; before the routes by severity, where the bundle has its example.
        configuration["route"]["routes"].insert(2, {"matchers": ['namespace = "team"'], "receiver": "team"})
        return hastened(configuration)

    def next_messages(self) -> str:
        """Return the messages of the next notification from all receivers, as one text."""
        (slack,) = self._slack.notifications.get(timeout=PATIENCE)["attachments"]
        pager = self._pager.notifications.get(timeout=PATIENCE)
        (chat,) = self._chat.notifications.get(timeout=PATIENCE)["embeds"]
        return "\n".join(
            (
                *_mail_lines(self._mail.mails.get(timeout=PATIENCE)),
                "## Slack",
                *_lines(slack, "color", "title", "title_link", "fallback", "text"),
                "## PagerDuty",
                *_pager_lines(pager),
                "## Discord, and any other chat",
                *_lines(chat, "title", "description"),
            )
        )

    def close(self) -> None:
        """Close all servers."""
        for each in (self._mail, self._slack, self._pager, self._chat):
            each.close()


def _mail_lines(mail: EmailMessage) -> Iterator[str]:
    text, html = mail.get_body(("plain",)), mail.get_body(("html",))
    assert text, "a mail has a plain text"
    assert html, "a mail has HTML"
    yield from ("## E-mail", f"Subject: {mail['Subject']}", f"To: {mail['To']}", "")
    yield from (_unix(text), "", "## E-mail, as HTML", _unix(html), "")


def _unix(part: MIMEPart) -> str:
    content: str = part.get_content()
    return content.replace("\r\n", "\n").rstrip()


def _lines(message: Notification, *fields: str) -> Iterator[str]:
    for name in fields:
        yield f"{name}: {message.get(name, '')}"
    yield ""


def _pager_lines(event: Notification) -> Iterator[str]:
    yield f"event_action: {event['event_action']}"
    if payload := event.get("payload"):
        yield from (f"severity: {payload['severity']}", f"summary: {payload['summary']}")
        yield f"text: {payload['custom_details']['text']}"
    yield from (f"link: {link['href']}" for link in event.get("links") or ())
    yield ""


@contextlib.contextmanager
def receiving(folder: Path) -> Iterator[tuple[Alertmanager, Receivers]]:
    """Run an Alertmanager that notifies these receivers."""
    receivers = Receivers()
    try:
        with running(receivers.configuration(), folder) as alertmanager:
            yield alertmanager, receivers
    finally:
        receivers.close()


def messages(alertmanager: Alertmanager, receivers: Receivers, story: list[list[Alert]]) -> str:
    """Post the story, and return the messages."""
    parts = []
    for number, alerts in enumerate(story, 1):
        alertmanager.post(alerts)
        parts.append(f"# Notification {number}\n\n{receivers.next_messages()}")
    return _TIME.sub("5 Jan 14:03", "\n".join(parts))


def golden(name: str) -> Path:
    """Return the path of the story's messages."""
    return GOLDEN / f"{name}.txt"


def main() -> None:
    """Write all golden messages."""
    with tempfile.TemporaryDirectory() as folder, receiving(Path(folder)) as (alertmanager, receivers):
        for name, story in STORIES.items():
            golden(name).write_text(messages(alertmanager, receivers, story), encoding="utf-8")


if __name__ == "__main__":
    main()
