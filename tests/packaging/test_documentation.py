"""The documentation's site lists every page once, and its links lead to pages of the site or to the source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from deploy.documentation import ROOT, SOURCE, expanded, for_site, links, listed, pictures
from stallscope.common.version import __version__
from tests.test_snippets import pages

MEASUREMENTS = {"tests/benchmarks/RESULTS.md", "tests/scenarios/RESULTS.md"}


class _Loader(yaml.SafeLoader):
    """Read MkDocs' configuration without MkDocs."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation() -> list[str]:
    text = (ROOT / "deploy/mkdocs.yml").read_text(encoding="utf-8")
    return list(listed(expanded(yaml.load(text, _Loader)["nav"])))


def test_the_navigation_lists_every_page_for_users_once() -> None:
    paths = {path.relative_to(ROOT).as_posix() for path in pages()}
    expected = {path for path in paths if not path.startswith("tests/")} | MEASUREMENTS
    found = navigation()
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_every_link_leads_to_a_page_or_picture_of_the_site_or_to_a_file_of_the_source() -> None:
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in navigation()}
    on_site = set(texts).union(*(pictures(page, text) for page, text in texts.items()))
    assert "tests/browser/screenshots/grafana_fleet.png" in on_site
    checked = 0
    for page, text in texts.items():
        for link in links(for_site(page, text, on_site)):
            target = link.partition("#")[0]
            if target.startswith(f"{SOURCE}{__version__}/"):
                assert (ROOT / target.removeprefix(f"{SOURCE}{__version__}/")).exists(), (page, link)
            elif target and not re.match(r"[a-z]+:", target):
                place = ((ROOT / page).parent / target).resolve().relative_to(ROOT).as_posix()
                assert place in on_site, (page, link)
            checked += 1
    assert checked > 300


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("README.md#the-image", "README.md#the-image"),
        ("#here", "#here"),
        ("https://example.org/a.md", "https://example.org/a.md"),
        ("Dockerfile", f"{SOURCE}{__version__}/deploy/Dockerfile"),
        ("../tests/README.md#a", f"{SOURCE}{__version__}/tests/README.md#a"),
    ],
)
def test_a_link_to_a_file_that_is_no_page_leads_to_the_source(link: str, expected: str) -> None:
    page = f"[a]({link}) `[b](Dockerfile)`\n\n```text\n[c](Dockerfile)\n```\n"
    assert for_site("deploy/OPERATE.md", page, {"deploy/README.md"}) == page.replace(link, expected, 1)


def test_a_comment_does_not_join_the_table_that_follows_it() -> None:
    page = "<!-- generated -->\n| a |\n|---|\n\n```text\n<!-- shown -->\n```\n"
    assert for_site("README.md", page, set()) == page.replace("<!-- generated -->", "", 1)


def test_a_folder_of_the_navigation_is_every_page_of_it() -> None:
    found = expanded([{"Alerts": ["alerts/README.md", {"Runbooks": ["alerts/runbooks/"]}]}])
    assert len(set(listed(found))) == len(list(Path(ROOT, "alerts/runbooks").glob("*.md"))) + 1
