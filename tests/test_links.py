"""Links between the repository's Markdown pages lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_snippets import ROOT, pages

_LINK = re.compile(r"""(?:\]\(|src=")([^)"\s]+)[)"]""")
_CODE = re.compile(r"^ *(`{3,}).*?^ *\1$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


def broken(page: Path, text: str) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    found = []
    for link in _LINK.findall(_CODE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        is_valid = target.exists() and (not anchor or anchor in anchors(target.read_text(encoding="utf-8")))
        if not is_valid:
            found.append(link)
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found() -> None:
    text = "[a](deploy/README.md#the-image) [b](deploy/README.md#no-heading) [c](nowhere.md) [d](https://example.org)"
    assert broken(ROOT / "README.md", text) == ["deploy/README.md#no-heading", "nowhere.md"]
