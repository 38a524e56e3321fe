"""The command that installs an extra of this package, from where the package was installed itself."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

_PACKAGE = Path(__file__).parents[1]
_REQUIREMENT = re.compile(r"""([^;]*?)\s*;.*\bextra\s*==\s*['"]([\w-]+)['"].*""")


def install_command(extra: str, package: Path = _PACKAGE) -> str:
    """Return the command: from a checkout, from a wheel, or else the extra's own requirements.

    Args:
        extra: the extra's name, such as `exporter`.
        package: the folder of the package `stallscope`.
    """
    checkout = package.parent.parent
    if (checkout / "pyproject.toml").is_file() and package.parent.name == "exporter":
        return f"pip install -e {_quoted(f'{checkout}[{extra}]')}"
    try:
        # Only the installation next to this package is its own; PYTHONPATH may name another one.
        installed = next(iter(metadata.distributions(name="stallscope", path=[str(package.parent)])))
    except StopIteration:
        return f"pip install '.[{extra}]' in a checkout of Stallscope"
    if source := _source(installed.read_text("direct_url.json"), extra):
        return f"pip install {_quoted(source)}"
    return f"pip install {' '.join(map(_quoted, sorted(_requirements(installed.requires or (), extra))))}"


def _source(direct_url: str | None, extra: str) -> str:
    """Return what pip has installed, with the extra; empty if that is not known, or no longer there."""
    try:
        document = json.loads(direct_url or "{}")
        url = str(document.get("url", ""))
        vcs = document.get("vcs_info")
        scheme = urlsplit(url).scheme
    except (ValueError, AttributeError):
        return ""
    if scheme == "file":
        path = unquote(urlsplit(url).path)
        return f"{path}[{extra}]" if Path(path).exists() else ""
    if not url:
        return ""
    revision = f"@{vcs.get('commit_id', '')}" if isinstance(vcs, dict) else ""
    prefix = f"{vcs.get('vcs', 'git')}+" if isinstance(vcs, dict) else ""
    return f"stallscope[{extra}] @ {prefix}{url}{revision}"


def _requirements(requires: Iterable[str], extra: str) -> Iterator[str]:
    """Yield the requirements of an extra, and of the extras that it includes."""
    for text in list(requires):
        found = _REQUIREMENT.fullmatch(text)
        if found is None or found[2] != extra:
            continue
        included = re.fullmatch(r"stallscope\[([\w,-]+)\]", found[1])
        if included is None:
            yield found[1]
        else:
            for name in included[1].split(","):
                yield from _requirements(requires, name)


def _quoted(text: str) -> str:
    quoted = shlex.quote(text)
    return quoted if quoted != text else f"'{text}'" if "[" in text else text
