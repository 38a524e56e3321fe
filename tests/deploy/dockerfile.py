"""Parse a Dockerfile, and execute its instructions in a folder, without a container engine."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy/Dockerfile"


class Instruction(NamedTuple):
    """One instruction: its name and its arguments, joined to one line."""

    name: str
    text: str


def instructions() -> list[Instruction]:
    """Return the instructions of deploy/Dockerfile, without comments."""
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def stages() -> list[list[Instruction]]:
    """Return the instructions by stage; each stage begins with its FROM."""
    found: list[list[Instruction]] = []
    for each in instructions():
        if each.name == "FROM":
            found.append([])
        if found:
            found[-1].append(each)
    return found


def last(name: str) -> str:
    """Return the arguments of the final stage's only instruction with this name."""
    (found,) = (each.text for each in stages()[-1] if each.name == name)
    return found


def listed(name: str) -> list[str]:
    """Return the words of an instruction in JSON form."""
    text = last(name)
    words: list[str] = json.loads(text[text.index("[") :])
    return words


def environment() -> dict[str, str]:
    """Return the environment variables of the final stage."""
    pairs = (pair.partition("=") for pair in last("ENV").split())
    return {name: value for name, _, value in pairs}


def context() -> list[Path]:
    """Return the files of the build context: those that .dockerignore does not exclude."""
    rules = [line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] not in "#"]
    candidates = (
        path
        for rule in rules
        if rule.startswith("!")
        for found in ROOT.glob(rule[1:])
        for path in (found.rglob("*") if found.is_dir() else (found,))
    )
    return sorted({path.relative_to(ROOT) for path in candidates if path.is_file() and not _ignored(path, rules)})


def build(folder: Path) -> Path:
    """Execute COPY and RUN of the first stage below the folder, with this machine's Python.

    Returns:
        The folder that stands for /opt/stallscope.
    """
    first = stages()[0]
    workdir = next(each.text for each in first if each.name == "WORKDIR")
    settings = dict(pair.split("=", 1) for each in first if each.name == "ENV" for pair in each.text.split())
    (folder / workdir.lstrip("/")).mkdir(parents=True)
    for each in first:
        if each.name == "COPY":
            *sources, target = each.text.split()
            _copy(sources, folder / workdir.lstrip("/"), target)
        elif each.name == "RUN":
            _run(each.text, folder, workdir, settings)
    return folder / "opt/stallscope"


def _run(text: str, folder: Path, workdir: str, settings: Mapping[str, str]) -> None:
    # Map the image's folders to folders below this one, and its Python to this machine's.
    moved = re.sub(r"(?<![\w./-])/(?=tools|opt|wheels)", f"{folder}/", text)
    moved = re.sub(r"(?<![\w./-])python (?=-m)", f"{base_python()} ", moved)
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STALLSCOPE", "VIRTUAL"))
    }
    done = subprocess.run(
        ["/bin/sh", "-c", moved],
        cwd=folder / workdir.lstrip("/"),
        env={**clean, **settings},
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, f"{moved}\n{done.stdout}{done.stderr}"


def base_python() -> str:
    """Return an interpreter, preferably one that other users can run too, as in an image."""
    return next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if _suits(path)), sys.executable)


def _suits(path: str) -> bool:
    question = "import sys, venv, ensurepip; raise SystemExit(sys.version_info < (3, 10))"
    return Path(path).exists() and subprocess.run([path, "-c", question], check=False).returncode == 0


def _copy(sources: list[str], into: Path, target: str) -> None:
    known = context()
    for source in sources:
        taken = [path for path in known if path == Path(source) or Path(source) in path.parents]
        assert taken, f"COPY {source}: .dockerignore leaves nothing of it"
        for path in taken:
            place = into / target / (path.name if path == Path(source) else path.relative_to(source))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, place)


def _ignored(path: Path, rules: list[str]) -> bool:
    names = path.relative_to(ROOT).parts
    return any(rule.startswith("**/") and any(fnmatch.fnmatch(name, rule[3:]) for name in names) for rule in rules)
