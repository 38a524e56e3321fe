"""Rule file with your values of the thresholds, from a file of names and values."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stallscope.common.thresholds import changed, default_thresholds, with_values
from stallscope.tools.cli._extras import missing
from stallscope.tools.cli._parser import Parser


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "thresholds",
        usage="stallscope thresholds [--set NAME=VALUE]... [FILE]\n       stallscope thresholds --list",
        description="Print prometheus/rules/thresholds.yml with other values. Keep only your values, in a file of "
        "names and values such as `input_warning: 0.15`, and write the rule file from it again after each update: "
        "new thresholds then have their defaults. `stallscope doctor` lists the values that differ. With the Helm "
        "chart, set prometheusOperator.thresholds instead.",
        examples={
            "stallscope thresholds --list": "all names with their defaults",
            "stallscope thresholds overrides.yml > /etc/prometheus/rules/thresholds.yml": "the rule file",
            "stallscope thresholds --set input_warning=0.15 > thresholds.yml": "one other value",
        },
        notes="Exit status: 0 on success, 1 for an unknown name or an invalid value, 2 for an invalid command line. "
        "The differences are printed on standard error.",
    )
    made.add_argument("file", nargs="?", type=Path, metavar="FILE", help="YAML file of names and values")
    made.add_argument(
        "--set",
        action="append",
        default=[],
        type=threshold,
        metavar="NAME=VALUE",
        help="another value; again for further ones, takes precedence over FILE",
    )
    made.add_argument("--list", action="store_true", help="print each name with its default")
    return made


def main(arguments: Sequence[str]) -> int:
    """Print the rule file; return 0 on success, 1 for an unknown name or an invalid value."""
    parsed = parser().parse_args(arguments)
    if parsed.list:
        for name, value in default_thresholds().items():
            print(f"{name}: {value:.12g}")
        return 0
    try:
        values = {**(_read(parsed.file) if parsed.file else {}), **dict(parsed.set)}
        text = with_values(values)
    except ModuleNotFoundError as error:
        return missing("thresholds FILE", error, "exporter", alternative="or give the values with --set")
    except ValueError as problem:
        print(f"stallscope thresholds: {problem}", file=sys.stderr)
        return 1
    for line in changed(values) or ["no value differs from the defaults"]:
        print(f"stallscope thresholds: {line}", file=sys.stderr)
    print(text, end="")
    return 0


def threshold(text: str) -> tuple[str, float]:
    """Parse NAME=VALUE; an argparse type."""
    name, separator, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (name and separator and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE such as warmup_seconds=30, got {text!r}")
    return name, number


def _read(file: Path) -> Mapping[str, float]:
    import yaml  # which --set and --list do not need

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ValueError(f"{file}: cannot read: {problem.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        content = None
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{file}: expected names and values, such as `input_warning: 0.15`")
    for name, value in content.items():
        if type(value) not in (int, float):
            raise ValueError(f"{file}: {name}: expected a number, got {value!r:.40}")
    return {str(name): float(value) for name, value in content.items()}
