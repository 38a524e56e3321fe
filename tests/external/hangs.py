"""Dumps of PyTorch's flight recorder of hangs with a published culprit, read as `stallscope stacks` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from stallscope.model.hangs import flight_recorder
from stallscope.model.hangs.conclusion import Conclusion
from stallscope.model.hangs.rank_files import Unreadable
from tests.external.errors import ExternalError

FOLDER = "flight-recorder"
"""Folder next to the recordings, with a folder of dumps for each hang."""
ANSWERS = Path(__file__).with_name("hangs.json")
"""Published answers, by the name of the folder of dumps."""


class Hang(NamedTuple):
    """A hang, and the ranks that the others wait for."""

    name: str
    source: str
    statement: str
    """The cause in the words of a person; empty without an answer."""
    ranks: tuple[int, ...]
    """The ranks at fault, as published."""
    conclusion: Conclusion

    @property
    def is_right(self) -> bool | None:
        """True if the conclusion names exactly the published ranks; None without an answer."""
        return self.conclusion.ranks == self.ranks if self.statement else None


def hangs_in(folder: Path) -> Iterator[Hang]:
    """Yield the hangs of a folder with recordings.

    Raises:
        ExternalError: a folder of dumps can't be read.
    """
    answers = json.loads(ANSWERS.read_text(encoding="utf-8"))
    place = folder / FOLDER
    for dumps in sorted(place.iterdir()) if place.is_dir() else ():
        answer = answers.get(dumps.name, {})
        try:
            conclusion = flight_recorder.read(dumps).conclusion
        except Unreadable as error:
            raise ExternalError(str(error)) from None
        yield Hang(
            dumps.name,
            answer.get("source", dumps.name),
            answer.get("statement", ""),
            tuple(answer.get("ranks", ())),
            conclusion or Conclusion("no rank stands out"),
        )


def lines(hang: Hang) -> Iterator[str]:
    """Yield one hang as text."""
    mark = {None: "", True: "  right", False: "  WRONG"}[hang.is_right]
    yield f"{FOLDER}/{hang.name}"
    if hang.statement:
        yield f"  published  {hang.statement}"
    yield f"  conclusion {hang.conclusion.sentence}{mark}"


def table(hangs: Sequence[Hang]) -> Iterator[str]:
    """Yield the rows of the table of alerts/VERDICTS.md in Markdown."""
    for hang in hangs:
        if hang.statement:
            right = "right" if hang.is_right else "**wrong**"
            found = "ranks " + ", ".join(map(str, hang.conclusion.ranks)) if hang.conclusion.ranks else "none"
            culprit = found if hang.is_right else f"**{found}**"
            cells = (hang.source, hang.statement, f"`stacks`: {hang.conclusion.sentence}", culprit, "", "", right)
            yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
