from __future__ import annotations

from stallscope.model.view.line_groups import grouped_lines
from stallscope.training.protocol.stacks import HotLine, SampledPhase


def phase(seconds: float, *lines: tuple[str, float]) -> SampledPhase:
    return SampledPhase(seconds, tuple([HotLine(location, "f", share, 2) for location, share in lines]))


def test_ranks_with_the_same_first_line_are_one_group() -> None:
    ranks = {
        0: {"data_wait": phase(6.0, ("a.py:1", 0.9), ("b.py:2", 0.1)), "forward": phase(4.0)},
        1: {"data_wait": phase(8.0, ("a.py:1", 0.5), ("c.py:3", 0.3)), "forward": phase(2.0, ("m.py:9", 1.0))},
        2: {"data_wait": phase(10.0, ("slow.py:7", 1.0))},
    }
    data_wait, forward = grouped_lines(ranks)
    assert (data_wait.phase, forward.phase) == ("data_wait", "forward")
    assert [(group.ranks, round(group.share, 2)) for group in data_wait.groups] == [((0, 1), 0.7), ((2,), 1.0)]
    assert data_wait.groups[0].shares == (0.6, 0.8)
    assert [(line.location, round(line.share, 2)) for line in data_wait.groups[0].lines] == [
        ("a.py:1", 0.7),
        ("c.py:3", 0.15),
        ("b.py:2", 0.05),
    ]
    assert [group.ranks for group in forward.groups] == [(1,)]


def test_a_group_has_five_lines_at_most() -> None:
    ranks = {
        rank: {"other": phase(1.0, ("a.py:1", 0.6), *[(f"b.py:{rank}{n}", 0.1) for n in range(4)])} for rank in (0, 1)
    }
    assert len(grouped_lines(ranks)[0].groups[0].lines) == 5


def test_seconds_that_a_user_has_written_by_hand_may_be_zero() -> None:
    assert grouped_lines({0: {"other": phase(0.0, ("a.py:1", 1.0))}})[0].groups[0].share == 0.0


def test_without_lines_there_is_no_phase() -> None:
    assert grouped_lines({}) == grouped_lines({0: {}, 1: {"forward": phase(0.3)}}) == ()
