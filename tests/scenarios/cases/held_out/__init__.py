"""Cases by a person who had read neither the rules nor their score: from the catalogue of causes only.

Machines, step times and mixes are others than those of the cases that the rules were tuned on, and figures are drawn
by seed from the ranges of the literature. No test judges the rules by them; the score shows them apart.
"""

from tests.scenarios.case import Case
from tests.scenarios.cases.held_out.calm import CASES as CALM
from tests.scenarios.cases.held_out.edges import CASES as EDGES
from tests.scenarios.cases.held_out.fleet import CASES as FLEET
from tests.scenarios.cases.held_out.loops import CASES as LOOPS

CASES: tuple[Case, ...] = (*LOOPS, *FLEET, *CALM, *EDGES)
