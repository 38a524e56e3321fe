"""Code blocks of all Markdown pages, executed or checked by the program that reads them."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import stallscope
from stallscope.cli import commands

ROOT = Path(__file__).parents[1]
EXECUTED = ("README.md", "exporter/SHIM.md")
"""Pages with Python for users. `test_recipes.py` and `catalogue/test_new_cause.py` execute recipes for developers."""
PROGRAMS = frozenset(
    (
        *(
            "curl",
            "docker",
            "export",
            "helm",
            "kubectl",
            "openssl",
            "pip",
            "prometheus",
            "python",
            "rm",
            "sbatch",
            "sudo",
        ),
        *("umask", "victoria-metrics", "vmagent", "vmalert"),
    )
)
"""Other programs in commands. Their own tests run them where they can run here."""
PASSED_ON = {"run": "train.py", "pick": "--"}
"""Commands that start another program; the rest of the line, from this word on, is that program's."""
_BLOCK = re.compile(r"^( *)(`{3,})(\w*)\n(.*?)^ *\2$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`(stallscope [a-z][^`]*)`(?!`)")


@dataclass(frozen=True)
class Snippet:
    """A code block, or a command in a sentence."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    folders = [ROOT / name for name in ("alerts", "deploy", "exporter", "grafana", "prometheus", "tests")]
    return [*ROOT.glob("*.md"), *(page for folder in folders for page in sorted(folder.rglob("*.md")))]


def snippets() -> Iterator[Snippet]:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for block in _BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            yield Snippet(str(page.relative_to(ROOT)), line, block[3], re.sub(f"^{block[1]}", "", block[4], flags=re.M))


def inline_commands() -> Iterator[Snippet]:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for found in _INLINE.finditer(_BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)):
            yield Snippet(str(page.relative_to(ROOT)), text.count("\n", 0, text.find(found[0])) + 1, "sh", found[1])


ALL = list(snippets())


def of(language: str) -> list[Snippet]:
    return [snippet for snippet in ALL if snippet.language == language]


def test_every_block_names_its_language() -> None:
    known = {"markdown", "mermaid", "promql", "python", "sh", "text", "yaml"}
    assert [str(snippet) for snippet in ALL if snippet.language not in known] == []
    assert {snippet.language for snippet in ALL} == known


def stand_ins() -> dict[str, object]:
    """Return what the code around a user's snippet would define."""
    loss = SimpleNamespace(item=lambda: 0.5, backward=lambda: None)
    return {
        "stallscope": stallscope,
        "loader": [1, 2, 3],
        "train": lambda batch: batch,
        "model": lambda batch: loss,
        "loss": loss,
        "augment": lambda batch: batch,
    }


@pytest.mark.parametrize("snippet", [each for each in of("python") if each.page in EXECUTED], ids=str)
def test_python_for_users_runs(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"unix://{tmp_path}/report.sock")
    monkeypatch.setenv("STALLSCOPE_STRICT", "1")
    exec(compile(snippet.text, str(snippet), "exec"), stand_ins())


@pytest.mark.parametrize("snippet", [each for each in of("python") if each.page not in EXECUTED], ids=str)
def test_python_for_developers_is_valid(snippet: Snippet) -> None:
    entry_of_a_table = snippet.text.startswith('"')
    ast.parse(f"{{{snippet.text}}}" if entry_of_a_table else snippet.text)


@pytest.mark.parametrize("snippet", of("yaml"), ids=str)
def test_yaml_is_valid(snippet: Snippet, tmp_path: Path) -> None:
    content = yaml.safe_load(snippet.text)
    assert content
    if "scrape_configs" in content:
        file = tmp_path / "prometheus.yml"
        file.write_text(snippet.text, encoding="utf-8")
        subprocess.run(["promtool", "check", "config", file], check=True, capture_output=True, timeout=120)


def test_promql_is_valid(tmp_path: Path) -> None:
    rules = [{"record": f"snippet_{number}", "expr": each.text} for number, each in enumerate(of("promql"))]
    assert len(rules) > 100
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "snippets", "rules": rules}]}), encoding="utf-8")
    checked = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stderr


def simple_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command: without comments, variables in front, and what joins commands."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        redirected = False
        for word in [*lexer, ";"]:
            if redirected or word in ("<", ">"):
                redirected = not redirected
            elif word and set(word) <= set("();|&"):
                while words and re.fullmatch(r"\w+=.*", words[0]):
                    del words[0]
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def check(words: list[str], snippet: Snippet) -> None:
    program, *arguments = words
    if program == "stallscope":
        check_own(arguments, snippet)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert [each for each in arguments if "=" not in each and each not in targets] == [], snippet
    else:
        assert program in PROGRAMS, f"{snippet}: unknown program {program!r}"
    for each in arguments:
        path = each.partition("=")[2] or each
        if re.match(r"(deploy|prometheus|alerts|grafana)/", path):
            assert any(ROOT.glob(path)), f"{snippet}: there is no {path}"


def check_own(arguments: list[str], snippet: Snippet) -> None:
    """Check a command line of ours with the command's own parser, as far as names and flags go."""
    if arguments[:1] in (["--help"], ["--version"]):
        return
    name = arguments[0]
    if name == "help":
        assert arguments[1] in (*commands(), "COMMAND"), snippet
        return
    assert name in commands(), f"{snippet}: unknown command {name!r}"
    rest = arguments[1:]
    if name in PASSED_ON:
        end = next((at for at, word in enumerate(rest) if word in ("--", "train.py", "torchrun", "python")), len(rest))
        rest = rest[:end]
    parser = importlib.import_module(f"stallscope.cli.{name}").parser()
    flags = {flag for action in parser._actions for flag in action.option_strings}
    used = {word.partition("=")[0] for word in rest if word.startswith("-")}
    assert used <= flags, f"{snippet}: {name} has no {sorted(used - flags)}"


@pytest.mark.parametrize("snippet", of("sh"), ids=str)
def test_commands_exist_with_their_flags_and_files(snippet: Snippet) -> None:
    for words in simple_commands(snippet.text):
        check(words, snippet)


def test_commands_in_sentences_exist_with_their_flags() -> None:
    found = list(inline_commands())
    assert len(found) > 50
    for snippet in found:
        for words in simple_commands(snippet.text.replace("…", "").replace("\n", " ")):
            check(words, snippet)


@pytest.mark.parametrize(
    "line", ["stallscope fly", "stallscope top --wings", "make fly", "fly", "kubectl -k deploy/moon"]
)
def test_a_wrong_command_is_found(line: str) -> None:
    with pytest.raises(AssertionError):
        check(shlex.split(line), Snippet("page", 1, "sh", line))
