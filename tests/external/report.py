"""Findings as text, and as the table of alerts/VERDICTS.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.external.judge import Finding


def lines(finding: Finding) -> Iterator[str]:
    """Yield one finding as text."""
    recording = finding.trial.recording
    count = len(recording.ranks)
    yield f"{finding.trial.name}: {count} rank{'s' if count > 1 else ''}, {recording.step_seconds:.3g} s a step"
    for note in recording.notes:
        yield f"  note       {note}"
    if recording.published is not None:
        published = recording.published
        yield f"  published  {published.statement}"
        yield f"  expected   {_expected(finding)}"
    yield f"  verdict    {_verdict(finding)}{_mark(finding.is_right)}"
    if (right := finding.is_culprit_right) is not None:
        yield f"  culprit    {_rank(finding) or 'none'}{_mark(right)}"
    if finding.is_share_right is not None:
        yield f"  lost       {_shares(finding)}{_mark(finding.is_share_right)}"
    if recording.published is not None:
        yield f"  delay      {_delay(finding)}"
    yield f"  alerts     {', '.join(finding.alerts) or 'none'}"


def summary(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield how many findings are right, and name every wrong one."""
    known = [each for each in findings if each.is_right is not None]
    wrong = [each for each in known if not each.is_right]
    yield f"{len(known) - len(wrong)} of {len(known)} verdicts are right"
    for each in wrong:
        yield f"  wrong: {each.trial.name}: {each.verdict or 'no verdict'} instead of {_expected(each)}"
    for what, judged in (
        ("culprits", [(each, each.is_culprit_right) for each in known]),
        ("lost shares", [(each, each.is_share_right) for each in known]),
    ):
        stated = [(each, right) for each, right in judged if right is not None]
        if stated:
            yield f"{sum(right for _, right in stated)} of {len(stated)} {what} are right"
            yield from (f"  wrong: {each.trial.name}" for each, right in stated if not right)


def table(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the rows of the table in Markdown."""
    yield (
        "| source | published | verdict | culprit | lost: published, verdict, `run_cause:time_lost` "
        "| first right verdict | |"
    )
    yield "|---|---|---|---|---|---|---|"
    for each in findings:
        recording = each.trial.recording
        published = recording.published
        if published is None:
            continue
        cells = (
            f"{recording.source or recording.name}{_variant(each)}",
            published.statement,
            f"`{each.verdict}`" if each.verdict else "none",
            _culprit_cell(each),
            _lost_cell(each),
            _delay(each),
            "right" if each.is_right else "**wrong**",
        )
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _variant(finding: Finding) -> str:
    return finding.trial.name.removeprefix(finding.trial.recording.name)


def _culprit_cell(finding: Finding) -> str:
    right = finding.is_culprit_right
    found = _rank(finding)
    if right is None:
        return found
    return found if right else f"**{found or 'none'}**"


def _lost_cell(finding: Finding) -> str:
    published = finding.trial.recording.published
    verdict, by_cause = finding.shares
    wanted = "" if published is None or published.lost is None else _percent(published.lost)
    text = ", ".join(part or "none" for part in (wanted, _percent(verdict), _percent(by_cause)))
    return f"**{text}**" if finding.is_share_right is False else text


def _expected(finding: Finding) -> str:
    published = finding.trial.recording.published
    if published is None:
        return ""
    parts = [" or ".join(published.causes)] if published.causes else []
    if published.alert:
        parts.append(f"the alert {published.alert}")
    if not parts:
        parts.append("a cause that the catalogue does not have")
    if published.ranks:
        parts.append(f"rank {' or '.join(map(str, published.ranks))}")
    if published.lost is not None:
        parts.append(f"{_percent(published.lost)} lost")
    return ", ".join(parts)


def _verdict(finding: Finding) -> str:
    if not finding.verdict:
        return "none"
    return ", ".join(filter(None, (finding.verdict, _rank(finding), _percent(finding.lost))))


def _shares(finding: Finding) -> str:
    verdict, by_cause = finding.shares
    return f"{_percent(verdict) or 'none'} in the verdict, {_percent(by_cause) or 'none'} in run_cause:time_lost"


def _rank(finding: Finding) -> str:
    return f"rank {finding.culprit}" if finding.culprit else ""


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _delay(finding: Finding) -> str:
    if finding.delay is None:
        return "never"
    steps = finding.delay / finding.trial.recording.step_seconds
    return f"{finding.delay / 60:.1f} min" + (f", {steps:.0f} steps" if steps < 1000 else "")


def _mark(right: bool | None) -> str:
    return "" if right is None else "  right" if right else "  WRONG"
