"""Labelled cases: what a diagnoser of training bottlenecks ought to find, rendered as exporters would show it."""

from tests.scenarios.cases import CASES

__all__ = ["CASES"]
