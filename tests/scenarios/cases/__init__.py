"""Every case, one file a domain."""

from tests.scenarios.case import Case
from tests.scenarios.cases import input

CASES: tuple[Case, ...] = (*input.CASES,)
"""In the order of the domains."""
