"""The committed dashboards equal the generated ones, and links between them are valid."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

import pytest

from grafana.__main__ import FOLDER, pages
from tests.grafana import lint
from tests.grafana.pages import PAGES, strings, variable_names
from tests.known_names import rules

DASHBOARDS = {f"stallscope-{name}" for name in ("fleet", "run", "gpu", "host", "compare", "health")}
_ADDRESS = re.compile(r"/d/(?P<uid>[\w-]+)(?:\?(?P<query>\S*))?")


def test_the_committed_dashboards_are_those_that_the_code_makes() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    made = pages()
    assert committed.keys() == made.keys(), "run make generate"
    assert [name for name, text in made.items() if committed[name] != text] == [], "run make generate"


def test_there_is_every_dashboard_that_was_promised() -> None:
    assert PAGES.keys() == DASHBOARDS
    assert {page["uid"] for page in PAGES.values()} == DASHBOARDS
    assert len({page["title"] for page in PAGES.values()}) == len(PAGES)


@pytest.mark.parametrize("uid", PAGES)
def test_a_dashboard_is_small_enough_to_be_loaded_at_once(uid: str) -> None:
    assert list(lint.size((FOLDER / f"{uid}.json").read_text(encoding="utf-8"))) == []


def _addresses() -> list[tuple[str, str, dict[str, str]]]:
    """Yield the place of each dashboard URL, the dashboard, and the variables in it."""
    texts = [(uid, text) for uid, page in PAGES.items() for text in strings(page)]
    texts += [(rule["alert"], rule["annotations"]["dashboard_url"]) for rule in rules() if "alert" in rule]
    return [
        (where, match["uid"], dict(parse_qsl((match["query"] or "").replace("{{", "").replace("}}", ""))))
        for where, text in texts
        for match in _ADDRESS.finditer(re.sub(r"\{\{[^}]*\}\}", "value", text))
    ]


def test_every_link_leads_to_a_dashboard_that_exists() -> None:
    assert {(where, uid) for where, uid, _given in _addresses() if uid not in PAGES} == set()


def test_every_link_sets_variables_that_the_other_dashboard_has() -> None:
    wrong = {
        (where, uid, name)
        for where, uid, given in _addresses()
        for name in given
        if name.startswith("var-") and uid in PAGES and name.removeprefix("var-") not in variable_names(PAGES[uid])
    }
    assert wrong == set()


@pytest.mark.parametrize("uid", ["stallscope-run", "stallscope-gpu", "stallscope-host"])
def test_some_other_dashboard_leads_there(uid: str) -> None:
    assert {where for where, to, _given in _addresses() if to == uid and where != uid and where in PAGES}
