"""Web pages and commands for a running stack. Each works as printed, from any shell in the same folder."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from stallscope.lab.simulation.scenarios import Scenario
from stallscope.lab.stack.settings import RUN, Settings
from stallscope.model.clients.exporter import ExporterClient, ExporterError

_VERDICTS = "g0.expr=run%3Averdict%3Aratio5m&g0.tab=1"
_NO_WEB_PAGE = b"does not include a web"
"""Part of the page that Debian's Alertmanager has in place of its own."""
_SECONDS = 2.0


def prometheus_pages(url: str) -> list[str]:
    """Return the pages of alerts and verdicts. Debian's Prometheus has them below `/classic` only."""
    prefix = "" if _page(url, "/alerts") is not None else "/classic"
    return [f"{url}{prefix}/alerts", f"{url}{prefix}/graph?{_VERDICTS}"]


def alertmanager_pages(url: str, amtool: str | None) -> list[str]:
    """Return Alertmanager's page, if it has one, and the command that lists alerts."""
    page = _page(url, "/")
    pages = [f"{url}/"] if page is not None and _NO_WEB_PAGE not in page else []
    command = [f"{Path(amtool).name} alert --alertmanager.url={url}"] if amtool else []
    return pages + command or [f"{url}/api/v2/alerts"]


def commands(settings: Settings, scenario: Scenario | None) -> list[str]:
    """Return the commands for the stack's runs and GPUs, with its addresses."""
    program = own_command()
    prometheus = f"--prometheus.url {settings.prometheus.url}"
    runs = [*([RUN] if settings.training_job else []), *([scenario.run] if scenario and scenario.run else [])]
    subject = f"--run {runs[-1]}" if runs else f"--instance {settings.exporter.instance}"
    # A simulated job without the shim has no run, only verdicts of its GPUs.
    gpus = (scenario.faulty_gpus or (0,))[:1] if scenario and not scenario.run else ()
    return [
        f"{program} top --exporter.url {settings.exporter.url} {prometheus}",
        *([f"{program} why {runs[-1]} {prometheus}"] if runs else []),
        *(f"{program} why --gpu {gpu} {prometheus}" for gpu in gpus),
        f"{program} report {subject} {prometheus}",
        *([f"{program} compare {' '.join(runs)} {prometheus}"] if len(runs) > 1 else []),
        f"STALLSCOPE_ADDRESS=udp://{settings.exporter.address} {program} doctor {prometheus}",
    ]


def own_command() -> str:
    """Return how a shell in this folder runs `stallscope`: as this process was started."""
    program = sys.argv[0]
    if Path(program).name != "stallscope":
        return f"{shlex.quote(sys.executable)} -m stallscope"
    return "stallscope" if shutil.which("stallscope") == program else shlex.quote(program)


def _page(url: str, path: str) -> bytes | None:
    try:
        answer = ExporterClient(url, timeout=_SECONDS).request("GET", path)
    except ExporterError:
        return None
    return answer.body if answer.status == 200 else None
