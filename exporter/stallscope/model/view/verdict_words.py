"""Verdicts in words, from the table of causes: title, cost, culprit and remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stallscope.common.formatting import capitalised, gpu_name, percent, readable
from stallscope.model.catalogue.causes import CAUSES, MISSING, REMAINDERS, Severity
from stallscope.model.view.model import Run
from stallscope.model.view.stack_groups import at
from stallscope.model.view.verdicts import CodeLine, Culprit, OddRank, Verdict, Verdicts

ROOT_WORDS = {
    "straggler_rank": "slower than the others",
    "straggler_input": "waits for data",
    "straggler_hw": "its GPU is slower than the others'",
    "stage_imbalance": "in a pipeline stage with more work",
    "stalled": "at another place of its code than the others",
    "hang_spin": "not in the collective of the others",
    "hang_io": "waits for storage",
    "loss_nonfinite": "its loss was the first that is not a number",
}
"""Root causes whose title describes the run, worded for the rank."""


PHASE_WORDS = {
    "data_wait": "the wait",
    "checkpoint": "the checkpoints",
    "evaluation": "the evaluation",
    "rollout": "the rollout",
    "reward": "the reward",
    "weight_sync": "the weight sync",
    "other": "this time",
}
"""Phases in words that follow a share; for others, the name of the phase."""

_MAX_ODD = 3
"""Maximum number of ranks that differ in a verdict."""
_MOST = 0.5
"""Share of a phase from which a line has most of it."""


class VerdictWords(NamedTuple):
    """A verdict in words."""

    title: str
    """Title of the cause; the name of an unknown cause."""
    cost: str
    """A sentence; empty if no time is lost."""
    culprit: str
    """A sentence with rank, GPU, node and root cause; empty if no rank is to blame."""
    line: str
    """A sentence with the line of code in which the time passes, or a rank differs from most; empty if unknown."""
    remedy: str
    """A sentence: the remedy of the root cause if it is known, else of the verdict."""
    severity: Severity | None
    of_run: bool
    """True if the cause belongs to the run rather than to the GPU, so that another GPU may have it."""


def words_of(verdict: Verdict, *, with_gpus: bool = True, name: Callable[[str], str] = readable) -> VerdictWords:
    """Return the words of a verdict.

    Args:
        verdict: the verdict of a run or a GPU.
        with_gpus: False for a run without GPUs, whose cost is its own time.
        name: escapes a name from outside for output.
    """
    cause = CAUSES.get(verdict.cause)
    if cause is None:
        title, remedy = REMAINDERS.get(verdict.cause, (verdict.cause, ""))
        remedy = " ".join(MISSING[reason] for reason in MISSING if reason in verdict.missing) or remedy
        return VerdictWords(title, "", "", "", remedy, None, False)
    cost = ""
    if verdict.share > 0:
        cost = f"It costs {percent(verdict.share)} of {'the GPU' if with_gpus else 'its'} time"
        if verdict.lost is not None and verdict.lost - verdict.share >= 0.01:
            cost += f", all causes together {percent(verdict.lost)}"
        cost += "."
    culprit, remedy = "", cause.remedy
    if verdict.culprit is not None:
        culprit = f"{capitalised(phrase_of(verdict.culprit, name))}."
        remedy = remedy_of(verdict.culprit) or remedy
    line = odd_sentence(verdict.odd, name) if verdict.line is None else line_sentence(verdict.line, name)
    return VerdictWords(cause.title, cost, culprit, line, remedy, cause.severity, cause.subject != "gpu")


def why_unjudged(run: Run, verdicts: Verdicts) -> str:
    """Return a sentence on why a run has no verdict; empty if it has ended or Prometheus is unknown."""
    if run.name in verdicts.ambiguous:
        return "Verdict: unknown. Prometheus has several runs of this name with different verdicts."
    if verdicts.age is None or run.ended:
        return ""
    return "Verdict: none yet. Prometheus has no rules, or does not know this run, or only for a short time."


def phrase_of(culprit: Culprit, name: Callable[[str], str] = readable) -> str:
    """Return a culprit as `rank 3, GPU 1 of node1:9400: slowed by heat`.

    Args:
        culprit: the rank, its place and the root cause.
        name: escapes a name from outside for output.
    """
    words = root_words(culprit.cause)
    return f"{place_of(culprit, name)}: {words if culprit.cause in CAUSES else name(words)}"


def line_sentence(line: CodeLine, name: Callable[[str], str] = readable) -> str:
    """Return a sentence such as `62 % of the wait is in data/augment.py:41 elastic, with 4 loader workers`.

    Args:
        line: the line of code.
        name: escapes a name from outside for output.
    """
    phase = PHASE_WORDS.get(line.phase) or f"phase {name(line.phase)}"
    workers = f", with {line.workers} loader {'worker' if line.workers == 1 else 'workers'}" if line.workers else ""
    return f"{percent(line.share)} of {phase} is in {name(f'{line.location} {line.function}'.rstrip())}{workers}."


def odd_sentence(odd: Sequence[OddRank], name: Callable[[str], str] = readable) -> str:
    """Return a sentence such as `Rank 1 is in all_gather at metrics.py:46, unlike most ranks`, in the alerts' words.

    Args:
        odd: the ranks that differ from most ranks of a run at a standstill.
        name: escapes a name from outside for output.
    """
    said = [f"Rank {name(each.rank)} is {name(at(each.place))}, unlike most ranks." for each in odd[:_MAX_ODD]]
    if len(odd) > _MAX_ODD:
        said.append(f"{len(odd) - _MAX_ODD} more ranks differ.")
    return " ".join(said)


def line_words(location: str, function: str, share: float, name: Callable[[str], str] = readable) -> str:
    """Return words such as `most of it at train.py:31 main`, which follow the share of a phase.

    Args:
        location: the path and number of the line.
        function: the function that contains it.
        share: its share of the phase.
        name: escapes a name from outside for output.
    """
    part = "most" if share > _MOST else "the largest part"
    return f"{part} of it at {name(f'{location} {function}'.rstrip())}"


def place_of(culprit: Culprit, name: Callable[[str], str] = readable) -> str:
    """Return the place of a culprit as `rank 3, GPU 1 of node1:9400`."""
    gpu = f", {gpu_name(culprit.gpu, culprit.mig, name)}" if culprit.gpu else ""
    return f"rank {name(culprit.rank)}{gpu} of {name(culprit.instance)}"


def root_words(cause: str) -> str:
    """Return a root cause in words that follow the rank; for an unknown cause its name."""
    if cause in ROOT_WORDS:
        return ROOT_WORDS[cause]
    return in_sentence(CAUSES[cause].title if cause in CAUSES else cause)


def in_sentence(title: str) -> str:
    """Return a title as part of a sentence; abbreviations such as GPU or NVLink keep their capitals."""
    return title[:1].lower() + title[1:] if title[1:2].islower() else title


def remedy_of(culprit: Culprit) -> str:
    """Return the remedy for the root cause; empty if the cause is unknown."""
    return CAUSES[culprit.cause].remedy if culprit.cause in CAUSES else ""
