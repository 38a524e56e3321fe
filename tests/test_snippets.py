"""Code blocks of all Markdown pages, executed or checked by the program that reads them."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import stallscope
from deploy.generate import STACK_ALERTMANAGER
from stallscope.common.thresholds import with_values
from stallscope.node.web.http.configuration_file import read_web_configuration
from stallscope.tools.cli import commands
from tests.deferred import Deferred
from tests.deploy.kubernetes_tools import program
from tests.web.certificates import Authority, needs_openssl

jsonschema = Deferred("jsonschema")

ROOT = Path(__file__).parents[1]
EXECUTED = ("README.md", "exporter/SHIM.md")
"""Pages with Python for users. `test_recipes.py`, `collectors/gpu/test_new_signal.py` and `catalogue/test_new_cause.py`
execute the examples for developers."""
CHECKED_BY_HELP = ("docker", "helm", "kubectl", "prometheus", "victoria-metrics", "vmagent", "vmalert")
"""Programs that reject an unknown flag although `--help` follows it."""
NOT_EXECUTED = {
    "amtool": "needs a running Alertmanager; alerting/ starts it",
    "apt-get": "installs packages of the system",
    "curl": "needs a running exporter",
    "docker": "needs a container engine; deploy/test_image.py executes the image's steps",
    "export": "sets a variable of the reader's shell",
    "helm": "needs a cluster; deploy/test_helm.py renders the chart",
    "install": "needs root",
    "kubectl": "needs a cluster; deploy/test_kubernetes.py renders the overlays",
    "openssl": "writes to /etc, or to a Secret of a cluster",
    "pip": "needs a package index; packaging/ and deploy/test_systemd.py install from the checkout",
    "promtool": "reads a file of the command before it; cli/test_thresholds.py runs it",
    "prometheus": "a server; rules/ and stack/ start it",
    "python": "the reader's training program",
    "rm": "removes a file of the command before it",
    "sbatch": "needs Slurm; deploy/test_slurm.py runs the scripts",
    "sudo": "needs root; deploy/test_systemd.py runs the script below a folder",
    "umask": "belongs to the command after it",
    "useradd": "needs root",
    "victoria-metrics": "a server; prometheus_examples/test_vmalert.py starts it",
    "vmagent": "a server; prometheus_examples/ starts it",
    "vmalert": "a server; prometheus_examples/test_vmalert.py starts it",
}
"""Other programs in commands, and the reason why this file does not run them."""
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
    is_inline: bool = False

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
            yield Snippet(
                str(page.relative_to(ROOT)),
                text.count("\n", 0, text.find(found[0])) + 1,
                "sh",
                found[1],
                is_inline=True,
            )


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
        "reward": lambda completions: completions,
        "push_weights": lambda model: None,
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


def check_scrape_configuration(text: str, folder: Path) -> None:
    file = folder / "prometheus.yml"
    file.write_text(text, encoding="utf-8")
    subprocess.run(["promtool", "check", "config", file], check=True, capture_output=True, timeout=120)


def check_web_configuration(text: str, folder: Path) -> None:
    authority = Authority(folder)
    certificate, key = authority.sign("node")
    replaced = {"node.crt": certificate, "node.key": key, "authority.crt": authority.certificate}
    for name, file in replaced.items():
        text = text.replace(name, str(file))
    file = folder / "web.yml"
    file.write_text(text.replace("$2y$10$...", "$2y$10$" + "a" * 53), encoding="utf-8")
    configuration = read_web_configuration(file)
    assert configuration.tls is not None
    assert set(configuration.users) == {"prometheus"}
    subprocess.run(["promtool", "check", "web-config", file], check=True, capture_output=True, timeout=120)


def check_compose_file(text: str, folder: Path) -> None:
    schema = ROOT / "tests/deploy/compose_schema/compose-spec.json"
    jsonschema.Draft7Validator(json.loads(schema.read_text(encoding="utf-8"))).validate(yaml.safe_load(text))


def check_kustomization(text: str, folder: Path) -> None:
    kubectl = program("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not on PATH, and could not be fetched")
    checkout = Path("../" * (len(folder.resolve().parts) - 1)) / ROOT.relative_to("/")
    (folder / "kustomization.yaml").write_text(text.replace("../stallscope", str(checkout)), encoding="utf-8")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "image: your.registry/stallscope-exporter:" in done.stdout


def check_relabelings(text: str, folder: Path) -> None:
    schema = json.loads((ROOT / "tests/deploy/operator_schemas/PodMonitor.json").read_text(encoding="utf-8"))
    endpoint = {**schema["$defs"]["PodMetricsEndpoint"], "$defs": schema["$defs"]}
    jsonschema.Draft7Validator(endpoint).validate(yaml.safe_load(text))


def check_rules(text: str, folder: Path) -> None:
    file = folder / "rules.yml"
    group = {"groups": [{"name": "snippet", "rules": yaml.safe_load(text)}]}
    file.write_text(yaml.safe_dump(group), encoding="utf-8")
    subprocess.run(["promtool", "check", "rules", file], check=True, capture_output=True, timeout=120)


def check_stack_values(text: str, folder: Path) -> None:
    values = (yaml.safe_load(each) for each in ((ROOT / STACK_ALERTMANAGER).read_text(encoding="utf-8"), text))
    configuration = {key: value for each in values for key, value in each["alertmanager"]["config"].items()}
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    command = ["amtool", "check-config", str(folder / "alertmanager.yml")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def check_thresholds(text: str, _folder: Path) -> None:
    with_values(yaml.safe_load(text))


YAML: dict[str, Callable[[str, Path], None]] = {
    "alerting": check_scrape_configuration,
    "alertmanager": check_stack_values,
    "input_warning": check_thresholds,
    "kind": check_kustomization,
    "record": check_rules,
    "relabelings": check_relabelings,
    "scrape_configs": check_scrape_configuration,
    "services": check_compose_file,
    "tls_server_config": check_web_configuration,
}
"""The check of a YAML block, by a key on its first level."""


def check_of(content: Any) -> Callable[[str, Path], None]:
    """Return the check of a parsed YAML block."""
    keys = content[0] if isinstance(content, list) else content
    (check,) = {YAML[key] for key in keys if key in YAML}
    return check


@needs_openssl
@pytest.mark.parametrize("snippet", of("yaml"), ids=str)
def test_yaml_is_valid_for_the_program_that_reads_it(snippet: Snippet, tmp_path: Path) -> None:
    check_of(yaml.safe_load(snippet.text))(snippet.text, tmp_path)


def test_yaml_of_an_unknown_kind_is_found() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        check_of({"unknown": 1})


def test_promql_is_valid(tmp_path: Path) -> None:
    rules = [{"record": f"snippet_{number}", "expr": each.text} for number, each in enumerate(of("promql"))]
    assert len(rules) > 100
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "snippets", "rules": rules}]}), encoding="utf-8")
    checked = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    "line", re.findall(r"`(from stallscope\.[^`]+)`", (ROOT / "exporter/SHIM.md").read_text("utf-8"))
)
def test_imports_in_the_table_of_integrations_exist(line: str) -> None:
    module, name = re.fullmatch(r"from (\S+) import (\w+)", line).groups()  # type: ignore[union-attr]
    unit = module.replace("stallscope.", "stallscope.training.").replace(".", "/")
    source = (ROOT / "exporter" / f"{unit}.py").read_text(encoding="utf-8")
    is_lazy = "__getattr__" in source and f'"{name}"' in source
    assert is_lazy or name in {getattr(node, "name", "") for node in ast.parse(source).body}


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
    name, *arguments = words
    if name == "stallscope":
        check_own(arguments, snippet)
    elif name == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert [each for each in arguments if "=" not in each and each not in targets] == [], snippet
    else:
        assert name in NOT_EXECUTED, f"{snippet}: unknown program {name!r}"
    for each in arguments:
        path = each.partition("=")[2] or each
        if re.match(r"(deploy|prometheus|alerts|grafana)/", path):
            assert any(ROOT.glob(path)), f"{snippet}: there is no {path}"


def check_own(arguments: list[str], snippet: Snippet) -> None:
    """Check a command line of ours with the command's own parser; in a sentence, only names and flags."""
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
    parser = importlib.import_module(f"stallscope.tools.cli.{name}").parser()
    flags = {flag for action in parser._actions for flag in action.option_strings}
    used = {word.partition("=")[0] for word in rest if word.startswith("-")}
    assert used <= flags, f"{snippet}: {name} has no {sorted(used - flags)}"
    if not snippet.is_inline:
        try:
            parser.parse_args(rest)
        except SystemExit:
            pytest.fail(f"{snippet}: {name} rejects {rest}")


def commands_of(name: str) -> list[tuple[str, list[str]]]:
    """Return the page and words of each command of a program in shell blocks."""
    found = [(str(snippet), words) for snippet in of("sh") for words in simple_commands(snippet.text)]
    return [(page, words) for page, words in found if words[0] == name]


def has_valid_flags(words: list[str]) -> bool:
    """Return whether the program knows the flags of the command."""
    path = program(words[0]) or shutil.which(words[0])
    if path is None:
        pytest.skip(f"{words[0]} is not installed")
    own = words[1 : words.index("--")] if "--" in words else words[1:]
    at = -1 if words[0] == "docker" else len(own)  # docker passes on what follows the image
    command = [path, *own[:at], "--help", *own[at:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.returncode == 0


@pytest.mark.parametrize("name", CHECKED_BY_HELP)
def test_programs_know_the_flags_of_their_commands(name: str) -> None:
    found = [(page, words) for page, words in commands_of(name) if words[1] != "compose"]  # a plugin, often missing
    assert found
    assert [page for page, words in found if not has_valid_flags(words)] == []


def test_an_unknown_flag_of_another_program_is_found() -> None:
    assert not has_valid_flags(["kubectl", "apply", "--client-side", "-k", "deploy/kubernetes/base"])


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
    "line",
    [
        "stallscope fly",
        "stallscope top --wings",
        "stallscope compare",
        "make fly",
        "fly",
        "kubectl -k deploy/moon",
    ],
)
def test_a_wrong_command_is_found(line: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(shlex.split(line), Snippet("page", 1, "sh", line))
