"""Web pages and commands that the stack prints: with the packages of Debian and of others."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from stallscope.lab.simulation.scenarios import SCENARIOS
from stallscope.lab.stack.directions import alertmanager_pages, commands, own_command, prometheus_pages
from tests.handled import handled, reply
from tests.stack_settings import stack_settings

SETTINGS = stack_settings(scenario=SCENARIOS["thermal_throttle"], training_job=True)
Serve = Callable[[Mapping[str, str]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve pages by path; everything else is not found."""
    with ExitStack() as stack:

        def start(pages: Mapping[str, str]) -> str:
            class Handler(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    page = pages.get(self.path)
                    reply(self, (page or "404 page not found").encode(), status=404 if page is None else 200)

            return f"http://{stack.enter_context(handled(Handler))}"

        yield start


def test_prometheus_with_its_own_pages(serve: Serve) -> None:
    url = serve({"/alerts": "<html>"})
    alerts, graph = prometheus_pages(url)
    assert alerts == f"{url}/alerts"
    assert graph.startswith(f"{url}/graph?g0.expr=")


def test_the_prometheus_of_debian_has_classic_pages_only(serve: Serve) -> None:
    url = serve({"/classic/alerts": "<html>"})
    alerts, graph = prometheus_pages(url)
    assert alerts == f"{url}/classic/alerts"
    assert graph.startswith(f"{url}/classic/graph?g0.expr=")


def test_alertmanager_with_its_own_page(serve: Serve) -> None:
    url = serve({"/": "<html><script src='script.js'>"})
    assert alertmanager_pages(url, "/usr/bin/amtool") == [f"{url}/", f"amtool alert --alertmanager.url={url}"]
    assert alertmanager_pages(url, None) == [f"{url}/"]


def test_the_alertmanager_of_debian_has_no_page(serve: Serve) -> None:
    url = serve({"/": "<p>The Debian package of the alertmanager does not include a web\n application.</p>"})
    assert alertmanager_pages(url, "/usr/bin/amtool") == [f"amtool alert --alertmanager.url={url}"]
    assert alertmanager_pages(url, None) == [f"{url}/api/v2/alerts"]


def test_commands_have_the_addresses_of_this_stack() -> None:
    top, why, report, compare, doctor = commands(SETTINGS, SETTINGS.scenario)
    assert top.endswith(" top --exporter.url http://127.0.0.1:1 --prometheus.url http://127.0.0.1:2")
    assert why.endswith(" why simulated-thermal-throttle --prometheus.url http://127.0.0.1:2")
    assert report.endswith(" report --run simulated-thermal-throttle --prometheus.url http://127.0.0.1:2")
    assert " compare numpy-classifier simulated-thermal-throttle " in compare
    assert doctor.startswith("STALLSCOPE_ADDRESS=udp://127.0.0.1:1 ")


def test_a_single_run_is_not_compared() -> None:
    _top, _why, report, _doctor = commands(SETTINGS, None)
    assert " report --run numpy-classifier " in report


def test_without_a_run_the_report_is_on_the_node_and_the_explanation_on_a_gpu() -> None:
    _top, why, report, _doctor = commands(replace(SETTINGS, training_job=False), SCENARIOS["underused"])
    assert f" report --instance {platform.node()}:1 " in report
    assert why.endswith(" why --gpu 0 --prometheus.url http://127.0.0.1:2")
    shared = SCENARIOS["shared_unexpectedly"]
    assert f" why --gpu {shared.faulty_gpus[0]} " in " ".join(commands(SETTINGS, shared))


@pytest.mark.parametrize("typed", [".venv/bin/stallscope", "/opt/with space/bin/stallscope"])
def test_the_command_is_as_it_was_typed(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.setattr(sys, "argv", [typed, "up"])
    assert own_command().strip("'") == typed


def test_the_command_on_path_has_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "stallscope"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(program), "up"])
    assert own_command() == "stallscope"


def test_a_module_is_run_with_its_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/stallscope/__main__.py", "up"])
    assert own_command() == f"{sys.executable} -m stallscope"
