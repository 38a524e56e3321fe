"""Build the documentation's site from the repository's pages: hooks of MkDocs, listed in mkdocs.yml.

A page keeps its path, so that a link between two pages is the same in the repository and on the site. A link to any
other file leads to the source of the same version.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = "https://github.com/stallscope/stallscope/blob/v"
_LINK = re.compile(r'(\]\(|(?:src|href)=")([^)"\s]+)(?=[)"])')
_CODE = re.compile(r"(^ *(`{3,}).*?^ *\2$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^<!--.*?-->$", re.MULTILINE | re.DOTALL)


def version() -> str:
    """Return the version of the checkout."""
    text = (ROOT / "exporter/stallscope/common/version.py").read_text(encoding="utf-8")
    return text.split('__version__ = "')[1].split('"')[0]


def expanded(nav: list[Any]) -> list[Any]:
    """Return the navigation with each folder replaced by its pages."""
    entries: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            entries += [{title: expanded(each) if isinstance(each, list) else each} for title, each in entry.items()]
        elif entry.endswith("/"):
            entries += sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / entry).glob("*.md"))
        else:
            entries.append(entry)
    return entries


def listed(nav: list[Any]) -> Iterator[str]:
    """Yield the page of each entry of an expanded navigation."""
    for entry in nav:
        for each in entry.values() if isinstance(entry, dict) else [entry]:
            yield from listed(each) if isinstance(each, list) else [each]


def links(markdown: str) -> Iterator[str]:
    """Yield the targets of a page's links and pictures, outside code."""
    for text in _prose(markdown):
        yield from (link for _, link in _LINK.findall(text))


def pictures(page: str, markdown: str) -> set[str]:
    """Return the paths of a page's pictures."""
    return {_target(page, link) for link in links(markdown) if link.endswith(".png") and ":" not in link}


def for_site(page: str, markdown: str, on_site: set[str]) -> str:
    """Return a page as MkDocs reads it.

    Args:
        page: its path.
        markdown: its text.
        on_site: the paths of the site's pages and pictures.
    """

    def linked(match: re.Match[str]) -> str:
        before, link = match.groups()
        path, hash_sign, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link) or not path or _target(page, path) in on_site:
            return match[0]
        return f"{before}{SOURCE}{version()}/{_target(page, path)}{hash_sign}{anchor}"

    parts = _CODE.split(markdown)  # prose, code, the code's fence; again and again
    for i in range(0, len(parts), 3):
        # A comment would join the table or list that follows it.
        parts[i] = _LINK.sub(linked, _COMMENT.sub("", parts[i]))
    return "".join(part for i, part in enumerate(parts) if i % 3 != 2)


def _prose(markdown: str) -> list[str]:
    return _CODE.split(markdown)[::3]


def _target(page: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link.partition("#")[0]))


def on_config(config: Any) -> Any:
    """State the version at the head of every page, and expand the navigation."""
    config.site_name = f"Stallscope {version()}"
    config.nav = expanded(config.nav)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the navigation and their pictures from where they are."""
    from mkdocs.structure.files import File

    paths = set(listed(config.nav))
    for page in sorted(paths):
        paths |= pictures(page, (ROOT / page).read_text(encoding="utf-8"))
    for path in sorted(paths):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page."""
    del config
    return for_site(page.file.src_uri, markdown, {file.src_uri for file in files})
