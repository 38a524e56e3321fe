"""Runbooks as pages of the exporter: the same text as a Markdown library shows, and every link leads to a page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from stallscope.common.bundle import RUNBOOKS
from stallscope.model.catalogue.causes import CAUSES
from stallscope.node.sampling.sampler import Sampler
from stallscope.node.web import runbooks
from stallscope.node.web.application import Application
from stallscope.node.web.http.request import Request
from stallscope.tools.report.words import runbook_of
from tests.rules.rulebook import ROOT

FILES = sorted((ROOT / "alerts/runbooks").glob("*.md"))
EXPECTED = MarkdownIt().enable("table")
_IMPLIED = ("p", "thead", "tbody")
"""Elements that do not change what a reader sees here: paragraphs are compared by their text."""


class Tokens(HTMLParser):
    """Elements, targets of links and text of a page, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links.append(dict(attrs)["href"] or "")
        if tag not in _IMPLIED:
            self.found.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _IMPLIED:
            self.found.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if text := " ".join(data.split()):
            self.found.append(text)


@pytest.fixture(scope="module")
def application() -> Application:
    return Application(
        Sampler(),
        post_report=lambda *_: (204, b""),
        post_request=lambda *_: (202, b""),
        status_page=lambda _: b"",
        release=lambda _: "",
        runbooks=runbooks.load(),
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_runbook_reads_as_a_library_shows_it(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    shown, expected = Tokens(runbooks.html(text)), Tokens(EXPECTED.render(text))
    assert shown.found == expected.found
    assert shown.links == expected.links


def test_nothing_in_a_runbook_becomes_an_element_of_its_own() -> None:
    assert runbooks.html("a <b> & `<script>`\n") == "<p>a &lt;b&gt; &amp; <code>&lt;script&gt;</code></p>"
    assert "<a" not in runbooks.html("[x](javascript:alert(1))")
    assert Tokens(runbooks.html('[x](https://example.org/"onclick="y)')).links == ['https://example.org/"onclick="y']


def status(application: Application, path: str, method: str = "GET") -> int:
    return application.answer(Request(method, path, {}, b""), "192.0.2.7").status


def links_to_runbooks() -> set[str]:
    """Return every address below `RUNBOOKS` in alerts, Kubernetes objects, dashboards and reports."""
    files = [*ROOT.glob("alerts/*.yml"), *ROOT.glob("grafana/dashboards/*.json")]
    files += (ROOT / "deploy/kubernetes").rglob("*.yaml")
    pattern = re.compile(re.escape(RUNBOOKS) + r"/([\w${}.]+)")
    found = {name for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))}
    found |= {runbook_of(name).removeprefix(f"{RUNBOOKS}/") for name in CAUSES if runbook_of(name)}
    assert len(found) > len(FILES) / 2
    return found


def test_every_link_leads_to_a_page_of_the_exporter(application: Application) -> None:
    # A link of a dashboard ends with the name of the alert in its cell.
    names = {name for name in links_to_runbooks() if "$" not in name}
    assert names == {file.name for file in FILES}
    assert links_to_runbooks() - names == {"${__value.text}.md"}
    pages = runbooks.load()
    inner = {link for page in pages.values() for link in Tokens(page.decode()).links if "://" not in link}
    assert inner == names, "the list of runbooks names each of them"
    assert {name: status(application, f"/runbooks/{name}") for name in (*names, "")} == dict.fromkeys((*names, ""), 200)


def test_the_cells_that_link_to_a_runbook_hold_names_of_alerts() -> None:
    for file in (ROOT / "grafana/dashboards").glob("*.json"):
        for text in re.findall(r'"text": "((?:Training|Gpu|Host)[A-Z]\w+)"', json.dumps(json.loads(file.read_text()))):
            assert (ROOT / f"alerts/runbooks/{text}.md").is_file(), f"{file.name}: {text}"


@pytest.mark.parametrize("path", ["/runbooks/None.md", "/runbooks", "/runbooks/../alertmanager.yml"])
def test_other_paths_have_no_page(path: str, application: Application) -> None:
    assert status(application, path) == 404


def test_a_runbook_can_only_be_read(application: Application) -> None:
    assert status(application, "/runbooks/GpuLost.md", "POST") == 405


def test_each_place_has_the_one_address() -> None:
    """`make runbooks` finds the address by its text."""
    text = yaml.safe_load((ROOT / "alerts/stallscope.yml").read_text(encoding="utf-8"))
    urls = [rule["annotations"]["runbook_url"] for group in text["groups"] for rule in group["rules"]]
    assert all(url.startswith(f"{RUNBOOKS}/") for url in urls)
    helpers = (ROOT / "deploy/helm/stallscope/templates/_helpers.tpl").read_text(encoding="utf-8")
    assert f'"{RUNBOOKS}"' in helpers


@pytest.mark.parametrize("text", ["```promql\nup", "```", "", "|", "- ", "#", "[", "a\n```\nb"])
def test_a_malformed_page_is_shown_as_far_as_possible(text: str) -> None:
    assert runbooks.page("x", text).startswith(b"<!doctype html>")


def test_an_exporter_without_the_bundle_has_no_runbooks(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> Path:
        raise FileNotFoundError("the bundle's folder is missing")

    monkeypatch.setattr(runbooks, "bundle_folder", missing)
    assert runbooks.load() == {}
