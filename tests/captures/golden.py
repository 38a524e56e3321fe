"""Golden pages of captures: `python -m tests.captures.golden` (or `make generate`) writes them all anew."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from stallscope.node.drivers.nvidia.capture import read
from stallscope.tools.cli.record import replay

CAPTURES = Path(__file__).parent


def captures() -> list[Path]:
    """Every committed capture."""
    return sorted(CAPTURES.glob("*.capture.jsonl"))


def golden(capture: Path) -> Path:
    """Where a capture's page stands."""
    return capture.with_name(capture.name.replace(".capture.jsonl", ".golden.txt"))


def main() -> int:
    """Write every page; return 1 where a capture lacks answers."""
    logging.getLogger("stallscope").addHandler(logging.NullHandler())
    status = 0
    for capture in captures():
        page, unanswered = replay(read(capture))
        golden(capture).write_text(page, encoding="utf-8")
        for call in sorted(set(unanswered)):
            print(f"{capture.name}: never recorded: {call}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
