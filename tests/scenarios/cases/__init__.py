"""Every case, one file a domain."""

from tests.scenarios.case import Case
from tests.scenarios.cases.abstentions import CASES as ABSTENTIONS
from tests.scenarios.cases.device import CASES as DEVICE
from tests.scenarios.cases.hardware import CASES as HARDWARE
from tests.scenarios.cases.held_out import CASES as HELD_OUT
from tests.scenarios.cases.host import CASES as HOST
from tests.scenarios.cases.input import CASES as INPUT
from tests.scenarios.cases.lives import CASES as WHOLE
from tests.scenarios.cases.memory import CASES as MEMORY
from tests.scenarios.cases.negatives import CASES as NEGATIVES
from tests.scenarios.cases.ranks import CASES as RANKS
from tests.scenarios.cases.serving import CASES as SERVING
from tests.scenarios.cases.starts import CASES as STARTS
from tests.scenarios.cases.time import CASES as TIME
from tests.scenarios.cases.use import CASES as USE

CASES: tuple[Case, ...] = (
    *INPUT,
    *DEVICE,
    *MEMORY,
    *TIME,
    *RANKS,
    *HARDWARE,
    *USE,
    *HOST,
    *NEGATIVES,
    *ABSTENTIONS,
    *SERVING,
)
"""In the order of the domains. HELD_OUT has cases that the rules were not tuned on, LIVES cases with a start, a fault
and its end, which are scored over their whole life only."""
LIVES: tuple[Case, ...] = (*WHOLE, *STARTS)
__all__ = ["CASES", "HELD_OUT", "LIVES"]
