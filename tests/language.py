"""Check the project's texts against its word list: `python -m tests.language`, part of `make lint`.

The list is `language.yml`. codespell replaces single words only; the list has phrases, exceptions with a reason, and
rules for the first words of docstrings. It applies to the names that Python files define too, as words: `pollGPUs` and
`poll_gpus` are "poll gpus".
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
FOLDERS = ("alerts", "deploy", "exporter", "grafana", "prometheus", "tests")
TEXTS = (".md", ".service", ".sh", ".tmpl", ".txt", ".yaml", ".yml")


@dataclass(frozen=True)
class Finding:
    """A word of the list in a text of the repository."""

    path: str
    line: int
    word: str
    use: str
    excerpt: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.word}": {self.use}: …{self.excerpt}…'


@dataclass
class Rules:
    """The word list."""

    words: list[tuple[re.Pattern[str], str]]
    allowed: list[tuple[str, re.Pattern[str]]]
    docstring_starts: re.Pattern[str]
    generated: list[str]
    used: set[int] = field(default_factory=set)
    """Positions of the exceptions that were needed."""

    @classmethod
    def read(cls, file: Path) -> Rules:
        """Return the rules of a file; it is written by hand, so that a missing key is an error."""
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        for entry in content["allowed"]:
            if not entry.get("reason"):
                raise ValueError(f"{file}: allowed: {entry['text']}: a reason is missing; write why the text is right")
        return cls(
            words=[(_pattern(rf"\b(?:{entry['word']})\b"), entry["use"]) for entry in content["words"]],
            allowed=[(entry["in"], _pattern(entry["text"])) for entry in content["allowed"]],
            docstring_starts=re.compile(rf"(?:{'|'.join(content['docstring_starts'])})\b"),
            generated=content["generated"],
        )

    def is_allowed(self, path: str, text: str, start: int, end: int) -> bool:
        """Return whether an exception covers this part of the text."""
        for number, (folder, pattern) in enumerate(self.allowed):
            if _is_below(path, folder) and any(a.start() <= start and end <= a.end() for a in pattern.finditer(text)):
                self.used.add(number)
                return True
        return False


def _pattern(text: str) -> re.Pattern[str]:
    """Return the pattern, ignoring case and line breaks."""
    return re.compile(text.replace(" ", r"[\s#]+"), re.IGNORECASE)


def _is_below(path: str, folder: str) -> bool:
    return folder == "." or path == folder or path.startswith(f"{folder}/")


def files(rules: Rules) -> Iterator[Path]:
    """Yield the repository's files with text that a person wrote."""
    candidates = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    candidates += [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    for path in candidates:
        name = str(path.relative_to(ROOT))
        wanted = path.suffix in (*TEXTS, ".py") or path.parent == ROOT
        if wanted and path.is_file() and not any(_is_below(name, each) for each in rules.generated):
            yield path


def texts(source: str, suffix: str) -> Iterator[tuple[int, str]]:
    """Yield line and text: of Python the comments and strings, of other files all."""
    if suffix != ".py":
        yield 1, source
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if tokenize.tok_name[token.type] in ("COMMENT", "STRING", "FSTRING_MIDDLE"):
            yield token.start[0], _without_expressions(token.string)


def _without_expressions(string: str) -> str:
    """Blank the expressions of an f-string, which are part of its token before Python 3.12."""
    if not re.match(r"(?i)(?:f|rf|fr)['\"]", string):
        return string
    return re.sub(r"\{[^{}]*\}", lambda expression: re.sub(r"\S", " ", expression[0]), string)


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and text of docstrings, also of those below an attribute."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def identifiers(nodes: Iterable[ast.AST]) -> dict[str, int]:
    """Return the names of functions, classes, arguments, variables and attributes with the line of their definition."""
    found: dict[str, int] = {}
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.setdefault(name, node.lineno)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.setdefault(name, node.lineno)
    return found


def _words(identifier: str) -> str:
    return re.sub(r"_+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", identifier).strip()


def check(path: str, source: str, rules: Rules) -> Iterator[Finding]:
    """Yield the findings in a file."""
    suffix = Path(path).suffix
    for line, text in texts(source, suffix):
        for word, use in rules.words:
            for found in word.finditer(text):
                if not rules.is_allowed(path, text, found.start(), found.end()):
                    excerpt = " ".join(text[max(0, found.start() - 40) : found.end() + 40].split())
                    yield Finding(path, line + text.count("\n", 0, found.start()), found[0], use, excerpt)
    if suffix == ".py":
        nodes = list(ast.walk(ast.parse(source)))
        for name, line in identifiers(nodes).items():
            text = _words(name)
            for word, use in rules.words:
                for found in word.finditer(text):
                    if not rules.is_allowed(path, text, found.start(), found.end()):
                        yield Finding(path, line, found[0], use, name)
        for line, text in docstrings(nodes):
            if start := rules.docstring_starts.match(text):
                use = "begin a docstring with a verb or the noun"
                yield Finding(path, line, start[0], use, " ".join(text[:60].split()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.language", description=__doc__)
    parser.add_argument("paths", nargs="*", help="show only findings below these paths")
    parsed = parser.parse_args(arguments)
    rules = Rules.read(Path(__file__).with_suffix(".yml"))
    shown = parsed.paths or ["."]
    findings = [
        finding
        for path in files(rules)
        for finding in check(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"), rules)
        if any(_is_below(finding.path, each.rstrip("/")) for each in shown)
    ]
    unneeded = [entry for number, entry in enumerate(rules.allowed) if number not in rules.used]
    for finding in findings:
        print(finding)
    for folder, pattern in unneeded:
        print(f"tests/language.yml: the exception {pattern.pattern!r} in {folder} is not needed; delete it")
    return 1 if findings or unneeded else 0


if __name__ == "__main__":
    sys.exit(main())
