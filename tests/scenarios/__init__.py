"""Labelled cases: what a diagnoser of training bottlenecks ought to find, rendered as exporters would show it."""

from tests.scenarios.cases import CASES, HELD_OUT, LIVES

__all__ = ["CASES", "HELD_OUT", "LIVES"]
